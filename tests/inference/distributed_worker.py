"""One rank of a test in several processes: runs every case, and stores what it found.

    python distributed_worker.py RANK SIZE INIT_FILE OUTPUT [BACKEND]

A case is a function of a `Shards` that gives named tensors or strings. Each rank holds its rows of
the data, a process that is alone all of them.
"""

from __future__ import annotations

import datetime
import functools
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import toy_kinds
from torch import Tensor, nn

import lingp
from lingp import likelihoods
from lingp.inference import RoundingWarning
from lingp.runtime.shards import OtherRankError, Shards

Found = dict[str, Any]
SIZES = (7, 4)  # rows of each rank
DEVICE = torch.device("cpu")


def rows(shards: Shards, dtype: torch.dtype = torch.float64) -> Tensor:
    """This rank's rows of one matrix, (n x 4); all of them where it is alone."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(sum(SIZES), 4, generator=generator, dtype=torch.float64)
    return own(whole.to(DEVICE, dtype), shards)


def own(x: Tensor, shards: Shards) -> Tensor:
    """The rows of this rank."""
    return x if shards.size == 1 else x.split(SIZES)[shards.rank]


def primitives(shards: Shards) -> Found:
    found: Found = {}
    for dtype in (torch.float32, torch.float64):
        x = rows(shards, dtype).requires_grad_()
        spread = shards.with_rows(len(x))
        w = torch.linspace(-1, 1, 4, dtype=dtype, device=DEVICE).requires_grad_()
        # a loss that takes every way from local to replicated and back
        local = (x * spread.enter(w)).sin()
        gathered = spread.gather_rows(local)
        mixed = gathered.cumsum(0)
        total = spread.sum((spread.own_rows(mixed) * local).sum(0)) + spread.mean(spread.enter(w))
        loss = (total * w).exp().sum()
        by_w, by_x = torch.autograd.grad(loss, (w, x), create_graph=True)
        (twice,) = torch.autograd.grad((by_w**2).sum(), w)
        name = str(dtype).removeprefix("torch.")
        found |= {
            f"{name} total": total,
            f"{name} loss": loss,
            f"{name} gradient": by_w,
            f"{name} own gradient": spread.gather_rows(by_x),
            f"{name} second gradient": twice,
        }
        square = spread.fewer_rows(x)
        found[f"{name} fewer rows"] = square.mT @ square
    found["rows"] = torch.tensor([spread.num_rows, spread.total(len(x)), spread.largest(3.0)])
    whole = spread.gather_rows(x.mT.contiguous().mT)  # not contiguous
    found["gathered"], found["own rows"] = whole, spread.gather_rows(spread.own_rows(whole))
    found["integers"] = spread.sum(torch.tensor([len(x)]))
    return found


def network(num_outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(num_outputs)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, num_outputs)).to(
            DEVICE, torch.float64
        )


def data(shards: Shards, num_outputs: int, kind: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of this rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(SIZES), 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(sum(SIZES), num_outputs, generator=generator, dtype=torch.float64)
    x, noise = x.to(DEVICE), noise.to(DEVICE)
    f = network(num_outputs)(x).detach() + noise
    y = {"values": f, "labels": f.argmax(-1), "counts": f.exp().round()}[kind]
    return own(x, shards), own(y, shards)


def x_test() -> Tensor:
    return torch.linspace(-2, 2, 9, dtype=torch.float64, device=DEVICE).view(3, 3)


def results(gp: lingp.LinearizedGP, prefix: str = "", at: Tensor | None = None) -> Found:
    """Evidence, its gradient, and the posterior at three inputs."""
    x = x_test() if at is None else at
    evidence = gp.log_marginal_likelihood()
    free = {name: p for name, p in gp.named_hyperparameters() if p.requires_grad}
    gradients = torch.autograd.grad(evidence, list(free.values()))
    posterior = gp.posterior(x)
    found = {
        "evidence": evidence,
        "mean": posterior.mean,
        "covariance": posterior.covariance_matrix,
    }
    found |= {f"gradient in {name}": g for name, g in zip(free, gradients, strict=True)}
    found["marginals"] = gp.predict(x).epistemic_variance
    found["sample"] = gp.sample(x, 2, generator=seeded())
    return {prefix + name: value for name, value in found.items()}


def seeded() -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(2)


LIKELIHOODS: dict[str, tuple[Callable[[], Any], int, str]] = {
    "one noise": (lambda: likelihoods.Gaussian(0.3), 2, "values"),
    "noise per output": (
        lambda: likelihoods.Gaussian(torch.tensor([0.2, 0.5], dtype=torch.float64)),
        2,
        "values",
    ),
    "labels": (likelihoods.Categorical, 3, "labels"),
    "Student-t": (likelihoods.StudentT, 2, "values"),
}


def fitted(shards: Shards, likelihood: str, inference: Any, **options: Any) -> lingp.LinearizedGP:
    make, num_outputs, kind = LIKELIHOODS[likelihood]
    steps = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    gp = lingp.LinearizedGP(
        network(num_outputs),
        make(),
        prior=options.pop("prior", None) or lingp.priors.Layerwise(steps, mean=0.05),
        inference=inference,
        process_group=shards.group,
        **options,
    )
    return gp.fit(*data(shards, num_outputs, kind))


def exact(shards: Shards, likelihood: str, mean: str) -> Found:
    return results(fitted(shards, likelihood, "weight_space", mean=mean))


def sparse(shards: Shards, likelihood: str, mean: str) -> Found:
    method = lingp.Sparse(5, "greedy")
    gp = fitted(shards, likelihood, method, mean=mean)
    return results(gp) | {"choice": str(gp.inference_choice).partition("cross")[0]}


def iterative(shards: Shards, likelihood: str, mean: str) -> Found:
    method = lingp.Iterative(num_inducing=3, tolerance=1e-12, generator=seeded())
    return results(fitted(shards, likelihood, method, mean=mean))


def one_scale(shards: Shards) -> Found:
    """An isotropic prior, for which much is computed at scale one; correlated noise."""
    noise = torch.tensor([[0.5, 0.2], [0.2, 0.4]], dtype=torch.float64)
    found: Found = {}
    for name, method in (("exact", "weight_space"), ("sparse", lingp.Sparse(5, "greedy"))):
        gp = fitted(shards, "one noise", method, mean="refit", prior=1.5)
        found |= results(gp, f"{name} ")
        gp.likelihood = likelihoods.CorrelatedGaussian(noise)
        found |= results(gp, f"{name}, correlated ")
    return found


def kinds_of_ones_own(shards: Shards) -> Found:
    """A likelihood, a prior, a layer rule and an inference method, as users write them."""
    x, y = data(shards, 1, "values")
    found: Found = {}
    for kind, (make, options) in toy_kinds.KINDS.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = make().to(DEVICE, torch.float64)
        chosen = {"inference": "weight_space", **options()}
        gp = lingp.LinearizedGP(net, process_group=shards.group, **chosen)
        gp.fit(x[:, :1], y)
        found |= results(gp, f"{kind} ", x_test()[:, :1])
    return found


def past_rounding(shards: Shards) -> Found:
    """A prior so wide that the factor comes from a QR of the rows, wherever they are."""
    found: Found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        for name, method in (("exact", "weight_space"), ("sparse", lingp.Sparse(5, "greedy"))):
            gp = fitted(shards, "noise per output", method, prior=1e-14)
            assert gp.laplace.posterior().factorization.from_qr
            evidence = gp.log_marginal_likelihood()
            (found[f"{name} gradient"],) = torch.autograd.grad(evidence, gp.prior.raw_precision)
            found[f"{name} evidence"] = evidence
    return found


def weights_and_changes(shards: Shards) -> Found:
    """Rows that are weighted, added, taken away; weights of classes that all ranks count."""
    x, y = data(shards, 3, "labels")
    weights = torch.linspace(0.5, 2.0, sum(SIZES), dtype=torch.float64)
    firsts = [0, SIZES[0]] if shards.size == 1 else [0]  # the first row of each rank
    found: Found = {}
    for name, method in (("exact", "weight_space"), ("sparse", lingp.Sparse(5, "greedy"))):
        gp = lingp.LinearizedGP(
            network(3), "categorical", prior=1.5, inference=method, process_group=shards.group
        )
        gp.fit(x, y, sample_weight=own(weights, shards), class_weight="balanced")
        found |= results(gp, f"{name}, weighted ")
        gp.add_data(x[firsts] + 0.1, y[firsts])
        found |= results(gp, f"{name}, added ")
        gp.remove_data(firsts)
        found |= results(gp, f"{name}, removed ")
    return found


def tuned(shards: Shards) -> Found:
    """Hyperparameters by every way of searching."""
    found: Found = {}

    def keep(name: str, gp: lingp.LinearizedGP, how: Any) -> None:
        found[f"{name}, how"] = how
        for key, value in gp.named_hyperparameters():
            found[f"{name}, {key}"] = value.detach().clone()
        found[f"{name}, variance"] = gp.predict(x_test()).epistemic_variance

    for name, method, prior in (
        ("eigendecomposition", "auto", 1.5),
        ("mackay", "mackay", 1.5),
        ("l-bfgs", "l-bfgs", 1.5),
    ):
        gp = fitted(shards, "one noise", "weight_space", mean="refit", prior=prior)
        result = gp.optimize_hyperparameters(method=method)
        keep(name, gp, result.method)
    gp = fitted(shards, "labels", "weight_space", prior=1.5)
    gp.optimize_hyperparameters(num_restarts=0)
    keep("labels", gp, "")
    gp = fitted(shards, "one noise", "weight_space", prior=1.5)
    x, y = data(shards, 2, "values")
    outcome = gp.optimize_hyperparameters(validation=(x + 0.1, y), absorb=False)
    keep("validation", gp, outcome.num_rows)
    return found


def choices(shards: Shards) -> Found:
    """What is chosen, and what is refused, where data are spread."""
    gp = fitted(shards, "one noise", "auto", mean="refit")
    return {
        "auto": gp.inference_choice.space,
        "function space": message(lambda: fitted(shards, "one noise", "function_space")),
        "leave-one-out": message(gp.leave_one_out),
        "objective": message(
            lambda: gp.optimize_hyperparameters(objective="leave_one_out", num_restarts=0)
        ),
    }


def wrong_data(shards: Shards) -> Found:
    """Mistakes that one rank makes; afterwards all go on."""
    x, y = data(shards, 2, "values")
    bad = y.clone()
    if shards.rank == 1:
        bad[0] = float("nan")
    gp = lingp.LinearizedGP(network(2), process_group=shards.group)
    found = {"targets": message(lambda: gp.fit(x, bad))}
    found["empty"] = message(lambda: gp.fit([(x, y)] if shards.rank == 0 else []))
    other = lingp.LinearizedGP(network(2), prior=1.0 + shards.rank, process_group=shards.group)
    found["prior"] = message(lambda: other.fit(x, y))
    net = network(2)
    with torch.no_grad():
        net[0].weight += 1e-12 * shards.rank
    other = lingp.LinearizedGP(net, process_group=shards.group)
    found["network"] = message(lambda: other.fit(x, y))
    points = lingp.Sparse(inducing=x_test() + shards.rank)
    found["inducing"] = message(lambda: fitted(shards, "one noise", points))
    gp.fit(x, y)
    # from here on a rank can ask for itself
    if shards.rank == 0:
        gp.predict(x_test())
        gp.sample(x_test())
    method = lingp.Iterative(num_inducing=3, generator=seeded())
    solving = fitted(shards, "one noise", method)
    found["prediction"] = message(lambda: solving.predict(x_test() + shards.rank))
    found["sizes"] = message(lambda: solving.predict(x_test()[: 1 + shards.rank]))
    return found | {"went on": gp.predict(x_test()).epistemic_variance}


def example(shards: Shards) -> Found:
    """What examples/distributed.py prints: it trains in parallel, too."""
    path = Path(__file__).parents[2] / "examples" / "distributed.py"
    found = runpy.run_path(str(path))["run"](60, 50)
    # training adds gradients in another order, which 50 steps amplify
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in found.items()}


def same_bits(shards: Shards) -> Found:
    """Sums of numbers whose order shows in the last bits."""
    generator = torch.Generator().manual_seed(shards.rank)
    return {
        f"{dtype} {size}": shards.sum(torch.randn(size, generator=generator, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
        for size in (1, 7, 1000, 100_000)
    }


def refusals(shards: Shards) -> Found:
    """What every rank is told when one of them is wrong."""

    def fail() -> None:
        if shards.rank == 1:
            raise ValueError("y: bad")

    return {
        "empty": message(lambda: shards.with_rows(1 - shards.rank)),
        "failed": message(lambda: shards.attempt(fail)),
        "disagree": message(
            lambda: shards.check_agreement({"noise": 1.0, "precision": 1.0 + shards.rank})
        ),
        "agree": message(lambda: shards.check_agreement({"noise": 1.0})),
        "went on": shards.attempt(lambda: "yes"),
    }


def message(act: Callable[[], object]) -> str:
    """What an act raises."""
    try:
        act()
    except (ValueError, RuntimeError) as error:
        kind = "OtherRankError" if isinstance(error, OtherRankError) else type(error).__name__
        return f"{kind}: {error}"
    return "nothing raised"


METHODS = {"weight space": exact, "sparse": sparse, "iterative": iterative}
CASES: dict[str, Callable[[Shards], Found]] = {
    "primitives": primitives,
    "one scale": one_scale,
    "kinds of one's own": kinds_of_ones_own,
    "past rounding": past_rounding,
    "weights and changes": weights_and_changes,
    "tuned": tuned,
    "example": example,
    "choices": choices,
    "wrong data": wrong_data,
    **{
        f"{name}, {likelihood}, {mean}": functools.partial(make, likelihood=likelihood, mean=mean)
        for name, make in METHODS.items()
        for likelihood in LIKELIHOODS
        for mean in ("network", "refit")
    },
    "same bits": same_bits,
    "refusals": refusals,
}


def detached(found: Found) -> Found:
    return {k: v.detach().cpu() if isinstance(v, Tensor) else v for k, v in found.items()}


def main(rank: int, size: int, init_file: str, output: str, backend: str = "gloo") -> None:
    global DEVICE
    if backend == "nccl":
        DEVICE = torch.device("cuda", rank)
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(
        backend,
        init_method=f"file://{init_file}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=120),
    )
    shards = Shards.of(dist.group.WORLD)
    results = {}
    for name, case in CASES.items():
        try:
            results[name] = detached(case(shards))
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    torch.save(results, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

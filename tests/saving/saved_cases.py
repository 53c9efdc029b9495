"""GPs of all kinds that are saved here and loaded in another process; run there as a script."""

from __future__ import annotations

import math
import sys
import warnings
from itertools import product
from pathlib import Path

import torch
from likelihood_cases import CASES
from torch import nn

import lingp
from lingp.likelihoods import AutodiffLikelihood, FromDistribution
from lingp.models import LinearizedGP

# of those that differ in shapes, in extreme values or in their reference only, one is enough
_LEFT_OUT = (
    *("by-definition", "all-equal", "narrow", "clamped", "own-curvature", "1e", "extreme"),
    *("column", "labels", "grid", "exposure-1", "trials-2", "categorical-2", "-10"),
    *("softplus-3", "exp-3", "distribution-bernoulli", "distribution-student-t"),
)
LIKELIHOODS = {c.name: c for c in CASES if not any(word in c.name for word in _LEFT_OUT)}
KINDS = {
    "weight space": ("weight_space", "auto"),
    "weight space, data": ("weight_space", True),
    "function space": ("function_space", "auto"),
    "sparse": (lingp.Sparse(4), "auto"),
    "sparse, data": (lingp.Sparse(5, points="pairs", complement="prior"), True),
    "iterative": (lingp.Iterative(3), "auto"),
}
MEANS = ("network", "refit")
FRESH = [kind for kind in KINDS if not kind.endswith("data")]
# every likelihood with every inference, both means with each of them
TABLE = {
    f"{name} | {kind}": (name, kind, MEANS[(i + j) % 2])
    for (i, name), (j, kind) in product(enumerate(LIKELIHOODS), enumerate(FRESH))
}


def make_net(output_shape: tuple[int, ...] = (1,), seed: int = 0) -> nn.Module:
    """Two inputs, one hidden layer, float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, math.prod(output_shape))]
    if output_shape == ():
        layers.append(nn.Flatten(0))
    elif len(output_shape) > 1:
        layers.append(nn.Unflatten(1, output_shape))
    return nn.Sequential(*layers).double()


def make_inputs(num_data: int = 10, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_data, 2, generator=generator, dtype=torch.float64)


X = make_inputs(20)
Y = X.sum(1, keepdim=True).sin()
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def fitted(name: str, kind: str, mean: str) -> LinearizedGP:
    """A GP on random data, of its own."""
    case, (inference, _) = LIKELIHOODS[name], KINDS[kind]
    targets = case.targets(torch.Generator().manual_seed(0), 10)
    gp = LinearizedGP(
        make_net(case.output_shape), case.make(), prior=2.0, inference=inference, mean=mean
    )
    return gp.fit(make_inputs(), targets, progress=False)


def loaded(name: str, path: Path) -> LinearizedGP:
    """The GP in a file, with a network of other weights."""
    case = LIKELIHOODS[name]
    made = case.make()
    functions = isinstance(made, (AutodiffLikelihood, FromDistribution))
    return LinearizedGP.load(
        path, make_net(case.output_shape, seed=1), likelihood=made if functions else None
    )


def results(gp: LinearizedGP, *, moments: bool = False) -> dict[str, torch.Tensor]:
    """What a GP predicts."""
    X, generator = make_inputs(3, seed=1), torch.Generator().manual_seed(0)
    prediction = gp.predict(X, progress=False)
    found = {
        "latent mean": prediction.latent_mean,
        "latent covariance": prediction.latent_covariance,
        "draws of the function": gp.sample(X, 2, generator=generator),
    }
    if moments:
        found |= {"mean": prediction.mean, "variance": prediction.variance}
        found["posterior"] = gp.posterior(X).covariance_matrix
        found["draws"] = prediction.sample(2, generator=generator)
    return {name: value.detach().clone() for name, value in found.items()}


def same(here: dict[str, torch.Tensor], there: dict[str, torch.Tensor]) -> bool:
    """Whether two GPs predict the same bits."""
    assert here.keys() == there.keys()
    return all(torch.equal(value, there[what]) for what, value in here.items())


def make_gp(likelihood="gaussian", outputs=1, y=Y, **options) -> LinearizedGP:
    """A GP on X and y."""
    options = {"prior": 2.0, **options}
    return LinearizedGP(make_net((outputs,)), likelihood, **options).fit(X, y, progress=False)


def through_file(gp, tmp_path, include_data="auto", **options) -> LinearizedGP:
    """The GP after a trip through a file, into a network of other weights."""
    gp.save(tmp_path / "model.lingp", include_data=include_data)
    net = make_net(tuple(gp.linearized.output_shape), seed=1)
    return LinearizedGP.load(tmp_path / "model.lingp", net, **options)


def results_of(gp: LinearizedGP, name: str, kind: str) -> dict[str, torch.Tensor]:
    """The same; what depends on the likelihood alone with one kind of inference."""
    return results(gp, moments=LIKELIHOODS[name].with_moments and kind == "weight space")


def main(folder: Path) -> None:
    """Load every file of a folder and write what it predicts beside it."""
    found = {}
    for number, (key, (name, kind, _)) in enumerate(TABLE.items()):
        found[key] = results_of(loaded(name, folder / f"{number}.lingp"), name, kind)
    torch.save(found, folder / "results.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))

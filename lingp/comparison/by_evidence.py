"""Choosing between networks by their evidence.

Depth, width, activation, or anything else that may differ: every candidate is trained with the
evidence, and that of the largest evidence is chosen, without validation data (MacKay, 1992, "A
practical Bayesian framework for backpropagation networks"; Immer, Bauer, Fortuin, Rätsch and
Khan, 2021, section 4.2). With test data, ranks show how far to trust the evidence here.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from lingp.comparison.result import Candidate, Comparison, Run
from lingp.models import LinearizedGP
from lingp.training import EvidenceTraining, effective_parameters, train_with_evidence

Trained = EvidenceTraining | LinearizedGP
Given = nn.Module | Callable[..., nn.Module] | Trained


def compare_by_evidence(
    candidates: Mapping[str, Given],
    X: Any = None,
    y: Any = None,
    *,
    restarts: int = 1,
    X_test: Any = None,
    y_test: Any = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Train candidates with the evidence and compare them by it.

    Parameters
    ----------
    candidates
        By name: a network to start from; a function that makes one, without arguments or of a seed;
        or what is trained already, an `EvidenceTraining` or a `LinearizedGP` with data.
    X, y
        Training data; not needed where everything is trained.
    restarts
        Starts of each function among the candidates. The run of the largest evidence stands for the
        candidate.
    X_test, y_test
        Data that no candidate has seen. Nothing is chosen by them.
    generator
        Draws the seeds. All candidates have the same ones; functions are called with torch's random
        state set by the seed, and that state is put back.
    progress
        Whether training shows its progress.
    **options
        Options of `train_with_evidence` for every candidate that is trained here, such as `plan`,
        `likelihood` and `prior`; `mean` is "network" by default.

    Returns
    -------
    Comparison
        Sorted by evidence. A candidate whose training stops with an error is in it, with the error.

    Raises
    ------
    ValueError
        If evidences can't be compared: data or means differ.
    RuntimeError
        If no candidate could be trained.

    Examples
    --------
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> widths = {
    ...     f"{w} units": lambda w=w: nn.Sequential(nn.Linear(1, w), nn.Tanh(), nn.Linear(w, 1))
    ...     for w in (1, 3)
    ... }
    >>> found = compare_by_evidence(widths, X, X.sin(), steps=50, updates=2, progress=False)
    >>> [c.name for c in found.candidates] == sorted(widths, key=lambda n: -found[n].evidence)
    True
    """
    if not candidates:
        raise ValueError("candidates: there are none; give at least one network by its name")
    if restarts < 1:
        raise ValueError(f"restarts: expected at least 1, got {restarts}")
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test: give both or neither")
    for name, given in candidates.items():
        _check(name, given, restarts, has_data=X is not None)
    source = generator or torch.Generator().manual_seed(0)
    seeds = torch.randint(2**31, (restarts,), generator=source, device=source.device).tolist()

    def train(given: nn.Module | Callable[..., nn.Module], seed: int) -> EvidenceTraining:
        # the mean that hyperparameters are learned with: evidences of others would not compare
        own: dict[str, Any] = {
            "generator": torch.Generator().manual_seed(seed),
            "mean": "network",
            **options,
        }
        return train_with_evidence(_network(given, seed), X, y, progress=progress, **own)

    made = []
    for name, given in candidates.items():
        if isinstance(given, Trained):
            runs = [_run(given, None, X_test, y_test)]
        else:
            runs = [
                _run(partial(train, given, seed), seed, X_test, y_test)
                for seed in (seeds[:1] if isinstance(given, nn.Module) else seeds)
            ]
        made.append(Candidate(name, tuple(runs)))
    _check_comparable(made)
    return Comparison.of(made)


def _check(name: str, given: Any, restarts: int, *, has_data: bool) -> None:
    if isinstance(given, Trained):
        return
    if not callable(given):
        raise TypeError(
            f"candidates[{name!r}]: expected a network, a function that makes one, an "
            f"EvidenceTraining or a LinearizedGP, got {type(given).__name__}"
        )
    if not has_data:
        raise ValueError(f"X: missing, but candidates[{name!r}] is not trained yet")
    if isinstance(given, nn.Module) and restarts > 1:
        raise ValueError(
            f"restarts: {restarts}, but candidates[{name!r}] is one network with the weights it "
            "has; give a function that makes one, such as lambda: nn.Sequential(...)"
        )


def _network(given: nn.Module | Callable[..., nn.Module], seed: int) -> nn.Module:
    if isinstance(given, nn.Module):
        return given
    try:
        arguments = inspect.signature(given).bind().args
    except TypeError:  # it takes one
        arguments = (seed,)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = given(*arguments)
    if not isinstance(made, nn.Module):
        raise TypeError(f"candidates: a function gave {type(made).__name__}, not a torch.nn.Module")
    return made


def _run(given: Trained | Callable[[], Trained], seed: int | None, X_test: Any, y_test: Any) -> Run:
    """Train and score; what goes wrong is kept, for it says something about the candidate."""
    start = time.perf_counter()
    try:
        trained = given if isinstance(given, Trained) else given()
        seconds = time.perf_counter() - start if seed is not None else float("nan")
        gp = trained.gp if isinstance(trained, EvidenceTraining) else trained
        parts = gp.evidence()
        return Run(
            seed=seed,
            trained=trained,
            evidence=parts.value,
            log_likelihood=parts.log_likelihood,
            effective_parameters=effective_parameters(gp),
            num_parameters=gp.linearized.num_parameters,
            num_data=gp.laplace.training.num_data,
            seconds=seconds,
            test_log_likelihood=_test_log_likelihood(gp, X_test, y_test, seed),
        )
    except Exception as error:  # whatever stops one candidate must not stop the others
        return Run(seed=seed, error=error, seconds=time.perf_counter() - start)


def _test_log_likelihood(gp: LinearizedGP, X: Any, y: Any, seed: int | None) -> float | None:
    """Mean over test rows of log p(y | data)."""
    if X is None:
        return None
    generator = torch.Generator(gp.linearized.device).manual_seed(seed or 0)
    return float(gp.predict(X, generator=generator, progress=False).log_prob(y).mean())


def _check_comparable(candidates: Sequence[Candidate]) -> None:
    """Raise unless evidences are of the same data and the same mean."""
    fine = [c for c in candidates if c.gp is not None]
    if not fine:
        first = next(iter(candidates)).runs[0].error
        raise RuntimeError(
            f"candidates: none of {len(candidates)} could be trained; {candidates[0].name}: "
            f"{type(first).__name__}: {first}"
        ) from first
    first_gp = fine[0].gp
    assert first_gp is not None
    targets = first_gp.laplace.training.targets.cpu().double()
    for candidate in fine[1:]:
        gp = candidate.gp
        assert gp is not None
        own = gp.laplace.training.targets.cpu().double()
        alike = own.shape != targets.shape or torch.allclose(
            own, targets, rtol=1e-6, atol=1e-6, equal_nan=True
        )
        if len(own) != len(targets) or not alike:
            raise ValueError(
                f"candidates: {fine[0].name!r} and {candidate.name!r} were trained on different "
                f"targets ({len(targets)} and {len(own)} rows); evidences compare on the same data"
            )
        if gp.mean != first_gp.mean:
            raise ValueError(
                f"candidates: {fine[0].name!r} has the {first_gp.mean} mean and {candidate.name!r} "
                f"the {gp.mean} mean; evidences compare with the same mean"
            )

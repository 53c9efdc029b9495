"""Hyperparameters by the predictive density of validation data.

Prior variances are multiplied by a common factor s, and the noise variance of a Gaussian likelihood
(or the temperature of a tempered one) by 1/t. Where the curvature changes by a factor only, one
eigendecomposition gives the predictive of the validation rows at every s and t (see
`spectrum`), with the posterior's mean moving along where it is refitted. A refitted mean of
a likelihood that isn't quadratic takes a refit for every s, and expected curvature its own fixed
point, found roughly from that of the factor before.

Where the mean of class labels is scaled (see `lingp.inference.mean_scale`), its scale is the best
for these rows at every s. With it they often can't tell one s from another, for what the average
takes the scale gives back, while far from the data s decides. So of the factors that these rows
can't tell from the best, by the standard error of the difference, the one that changes least is
taken. Rows without a single error would like certainty; one more row, predicted right or wrong,
counts with them.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.mean_scale import Matched
from lingp.inference.training_set import TrainingSet
from lingp.inference.tuning.scale_search import Scales, search_grid, search_uphill
from lingp.inference.tuning.validation_density import Factor, ValidationDensity
from lingp.likelihoods import Gaussian, Tempered
from lingp.operators.batches import Batch
from lingp.runtime.progress import count
from lingp.runtime.restoring import restored_on_error

_SPAN = 1e6
_TYPICAL = 10.0  # factor by which a prior found without validation data may be off


class BoundaryWarning(UserWarning):
    """The best value found lies at the edge of what was searched."""


@dataclass(frozen=True)
class ValidationResult:
    """The result of `tune_on_validation`.

    Attributes
    ----------
    initial_value, value
        Sum of the log predictive densities of the validation rows before and after; of expected
        curvature to about 1e-4 per row.
    num_rows
        The number of validation rows.
    scales
        The factor of each kind of hyperparameter: "prior variances", and "noise"
        or "temperature" where the likelihood has one that is free.
    at_boundary
        Whether the best factors lie at the edge of what was searched.
    num_evaluations
        The number of factors that were tried.
    mean
        Whose mean predictions have: "network" or "refit".
    method
        "eigendecomposition", or "factorisations" where every try took one.
    mean_scale
        s of the predictions of class labels that these rows like best; None where it wasn't free.
    network_value
        Sum of the log densities of the validation rows by the network alone, its outputs taken as
        they are; None where there is no such thing: for a refitted mean, and for noise.
    """

    initial_value: float
    value: float
    num_rows: int
    scales: dict[str, float]
    at_boundary: bool
    num_evaluations: int
    mean: str
    method: str
    mean_scale: float | None = None
    network_value: float | None = None

    def __str__(self) -> str:
        factors = ", ".join(f"{name} x {factor:.3g}" for name, factor in self.scales.items())
        if self.mean_scale is not None:
            factors += f", mean scale {self.mean_scale:.3g}"
        alone = ""
        if self.network_value is not None:
            alone = f" (the network alone: {self.network_value:.6g})"
        return (
            f"log predictive density of {self.num_rows} validation rows ({self.mean} mean) "
            f"{self.initial_value:.6g} -> {self.value:.6g}{alone}: {factors}"
            f"{' (at the edge of the search)' if self.at_boundary else ''}; by {self.method}, "
            f"{self.num_evaluations} evaluations"
        )


def tune_on_validation(
    laplace: LinearizedLaplace,
    batches: Iterable[Batch],
    *,
    span: float | None = None,
    typical_factor: float | None = None,
    max_evaluations: int = 500,
    scale_mean: bool = False,
    generator: torch.Generator | None = None,
) -> ValidationResult:
    """Maximise the log predictive density of validation data; sets the hyperparameters.

    The validation data are not added to the training data: see `TrainingSet.extended`.

    Parameters
    ----------
    laplace
        The model. Of its hyperparameters that require grad, prior precisions are moved, which keep
        their ratios, and the noise of `Gaussian` or the temperature of `Tempered`; others stay.
    batches
        Batches of (inputs, checked targets, weights or None), not among the training data.
    span
        The largest factor to try, up and down. None: 10⁶, and 10¹² where one eigendecomposition
        gives all factors and the best of them lies at that edge.
    typical_factor
        The change to expect before the validation data are seen: the standard deviation of a
        log-normal density of each factor, with median 1, which is counted like another row. A few
        rows that nothing is wrong with then change little. None: all factors are alike; but ten
        where the mean is scaled, which leaves little to tell factors by.
    max_evaluations
        The most factors to try after the grid.
    scale_mean
        Whether the mean of class labels is scaled too, as these rows like it best; relative to the
        rule, so that the model stays as sure when other things change.
    generator
        The source of draws, for likelihoods that draw: all factors are compared with the same.

    Raises
    ------
    ValueError
        If there is nothing to move, or nothing to validate on.
    """
    if span is not None and not span > 1:
        raise ValueError(f"span: expected a factor larger than 1, got {span}")
    if typical_factor is not None and not typical_factor > 1:
        raise ValueError(
            f"typical_factor: expected a factor larger than 1, or None, got {typical_factor}"
        )
    if scale_mean and typical_factor is None:
        typical_factor = _TYPICAL
    factors = _free_factors(laplace)
    with restored_on_error(laplace, laplace.prior, laplace.likelihood):
        with torch.no_grad():
            rows = TrainingSet.collect(
                laplace.training.linearized,
                _some(batches),
                keep_bytes=sys.maxsize if laplace.training.factors_kept else 0,
                chunk_bytes=laplace.training.chunk_bytes,
                progress=laplace.training.progress,
                shards=laplace.training.shards,
            )
            density = ValidationDensity(
                laplace, rows, factors, generator, typical_factor, scale_mean
            )
            with count("validating", show=laplace.training.progress) as density.step:
                best, at_boundary = _search(density, span, max_evaluations)
        density.set(best)
        tried = density.tried[best]
        if scale_mean:
            laplace.mean_scale = Matched(tried.mean_scale / laplace.matched())
        comparable = laplace.mean == "network" and laplace.likelihood.saturates
        result = ValidationResult(
            density.initial_value(),
            density.of_rows(best),
            rows.shards.num_rows,
            {f.name: math.exp(x) for f, x in zip(factors, best, strict=True)},
            at_boundary,
            len(density.values),
            laplace.mean,
            "factorisations" if density.spectrum is None else "eigendecomposition",
            tried.mean_scale if scale_mean else None,
            density.alone(1.0) if comparable else None,
        )
        if at_boundary:
            _warn_of_boundary(result)
    return result


def _search(
    density: ValidationDensity, span: float | None, max_evaluations: int
) -> tuple[Scales, bool]:
    """The best factors, and whether they lie at the edge of what was searched."""
    limit = math.log(_SPAN if span is None else span)
    if density.spectrum is None and density.num_factors == 1:
        # with a free scale the density is too flat for a search between decades
        between = min(max_evaluations, 1) if density.free_scale else max_evaluations
        best, at_boundary = search_uphill(density, limit, between)
    else:
        best, at_boundary = search_grid(density, limit, max_evaluations)
        if at_boundary and span is None and density.spectrum is not None:
            limit *= 2
            best, at_boundary = search_grid(density, limit, max_evaluations)
    if not math.isfinite(density.values[best]):
        raise ValueError(
            "batches: the log predictive density of the validation data is not finite at any of "
            f"the {len(density.values)} hyperparameters tried; nothing was changed"
        )
    if density.free_scale:
        return _settled(density, best, at_boundary, limit)
    return best, at_boundary


def _settled(
    density: ValidationDensity, found: Scales, at_boundary: bool, limit: float
) -> tuple[Scales, bool]:
    """The least change that the rows can't tell from the best, the network alone included."""
    best, edge = found, (-limit, *(0.0 for _ in density.factors[1:]))
    reachable = density.laplace.mean == "network" and density.factors[0].name == "prior variances"
    if reachable and density.alone() + density.log_prior(edge) > density.values[found]:
        density([edge])  # the search has passed the network by
        best = max(best, edge, key=density.values.__getitem__)
    least = min(density.as_good_as(best), key=lambda x: sum(v * v for v in x))
    return least, least == edge or (at_boundary and least == found)


def _warn_of_boundary(result: ValidationResult) -> None:
    meaning = "the validation data say little about them. Raise span, or use more validation data"
    if result.scales.get("prior variances", 1.0) < 1 and result.network_value is not None:
        meaning = (
            "these rows prefer the network alone, but for the scale of its outputs; far from the "
            "data, predictions are then as sure as its own"
        )
    warnings.warn(
        f"the best hyperparameters found lie at the edge of what was searched: {result}; {meaning}",
        BoundaryWarning,
        stacklevel=5,
    )


def _some(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, of which there must be one."""
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("batches: gave no batches; there is nothing to validate on")
    yield from itertools.chain([first], batches)


def _free_factors(laplace: LinearizedLaplace) -> list[Factor]:
    likelihood = laplace.likelihood
    factors = [Factor("prior variances", laplace.prior, "precision", -1)]
    if isinstance(likelihood, Gaussian):
        factors.append(Factor("noise", likelihood, "noise", 1))
    elif isinstance(likelihood, Tempered):
        factors.append(Factor("temperature", likelihood, "temperature", 1))
    factors = [factor for factor in factors if factor.raw.requires_grad]
    if not factors:
        raise ValueError(
            "there is nothing to tune: neither the prior's precision nor the likelihood's noise or "
            "temperature requires grad"
        )
    return factors

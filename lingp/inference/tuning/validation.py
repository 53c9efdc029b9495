"""Hyperparameters by the predictive density of validation data.

Prior variances are multiplied by a common factor s, and the noise variance of a Gaussian likelihood
(or the temperature of a tempered one) by 1/t. Where the curvature changes by a factor only, one
eigendecomposition gives the predictive of the validation rows at every s and t (see
`scaled_spectrum`), with the posterior's mean moving along where it is refitted. A refitted mean of
a likelihood that isn't quadratic takes a refit for every s, and expected curvature its own fixed
point, found roughly from that of the factor before.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from lingp.inference.batches import Batch
from lingp.inference.factorize import OutOfRangeError, RoundingWarning
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.memory import available_memory
from lingp.inference.progress import count
from lingp.inference.training_set import TrainingSet
from lingp.inference.tuning.scale_search import Scales, search_grid, search_uphill
from lingp.inference.tuning.scaled_spectrum import ScaledRows, ScaledSpectrum, works_in_a_space
from lingp.likelihoods import CurvatureRoot, Gaussian, Tempered
from lingp.linearization import Factors

_KEPT_SHARE = 0.25  # of free memory, for rows in the eigenbasis


class BoundaryWarning(UserWarning):
    """The best value found lies at the edge of what was searched."""


@dataclass(frozen=True)
class ValidationResult:
    """What `tune_on_validation` did.

    Attributes
    ----------
    initial_value, value
        Sum of the log predictive densities of the validation rows before and after; of expected
        curvature to about 1e-4 per row.
    num_rows
        Of validation data.
    scales
        By what factor each kind of hyperparameter was multiplied: "prior variances", and "noise" or
        "temperature" where the likelihood has one that is free.
    at_boundary
        Whether the best factors lie at the edge of what was searched.
    num_evaluations
        How many factors were tried.
    mean
        Whose mean predictions have: "network" or "refit".
    method
        "eigendecomposition", or "factorisations" where every try took one.
    """

    initial_value: float
    value: float
    num_rows: int
    scales: dict[str, float]
    at_boundary: bool
    num_evaluations: int
    mean: str
    method: str

    def __str__(self) -> str:
        factors = ", ".join(f"{name} x {factor:.3g}" for name, factor in self.scales.items())
        return (
            f"log predictive density of {self.num_rows} validation rows ({self.mean} mean) "
            f"{self.initial_value:.6g} -> {self.value:.6g}: {factors}"
            f"{' (at the edge of the search)' if self.at_boundary else ''}; by {self.method}, "
            f"{self.num_evaluations} evaluations"
        )


def tune_on_validation(
    laplace: LinearizedLaplace,
    batches: Iterable[Batch],
    *,
    method: str | None = None,
    span: float = 1e6,
    typical_factor: float | None = None,
    max_evaluations: int = 500,
    generator: torch.Generator | None = None,
) -> ValidationResult:
    """Maximise the log predictive density of validation data; sets the hyperparameters.

    The validation data are not added to the training data: see `TrainingSet.extended`.

    Parameters
    ----------
    laplace
        Of hyperparameters that require grad, it moves prior precisions, keeping their ratios, and
        the noise of `Gaussian` or the temperature of `Tempered`; others stay.
    batches
        Of (inputs, checked targets, weights or None), not among the training data.
    method
        How the likelihood computes its predictive; its first method by default.
    span
        The largest factor to try, up and down.
    typical_factor
        What change to expect, before the validation data are seen: the standard deviation of a
        log-normal density of each factor, with median 1, which is counted like another row. A few
        rows that nothing is wrong with then change little. None: all factors are alike.
    max_evaluations
        Most factors to try after the grid.
    generator
        For predictive methods that draw: all factors are compared with the same draws.

    Raises
    ------
    ValueError
        If there is nothing to move, or nothing to validate on.
    """
    if not span > 1:
        raise ValueError(f"span: expected a factor larger than 1, got {span}")
    if typical_factor is not None and not typical_factor > 1:
        raise ValueError(
            f"typical_factor: expected a factor larger than 1, or None, got {typical_factor}"
        )
    factors = _free_factors(laplace)
    with torch.no_grad():
        rows = TrainingSet.collect(
            laplace.training.linearized,
            _some(batches),
            keep_bytes=sys.maxsize if laplace.training.factors_kept else 0,
            chunk_bytes=laplace.training.chunk_bytes,
            progress=laplace.training.progress,
            shards=laplace.training.shards,
        )
        density = _Density(laplace, rows, factors, method, generator, typical_factor)
        with count("validating", show=laplace.training.progress) as step:
            if density.spectrum is None and len(factors) == 1:
                found = search_uphill(density, math.log(span), max_evaluations, step)
            else:
                found = search_grid(density, len(factors), math.log(span), max_evaluations, step)
    if not math.isfinite(found.value):
        density.set((0.0,) * len(factors))
        raise ValueError(
            "batches: the log predictive density of the validation data is not finite at any of "
            f"the {found.num_evaluations} hyperparameters tried; nothing was changed"
        )
    density.set(found.best)
    result = ValidationResult(
        found.initial_value,
        found.value - density.log_prior(found.best),
        rows.shards.num_rows,
        {f.name: math.exp(x) for f, x in zip(factors, found.best, strict=True)},
        found.at_boundary,
        found.num_evaluations,
        laplace.mean,
        "factorisations" if density.spectrum is None else "eigendecomposition",
    )
    if found.at_boundary:
        warnings.warn(
            f"the best hyperparameters found lie at the edge of what was searched: {result}; the "
            "validation data say little about them. Raise span, or use more validation data",
            BoundaryWarning,
            stacklevel=4,
        )
    return result


def _some(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, of which there must be one."""
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("batches: gave no batches; there is nothing to validate on")
    yield from itertools.chain([first], batches)


@dataclass(frozen=True)
class _Factor:
    """A hyperparameter that is multiplied by a factor.

    Attributes
    ----------
    name
        What to call it.
    owner, raw_name
        The module and its raw parameter.
    base
        The value at factor 1.
    inverse
        Whether the value is divided instead: precisions stand for variances.
    """

    name: str
    owner: gpytorch.Module
    raw_name: str
    base: Tensor
    inverse: bool

    def set(self, log_factor: float) -> bool:
        """Set the hyperparameter; whether its constraint allows that."""
        factor = math.exp(-log_factor if self.inverse else log_factor)
        constraint = getattr(self.owner, f"{self.raw_name}_constraint")
        raw = getattr(self.owner, self.raw_name)
        value = constraint.inverse_transform(factor * self.base)
        if not bool(torch.isfinite(value).all()):
            return False
        raw.data.copy_(value)
        return True


def _free_factors(laplace: LinearizedLaplace) -> list[_Factor]:
    prior, likelihood = laplace.prior, laplace.likelihood
    kinds = [("prior variances", prior, "precision", True)]
    if isinstance(likelihood, Gaussian):
        kinds.append(("noise", likelihood, "noise", False))
    elif isinstance(likelihood, Tempered):
        kinds.append(("temperature", likelihood, "temperature", False))
    factors = [
        _Factor(name, owner, f"raw_{value}", getattr(owner, value).detach().clone(), inverse)
        for name, owner, value, inverse in kinds
        if getattr(owner, f"raw_{value}").requires_grad
    ]
    if not factors:
        raise ValueError(
            "there is nothing to tune: neither the prior's precision nor the likelihood's noise or "
            "temperature requires grad"
        )
    return factors


class _Density:
    """The log predictive density of the validation rows at any factors."""

    def __init__(
        self,
        laplace: LinearizedLaplace,
        rows: TrainingSet,
        factors: list[_Factor],
        method: str | None,
        generator: torch.Generator | None,
        typical_factor: float | None = None,
    ) -> None:
        self.laplace, self.rows, self.factors, self.method = laplace, rows, factors, method
        self.typical = math.inf if typical_factor is None else math.log(typical_factor)
        self.seed = 0
        if generator is not None:
            draw = torch.randint(2**31, (), generator=generator, device=generator.device)
            self.seed = int(draw)
        self.spectrum = self._make_spectrum()
        self.tried: CurvatureRoot | None = None  # of the last posterior: the next is not far
        self.scaled: list[tuple[slice, ScaledRows]] | None = None
        if self.spectrum is None:
            return
        refit = laplace.mean == "refit"
        self.prior_rows, self.coordinates = rows.outputs, None
        if refit:
            deviation = laplace.prior_deviation().unsqueeze(-1)
            self.prior_rows = rows.outputs + rows.matmul(deviation).squeeze(-1)
            z = laplace.data_term.whitened_residual(laplace.prior_outputs())
            self.coordinates = self.spectrum.coordinates(z)
        size = rows.outputs.element_size() * rows.outputs.numel() * len(self.spectrum.eigenvalues)
        if size < _KEPT_SHARE * available_memory(rows.outputs.device):
            self.scaled = list(self._scaled_rows())

    def _make_spectrum(self) -> ScaledSpectrum | None:
        """The eigendecomposition, where the curvature changes by a factor only."""
        laplace = self.laplace
        moving = laplace.mean == "refit" and not laplace.data_term.is_quadratic
        moving = moving or laplace.sites == "expected"
        if moving or not works_in_a_space(laplace):
            return None
        spectrum = ScaledSpectrum.of(laplace)
        return spectrum if spectrum.resolved(1.0) else None

    def set(self, scales: Scales) -> bool:
        """Set the hyperparameters; whether their constraints allow that."""
        return all(f.set(x) for f, x in zip(self.factors, scales, strict=True))

    def log_prior(self, scales: Scales) -> float:
        """Of the factors, up to a constant."""
        return -0.5 * sum((x / self.typical) ** 2 for x in scales)

    def __call__(self, candidates: list[Scales]) -> list[float]:
        """The density at each of the factors, times their own; -inf where there is none."""
        totals = [0.0] * len(candidates)
        if self.spectrum is None:
            totals = [self._factorized(scales) for scales in candidates]
        else:
            for rows, scaled in self.scaled or self._scaled_rows():
                for i, scales in enumerate(candidates):
                    totals[i] += self._scaled(rows, scaled, scales)
        self.set((0.0,) * len(self.factors))
        own = torch.tensor(totals, dtype=torch.float64, device=self.rows.outputs.device)
        totals = self.rows.shards.sum(own).tolist()
        return [
            -math.inf if math.isnan(total) else total + self.log_prior(scales)
            for total, scales in zip(totals, candidates, strict=True)
        ]

    def _scaled(self, rows: slice, scaled: ScaledRows, scales: Scales) -> float:
        """The density of some rows, from the spectrum."""
        assert self.spectrum is not None
        by_name = {f.name: x for f, x in zip(self.factors, scales, strict=True)}
        s = math.exp(by_name.pop("prior variances", 0.0))
        t = math.exp(-sum(by_name.values()))
        if not (self.spectrum.resolved(s * t) and self.set(scales)):
            return -math.inf
        kept = self.spectrum.kept(s * t)
        mean = self.prior_rows[rows]
        if self.coordinates is not None:
            mean = mean + scaled.moved(kept, self.coordinates, s * t)
        return self._log_prob(rows, mean, scaled.covariance(kept, s))

    def _factorized(self, scales: Scales) -> float:
        """The density of all rows, by a factorisation (and a refit)."""
        if not self.set(scales):
            return -math.inf
        laplace, total = self.laplace, 0.0
        with warnings.catch_warnings():
            # said once, by the model afterwards
            warnings.simplefilter("ignore", RoundingWarning)
            try:
                posterior, shift = laplace.posterior_near(self.tried), laplace.weight_shift()
            except OutOfRangeError:
                return -math.inf
            self.tried = posterior.root
            for rows, factors in self._pieces(posterior.bytes_per_row()):
                mean = self.rows.outputs[rows]
                if shift is not None:
                    mean = mean + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
                total += self._log_prob(rows, mean, posterior.marginal_covariance(factors))
        return total

    def _log_prob(self, rows: slice, mean: Tensor, covariance: Tensor) -> float:
        generator = torch.Generator(mean.device).manual_seed(self.seed)
        predictive = self.laplace.likelihood.predictive(
            mean, covariance, self.method, generator=generator
        )
        each = predictive.log_prob(self.rows.targets[rows])
        if self.rows.weights is not None:
            each = self.rows.weights[rows] * each
        return float(each.sum())

    def _scaled_rows(self) -> Iterator[tuple[slice, ScaledRows]]:
        assert self.spectrum is not None
        each = 4 * self.rows.outputs[0].nbytes * len(self.spectrum.eigenvalues)
        for rows, factors in self._pieces(each):
            yield rows, self.spectrum.rows(factors)

    def _pieces(self, bytes_per_row: int) -> Iterator[tuple[slice, Factors]]:
        size = max(1, self.rows.chunk_bytes // bytes_per_row)
        for rows, factors in self.rows.chunks():
            for start in range(0, factors.num_data, size):
                piece = slice(start, min(start + size, factors.num_data))
                yield (
                    slice(rows.start + piece.start, rows.start + piece.stop),
                    factors.rows(piece),
                )

"""The log predictive density of validation rows at any hyperparameters.

Where the curvature changes by a factor only, one eigendecomposition gives it everywhere; else every
try takes a posterior. Beside them, the scale of the mean of class labels is free to search: the
posterior doesn't depend on it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError, RoundingWarning
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.mean_scale import best_scale, undecided_row
from lingp.inference.training_set import TrainingSet
from lingp.inference.tuning.scale_search import Scales
from lingp.inference.tuning.scaled_spectrum import ScaledRows, ScaledSpectrum, works_in_a_space
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.runtime.memory import available_memory

_KEPT_SHARE = 0.25  # of free memory, for rows in the eigenbasis
_TYPICAL_SCALE = math.log(2.0)  # how far the matched scale of the mean may be off, in logarithms


@dataclass(frozen=True)
class Factor:
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


_Moments = tuple[slice, Tensor, Tensor]
"""Rows, and mean (n x C) and covariance (n x C x C) of their outputs."""


@dataclass(frozen=True)
class Tried:
    """What came of one try.

    Attributes
    ----------
    each
        Weighted log predictive density of the validation rows of this process, (n,).
    undecided
        Where the scale of the mean is free, what these rows give to the log density of one more
        row, predicted right or wrong (see `lingp.inference.mean_scale`), (n,).
    mean_scale
        s they have it with.
    """

    each: Tensor
    undecided: Tensor | None
    mean_scale: float

    def total(self) -> float:
        """Of all rows of this process."""
        return float((self.each if self.undecided is None else self.each + self.undecided).sum())


class ValidationDensity:
    """The log predictive density of the validation rows at any factors.

    Parameters
    ----------
    laplace
        The model.
    rows
        The validation data, whose targets are checked.
    factors
        Hyperparameters that are multiplied.
    method
        How the likelihood computes its predictive.
    generator
        For methods that draw: all factors are compared with the same draws.
    typical_factor
        See `tune_on_validation`.
    free_scale
        Whether the mean of class labels is scaled as these rows like it best, at every try.
    """

    def __init__(
        self,
        laplace: LinearizedLaplace,
        rows: TrainingSet,
        factors: list[Factor],
        method: str | None,
        generator: torch.Generator | None,
        typical_factor: float | None = None,
        free_scale: bool = False,
    ) -> None:
        self.laplace, self.rows, self.factors, self.method = laplace, rows, factors, method
        self.typical = math.inf if typical_factor is None else math.log(typical_factor)
        self.seed = 0
        if generator is not None:
            draw = torch.randint(2**31, (), generator=generator, device=generator.device)
            self.seed = int(draw)
        self.mean_scale = laplace.scale_of_mean()
        self.free_scale = free_scale
        self.initial_value = -math.inf  # at the scale that the mean has
        self.values: dict[Scales, float] = {}
        self.tried: dict[Scales, Tried] = {}  # where the scale is free
        self.root: CurvatureRoot | None = laplace.kept_root()  # of a posterior not far away
        self.spectrum = self._make_spectrum()
        self.scaled: list[tuple[slice, ScaledRows]] | None = None
        if self.spectrum is None:
            return
        self.prior_rows, self.coordinates = rows.outputs, None
        if laplace.mean == "refit":
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

    def beside_rows(self, scales: Scales) -> float:
        """What a value has besides the log density of the validation rows."""
        tried = self.tried.get(scales)
        undecided = None if tried is None else tried.undecided
        own = 0.0 if undecided is None else float(undecided.sum())
        return self.rows.shards.total(own) + self.log_prior(scales)

    def without_variance(self) -> float:
        """The density where predictions have no doubt about f but for what the mean's scale takes.

        The limit of small prior variances: the network alone, for its own mean.
        """
        mean = self.rows.outputs
        nothing = mean.new_zeros(*mean.shape, mean.shape[1])
        return self.rows.shards.total(self._tried(slice(None), mean, nothing).total())

    def network_value(self) -> float | None:
        """The density by the network alone; None where predictions have another mean, or noise."""
        if self.laplace.mean == "refit" or not self.laplace.likelihood.saturates:
            return None
        mean = self.rows.outputs
        nothing = mean.new_zeros(*mean.shape, mean.shape[1])
        tried = self._at_scale(slice(None), mean, nothing, 1.0)
        return self.rows.shards.total(float(tried.each.sum()))

    def as_good_as(self, best: Scales) -> list[Scales]:
        """Of what was tried, what the rows can't tell from the best.

        That is what lacks no more than one standard error of the difference, row by row. The
        undecided row has no say here: it can't tell anything from anything.
        """
        count, shards = self.rows.shards.num_rows, self.rows.shards
        found = []
        for scales, tried in self.tried.items():
            lacks = self.tried[best].each - tried.each
            total, squares = shards.total(float(lacks.sum())), shards.total(float(lacks @ lacks))
            variance = max(0.0, squares / count - (total / count) ** 2)
            lost = self.log_prior(best) - self.log_prior(scales)
            if total + lost <= math.sqrt(count * variance):
                found.append(scales)
        return found

    def __call__(self, candidates: list[Scales]) -> list[float]:
        """The density at each of the factors, times their own; -inf where there is none."""
        parts: list[list[_Moments]] = [[] for _ in candidates]
        totals = [-math.inf] * len(candidates)
        for i, moments in self._moments(candidates):
            if self.free_scale:
                parts[i].append(moments)
            elif self.set(candidates[i]):
                # rows on their own, whose covariances needn't be kept
                before = 0.0 if totals[i] == -math.inf else totals[i]
                totals[i] = before + self._tried(*moments).total()
        for i, scales in enumerate(candidates):
            if parts[i] and self.set(scales):
                mean = torch.cat([mean for _, mean, _ in parts[i]])
                covariance = torch.cat([covariance for _, _, covariance in parts[i]])
                self.tried[scales] = self._tried(slice(None), mean, covariance)
                if not any(scales):
                    now = self._at_scale(slice(None), mean, covariance, self.mean_scale)
                    self.initial_value = self.rows.shards.total(float(now.each.sum()))
                totals[i] = self.tried[scales].total()
        self.set((0.0,) * len(self.factors))
        own = torch.tensor(totals, dtype=torch.float64, device=self.rows.outputs.device)
        for scales, total in zip(candidates, self.rows.shards.sum(own).tolist(), strict=True):
            value = -math.inf if math.isnan(total) else total + self.log_prior(scales)
            self.values[scales] = value
        return [self.values[scales] for scales in candidates]

    def _moments(self, candidates: list[Scales]) -> Iterator[tuple[int, _Moments]]:
        """Number of a candidate and moments of some rows; nothing where it can't be."""
        if self.spectrum is None:
            for i, scales in enumerate(candidates):
                yield from ((i, part) for part in self._factorized(scales))
            return
        allowed = [i for i, scales in enumerate(candidates) if self._resolved(scales)]
        for rows, scaled in self.scaled or self._scaled_rows():
            yield from ((i, self._scaled(rows, scaled, candidates[i])) for i in allowed)

    def _resolved(self, scales: Scales) -> bool:
        assert self.spectrum is not None
        s, t = self._common(scales)
        return self.spectrum.resolved(s * t) and self.set(scales)

    def _common(self, scales: Scales) -> tuple[float, float]:
        """The factors of prior variances and of curvature."""
        by_name = {f.name: x for f, x in zip(self.factors, scales, strict=True)}
        s = math.exp(by_name.pop("prior variances", 0.0))
        return s, math.exp(-sum(by_name.values()))

    def _scaled(self, rows: slice, scaled: ScaledRows, scales: Scales) -> _Moments:
        """Mean and covariance of some rows, from the spectrum."""
        assert self.spectrum is not None
        s, t = self._common(scales)
        kept = self.spectrum.kept(s * t)
        mean = self.prior_rows[rows]
        if self.coordinates is not None:
            mean = mean + scaled.moved(kept, self.coordinates, s * t)
        return rows, mean, scaled.covariance(kept, s)

    def _factorized(self, scales: Scales) -> Iterator[_Moments]:
        """Mean and covariance of all rows, by a factorisation (and a refit)."""
        if not self.set(scales):
            return
        laplace = self.laplace
        with warnings.catch_warnings():
            # said once, by the model afterwards
            warnings.simplefilter("ignore", RoundingWarning)
            try:
                posterior, shift = laplace.posterior_near(self.root), laplace.weight_shift()
            except OutOfRangeError:
                return
            self.root = posterior.root
            for rows, factors in self._pieces(posterior.bytes_per_row()):
                mean = self.rows.outputs[rows]
                if shift is not None:
                    mean = mean + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
                yield rows, mean, posterior.marginal_covariance(factors)

    def _tried(self, rows: slice, mean: Tensor, covariance: Tensor) -> Tried:
        """The density of rows with these moments, at their best scale of the mean if it is free."""
        likelihood, targets = self.laplace.likelihood, self.rows.targets[rows]
        weights = None if self.rows.weights is None else self.rows.weights[rows]
        scale = self.mean_scale
        if self.free_scale:
            scale = best_scale(
                likelihood, targets, weights, mean, covariance,
                shards=self.rows.shards, start=scale, typical=_TYPICAL_SCALE,
            )  # fmt: skip
        return self._at_scale(rows, mean, covariance, scale)

    def _at_scale(self, rows: slice, mean: Tensor, covariance: Tensor, scale: float) -> Tried:
        """The density of rows with these moments at some scale of the mean."""
        likelihood, location = self.laplace.likelihood.with_scaled_mean(mean, scale)
        generator = torch.Generator(mean.device).manual_seed(self.seed)
        predictive = likelihood.predictive(location, covariance, self.method, generator=generator)
        each = predictive.log_prob(self.rows.targets[rows])
        if self.rows.weights is not None:
            each = self.rows.weights[rows] * each
        undecided = None
        if self.free_scale:
            undecided = undecided_row(likelihood, predictive.mean, self.rows.shards)
        return Tried(each, undecided, scale)

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

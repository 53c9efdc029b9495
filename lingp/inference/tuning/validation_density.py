"""The log predictive density of validation rows at any hyperparameters.

Where the curvature changes by a factor only, one eigendecomposition gives it everywhere; else every
try takes a posterior. Beside them, the scale of the mean of class labels is free to search: the
posterior doesn't depend on it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from lingp.inference.factorize import OutOfRangeError, RoundingWarning
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.mean_scale import best_scale, undecided_row
from lingp.inference.training_set import TrainingSet
from lingp.inference.tuning.scale_search import ScaledObjective, Scales
from lingp.inference.tuning.spectrum import (
    ScaledRows,
    Spectrum,
    basis_fits,
    has_fixed_curvature,
    works_in_a_space,
)
from lingp.likelihoods import CurvatureRoot

_TYPICAL_SCALE = math.log(2.0)  # how far the matched scale of the mean may be off, in logarithms


class Factor:
    """A hyperparameter that is multiplied by a factor.

    Parameters
    ----------
    name
        The word for it.
    owner, attribute
        The module and the hyperparameter of it, whose value now is that at factor 1.
    sign
        -1 for one that is divided instead: precisions stand for variances.
    """

    def __init__(self, name: str, owner: gpytorch.Module, attribute: str, sign: int) -> None:
        self.name, self.sign = name, sign
        self.raw: Tensor = getattr(owner, f"raw_{attribute}")
        self._constraint = getattr(owner, f"raw_{attribute}_constraint")
        self._base = getattr(owner, attribute).detach().clone()

    def set(self, log_factor: float) -> bool:
        """Set the hyperparameter; whether its constraint allows that."""
        factor = math.exp(self.sign * log_factor)
        value = self._constraint.inverse_transform(factor * self._base)
        allowed = bool(torch.isfinite(value).all())
        if allowed:
            self.raw.data.copy_(value)
        return allowed


_Moments = tuple[slice, Tensor, Tensor]
"""Rows, and mean (n x C) and covariance (n x C x C) of their outputs."""


@dataclass(frozen=True)
class Tried:
    """The result of one try.

    Attributes
    ----------
    each
        Weighted log predictive density of the validation rows of this process, (n,).
    undecided
        The log density of one more row, predicted right or wrong, as these rows have it (see
        `lingp.inference.mean_scale`); 0 where the scale of the mean is not free.
    mean_scale
        s they have it with.
    """

    each: Tensor
    undecided: float
    mean_scale: float

    def total(self) -> float:
        """The density of all rows of this process, and of one more where that counts."""
        return float(self.each.sum()) + self.undecided


class ValidationDensity(ScaledObjective):
    """The log predictive density of the validation rows at any factors.

    Parameters
    ----------
    laplace
        The model.
    rows
        The validation data, whose targets are checked.
    factors
        Hyperparameters that are multiplied.
    generator
        The source of draws, for likelihoods that draw: all factors are compared with the same.
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
        generator: torch.Generator | None,
        typical_factor: float | None = None,
        free_scale: bool = False,
    ) -> None:
        super().__init__(len(factors))
        self.laplace, self.rows, self.factors = laplace, rows, factors
        self.typical = math.inf if typical_factor is None else math.log(typical_factor)
        self.seed = 0
        if generator is not None:
            draw = torch.randint(2**31, (), generator=generator, device=generator.device)
            self.seed = int(draw)
        self.mean_scale = laplace.scale_of_mean()
        self.free_scale = free_scale
        self.step: Callable[[], object] = lambda: None  # called at every evaluation
        self.at_start: Tried | None = None  # at the scale that the mean has
        self.tried: dict[Scales, Tried] = {}
        self.root: CurvatureRoot | None = laplace.kept_root()  # of a posterior not far away
        self.spectrum = self._make_spectrum()
        self.scaled: list[tuple[slice, ScaledRows]] | None = None
        if self.spectrum is not None and basis_fits(rows, len(self.spectrum.eigenvalues)):
            self.scaled = list(self.spectrum.rows(rows))

    def _make_spectrum(self) -> Spectrum | None:
        """The eigendecomposition, where the curvature changes by a factor only."""
        laplace = self.laplace
        fixed = has_fixed_curvature(laplace) and laplace.sites != "expected"
        if not (fixed and works_in_a_space(laplace)):
            return None
        spectrum = Spectrum(laplace)
        return spectrum if spectrum.resolved(0.0) else None

    def set(self, scales: Scales) -> bool:
        """Set the hyperparameters; whether their constraints allow that."""
        return all(f.set(x) for f, x in zip(self.factors, scales, strict=True))

    def log_prior(self, scales: Scales) -> float:
        """The log density of the factors, up to a constant."""
        return -0.5 * sum((x / self.typical) ** 2 for x in scales)

    def of_rows(self, scales: Scales) -> float:
        """The log density of the validation rows alone."""
        beside = self.rows.shards.total(self.tried[scales].undecided)
        return self.values[scales] - beside - self.log_prior(scales)

    def initial_value(self) -> float:
        """The log density of the validation rows where nothing is changed."""
        start = (0.0,) * self.num_factors
        if self.at_start is None:
            return self.values[start]
        return self.rows.shards.total(float(self.at_start.each.sum()))

    def alone(self, scale: float | None = None) -> float:
        """The density by the network alone, at some scale of the mean or that these rows like best.

        It is the limit of small prior variances for the network's mean; that of one more row counts
        where the scale is free.
        """
        mean = self.rows.outputs
        nothing = mean.new_zeros(*mean.shape, mean.shape[1])
        if scale is None:
            return self.rows.shards.total(self._tried(mean, nothing).total())
        each = self._at_scale(slice(None), mean, nothing, scale).each
        return self.rows.shards.total(float(each.sum()))

    def as_good_as(self, best: Scales) -> list[Scales]:
        """The factors tried that the rows can't tell from the best.

        They lack no more than one standard error of the difference, row by row. The
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

    def evaluate(self, points: list[Scales]) -> list[float]:
        """The density at each of the factors, times their own; -inf where there is none."""
        moments: list[list[_Moments]] = [[] for _ in points]
        parts: list[list[Tried]] = [[] for _ in points]
        for i, part in self._moments(points):
            if self.free_scale:
                moments[i].append(part)
            else:  # rows on their own, whose covariances needn't be kept
                self.set(points[i])
                parts[i].append(self._at_scale(*part, self.mean_scale))
        totals = [-math.inf] * len(points)
        for i, scales in enumerate(points):
            if not (moments[i] or parts[i]):
                continue
            if self.free_scale:
                self.set(scales)
                _, means, covariances = zip(*moments[i], strict=True)
                mean, covariance = torch.cat(means), torch.cat(covariances)
                self.tried[scales] = self._tried(mean, covariance)
                if not any(scales):
                    self.at_start = self._at_scale(slice(None), mean, covariance, self.mean_scale)
            else:
                each = torch.cat([part.each for part in parts[i]])
                self.tried[scales] = Tried(each, 0.0, self.mean_scale)
            totals[i] = self.tried[scales].total()
        self.set((0.0,) * self.num_factors)
        own = torch.tensor(totals, dtype=torch.float64, device=self.rows.outputs.device)
        self.step()
        return [
            -math.inf if math.isnan(total) else total + self.log_prior(scales)
            for scales, total in zip(points, self.rows.shards.sum(own).tolist(), strict=True)
        ]

    def _moments(self, points: list[Scales]) -> Iterator[tuple[int, _Moments]]:
        """The number of a point and moments of some rows; nothing where it can't be."""
        spectrum = self.spectrum
        if spectrum is None:
            for i, scales in enumerate(points):
                yield from ((i, part) for part in self._factorized(scales))
            return
        common = [self._common(scales) for scales in points]
        allowed = [
            i
            for i, (s, t) in enumerate(common)
            if spectrum.resolved(0.0, s * t) and self.set(points[i])
        ]
        for rows, scaled in self.scaled or spectrum.rows(self.rows):
            yield from ((i, (rows, *scaled.moments(*common[i]))) for i in allowed)

    def _common(self, scales: Scales) -> tuple[float, float]:
        """The factors of prior variances and of curvature."""
        by_name = {f.name: x for f, x in zip(self.factors, scales, strict=True)}
        s = math.exp(by_name.pop("prior variances", 0.0))
        return s, math.exp(-sum(by_name.values()))

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
            size = max(1, self.rows.chunk_bytes // posterior.bytes_per_row())
            for rows, factors in self.rows.pieces(size):
                mean = self.rows.outputs[rows]
                if shift is not None:
                    mean = mean + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
                yield rows, mean, posterior.marginal_covariance(factors)

    def _tried(self, mean: Tensor, covariance: Tensor) -> Tried:
        """The density of all rows with these moments, at their best scale if it is free."""
        scale = self.mean_scale
        if self.free_scale:
            scale = best_scale(
                self.laplace.likelihood,
                self.rows.targets,
                self.rows.weights,
                mean,
                covariance,
                shards=self.rows.shards,
                start=scale,
                typical=_TYPICAL_SCALE,
            )
        return self._at_scale(slice(None), mean, covariance, scale)

    def _at_scale(self, rows: slice, mean: Tensor, covariance: Tensor, scale: float) -> Tried:
        """The density of rows with these moments at some scale of the mean."""
        likelihood, location = self.laplace.likelihood.with_scaled_mean(mean, scale)
        generator = torch.Generator(mean.device).manual_seed(self.seed)
        predictive = likelihood.predictive(location, covariance, generator=generator)
        each = predictive.log_prob(self.rows.targets[rows])
        if self.rows.weights is not None:
            each = self.rows.weights[rows] * each
        undecided = 0.0
        if self.free_scale:
            probs = likelihood.label_probs(predictive.mean)
            undecided = float(undecided_row(probs, self.rows.shards).sum())
        return Tried(each, undecided, scale)

"""What data and hyperparameters make of a linearised network, each part computed once.

    log q(D) = Σ_n w_n log p(y_n | f_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ) [- ½ l]

at θ = θ* with f = f(x; θ*) (mean="network"), or at the mode of the linearised model with
f = f_lin(x, θ) (mean="refit": for Gaussian noise, the exact evidence of that model). The curvature
in Φ is taken where the mean is (sites="mean") or at the network's outputs (sites="network"); the
posterior, but not the evidence, can take its expectation instead (sites="expected"). The last term
is that of methods with features of their own, see `OccamFactor.bound_gap`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.data_term import DataTerm
from lingp.inference.expected_sites import ROUGH, TOLERANCE, expected_posterior, first_root
from lingp.inference.factorize import RoundingWarning
from lingp.inference.implicit import attached_mode
from lingp.inference.mean_scale import matched_scale
from lingp.inference.mode import Mode, WhitenedModel, newton_mode, solved_mode
from lingp.inference.posterior import OccamFactor, Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import InferenceMethod
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.operators import diagonal_blocks

Mean = Literal["network", "refit"]
Sites = Literal["mean", "network", "expected"]
T = TypeVar("T")
C = TypeVar("C", bound="Conditioned")


@dataclass(frozen=True)
class Solution:
    """The posterior mean and the posterior around it.

    Attributes
    ----------
    e
        Coordinates of the mean's θ - μ0: whitened weights (P,), for a refitted mean those of the
        posterior's features.
    outputs
        Latent outputs at the mean, (N x C).
    occam
        With the curvature at the sites.
    """

    e: Tensor
    outputs: Tensor
    occam: OccamFactor

    @property
    def posterior(self) -> Posterior:
        """The posterior around the mean; an error where the method has none."""
        return self.occam.to_predict_with()


def once(make: Callable[[C], T]) -> cached_property[T]:
    """A property that is computed when it is first asked for, without a graph, and kept."""
    return cached_property(torch.no_grad()(make))


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A function of data, hyperparameters and options, which don't change any more.

    Attributes
    ----------
    training
        The training data.
    prior, prior_deviation
        Σ0, and μ0 - θ* (P,).
    data
        The likelihood of the training data; its hyperparameters are its own.
    method
        Makes posteriors.
    mean, sites
        See `lingp.inference.laplace.LinearizedLaplace`.
    """

    training: TrainingSet
    prior: PriorValues
    prior_deviation: Tensor
    data: DataTerm
    method: InferenceMethod
    mean: Mean
    sites: Sites

    def knows(self, part: str) -> bool:
        """Whether a part, by its name here, is computed already."""
        return part in vars(self)

    def keep(self, **parts: object) -> None:
        """Take parts that were computed before, by their names here; None for what wasn't."""
        vars(self).update({name: part for name, part in parts.items() if part is not None})

    def forget(self, *parts: str) -> None:
        """Free memory; what is asked for again is computed again."""
        for part in parts:
            vars(self).pop(part, None)

    def take_over(self, before: Conditioned) -> None:
        """Take from other hyperparameters of the same data what doesn't depend on them."""
        same_mean = torch.equal(self.prior_deviation, before.prior_deviation)
        if same_mean and before.knows("prior_outputs"):
            self.keep(prior_outputs=before.prior_outputs)

    @once
    def prior_outputs(self) -> Tensor:
        """f_lin at the prior's mean, f* + J (μ0 - θ*), (N x C)."""
        moved = self.training.matmul(self.prior_deviation.unsqueeze(-1))
        return self.training.outputs + moved.squeeze(-1)

    @once
    def prior_covariance(self) -> Tensor:
        """J_n Σ0 J_nᵀ at the training data, (N x C x C)."""
        variances = self.prior.variances().to(self.training.outputs)
        parts = [diagonal_blocks(factors, variances) for _, factors in self.training.chunks()]
        return torch.cat(parts)

    @once
    def occam(self) -> OccamFactor:
        """The Occam factor with the curvature at a point: the mean's, or the network's outputs."""
        return self.method.occam_factor(self.training, self.prior, self.curvature_root)

    @once
    def curvature_root(self) -> CurvatureRoot:
        """R where the evidence takes it; at the mean for expected curvature."""
        at_mode = self.mean == "refit" and self.sites != "network" and not self.data.is_quadratic
        return self.data.curvature_root(self.mode.outputs if at_mode else self.training.outputs)

    @once
    def expected(self) -> Posterior:
        """The posterior with the curvature expected under it."""
        return self.expected_from(None, TOLERANCE)

    @once
    def posterior(self) -> Posterior:
        """The posterior to predict with."""
        return self._around_mean(
            self.expected if self.sites == "expected" else self.occam.to_predict_with()
        )

    @torch.no_grad()
    def rough_posterior(self, start: CurvatureRoot | None) -> Posterior:
        """`posterior` for a comparison of hyperparameters, with the expected curvature roughly.

        Parameters
        ----------
        start
            The curvature root of other hyperparameters' posterior; None: of the prior alone.
        """
        return self._around_mean(self.expected_from(start, ROUGH))

    def expected_from(self, start: CurvatureRoot | None, tolerance: float) -> Posterior:
        """The posterior with expected curvature, by steps that begin at a curvature root."""
        if start is None:
            start = first_root(self.data, self.mean_outputs, self.prior_covariance)
        return expected_posterior(
            self.data,
            self.mean_outputs,
            lambda root: self.method(self.training, self.prior, root),
            start,
            tolerance=tolerance,
            progress=self.training.progress,
        )

    @property
    def mode(self) -> Mode:
        """The optimum of the linearised model, whatever `mean` is."""
        return self.mode_and_posterior[0]

    @once
    def mode_and_posterior(self) -> tuple[Mode, Posterior]:
        """The mode, and the posterior that its last step was taken with."""
        features = self.method.features(self.training, self.prior)
        model = WhitenedModel(self.data, features, self.prior_outputs)
        if self.data.is_quadratic:
            posterior = self.occam.to_predict_with()
            mode = solved_mode(model, posterior)
        else:
            network = features.coordinates(self.prior_deviation.neg())
            with warnings.catch_warnings():
                # said once, by the posterior at the mode, not at every step
                warnings.simplefilter("ignore", RoundingWarning)
                mode, posterior = newton_mode(
                    model,
                    [network, torch.zeros_like(network)],
                    lambda f: self.method(self.training, self.prior, self.data.curvature_root(f)),
                )
        if not mode.converged:
            warnings.warn(
                f"the refitted mean did not converge: after {mode.num_iterations} Newton steps it "
                f"is {mode.gradient_norm:.1e} posterior standard deviations from the mode; use it "
                'with care, or use mean="network", dtype=torch.float64 or a larger prior precision',
                ConvergenceWarning,
                stacklevel=3,
            )
        return mode, posterior

    @property
    def mean_outputs(self) -> Tensor:
        """Latent outputs at the posterior's mean, (N x C)."""
        return self.training.outputs if self.mean == "network" else self.mode.outputs

    @once
    def weight_shift(self) -> Tensor | None:
        """θ - θ* of the posterior's mean, (P,); None when that is the network's own."""
        if self.mean == "network":
            return None
        features = self.method.features(self.training, self.prior)
        return self.prior_deviation + features.weights(self.mode.e.unsqueeze(-1)).squeeze(-1)

    @once
    def matched(self) -> float:
        """What the rule for the mean of class labels finds, see `lingp.inference.mean_scale`."""
        return matched_scale(self.data, self.mean_outputs, self.posterior)

    @once
    def solution(self) -> Solution:
        """The mean of the evidence and the Occam factor around it."""
        if self.mean == "refit":
            return Solution(self.mode.e, self.mode.outputs, self.occam)
        return Solution(-self.prior_deviation / self.occam.scale, self.mean_outputs, self.occam)

    def attached(self, prior: PriorValues, data: DataTerm) -> Solution:
        """`solution` with a graph to what prior and likelihood are made of.

        Parameters
        ----------
        prior, data
            The same values as here, with a graph.
        """
        training, outputs = self.training, self.training.outputs
        features = self.method.features(training, prior)
        if self.mean == "refit" and not data.is_quadratic:
            model = WhitenedModel(data, features, self.prior_outputs)
            e, outputs = attached_mode(model, *self.mode_and_posterior)
            root = data.curvature_root(training.outputs if self.sites == "network" else outputs)
            return Solution(e, outputs, self.method.occam_factor(training, prior, root))
        occam = self.method.occam_factor(training, prior, data.curvature_root(outputs))
        if self.mean == "network":
            return Solution(-self.prior_deviation / occam.scale, outputs, occam)
        model = WhitenedModel(data, features, self.prior_outputs)
        e = occam.to_predict_with().solve(data.whitened_residual(model.offset))
        return Solution(e, model.outputs(e), occam)

    def _around_mean(self, posterior: Posterior) -> Posterior:
        """The posterior to predict with around the mean."""
        if self.mean == "network":
            return posterior
        return posterior.widened_by(self.data.residual(self.mean_outputs))

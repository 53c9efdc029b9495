"""Linearised Laplace: posterior, posterior mean and evidence at the current hyperparameters.

    log q(D) = log p(y | f(θ)) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ)

at θ = θ* with f = f(x; θ*) (mean="network"), or at the optimum of the linearised model with
f = f_lin(x, θ) (mean="refit": for Gaussian noise, the exact evidence of that model).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from lingp.inference.cache import ValueCache
from lingp.inference.data_term import DataTerm
from lingp.inference.posterior import InferenceMethod, Posterior
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.priors import Prior

Mean = Literal["network", "refit"]
Sites = Literal["mean", "network"]


@dataclasses.dataclass
class LinearizedLaplace:
    """A training set, a prior, a likelihood and an inference method, met in one place.

    Results are kept and recomputed when a hyperparameter's value has changed since.

    Attributes
    ----------
    training, prior, likelihood
        The model; `prior` is bound to the network.
    method
        Makes the posterior, see `InferenceMethod`.
    mean
        Whose mean: "network" or "refit".
    """

    training: TrainingSet
    prior: Prior
    likelihood: Likelihood
    method: InferenceMethod
    mean: Mean = "network"
    sites: Sites = "mean"

    def __post_init__(self) -> None:
        self._posterior: ValueCache[Posterior] = ValueCache()
        self._offset: ValueCache[Tensor] = ValueCache()
        self._shift: ValueCache[Tensor] = ValueCache()
        num_parameters, shape = self.training.num_parameters, self.prior.mean.shape
        if self.prior.mean.dim() == 1 and len(self.prior.mean) != num_parameters:
            raise ValueError(
                f"prior: its mean has shape {tuple(shape)}, but the network has {num_parameters} "
                "weights in `parameters`; give one number, or one value per weight"
            )

    @property
    def data_term(self) -> DataTerm:
        """The likelihood of the training data."""
        return DataTerm(self.likelihood, self.training.targets, self.training.weights)

    def curvature_root(self) -> CurvatureRoot:
        """R at the network's outputs."""
        return self.data_term.curvature_root(self.training.outputs)

    def posterior(self) -> Posterior:
        """The posterior at the current hyperparameters, without a graph."""
        with torch.no_grad():
            root = self.curvature_root()
            key = (self.prior.variances(), *root.tensors())
            return self._posterior.get(key, lambda: self._make_posterior(root))

    def _make_posterior(self, root: CurvatureRoot) -> Posterior:
        return self.method(self.training, self.prior, root)

    def prior_deviation(self) -> Tensor:
        """μ0 - θ*, (P,)."""
        weights = self.training.linearized.weights()
        return self.prior.mean.to(weights) - weights

    def prior_outputs(self) -> Tensor:
        """f_lin at the prior's mean, f* + J (μ0 - θ*), (N x C)."""

        def make() -> Tensor:
            deviation = self.prior_deviation().unsqueeze(-1)
            return self.training.outputs + self.training.matmul(deviation).squeeze(-1)

        with torch.no_grad():
            return self._offset.get((self.prior.mean,), make)

    def _refit(self, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """Whitened deviation e from the prior's mean at the optimum (P,), and f_lin there (N x C).

        The linearised model with Gaussian noise is quadratic: one solve is its optimum.
        """
        training = self.training
        outputs = self.prior_outputs()
        e = posterior.solve(self.data_term.whitened_residual(outputs))
        moved = training.matmul((posterior.scale * e).unsqueeze(-1)).squeeze(-1)
        return e, outputs + moved

    def weight_shift(self) -> Tensor | None:
        """θ - θ* of the posterior's mean, (P,); None when that is the network's own."""
        if self.mean == "network":
            return None
        with torch.no_grad():
            posterior = self.posterior()
            z = self.data_term.whitened_residual(self.prior_outputs())
            key = (posterior.variances, *posterior.root.tensors(), self.prior.mean, z)

            def make() -> Tensor:
                return self.prior_deviation() + posterior.scale * posterior.solve(z)

            return self._shift.get(key, make)

    def log_marginal_likelihood(self) -> Tensor:
        """log q(D), 0-d, with a graph to the hyperparameters when grad mode is on."""
        hyperparameters = [*self.prior.parameters(), *self.likelihood.parameters()]
        with_graph = torch.is_grad_enabled() and any(p.requires_grad for p in hyperparameters)
        posterior = self._make_posterior(self.curvature_root()) if with_graph else self.posterior()
        if self.mean == "network":
            e, outputs = self.prior_deviation() / posterior.scale, self.training.outputs
        else:
            e, outputs = self._refit(posterior)
        log_likelihood = self.data_term.log_prob(outputs)
        return log_likelihood - 0.5 * e.square().sum() - 0.5 * posterior.log_determinant()

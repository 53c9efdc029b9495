"""The likelihood of all training data as a function of the latent outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.runtime.shards import Shards


@dataclass(frozen=True)
class DataTerm:
    """Σ_n w_n log p(y_n | f_n) and its derivatives in f.

    A weight w_n stands for w_n repetitions of a datum: it multiplies the log density, the residual
    and the curvature Λ_n, so R_n by √w_n.

    Attributes
    ----------
    likelihood
        p(y | f).
    targets
        As the likelihood's `check_targets` gives them, first axis N.
    weights
        (N,), not negative; None: 1.
    shards
        How the data are spread over processes: sums are over all of them.
    """

    likelihood: Likelihood
    targets: Tensor
    weights: Tensor | None = None
    shards: Shards = field(default_factory=Shards.single)

    def log_prob_rows(self, f: Tensor) -> Tensor:
        """w_n log p(y_n | f_n), (... x N)."""
        each = self.likelihood.log_prob(self.targets, f)
        return each if self.weights is None else self.weights * each

    def log_prob(self, f: Tensor) -> Tensor:
        """Σ_n w_n log p(y_n | f_n), 0-d."""
        return self.shards.sum(self.log_prob_rows(f).sum())

    def residual(self, f: Tensor) -> Tensor:
        """∇_f Σ_n w_n log p(y_n | f_n), (N x C)."""
        each = self.likelihood.residual(self.targets, f)
        return each if self.weights is None else self.weights.unsqueeze(-1) * each

    def curvature_root(self, f: Tensor) -> CurvatureRoot:
        """R with R_n R_nᵀ = w_n Λ_n."""
        root = self.likelihood.curvature_root(self.targets, f)
        return root if self.weights is None else root.weighted(self.weights)

    def average_curvature(self, f: Tensor, rows: slice) -> Tensor:
        """The mean of w_n Λ_n over nodes f (S x n x C) of some rows, (n x C x C)."""
        curvature = self.likelihood.average_curvature(self.targets[rows], f)
        return curvature if self.weights is None else self.weights[rows, None, None] * curvature

    @property
    def is_quadratic(self) -> bool:
        """Whether log p(y | f) is quadratic in f, so that R doesn't depend on f."""
        return self.likelihood.is_quadratic

    def whitened_residual(self, f: Tensor) -> Tensor:
        """z with R z = r, (N x K); for quadratic likelihoods only."""
        each = self.likelihood.whitened_residual(self.targets, f)
        return each if self.weights is None else self.weights.sqrt().unsqueeze(-1) * each

    @property
    def num_observed(self) -> float:
        """Σ_n w_n times the number of target values of datum n that aren't missing."""
        # a third axis holds a known quantity of each target
        values = self.targets if self.targets.dim() == 2 else self.targets[..., 0]
        observed = (~values.isnan()).sum(-1).to(values.dtype)
        own = observed.sum() if self.weights is None else observed @ self.weights
        return self.shards.total(float(own))

    def hessian(self, f: Tensor) -> Callable[[Tensor], Tensor]:
        """v -> (-∇²_f Σ_n w_n log p) v at f, (N x C): the true Hessian, not its GGN form."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = f.detach().clone().requires_grad_()
            residual = DataTerm(
                self.likelihood,
                self.targets.clone(),
                None if self.weights is None else self.weights.clone(),
            ).residual(leaf)

        def product(v: Tensor) -> Tensor:
            with torch.inference_mode(False):
                (found,) = torch.autograd.grad(residual, leaf, -v.clone(), retain_graph=True)
            return found

        return product

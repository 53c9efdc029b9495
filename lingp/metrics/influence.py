"""Which training data matter, from the posterior of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lingp.inference.training_covariance import training_covariance
from lingp.metrics.arguments import Array, as_array
from lingp.models import LinearizedGP


@dataclass(frozen=True)
class Influence:
    """What each training datum does to the posterior, in closed form.

    Attributes
    ----------
    leverage
        h_n = tr R_nᵀ C_n R_n, (N,), with the posterior covariance C_n of its outputs and the root
        R_n of its curvature: the share of the effective parameters that the datum determines. They
        sum to γ; for Gaussian noise they are the diagonal of the smoother that makes posterior
        means of targets.
    log_density
        log p(y_n | all data), (N,).
    leave_one_out
        log p(y_n | all data but n), (N,).
    """

    leverage: Array
    log_density: Array
    leave_one_out: Array

    @property
    def gain(self) -> Array:
        """How much better the model knows y_n for having seen it, in nats, (N,)."""
        return self.log_density - self.leave_one_out


def influence(gp: LinearizedGP) -> Influence:
    """Leverage and leave-one-out log density of each training datum, without refits.

    Exact for Gaussian noise and mean="refit"; see `LinearizedGP.leave_one_out` for others. The
    curvature is that at the mean, also where predictions have its expectation (class labels), and
    both densities have the scale of the mean that predictions have.

    Parameters
    ----------
    gp
        With data.
    """
    if not isinstance(gp, LinearizedGP):
        raise TypeError(f"gp: expected a fitted LinearizedGP, got {type(gp).__name__}")
    laplace = gp.laplace
    left_out = gp.leave_one_out(generator=_generator(gp)).log_predictive
    with torch.no_grad():
        solution = laplace.solution()
        posterior, root = solution.posterior, solution.posterior.root.dense()
        _, inner = training_covariance(posterior, root)
        leverage = (1 - inner.diagonal(dim1=-2, dim2=-1)).sum(-1)
        likelihood, location = laplace.likelihood.with_scaled_mean(
            solution.outputs, laplace.scale_of_mean()
        )
        fitted = likelihood.predictive(
            location, posterior.training_covariance(), generator=_generator(gp)
        )
        log_density = fitted.log_prob(laplace.training.targets)
    return Influence(
        as_array(leverage, "gp"), as_array(log_density, "gp"), as_array(left_out, "gp")
    )


def _generator(gp: LinearizedGP) -> torch.Generator:
    """The same draws for both densities, where the likelihood draws."""
    return torch.Generator(gp.linearized.device).manual_seed(0)

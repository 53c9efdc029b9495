"""Leave-one-out predictive densities in closed form, from the posterior of all data.

With the posterior N(m_n, C_n) of the outputs at training datum n, residual r_n and curvature root
R_n there, the posterior of these outputs given all other data (the cavity) is

    C_-n = C_n + C_n R_n D_n⁻¹ R_nᵀ C_n,     D_n = I - R_nᵀ C_n R_n = [(I + Φ Φᵀ)⁻¹]_nn
    m_-n = m_n - C_-n r_n

(Rasmussen and Williams, 2006, section 5.4.2, with C_n in place of a kernel's inverse, so that
singular R_n need no special case; Opper and Winther, 2000, for likelihoods that aren't Gaussian.)
For a Gaussian likelihood and the refitted mean this is exactly what N refits give. For other
likelihoods the other data's quadratic approximation stays where it is, at the mean of all data, and
the datum's own is taken out: one Newton step of the refit. With the network's mean it is the same
step away from the network, as if it were the mode.

A datum with a weight is left out as a whole, w_n and all, not one of w_n repetitions: weights need
not be whole numbers. Its density counts w_n times in the sum.

Predictions of class labels are averages around s m (see `lingp.inference.mean_scale`), and so are
these: around s m_-n, with the s that predictions have. Curvature is that at the mean, also where
predictions have its expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.data_term import DataTerm
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.features import WhitenedJacobian
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.training_covariance import training_covariance


@dataclass(frozen=True)
class LeaveOneOut:
    """The posterior of each training datum's outputs given all other data.

    Attributes
    ----------
    mean
        m_-n, (N x C).
    covariance
        C_-n, (N x C x C).
    data
        The likelihood of the training data.
    mean_scale
        s, with which class labels are predicted; 1 for others.
    """

    mean: Tensor
    covariance: Tensor
    data: DataTerm
    mean_scale: float = 1.0

    def log_predictive(self, method: str | None = None) -> Tensor:
        """log p(y_n | all other data), (N,), without the data's weights.

        Methods that draw always use the same numbers, so that results are repeatable and smooth in
        the hyperparameters.

        Parameters
        ----------
        method
            The way in which the likelihood computes its predictive; its first method by default.
        """
        generator = torch.Generator(self.mean.device).manual_seed(0)
        likelihood, location = self.data.likelihood.with_scaled_mean(self.mean, self.mean_scale)
        predictive = likelihood.predictive(location, self.covariance, method, generator=generator)
        return predictive.log_prob(self.data.targets)

    def total(self, method: str | None = None) -> Tensor:
        """Σ_n w_n log p(y_n | all other data), 0-d."""
        each = self.log_predictive(method)
        return (each if self.data.weights is None else self.data.weights * each).sum()


def leave_one_out(laplace: LinearizedLaplace) -> LeaveOneOut:
    """Cavity moments at the current hyperparameters, differentiable in them in grad mode.

    The scale of the mean is that of predictions; it is not differentiated.

    Raises
    ------
    ValueError
        If the data are spread over processes.
    """
    if not laplace.training.shards.alone:
        raise ValueError(
            "leave_one_out: not available with a process_group; use the evidence, validation "
            "data, or one process"
        )
    data, solution = laplace.data_term, laplace.solution()
    outputs, root = solution.outputs, solution.posterior.root.dense()
    covariance, inner = training_covariance(solution.posterior, root)
    mean, without = cavity(outputs, covariance, root, data.residual(outputs), inner)
    with torch.no_grad():
        posterior = solution.posterior
        if not isinstance(posterior.features, WhitenedJacobian):
            # what features leave out of the prior is there whatever the data are
            _, outside = posterior.at_data
            without = without if outside is None else without + outside
    return LeaveOneOut(mean, without, data, laplace.scale_of_mean())


def cavity(
    mean: Tensor, covariance: Tensor, root: Tensor, residual: Tensor, inner: Tensor
) -> tuple[Tensor, Tensor]:
    """m_-n and C_-n.

    Parameters
    ----------
    mean, covariance
        m_n (N x C) and C_n (N x C x C).
    root
        R_n, (N x C x K).
    residual
        r_n, (N x C).
    inner
        D_n, (N x K x K), positive definite.

    Raises
    ------
    OutOfRangeError
        If rounding has made some D_n indefinite.
    """
    factor, info = torch.linalg.cholesky_ex(inner)
    if bool(info.any()):
        rows = info.nonzero().reshape(-1).tolist()
        raise OutOfRangeError(
            f"leave-one-out: {len(rows)} data (the first is row {rows[0]}) determine an output "
            f"alone, with a leverage that {inner.dtype} can't tell from one; use "
            'inference="function_space", dtype=torch.float64, or a larger noise or prior precision'
        )
    half = torch.linalg.solve_triangular(factor, root.mT @ covariance, upper=False)  # (N, K, C)
    without = covariance + half.mT @ half
    return mean - (without @ residual.unsqueeze(-1)).squeeze(-1), without

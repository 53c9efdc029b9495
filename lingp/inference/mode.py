"""The posterior mode of the linearised model, by Newton's method.

    Ψ(e) = Σ_n w_n log p(y_n | f_n) - ½ |e|²      f = f_lin(μ0) + F e
    g    = Fᵀ r - e
    H    = I - Fᵀ (∇²_f log p) F

e are the coordinates of the deviation of the weights from the prior's mean: whitened weights, with
F = J Σ0^{1/2}, for an exact method. Steps are H⁻¹ g by conjugate
gradients, preconditioned with I + Φᵀ Φ at the current outputs: one iteration where the GGN is the
Hessian (softmax, Poisson, ...), where it isn't (Student-t, ...) as many as the speed of Newton's
method asks for. A line search makes every step raise Ψ.

Distances are measured in posterior standard deviations: |g| stands for (gᵀ (I + Φᵀ Φ)⁻¹ g)^{1/2},
about how far the mode is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference.conjugate_gradients import Product, conjugate_gradients
from lingp.inference.data_term import DataTerm
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.features import Features
from lingp.inference.posterior import Posterior
from lingp.runtime.plain import storable

_SUFFICIENT = 1e-4  # share of the gain predicted by the slope that a step must bring
_UNCERTAIN = 100.0  # times the rounding of Ψ: gains up to here may be hidden by it
_LARGEST_CG_TOLERANCE = 0.1
_MOST_CG_ITERATIONS = 100
_SOLVED = 1e-2  # tolerance on the gradient's norm after a direct solve


@storable
@dataclass(frozen=True)
class Mode:
    """The optimum of the linearised model.

    Attributes
    ----------
    e
        Coordinates of θ - μ0 in the features, (q,): Σ0^{-1/2} (θ - μ0) for an exact method.
    outputs
        f_lin there, (N x C).
    converged
        Whether `gradient_norm` is below the tolerance, or as small as rounding allows.
    num_iterations
        Newton steps taken.
    gradient_norm
        How many posterior standard deviations the mode is away, estimated.
    objective
        Ψ, log likelihood less ½ |e|².
    """

    e: Tensor
    outputs: Tensor
    converged: bool
    num_iterations: int
    gradient_norm: float
    objective: float

    def __str__(self) -> str:
        return (
            f"{'converged' if self.converged else 'not converged'} after {self.num_iterations} "
            f"Newton steps: {self.gradient_norm:.1e} posterior standard deviations from the mode"
        )


@dataclass(frozen=True)
class WhitenedModel:
    """Ψ and its derivatives, differentiable in hyperparameters where the features have a graph.

    Attributes
    ----------
    data
        The likelihood of the training data.
    features
        F.
    offset
        f_lin(μ0), (N x C).
    """

    data: DataTerm
    features: Features
    offset: Tensor

    def change(self, e: Tensor) -> Tensor:
        """F e, (N x C)."""
        return self.features.matmul(e.unsqueeze(-1)).squeeze(-1)

    def outputs(self, e: Tensor) -> Tensor:
        """f at e, (N x C)."""
        return self.offset + self.change(e)

    def pull_back(self, u: Tensor) -> Tensor:
        """Fᵀ u, (N x C x S) -> (q x S)."""
        return self.features.t_matmul(u)

    def objective(self, e: Tensor, f: Tensor) -> float:
        """Ψ at e with outputs f; -inf where it isn't finite."""
        value = float((self.data.log_prob(f) - 0.5 * e.square().sum()).detach())
        return value if math.isfinite(value) else -math.inf

    def gradient(self, e: Tensor, f: Tensor) -> Tensor:
        """g at e with outputs f, (q,)."""
        return self.pull_back(self.data.residual(f).unsqueeze(-1)).squeeze(-1) - e

    def hessian(self, f: Tensor) -> Product:
        """v -> H v, (q,), at outputs f."""
        inner = self.data.hessian(f)

        def product(v: Tensor) -> Tensor:
            return v + self.pull_back(inner(self.change(v)).unsqueeze(-1)).squeeze(-1)

        return product


@dataclass(frozen=True)
class _Slope:
    """The gradient at a point, seen through a posterior's precision."""

    gradient: Tensor  # (q,)
    step: Tensor  # (I + Φᵀ Φ)⁻¹ g, (q,)
    norm: float
    rounding: float  # what rounding alone makes of the norm

    def small(self, tolerance: float) -> bool:
        return self.norm <= max(tolerance, self.rounding)


def solved_mode(model: WhitenedModel, posterior: Posterior) -> Mode:
    """The mode of a quadratic likelihood: the minimiser of |z - Φ e|² + |e|²."""
    e = posterior.solve(model.data.whitened_residual(model.offset))
    f = model.outputs(e)
    slope = _slope(model, posterior, e, f)
    # there is nothing to iterate: a hundredth of a standard deviation is no cause for a warning
    return Mode(e, f, slope.small(_SOLVED), 1, slope.norm, model.objective(e, f))


def newton_mode(
    model: WhitenedModel,
    starts: list[Tensor],
    make_posterior: Callable[[Tensor], Posterior],
    *,
    tolerance: float | None = None,
    max_iterations: int = 100,
) -> tuple[Mode, Posterior]:
    """The mode by Newton's method, and the posterior of its last step.

    Parameters
    ----------
    model
        Without a graph.
    starts
        Candidates e, (P,); the search starts from the one of largest Ψ.
    make_posterior
        The posterior whose curvature is taken at given outputs (N x C).
    tolerance
        On `Mode.gradient_norm`; by default the square root of the dtype's rounding. A last step is
        taken past it, which about squares what is left.
    max_iterations
        Most steps to take.

    Raises
    ------
    OutOfRangeError
        If Ψ is finite at none of the starts.
    """
    e, f, value = _best_start(model, starts)
    if tolerance is None:
        tolerance = default_tolerance(f.dtype)
    iterations, initial = 0, 0.0
    while True:
        posterior = make_posterior(f)
        slope = _slope(model, posterior, e, f)
        last = slope.small(tolerance) or iterations == max_iterations - 1
        initial = max(initial, slope.norm)
        if slope.norm == 0.0:
            break
        direction = conjugate_gradients(
            model.hessian(f),
            slope.gradient,
            preconditioner(posterior),
            tolerance=min(_LARGEST_CG_TOLERANCE, slope.norm / initial),
            max_iterations=_MOST_CG_ITERATIONS,
            first=slope.step,
        ).x
        found = _line_search(model, posterior, e, f, value, slope, direction)
        if found is None:
            break
        (e, f, value), iterations = found, iterations + 1
        if last:
            slope = _slope(model, posterior, e, f)
            break
    mode = Mode(e, f, slope.small(tolerance), iterations, slope.norm, value)
    return mode, posterior


def default_tolerance(dtype: torch.dtype) -> float:
    """On `Mode.gradient_norm`."""
    return math.sqrt(torch.finfo(dtype).eps)


def preconditioner(posterior: Posterior) -> Product:
    """v -> (I + Φᵀ Φ)⁻¹ v, (q,)."""
    return lambda v: posterior.precision_solve(v.unsqueeze(-1)).squeeze(-1)


def _best_start(model: WhitenedModel, starts: list[Tensor]) -> tuple[Tensor, Tensor, float]:
    points = [(e, model.outputs(e)) for e in starts]
    values = [model.objective(e, f) for e, f in points]
    value = max(values)
    if value == -math.inf:
        raise OutOfRangeError(
            "the log likelihood is not finite, neither at the network's weights nor at the prior's "
            "mean: a target is impossible there or a hyperparameter is out of range"
        )
    return (*points[values.index(value)], value)


def _slope(model: WhitenedModel, posterior: Posterior, e: Tensor, f: Tensor) -> _Slope:
    residual = model.data.residual(f)
    # Rounding errors of Jᵀ r are of the size of eps Jᵀ (± r).
    place = torch.arange(residual.numel(), device=f.device) * 0.6180339887
    signs = torch.where(place.frac() < 0.5, 1.0, -1.0).to(f).view_as(f)
    pulled = model.pull_back(torch.stack([residual, signs * residual], -1))
    right = torch.stack([pulled[:, 0] - e, pulled[:, 1]], -1)
    solved = posterior.precision_solve(right)
    norm, noise = (right * solved).sum(0).clamp(min=0).sqrt().tolist()
    whitened = posterior.root.t_apply(f.unsqueeze(-1))
    noise += float(model.data.shards.sum(whitened.square().sum()).sqrt())
    noise += float(torch.linalg.vector_norm(e))
    rounding = 4 * torch.finfo(f.dtype).eps * noise
    return _Slope(right[:, 0], solved[:, 0], norm, rounding)


def _line_search(
    model: WhitenedModel,
    posterior: Posterior,
    e: Tensor,
    f: Tensor,
    value: float,
    slope: _Slope,
    direction: Tensor,
) -> tuple[Tensor, Tensor, float] | None:
    """A point (e, f, Ψ) along the direction that is better, or None.

    Better is a larger Ψ (Armijo's rule); where the gain to expect is below what rounding leaves of
    Ψ, a smaller gradient.
    """
    gain = float(slope.gradient @ direction)
    if not gain > 0:
        direction, gain = slope.step, slope.norm**2
    terms = model.data.log_prob_rows(f).abs().sum() + (model.data.residual(f) * f).abs().sum()
    terms = model.data.shards.sum(terms) + 0.5 * e.square().sum()
    resolution = 8 * torch.finfo(f.dtype).eps * float(terms)

    def point(size: float) -> tuple[Tensor, Tensor, float]:
        moved = e + size * direction
        outputs = model.outputs(moved)
        return moved, outputs, model.objective(moved, outputs)

    size = 1.0
    while size * gain > resolution:
        found = point(size)
        if found[2] >= value + _SUFFICIENT * size * gain:
            return found
        size *= 0.5
    if gain > _UNCERTAIN * resolution:
        return None
    found = point(1.0)
    better = _slope(model, posterior, found[0], found[1]).norm < slope.norm
    return found if better else None

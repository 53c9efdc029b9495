"""Derivatives of the mode in hyperparameters, by the implicit function theorem.

g(ê(h); h) = 0      =>      dê/dh = H⁻¹ ∂g/∂h      H = -∂g/∂e at ê
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from lingp.inference.conjugate_gradients import Product, conjugate_gradients
from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.mode import Mode, WhitenedModel, preconditioner
from lingp.inference.posterior import Posterior
from lingp.linalg.first_order import first_order

_MAX_ITERATIONS = 500


def attached_mode(model: WhitenedModel, mode: Mode, posterior: Posterior) -> tuple[Tensor, Tensor]:
    """ê (q,) and f_lin there (N x C), with a graph to the hyperparameters.

    Parameters
    ----------
    model
        With a graph.
    mode
        Its mode.
    posterior
        Near the mode, without a graph: preconditions H.
    """
    gradient = model.gradient(mode.e, model.outputs(mode.e))
    e = Attach.apply(gradient, mode.e, _Solver(model, mode, posterior))
    return e, model.outputs(e)


class _Solver:
    """v -> H⁻¹ v, by conjugate gradients."""

    def __init__(self, model: WhitenedModel, mode: Mode, posterior: Posterior) -> None:
        # cut from the graph, which holds on to this object
        self.model = WhitenedModel(model.data, model.features.detach(), model.offset.detach())
        self.mode, self.posterior = mode, posterior

    def __call__(self, right: Tensor) -> Tensor:
        product: Product = self.model.hessian(self.mode.outputs)
        precondition = preconditioner(self.posterior)
        eps = torch.finfo(right.dtype).eps
        found = conjugate_gradients(
            product,
            right,
            precondition,
            tolerance=eps,
            max_iterations=min(_MAX_ITERATIONS, len(right) + 10),
        )
        rest = right - product(found.x)
        size = float(right @ precondition(right))
        residual = math.sqrt(max(float(rest @ precondition(rest)), 0.0) / size) if size else 0.0
        if residual > 100 * math.sqrt(eps):
            reason = "" if found.positive else " (the mode is no maximum: curvature is negative)"
            warnings.warn(
                f"the derivative of the refitted mean in hyperparameters has relative residual "
                f'{residual:.1e}{reason}; sites="network" or mean="network" does without it',
                ConvergenceWarning,
                stacklevel=2,
            )
        return found.x


class Attach(torch.autograd.Function):
    """ê, where g(ê) = 0; its derivative in g is H⁻¹, which the third argument multiplies by."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, e: Tensor, solver: Product) -> Tensor:
        ctx.solver = solver
        ctx.save_for_backward(gradient)
        return e.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        (by_gradient,) = first_order(lambda: [ctx.solver(grad)], grad, *ctx.saved_tensors)
        return by_gradient, None, None

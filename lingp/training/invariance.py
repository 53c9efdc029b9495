"""Gradients of the evidence with respect to parameters of the inputs, through f and J.

    log q(D; η) = Σ_n log p(y_n | f̂_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ)

with f̂(x) = 1/S Σ_s f(T(x, η, ε_s)), and Φ = Rᵀ Ĵ Σ0^{1/2} of its Jacobian Ĵ = 1/S Σ_s J(T(x, η,
ε_s)) in the weights (Immer, van der Ouderaa, Rätsch, Fortuin and van der Wilk, 2022, "Invariance
learning in deep neural networks with differentiable Laplace approximations").

In weight space, with A = I + Φᵀ Φ (P x P), the determinant's derivative is a sum over rows,

    d log det A = Σ_n d tr(Φ_n A⁻¹ Φ_nᵀ)      with A held fixed

so that the exact gradient takes two passes over the data, and random rows give an unbiased estimate
of it. Where P is large, blocks of m rows bound the determinant (Fischer's inequality),

    E (N / m) [Σ_{n in block} log p(y_n | f̂_n) - ½ log det(I + Φ_b Φ_bᵀ)] - ½ |...|²  <=  log q

(Immer, van der Ouderaa, van der Wilk, Rätsch and Schölkopf, 2023, "Stochastic marginal likelihood
gradients using neural tangent kernels"); the bound is loose, and looser where Φ is larger, so that
it favours invariance too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lingp.likelihoods import Likelihood
from lingp.linearization import ParameterSelection
from lingp.priors import Prior
from lingp.training.input_model import InputModel


@dataclass(frozen=True)
class EvidenceGradient:
    """The evidence, or an estimate of it, and its gradient.

    Attributes
    ----------
    evidence
        Log marginal likelihood.
    gradients
        In each learnable parameter of the augmentation, by name.
    """

    evidence: float
    gradients: dict[str, Tensor]


def evidence_gradient(
    net: nn.Module,
    X: Any,
    y: Any,
    *,
    likelihood: Likelihood,
    prior: Prior,
    parameters: ParameterSelection = "all",
    method: Literal["exact", "blocks"] = "exact",
    block_size: int | None = None,
    num_blocks: int | None = 1,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
) -> EvidenceGradient:
    """Gradient of the evidence in the learnable parameters of an augmentation.

    Parameters
    ----------
    net
        `Augmented`. It is copied and stays as it is.
    X, y
        All training data; inputs are one tensor.
    likelihood, prior, parameters
        As in `LinearizedGP`; nothing of them is changed. The prior is bound if it isn't yet.
    method
        "exact", in the smaller of function and weight space; or "blocks", the lower bound from
        random blocks of rows.
    block_size
        m, rows of a block, or rows at a time; by default so many that they have 400 outputs.
    num_blocks
        Disjoint random blocks that are averaged; None: all there are.
    dtype
        Of the Jacobians and of linear algebra.
    generator
        Draws the blocks; torch's global one by default.
    """
    model = InputModel.of(net, X, y, likelihood, prior, parameters, dtype)
    size = model.block_size(block_size)
    if method == "blocks":
        found = _by_blocks(model, size, num_blocks, generator)
    elif method != "exact":
        raise ValueError(f'method: expected "exact" or "blocks", got {method!r}')
    elif model.num_data * model.num_outputs <= model.network.num_parameters:
        found = _by_blocks(model, model.num_data, 1, generator)
    else:
        found = _in_weight_space(model, size)
    return as_found(net, *found)


def as_found(net: nn.Module, evidence: float, gradients: dict[str, Tensor]) -> EvidenceGradient:
    """With gradients in the dtype and on the device of the network's own parameters."""
    own = dict(net.named_parameters())
    placed = {name: g.to(own[f"augmentation.{name}"]) for name, g in gradients.items()}
    return EvidenceGradient(evidence, placed)


def gradients_of(model: InputModel, value: Tensor) -> dict[str, Tensor]:
    """Of a scalar in the parameters of the inputs."""
    names, leaves = model.leaves()
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for name, p, g in zip(names, leaves, found, strict=True)
    }


def add_(total: dict[str, Tensor], more: dict[str, Tensor], factor: float = 1.0) -> None:
    """`total += factor · more`."""
    for name, g in more.items():
        total[name] = total[name] + factor * g if name in total else factor * g


def _by_blocks(
    model: InputModel, size: int, number: int | None, generator: torch.Generator | None
) -> tuple[float, dict[str, Tensor]]:
    if number is not None and number < 1:
        raise ValueError(f"num_blocks: expected 1 or more, got {number}")
    blocks = list(islice(model.blocks(size, generator), number))
    share = model.num_data / (size * len(blocks))
    evidence, total = -model.penalty, dict[str, Tensor]()
    for rows in blocks:
        at = model.rows(rows)
        value = at.log_likelihood - 0.5 * model.block_determinant(at)
        evidence += share * value.item()
        add_(total, gradients_of(model, value), share)
    return evidence, total


def _in_weight_space(model: InputModel, size: int) -> tuple[float, dict[str, Tensor]]:
    everything, scale = torch.arange(model.num_data), model.scale()
    factor = weight_space_factor(model.curvature(everything, size), scale)
    evidence = -model.penalty - factor.diagonal().log().sum().item()
    total = dict[str, Tensor]()
    for rows in everything.split(size):
        at = model.rows(rows)
        evidence += at.log_likelihood.item()
        value = at.log_likelihood - 0.5 * volume(model.jacobian(at), scale, factor)
        add_(total, gradients_of(model, value))
    return evidence, total


def weight_space_factor(curvature: Tensor, scale: Tensor) -> Tensor:
    """The Cholesky factor of A = I + Σ0^{1/2} H Σ0^{1/2}; scale is Σ0^{1/2}, (P,)."""
    a = curvature * scale.unsqueeze(-1) * scale
    a.diagonal().add_(1)
    return torch.linalg.cholesky(a)


def volume(rooted: Tensor, scale: Tensor, factor: Tensor) -> Tensor:
    """tr(Φ_b A⁻¹ Φ_bᵀ), 0-d, whose gradients sum to that of log det A.

    Parameters
    ----------
    rooted
        Rᵀ Ĵ of some rows, (m·K x P).
    scale
        Σ0^{1/2}, (P,).
    factor
        The Cholesky factor of A, held fixed.
    """
    phi = rooted * scale
    return torch.linalg.solve_triangular(factor, phi.mT, upper=False).square().sum()

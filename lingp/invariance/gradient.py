"""Gradients of the evidence with respect to parameters of the inputs, through f and J.

    log q(D; η) = Σ_n log p(y_n | f̂_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ)

with f̂(x) = 1/S Σ_s f(T(x, η, ε_s)), and Φ = Rᵀ Ĵ Σ0^{1/2} of its Jacobian Ĵ = 1/S Σ_s J(T(x, η,
ε_s)) in the weights (Immer, van der Ouderaa, Rätsch, Fortuin and van der Wilk, 2022, "Invariance
learning in deep neural networks with differentiable Laplace approximations").

With the posterior covariance S = (I + Φᵀ Φ)⁻¹ of the whitened weights, the determinant's derivative
is a sum over rows,

    d log det(I + Φ Φᵀ) = Σ_n d tr(Φ_n S Φ_nᵀ)      with S held fixed

so that the exact gradient takes two passes over the data, and random rows give an unbiased estimate
of it. Where there are many weights and rows, blocks of m rows bound the determinant (Fischer's
inequality),

    E (N / m) [Σ_{n in block} log p(y_n | f̂_n) - ½ log det(I + Φ_b Φ_bᵀ)] - ½ |...|²  <=  log q

(Immer, van der Ouderaa, van der Wilk, Rätsch and Schölkopf, 2023, "Stochastic marginal likelihood
gradients using neural tangent kernels"); the bound is loose, and looser where Φ is larger, so that
it favours invariance too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lingp.inference import Posterior
from lingp.invariance.input_model import InputModel
from lingp.likelihoods import Likelihood
from lingp.linearization import ParameterSelection
from lingp.priors import Prior


@dataclass(frozen=True)
class EvidenceGradient:
    """The evidence, or an estimate of it, and its gradient.

    Attributes
    ----------
    evidence
        Log marginal likelihood.
    gradients
        The gradient in each learnable parameter of the augmentation, by name.
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
        The dtype of Jacobians and linear algebra.
    generator
        Draws the blocks; torch's global one by default.
    """
    model = InputModel.of(net, X, y, likelihood, prior, parameters, dtype)
    size = model.block_size(block_size)
    if method not in ("exact", "blocks"):
        raise ValueError(f'method: expected "exact" or "blocks", got {method!r}')
    if num_blocks is not None and num_blocks < 1:
        raise ValueError(f"num_blocks: expected 1 or more, got {num_blocks}")
    if method == "exact":
        blocks = [torch.arange(model.num_data)]
    else:
        blocks = model.blocks(size, generator)[:num_blocks]
    return estimate(model, net, blocks, size)


def estimate(
    model: InputModel,
    net: nn.Module,
    blocks: Sequence[Tensor],
    size: int,
    posterior: Posterior | None = None,
) -> EvidenceGradient:
    """The evidence and its gradient from disjoint blocks of rows.

    Parameters
    ----------
    model
        The model of the network.
    net
        The network, in whose dtype and on whose device the gradients are.
    blocks
        Numbers of rows.
    size
        How many rows are worked on at a time.
    posterior
        The posterior of all rows; by default each block has one of its own, which bounds the
        evidence.
    """
    share = model.num_data / sum(len(block) for block in blocks)
    evidence, total = 0.0, {name: torch.zeros_like(p) for name, p in model.leaves().items()}
    for block in blocks:
        own = model.posterior(block, size) if posterior is None else posterior
        if posterior is None:
            evidence -= 0.5 * share * own.log_determinant().item()
        for rows in block.split(size):
            log_likelihood, trace = model.terms(rows, own)
            evidence += share * log_likelihood.item()
            for name, g in _gradients(model, log_likelihood - 0.5 * trace).items():
                total[name] += share * g
    if posterior is not None:
        evidence -= 0.5 * posterior.log_determinant().item()
    deviation = (model.network.weights() - model.prior.mean.to(own.scale)) / own.scale
    parameters = dict(net.named_parameters())
    return EvidenceGradient(
        evidence - 0.5 * float(deviation.square().sum()),
        {name: g.to(parameters[f"augmentation.{name}"]) for name, g in total.items()},
    )


def _gradients(model: InputModel, value: Tensor) -> dict[str, Tensor]:
    """The gradients of a scalar in the parameters of the inputs."""
    leaves = model.leaves()
    found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))

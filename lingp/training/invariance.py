"""Gradients of the evidence with respect to parameters of the inputs, through f and J.

    log q(D; η) = Σ_n log p(y_n | f̂_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ)

with f̂(x) = 1/S Σ_s f(T(x, η, ε_s)), and Φ = Rᵀ Ĵ Σ0^{1/2} of its Jacobian Ĵ = 1/S Σ_s J(T(x, η,
ε_s)) in the weights (Immer, van der Ouderaa, Rätsch, Fortuin and van der Wilk, 2022, "Invariance
learning in deep neural networks with differentiable Laplace approximations"). The determinant of
all N·C rows is at most the product of those of blocks of rows (Fischer's inequality), so that with
m rows drawn at random

    E (N / m) [Σ_{n in block} log p(y_n | f̂_n) - ½ log det(I + Φ_b Φ_bᵀ)] - ½ |...|²  <=  log q

(Immer, van der Ouderaa, van der Wilk, Rätsch and Schölkopf, 2023, "Stochastic marginal likelihood
gradients using neural tangent kernels"); with m = N it is equal.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lingp.likelihoods import Likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import num_rows
from lingp.models.intake import as_inputs, as_tensor
from lingp.operators.contractions import gram
from lingp.priors import Prior
from lingp.training.augmentations import Augmentation, Augmented, Averaged
from lingp.training.map_loss import penalty

_BLOCK = 400  # rows N·C of a block: its factorisation costs about as much as its Jacobian


@dataclass(frozen=True)
class EvidenceGradient:
    """The evidence, or its estimate from blocks of rows, and its gradient.

    Attributes
    ----------
    evidence
        Log marginal likelihood, exact where one block has all rows.
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
    block_size: int | None = None,
    num_blocks: int = 1,
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
    block_size
        m, rows of a block; by default so many that they have 400 outputs. N gives the exact
        evidence.
    num_blocks
        Disjoint random blocks that are averaged.
    dtype
        Of the Jacobians and of linear algebra.
    generator
        Draws the blocks; torch's global one by default.
    """
    model = _InputModel.of(net, X, y, likelihood, prior, parameters, dtype)
    blocks = model.blocks(block_size, num_blocks, generator)
    names, leaves = model.leaves()
    total, sums = 0.0, [torch.zeros_like(p) for p in leaves]
    for rows in blocks:
        evidence = model.evidence(rows)
        found = torch.autograd.grad(evidence, leaves, allow_unused=True)
        total += evidence.item() / len(blocks)
        for gathered, g in zip(sums, found, strict=True):
            if g is not None:
                gathered += g / len(blocks)
    own = dict(net.named_parameters())
    return EvidenceGradient(
        total, {n: g.to(own[f"augmentation.{n}"]) for n, g in zip(names, sums, strict=True)}
    )


@dataclass(frozen=True)
class _InputModel:
    """What the evidence of a block of rows is made of, with a differentiable copy of T."""

    augmented: Augmented
    network: LinearizedNetwork
    prior: Prior
    likelihood: Likelihood
    inputs: Tensor
    targets: Tensor
    penalty: float

    @staticmethod
    def of(
        net: nn.Module,
        X: Any,
        y: Any,
        likelihood: Likelihood,
        prior: Prior,
        parameters: ParameterSelection,
        dtype: torch.dtype,
    ) -> _InputModel:
        if not isinstance(net, Augmented):
            raise TypeError(
                f"net: got {type(net).__name__}; expected an Augmented network, which has the "
                "parameters to learn: Augmented(net, InputScale(num_inputs)), for example"
            )
        if not net.learnable:
            raise ValueError(
                f"net: no parameter of its {type(net.augmentation).__name__} is learnable"
            )
        twin = copy.deepcopy(net).eval().requires_grad_(False).to(dtype=dtype)
        for name, p in twin.augmentation.named_parameters():
            p.requires_grad_(name in net.learnable)
        linearized = LinearizedNetwork(Averaged(net.net), parameters, dtype=dtype)
        prior.bind(linearized.parameter_names)
        inputs = as_inputs(X)
        if not isinstance(inputs, Tensor):
            raise TypeError(f"X: got {type(inputs).__name__}; an augmentation takes one tensor")
        targets = as_tensor(y, "y")
        if len(targets) != num_rows(inputs):
            raise ValueError(f"X and y: {len(inputs)} rows of inputs, but {len(targets)} targets")
        inputs = inputs.to(linearized.device, dtype)
        with torch.no_grad():
            shape = tuple(twin(inputs[:1]).shape[1:]) or (1,)
            weights = float(penalty(net, prior))
        targets = likelihood.check_targets(targets, shape, dtype).to(linearized.device)
        return _InputModel(twin, linearized, prior, likelihood, inputs, targets, weights)

    @property
    def augmentation(self) -> Augmentation:
        return self.augmented.augmentation

    def leaves(self) -> tuple[list[str], list[nn.Parameter]]:
        """Names and tensors of what the evidence is differentiated in."""
        named = {n: p for n, p in self.augmentation.named_parameters() if p.requires_grad}
        return list(named), list(named.values())

    def blocks(
        self, size: int | None, number: int, generator: torch.Generator | None
    ) -> list[Tensor]:
        """Disjoint random blocks of rows."""
        num_data = len(self.inputs)
        if size is None:
            outputs = self.augmented(self.inputs[:1]).numel()
            size = max(1, _BLOCK // outputs)
        size = min(size, num_data)
        if size < 1 or number < 1:
            raise ValueError(f"block_size, num_blocks: expected 1 or more, got {size}, {number}")
        order = torch.randperm(num_data, generator=generator).to(self.inputs.device)
        whole = [rows for rows in order.split(size)[:number] if len(rows) == size]
        return whole

    def evidence(self, rows: Tensor) -> Tensor:
        """The estimate from these rows, 0-d, with a graph to the parameters of the inputs."""
        pick = itemgetter(rows)
        augmented, targets = self.augmented.augment(pick(self.inputs)), pick(self.targets)
        share = len(self.inputs) / len(rows)
        f, factors = self.network.factors(augmented)
        root = self.likelihood.curvature_root(targets, f)
        kernel = root.congruence(gram(factors, variances=self.prior.variances().detach().to(f)))
        eye = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
        complexity = 2 * torch.linalg.cholesky(eye + kernel).diagonal().log().sum()
        log_likelihood = self.likelihood.log_prob(targets, f).sum()
        return share * (log_likelihood - 0.5 * complexity) - self.penalty

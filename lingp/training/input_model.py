"""A network's evidence as a function of parameters of its inputs, some rows at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from lingp.likelihoods import Likelihood
from lingp.linearization import Factors, LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import num_rows
from lingp.models.intake import as_inputs, as_tensor
from lingp.operators.contractions import gram
from lingp.priors import Prior
from lingp.training.augmentations import Augmented, Averaged
from lingp.training.map_loss import penalty

_OUTPUTS = 400  # of a block: its factorisation costs about as much as its Jacobian


@dataclass(frozen=True)
class Rows:
    """Some rows, with a graph to the parameters of the inputs.

    Attributes
    ----------
    log_likelihood
        Σ_n log p(y_n | f̂_n), 0-d.
    factors
        Of Ĵ.
    root
        R.
    """

    log_likelihood: Tensor
    factors: Factors
    root: Any


@dataclass(frozen=True)
class InputModel:
    """What the evidence of some rows is made of.

    Attributes
    ----------
    augmented
        A copy of the network in evaluation mode, of which only the learnable parameters of the
        augmentation require grad.
    network
        Linearised in the weights, on inputs that are augmented already.
    prior, likelihood
        Not copied.
    inputs, targets
        All training data.
    penalty
        ½ |Σ0^{-1/2} (θ - μ0)|².
    """

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
    ) -> InputModel:
        """Of a network as it is."""
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
        prior.bind_to(linearized)
        if y is None:
            raise TypeError(
                f"y: missing, X is {type(X).__name__}; gradients in parameters of the inputs take "
                "all training data as arrays, X and y"
            )
        inputs = as_inputs(X)
        if not isinstance(inputs, Tensor):
            raise TypeError(f"X: got {type(inputs).__name__}; an augmentation takes one tensor")
        targets = as_tensor(y, "y")
        if len(targets) != num_rows(inputs):
            raise ValueError(f"X and y: {len(inputs)} rows of inputs, but {len(targets)} targets")
        with torch.no_grad():
            like = next(twin.net.parameters())
            shape = tuple(twin(inputs[:1].to(like)).shape[1:]) or (1,)
            weights = float(penalty(net, prior))
        targets = likelihood.check_targets(targets, shape, dtype).to(linearized.device)
        return InputModel(twin, linearized, prior, likelihood, inputs, targets, weights)

    @property
    def num_data(self) -> int:
        return len(self.inputs)

    @property
    def num_outputs(self) -> int:
        with torch.no_grad():
            return self.augmented(self._place(self.inputs[:1])).numel()

    def leaves(self) -> tuple[list[str], list[nn.Parameter]]:
        """Names and tensors of what the evidence is differentiated in."""
        named = self.augmented.augmentation.named_parameters()
        found = {name: p for name, p in named if p.requires_grad}
        return list(found), list(found.values())

    def block_size(self, size: int | None) -> int:
        """m, as given or so that a block has 400 outputs."""
        if size is not None and size < 1:
            raise ValueError(f"block_size: expected 1 or more, got {size}")
        return min(size or max(1, _OUTPUTS // self.num_outputs), self.num_data)

    def blocks(self, size: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Disjoint random blocks of rows, all of one size."""
        for rows in torch.randperm(self.num_data, generator=generator).split(size):
            if len(rows) == size:
                yield rows

    def rows(self, rows: Tensor) -> Rows:
        """Likelihood, Jacobian and curvature of some rows."""
        pick = itemgetter(rows)
        targets = self.targets[rows.to(self.targets.device)]
        augmented = self.augmented.augment(self._place(pick(self.inputs)))
        f, factors = self.network.factors(augmented)
        log_likelihood = self.likelihood.log_prob(targets, f).sum()
        return Rows(log_likelihood, factors, self.likelihood.curvature_root(targets, f))

    def block_determinant(self, at: Rows) -> Tensor:
        """log det(I + Φ_b Φ_bᵀ), 0-d."""
        variances = self.prior.variances().detach().to(at.log_likelihood)
        kernel = at.root.congruence(gram(at.factors, variances=variances))
        eye = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
        found: Tensor = 2 * torch.linalg.cholesky(eye + kernel).diagonal().log().sum()
        return found

    def jacobian(self, at: Rows) -> Tensor:
        """Rᵀ Ĵ of some rows, (m·K x P)."""
        jacobian = at.factors.jacobian()
        found: Tensor = at.root.t_apply(jacobian).flatten(0, 1)
        return found

    @torch.no_grad()
    def curvature(self, rows: Tensor, size: int) -> Tensor:
        """Σ_n Ĵ_nᵀ Λ_n Ĵ_n over all rows (P x P), estimated from these, `size` at a time."""
        total = torch.zeros(2 * (self.network.num_parameters,), dtype=self.network.dtype)
        total = total.to(self.network.device)
        for some in rows.split(size):
            rooted = self.jacobian(self.rows(some))
            total.addmm_(rooted.mT, rooted)
        return total.mul_(self.num_data / len(rows))

    def scale(self) -> Tensor:
        """Σ0^{1/2}, (P,)."""
        variances = self.prior.variances().detach().to(self.targets)
        if len(variances) == len(self.network.parameter_names):
            sizes = [shape.numel() for shape in self.network.parameter_shapes]
            variances = variances.repeat_interleave(torch.tensor(sizes, device=variances.device))
        return variances.sqrt()

    def _place(self, x: Tensor) -> Tensor:
        return x.to(self.network.device, self.network.dtype)

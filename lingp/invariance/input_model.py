"""The likelihood and the posterior of an augmented network, some rows at a time.

With a graph to the parameters of the inputs, through f̂ and Ĵ:

    Σ_n log p(y_n | f̂_n) - ½ Σ_n tr(Φ_n S Φ_nᵀ),     S = (I + Φᵀ Φ)⁻¹ held fixed

has the derivatives that Σ_n log p(y_n | f̂_n) - ½ log det(I + Φ Φᵀ) has. Row by row, S is asked for
no more than the covariance of outputs at new inputs, which every posterior knows.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.inference import FunctionSpace, Posterior, TrainingSet, WeightSpace
from lingp.inference.data_term import DataTerm
from lingp.invariance.augmentations import Augmented, Averaged
from lingp.likelihoods import Likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.models.intake import as_inputs, as_tensor
from lingp.priors import Prior

_OUTPUTS = 400  # of a block: its factorisation costs about as much as its Jacobian


@dataclass(frozen=True)
class InputModel:
    """A network with parameters of its inputs, and the data.

    Attributes
    ----------
    augmented
        A copy of the network in evaluation mode, of which only the learnable parameters of the
        augmentation require grad.
    network
        The network linearised in its weights; it takes inputs that are augmented already.
    prior, likelihood
        The objects that were given, not copies.
    inputs, targets
        All training data.
    """

    augmented: Augmented
    network: LinearizedNetwork
    prior: Prior
    likelihood: Likelihood
    inputs: Tensor
    targets: Tensor

    @staticmethod
    def of(
        net: Any,
        X: Any,
        y: Any,
        likelihood: Likelihood,
        prior: Prior,
        parameters: ParameterSelection,
        dtype: torch.dtype,
    ) -> InputModel:
        """A model of the network as it is."""
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
        network = LinearizedNetwork(Averaged(net.net), parameters, dtype=dtype)
        prior.bind_to(network)
        if y is None:
            raise TypeError(
                f"y: missing, X is {type(X).__name__}; gradients in parameters of the inputs take "
                "all training data as arrays, X and y"
            )
        inputs = as_inputs(X)
        if not isinstance(inputs, Tensor):
            raise TypeError(f"X: got {type(inputs).__name__}; an augmentation takes one tensor")
        targets = as_tensor(y, "y")
        if len(targets) != len(inputs):
            raise ValueError(f"X and y: {len(inputs)} rows of inputs, but {len(targets)} targets")
        inputs = inputs.to(network.device, dtype)
        with torch.no_grad():
            network(twin.augment(inputs[:1]))
        assert network.output_shape is not None
        prior.bind_to(network)  # inputs have shown which layer is the last
        targets = likelihood.check_targets(targets, tuple(network.output_shape), dtype)
        return InputModel(twin, network, prior, likelihood, inputs, targets.to(network.device))

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.inputs)

    def leaves(self) -> dict[str, Tensor]:
        """The parameters that the evidence is differentiated in, by name."""
        named = self.augmented.augmentation.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def block_size(self, size: int | None) -> int:
        """m, as given or so that a block has 400 outputs."""
        if size is not None and size < 1:
            raise ValueError(f"block_size: expected 1 or more, got {size}")
        return min(size or max(1, _OUTPUTS // self.network.num_outputs), self.num_data)

    def blocks(self, size: int, generator: torch.Generator | None) -> list[Tensor]:
        """Disjoint random blocks of rows, all of one size."""
        parts = torch.randperm(self.num_data, generator=generator).split(size)
        return [rows for rows in parts if len(rows) == size]

    @torch.no_grad()
    def posterior(self, rows: Tensor, size: int) -> Posterior:
        """The exact posterior of some rows, in the smaller space, `size` rows at a time."""
        small = len(rows) * self.network.num_outputs <= self.network.num_parameters
        training = self._training(rows, size, None, keep_bytes=sys.maxsize if small else 0)
        return (FunctionSpace if small else WeightSpace)(*self._conditions(training))

    @torch.no_grad()
    def posterior_from(self, rows: Tensor, size: int) -> WeightSpace:
        """The posterior of all rows, estimated from some, each of which stands for several."""
        share = self.num_data / len(rows)
        return WeightSpace(*self._conditions(self._training(rows, size, share, keep_bytes=0)))

    @torch.no_grad()
    def restored(self, state: dict[str, Any]) -> WeightSpace:
        """The posterior that `posterior_from` gave, from its state."""
        training = self._training(torch.arange(1), 1, None, keep_bytes=0)
        factor = state["factor"].to(training.outputs)
        return WeightSpace.with_factor({**state, "factor": factor}, *self._conditions(training))

    def terms(self, rows: Tensor, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """Σ_n log p(y_n | f̂_n) and Σ_n tr(Φ_n S Φ_nᵀ) of some rows, 0-d, with a graph."""
        targets = self.targets[rows]
        f, factors = self.network.factors(self.augmented.augment(self.inputs[rows]))
        root = self.likelihood.curvature_root(targets, f)
        half = root.t_apply(posterior.marginal_covariance(factors))  # Rᵀ J Cov Jᵀ, (n, K, C)
        trace = root.t_apply(half.mT).diagonal(dim1=-2, dim2=-1).sum()
        return self.likelihood.log_prob(targets, f).sum(), trace

    def _training(
        self, rows: Tensor, size: int, weight: float | None, keep_bytes: int
    ) -> TrainingSet:
        batches = (
            (
                self.augmented.augment(self.inputs[some]),
                self.targets[some],
                None if weight is None else self.inputs.new_full((len(some),), weight),
            )
            for some in rows.split(size)
        )
        return TrainingSet.collect(self.network, batches, keep_bytes=keep_bytes, progress=False)

    def _conditions(self, training: TrainingSet) -> tuple[TrainingSet, Prior, Any]:
        data = DataTerm(self.likelihood, training.targets, training.weights)
        return training, self.prior, data.curvature_root(training.outputs)

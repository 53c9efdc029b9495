"""The neural tangent kernel of a trained network as a GPyTorch kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor, nn

from lingp.gpytorch_models.exact_kernel import SolvedExactly, warn_if_solved_iteratively
from lingp.gpytorch_models.frozen_network import FrozenNetwork
from lingp.linearization import Factors, LinearizedNetwork, ParameterSelection
from lingp.operators.exact import ExactDenseLinearOperator
from lingp.operators.ntk import NTKLinearOperator
from lingp.priors import Prior, as_prior


class NTKernel(SolvedExactly):
    """K(x, x') = J(x) Σ0 J(x')ᵀ with J(x) = ∂f(x; θ)/∂θ at the trained weights, θ ~ N(μ0, Σ0).

    With C outputs it is a multi-output kernel: (N·C) x (M·C), rows `n·C + c`, the order of an
    interleaved `MultitaskMultivariateNormal`. Evaluation is lazy: what comes back knows products,
    its diagonal and its rows without the matrix. Solves are dense Cholesky at every size, also of
    sums and products that begin with this kernel; others have to be wrapped in `ExactKernel`.

    The network is frozen. Its weights are no hyperparameters and not among `parameters()`; they
    follow `.to(device, dtype)` and are in `state_dict()`. Results have the network's dtype:
    `kernel.double()` for float64. Hyperparameters are those of the prior, which is cast to the
    network's dtype.

    Parameters
    ----------
    network : LinearizedNetwork
        Used as it is, not copied. See `NTKernel.from_model` for a network.
    prior : lingp.priors.Prior or float, optional
        Weight prior; a number is the precision of an isotropic one. Precision 1 by default.
    input_shape, input_dtype : optional
        See `NTKernel.from_model`.
    **kwargs
        `active_dims` and `batch_shape` of `gpytorch.kernels.Kernel`. A batch shape only repeats the
        kernel: there is one prior.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    >>> kernel = NTKernel.from_model(net, prior=0.1)
    >>> kernel(torch.randn(5, 2)).shape
    torch.Size([5, 5])
    """

    def __init__(
        self,
        network: LinearizedNetwork,
        prior: Prior | float | None = None,
        *,
        input_shape: Sequence[int] | None = None,
        input_dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.network = FrozenNetwork(network, input_shape, input_dtype)
        prior = as_prior(prior).bind_to(network)
        self.prior = prior.to(dtype=network.dtype, device=network.device)

    @classmethod
    def from_model(
        cls,
        net: nn.Module,
        parameters: ParameterSelection = "all",
        prior: Prior | float | None = None,
        *,
        input_shape: Sequence[int] | None = None,
        input_dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> NTKernel:
        """The kernel of a trained network, which is copied and never changed.

        Parameters
        ----------
        net : torch.nn.Module
            `net(x)` gives (N,), (N, C) or (N, *shape), flattened to C outputs.
        parameters : optional
            The weights that are uncertain, see `lingp.linearization.select_parameters`.
        prior : lingp.priors.Prior or float, optional
            Weight prior; a number is the precision of an isotropic one. Precision 1 by default.
        input_shape : sequence of int, optional
            Shape of one input, such as (1, 28, 28), when it is not a flat vector. GPyTorch wants
            inputs N x D: give it `x.flatten(1)`, and the network sees them unflattened.
        input_dtype : torch.dtype, optional
            What the network expects when it is not floating point, such as `torch.long` for token
            ids: x holds the ids as numbers.
        **kwargs
            `active_dims` and `batch_shape` of `gpytorch.kernels.Kernel`.
        """
        network = LinearizedNetwork(net, parameters)
        return cls(network, prior, input_shape=input_shape, input_dtype=input_dtype, **kwargs)

    @property
    def dtype(self) -> torch.dtype:
        own = {p.dtype for name, p in self.named_parameters() if not name.startswith("prior.")}
        dtypes = own | {self.network.dtype}
        if len(dtypes) > 1:
            raise RuntimeError(f"The kernel's parameters have multiple dtypes: {dtypes}.")
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        return self.network.device

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.network.num_outputs(x1)

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor | LinearOperator:
        if last_dim_is_batch:
            raise ValueError(
                "last_dim_is_batch: got True; a network takes all input dimensions together, so "
                "there is no kernel over single ones. Leave it out"
            )
        same = _same_inputs(x1, x2)
        if same and not diag:
            warn_if_solved_iteratively(x1.shape[-2] * self.network.num_outputs(x1))
        left = self.network.factors(x1)
        right = left if same else self.network.factors(x2)
        self.prior.bind_to(self.network.linearized)  # inputs have shown which layer is the last
        variances = self.prior.variances().to(dtype=self.dtype, device=self.device)

        def kernel(here: Factors, there: Factors) -> NTKLinearOperator:
            return NTKLinearOperator.from_factors(here, None if same else there, variances)

        # (*batch, N, D): a kernel for each place of the batch, repeated to the kernel's batch shape
        batch_shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        full_shape = torch.broadcast_shapes(batch_shape, self.batch_shape)
        if not batch_shape:
            operator = kernel(left, right)
            if diag:
                return operator.diagonal().expand(*full_shape, -1)
            return operator.expand(*full_shape, *operator.shape) if full_shape else operator
        places = zip(_places(x1, batch_shape), _places(x2, batch_shape), strict=True)
        operators = [kernel(left.rows(i), right.rows(j)) for i, j in places]
        parts = [k.diagonal() if diag else k.to_dense() for k in operators]
        stacked = torch.stack(parts).view(*batch_shape, *parts[0].shape)
        stacked = stacked.expand(*full_shape, *parts[0].shape)
        return stacked if diag else ExactDenseLinearOperator(stacked)

    def expand_batch(self, *sizes: Any) -> NTKernel:
        shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        torch.broadcast_shapes(shape, self.batch_shape)
        return self._with_batch_shape(shape)

    def __getitem__(self, index: Any) -> NTKernel:
        if not self.batch_shape:
            return self
        return self._with_batch_shape(torch.empty(self.batch_shape, device="meta")[index].shape)

    def _with_batch_shape(self, shape: torch.Size) -> NTKernel:
        """The same kernel, network and hyperparameters (not copies), of another batch shape."""
        kernel = type(self).__new__(type(self))  # copy.copy would share Kernel's __dict__ itself
        own = {name: dict(getattr(self, name)) for name in ("_modules", "_parameters", "_buffers")}
        kernel.__dict__ = {**self.__dict__, **own, "_batch_shape": shape}
        return kernel


def _places(x: Tensor, batch_shape: torch.Size) -> list[slice]:
    """For each place of `batch_shape`, the rows of x (*own_batch, N, D) with batches flattened."""
    own_batch, rows = x.shape[:-2], x.shape[-2]
    numbers = torch.arange(own_batch.numel()).view(own_batch).expand(batch_shape)
    return [slice(b * rows, (b + 1) * rows) for b in numbers.flatten().tolist()]


def _same_inputs(x1: Tensor, x2: Tensor) -> bool:
    """Whether K(x1, x2) is K(x1, x1), in its derivatives too."""
    if x1 is x2:
        return True
    if x1.shape != x2.shape or x1.dtype != x2.dtype or x1.device != x2.device:
        return False
    if torch.is_grad_enabled() and (x1.requires_grad or x2.requires_grad):
        # Equal values will not do: K(x, x.detach()) has half the derivative of K(x, x).
        roots = [x if x._base is None else x._base for x in (x1, x2)]
        views = [(x.data_ptr(), x.stride(), x.requires_grad) for x in (x1, x2)]
        return roots[0] is roots[1] and views[0] == views[1]
    return torch.equal(x1, x2)

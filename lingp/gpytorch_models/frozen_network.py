"""A linearised network inside GPyTorch modules: it moves and is saved, and is never trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lingp.linearization import Factors, LinearizedNetwork

# A prediction needs the factors of the training and of the test inputs.
_REMEMBERED = 2


class FrozenNetwork(torch.nn.Module):
    """A `LinearizedNetwork` on GPyTorch's inputs (..., N, D).

    Its weights are no `parameters()` and no mode of `train()` reaches it, but it follows
    `.to(device, dtype)` and its weights are in `state_dict()`.

    Parameters
    ----------
    linearized : LinearizedNetwork
    input_shape : sequence of int, optional
        Shape of one of the network's inputs, when it is not a flat vector: the last axis of x (D)
        is unflattened to it.
    input_dtype : torch.dtype, optional
        What the network expects, such as `torch.long` for token ids that travel as numbers.
    """

    def __init__(
        self,
        linearized: LinearizedNetwork,
        input_shape: Sequence[int] | None = None,
        input_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linearized = linearized
        self.input_shape = None if input_shape is None else torch.Size(input_shape)
        self.input_dtype = input_dtype
        self._recent: list[tuple[Tensor, Factors]] = []

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the network and of everything made from it."""
        return self.linearized.dtype

    @property
    def device(self) -> torch.device:
        """The device that the network is on."""
        return self.linearized.device

    def num_outputs(self, x: Tensor) -> int:
        """C. Runs the network on one row of x if it has never seen inputs."""
        if self.linearized.output_shape is None:
            with torch.no_grad():
                self.linearized(self._network_inputs(x.reshape(-1, x.shape[-1])[:1]))
        return self.linearized.num_outputs

    def outputs(self, x: Tensor) -> Tensor:
        """f(x), (..., N, C)."""
        outputs = self.linearized(self._network_inputs(x.reshape(-1, x.shape[-1])))
        return outputs.view(*x.shape[:-1], -1)

    def factors(self, x: Tensor) -> Factors:
        """Jacobian factors of all rows of x, batches one after the other.

        The factors don't depend on hyperparameters, which is all that changes when a GP is trained,
        so those of the last inputs are kept. Inputs are compared by value: nothing goes stale.
        """
        x = x.reshape(-1, x.shape[-1])
        if x.requires_grad and torch.is_grad_enabled():
            return self.linearized.factors(self._network_inputs(x))[1]
        x = x.detach()
        for place, (known, factors) in enumerate(self._recent):
            if known.dtype == x.dtype and known.device == x.device and torch.equal(known, x):
                self._recent.insert(0, self._recent.pop(place))
                return _unshared(factors)
        _, factors = self.linearized.factors(self._network_inputs(x))
        self._recent = [(x.clone(), factors), *self._recent[: _REMEMBERED - 1]]
        return _unshared(factors)

    def clear_cache(self) -> None:
        """Forget the factors that are kept for the last inputs."""
        self._recent = []

    def _network_inputs(self, x: Tensor) -> Tensor:
        if self.input_shape is not None:
            if x.shape[-1] != self.input_shape.numel():
                raise ValueError(
                    f"x: got {x.shape[-1]} columns; the network's input_shape "
                    f"{tuple(self.input_shape)} needs {self.input_shape.numel()}"
                )
            x = x.view(-1, *self.input_shape)
        if self.input_dtype is None or x.dtype == self.input_dtype:
            return x
        whole = x.is_floating_point() and not self.input_dtype.is_floating_point
        return (x.detach().round() if whole else x).to(self.input_dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FrozenNetwork:
        # .to(), .double(), .cuda() all come through here; what `fn` does shows on a probe
        probe = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        self.linearized.to(device=probe.device, dtype=probe.dtype)
        self.clear_cache()
        return super()._apply(fn, recurse)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        state = self.linearized.network.state_dict(keep_vars=keep_vars)
        destination.update({prefix + name: value for name, value in state.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        start = len(prefix)
        own = {key[start:]: v for key, v in state_dict.items() if key.startswith(prefix)}
        self.clear_cache()
        try:
            result = self.linearized.network.load_state_dict(own, strict=False)
        except RuntimeError as error:
            error_msgs.append(f"{prefix.rstrip('.')}: {error}")
            return
        missing_keys.extend(prefix + key for key in result.missing_keys)
        if strict:
            unexpected_keys.extend(prefix + key for key in result.unexpected_keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recent": []}


def _unshared(factors: Factors) -> Factors:
    """The same numbers in other tensor objects: `requires_grad_` on an operator stays with it."""
    return factors.with_tensors([t.detach() for t in factors.tensors()])

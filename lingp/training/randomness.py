"""Random numbers of a training, apart from everybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class PrivateRandomness:
    """Torch's global generators as one training sees them; outside they stay as they are.

    Dropout and data loaders draw from the global generators. Within `entered`, those have the state
    in which this training left them the last time.

    Parameters
    ----------
    seed
        The seed of the first state.
    device
        Where the network lies; the CPU's generator is always private.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._states: list[Tensor] = []
        with torch.random.fork_rng(devices=self._devices):
            torch.random.default_generator.manual_seed(seed)
            for each in self._devices:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(seed)
            self._states = self._current()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Draws go on where they were left; the global generators are put back afterwards."""
        with torch.random.fork_rng(devices=self._devices):
            self._set(self._states)
            try:
                yield
            finally:
                self._states = self._current()

    def state_dict(self) -> list[Tensor]:
        """The states, of the CPU's generator first."""
        return [state.clone() for state in self._states]

    def load_state_dict(self, states: list[Tensor]) -> None:
        """Go on from there."""
        self._states = [state.clone() for state in states]

    def _current(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in self._devices)]

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=False):
            torch.cuda.set_rng_state(state, device)

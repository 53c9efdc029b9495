"""What `LinearizedGP.predict` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import Likelihood, Predictive
from lingp.models.intake import as_tensor


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of the targets at n inputs, each row on its own.

    Tensors have the shape of the network's output: (n,), (n, C) or (n, *shape).

    Attributes
    ----------
    predictive
        The distribution over flat outputs, (n x C).
    likelihood
        Checks the targets given to `log_prob`.
    output_shape
        Shape of the network's output for one row.
    mean_of
        Whose mean it is: "network" or "refit".
    """

    predictive: Predictive
    likelihood: Likelihood
    output_shape: tuple[int, ...]
    mean_of: str

    def _shaped(self, flat: Tensor) -> Tensor:
        """(... x n x C) as (... x n x *output_shape)."""
        return flat.reshape(*flat.shape[:-1], *self.output_shape)

    @property
    def mean(self) -> Tensor:
        """E y."""
        return self._shaped(self.predictive.mean)

    @property
    def variance(self) -> Tensor:
        """Var y = epistemic + aleatoric variance."""
        return self._shaped(self.predictive.variance)

    @property
    def epistemic_variance(self) -> Tensor:
        """The part of the variance that more data would take away."""
        return self._shaped(self.predictive.epistemic_variance)

    @property
    def aleatoric_variance(self) -> Tensor:
        """The part of the variance that is noise."""
        return self._shaped(self.predictive.aleatoric_variance)

    @property
    def stddev(self) -> Tensor:
        """Square root of `variance`."""
        return self.variance.sqrt()

    def log_prob(self, y: Any) -> Tensor:
        """log p(y_n) of each row, jointly over its outputs, (n,)."""
        flat = self.predictive.mean
        targets = as_tensor(y, "y")
        if targets.dim() == 0 or len(targets) != len(flat):
            raise ValueError(
                f"y: expected one target for each of the {len(flat)} rows predicted, got shape "
                f"{tuple(targets.shape)}"
            )
        checked = self.likelihood.check_targets(targets, self.output_shape, flat.dtype)
        return self.predictive.log_prob(checked.to(flat.device))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds y with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level}")
        lower, upper = self.predictive.interval(level)
        return self._shaped(lower), self._shaped(upper)

    def sample(
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of y, rows independent of each other; `LinearizedGP.sample` draws functions.

        Parameters
        ----------
        num_samples
            Leading dimension of the result; none by default.
        generator
            Source of randomness; torch's global one by default.
        """
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
        draws = self._shaped(self.predictive.sample(num_samples or 1, generator))
        return draws[0] if num_samples is None else draws

    def __repr__(self) -> str:
        return (
            f"Prediction({len(self.predictive.mean)} rows, output shape {self.output_shape}, "
            f"mean of {'the network' if self.mean_of == 'network' else 'the refitted model'})"
        )

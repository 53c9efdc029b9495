"""What `LinearizedGP.predict` and `leave_one_out` return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lingp.likelihoods import Likelihood, Predictive
from lingp.models.intake import as_tensor


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of the targets at n inputs, each row on its own.

    Draws and intervals have the shape of the targets. Moments have it too, except that those of
    class labels are the moments of the one-hot indicators, (n, K). A prediction keeps the
    hyperparameters it was made with.

    Attributes
    ----------
    predictive
        The distribution over flat targets.
    likelihood
        Checks the targets given to `log_prob`.
    output_shape
        Shape of the network's output for one row.
    mean_of
        Whose mean it is: "network" or "refit".
    num_rows
        n.
    dtype, device
        Of the tensors.
    known
        The known quantity of each target (noise variance, trials, exposure), (n x T), if any.
    """

    predictive: Predictive
    likelihood: Likelihood
    output_shape: tuple[int, ...]
    mean_of: str
    num_rows: int
    dtype: torch.dtype
    device: torch.device
    known: Tensor | None = None

    def _moments(self, flat: Tensor) -> Tensor:
        """(n x M) in the shape of the moments."""
        return flat.reshape(len(flat), *self.likelihood.moment_shape(self.output_shape))

    def _values(self, flat: Tensor) -> Tensor:
        """(... x n x T) in the shape of the targets."""
        shape = self._value_shape(flat.shape[-1])
        return flat.reshape(*flat.shape[:-1], *shape)

    def _value_shape(self, num_values: int) -> tuple[int, ...]:
        """Shape of a datum's target values, without the axis of a known quantity."""
        shape = self.likelihood.target_shape(self.output_shape)
        return shape if math.prod(shape) == num_values else shape[:-1]

    @property
    def mean(self) -> Tensor:
        """E y."""
        return self._moments(self.predictive.mean)

    @property
    def variance(self) -> Tensor:
        """Var y = epistemic + aleatoric variance."""
        return self._moments(self.predictive.variance)

    @property
    def epistemic_variance(self) -> Tensor:
        """Var E[y | f]: the part of the variance that more data would take away."""
        return self._moments(self.predictive.epistemic_variance)

    @property
    def aleatoric_variance(self) -> Tensor:
        """E Var[y | f]: the part of the variance that is noise."""
        return self._moments(self.predictive.aleatoric_variance)

    @property
    def stddev(self) -> Tensor:
        """Square root of `variance`."""
        return self.variance.sqrt()

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (n, K), where targets are labels."""
        return self.predictive.probs

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities in nats, between 0 and log K."""
        probs = self.probs
        return -torch.special.xlogy(probs, probs).sum(-1)

    def log_prob(self, y: Any) -> Tensor:
        """log p(y_n) of each row, jointly over its targets, (n,).

        NaN targets count as not observed where the likelihood allows that.
        """
        return self.predictive.log_prob(self._checked(y))

    def _checked(self, y: Any) -> Tensor:
        """Targets flat, checked by the likelihood, with their known quantities."""
        targets = as_tensor(y, "y", missing=self.likelihood.allows_missing)
        if targets.dim() == 0 or len(targets) != self.num_rows:
            raise ValueError(
                f"y: expected one target for each of the {self.num_rows} rows predicted, got shape "
                f"{tuple(targets.shape)}"
            )
        targets = targets.to(self.device)
        if self.known is not None and targets.numel() == self.known.numel():
            # the known quantities were given to `predict` already
            known = self.known.reshape(targets.shape)
            targets = torch.stack([targets.to(self.dtype), known], -1)
        return self.likelihood.check_targets(targets, self.output_shape, self.dtype)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds y with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level}")
        lower, upper = self.predictive.interval(level)
        return self._values(lower), self._values(upper)

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
        draws = self._values(self.predictive.sample(num_samples or 1, generator))
        return draws[0] if num_samples is None else draws

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_rows} rows, output shape {self.output_shape}, "
            f"mean of {'the network' if self.mean_of == 'network' else 'the refitted model'})"
        )


@dataclass(frozen=True, repr=False)
class LeaveOneOutPrediction(Prediction):
    """Predictive distribution of each training target given all other rows.

    Attributes
    ----------
    targets
        The training targets, checked and flat.
    """

    targets: Tensor | None = None

    @property
    def log_predictive(self) -> Tensor:
        """log p(y_n | all other rows) of each training target, (N,)."""
        assert self.targets is not None
        return self.predictive.log_prob(self.targets)

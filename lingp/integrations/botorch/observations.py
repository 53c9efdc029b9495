"""More observations of a Gaussian process, in any batch shape, by conditioning in function space.

[f*; f_n] ~ N([m*; m_n], [C**, C*n; Cn*, Cnn]),    y = f_n + ε,  ε ~ N(0, S)
E[f* | y] = m* + C*n (Cnn + S)⁻¹ (y - m_n)
Cov[f* | y] = C** - C*n (Cnn + S)⁻¹ Cn*
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.linalg.psd import lower_root

Joint = Callable[[Tensor], tuple[Tensor, Tensor]]
"""X (*batch, q, d) -> mean (*batch, q·C) and covariance (*batch, q·C, q·C), rows data-major."""


@dataclass(frozen=True)
class Observations:
    """Values of f observed at some inputs; X, y and noise may have different batch shapes.

    Attributes
    ----------
    X
        Inputs as the network takes them, (*batch, n, d).
    places
        Which of the n·C latent outputs were observed, (k,).
    y
        Their values, (*batch, k).
    noise
        Covariance of the noise, (*batch, k, k).
    """

    X: Tensor
    places: Tensor
    y: Tensor
    noise: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the conditioned process."""
        shapes = (self.X.shape[:-2], self.y.shape[:-1], self.noise.shape[:-2])
        return torch.broadcast_shapes(*shapes)

    def followed_by(self, other: Observations, num_outputs: int) -> Observations:
        """Both, of a process with C outputs."""
        own = self.X.shape[-2] * num_outputs
        return Observations(
            torch.cat(_same_batch(2, self.X, other.X), -2),
            torch.cat([self.places, own + other.places]),
            torch.cat(_same_batch(1, self.y, other.y), -1),
            _block_diagonal(*_same_batch(2, self.noise, other.noise)),
        )

    def condition(self, joint: Joint, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance at X (*batch, q, d), given these observations."""
        here, there = _same_batch(2, X, self.X)
        mean, covariance = joint(torch.cat([here, there], -2))
        num_outputs = mean.shape[-1] // (here.shape[-2] + there.shape[-2])
        own = here.shape[-2] * num_outputs
        seen = own + self.places
        at_seen = covariance[..., seen, :]
        root = lower_root(at_seen[..., seen] + self.noise)
        half = torch.linalg.solve_triangular(root, at_seen[..., :own], upper=False)
        residual = (self.y - mean[..., seen]).unsqueeze(-1)
        root = root.expand(*residual.shape[:-2], *root.shape[-2:])
        white = torch.linalg.solve_triangular(root, residual, upper=False)
        moved = (half.mT @ white).squeeze(-1)
        return mean[..., :own] + moved, covariance[..., :own, :own] - half.mT @ half


def _same_batch(own: int, *tensors: Tensor) -> list[Tensor]:
    """Tensors with their batch dimensions, all but the last `own`, broadcast."""
    shape = torch.broadcast_shapes(*(t.shape[:-own] for t in tensors))
    return [t.expand(*shape, *t.shape[-own:]) for t in tensors]


def _block_diagonal(first: Tensor, second: Tensor) -> Tensor:
    """[[A, 0], [0, B]], (*batch, m + n, m + n)."""
    across = first.new_zeros(*first.shape[:-1], second.shape[-1])
    return torch.cat([torch.cat([first, across], -1), torch.cat([across.mT, second], -1)], -2)

"""The posterior of the latent outputs at new inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lingp.inference import LinearizedLaplace, Posterior
from lingp.linearization import Factors, LinearizedNetwork
from lingp.linearization.inputs import Inputs, num_rows
from lingp.models.intake import row_batches
from lingp.runtime.memory import dense_bytes, format_bytes
from lingp.runtime.progress import track

_JOINT_MATRICES = 4  # n·C x n·C, alive at a time
_WEIGHTS = 3  # P x samples
_SIDE = 512  # of a covariance that is made whole, though only its diagonal blocks are wanted


@dataclass(frozen=True)
class Latents:
    """f(x) ~ N( f_lin(x; mean), J(x) Cov(θ) J(x)ᵀ ) at the current hyperparameters.

    Attributes
    ----------
    laplace
        The posterior of the weights.
    memory
        Bytes that may be used.
    """

    laplace: LinearizedLaplace
    memory: float

    @property
    def _linearized(self) -> LinearizedNetwork:
        return self.laplace.training.linearized

    @property
    def _itemsize(self) -> int:
        """Bytes of a number."""
        return self.laplace.training.outputs.element_size()

    @torch.no_grad()
    def joint(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Mean (n x C) and covariance (n·C x n·C) at all rows together."""
        count, num_outputs = num_rows(x), self.laplace.training.num_outputs
        self._check(
            f"the joint covariance of {count} rows with {num_outputs} outputs each",
            _JOINT_MATRICES * (count * num_outputs) ** 2 * self._itemsize,
            "use predict(X), which takes each row on its own, sample(X) or fewer rows",
        )
        outputs, factors = self._linearized.factors(x)
        at = self.laplace.conditioned
        mean = _moved(outputs, factors, at.weight_shift)
        covariance = at.posterior.covariance(factors)
        covariance = 0.5 * (covariance + covariance.mT)
        covariance.diagonal().clamp_(min=0)  # rounding can take a vanishing variance below zero
        return mean, covariance

    @torch.no_grad()
    def marginals(self, x: Inputs, progress: bool) -> tuple[Tensor, Tensor]:
        """Mean (n x C) and covariance (n x C x C) at each row; in batches that fit in memory."""
        at = self.laplace.conditioned
        posterior, shift = at.posterior, at.weight_shift
        means, covariances = [], []
        for batch in self.batches(x, posterior, progress):
            outputs, factors = self._linearized.factors(batch)
            means.append(_moved(outputs, factors, shift))
            covariances.append(posterior.marginal_covariance(factors))
        return torch.cat(means), torch.cat(covariances)

    def groups(self, x: Inputs, size: int) -> tuple[Tensor, Tensor]:
        """Mean (b x size x C) and covariance (b x size·C x size·C) of `size` rows after the other.

        Unlike the other methods, with a graph to x where that requires grad.

        Parameters
        ----------
        x
            b·size inputs.
        size
            How many rows are taken together.
        """
        at = self.laplace.conditioned
        posterior, shift = at.posterior, at.weight_shift
        side = size * self.laplace.training.num_outputs
        self._check(
            f"the joint covariance of {size} rows",
            _JOINT_MATRICES * side**2 * self._itemsize,
            "take fewer rows together",
        )
        at_once = max(1, _SIDE // side)
        if size == 1:
            at_once = max(1, self._rows_at_once(posterior))
        means, covariances = [], []
        for rows in row_batches(x, at_once * size):
            outputs, factors = self._linearized.factors(rows)
            means.append(_moved(outputs, factors, shift).unflatten(0, (-1, size)))
            if size == 1:
                blocks = posterior.marginal_covariance(factors)
            else:
                whole = posterior.covariance(factors)
                blocks = whole.view(len(whole) // side, side, -1, side).diagonal(dim1=0, dim2=2)
                blocks = blocks.movedim(-1, 0)
            covariances.append(0.5 * (blocks + blocks.mT))
        return torch.cat(means), torch.cat(covariances)

    @torch.no_grad()
    def sample(self, x: Inputs, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draws of f, joint over rows, (num_samples x n x C): one set of weights for each."""
        size = self.laplace.training.num_parameters
        self._check(
            f"{num_samples} samples of {size} weights",
            _WEIGHTS * num_samples * size * self._itemsize,
            "draw fewer at a time",
        )
        at = self.laplace.conditioned
        posterior, shift = at.posterior, at.weight_shift
        weights = posterior.scale.unsqueeze(-1) * posterior.sample(num_samples, generator)
        if shift is not None:
            weights = weights + shift.unsqueeze(-1)
        draws = []
        for batch in self.batches(x, posterior, False):
            outputs, factors = self._linearized.factors(batch)
            draws.append(outputs.unsqueeze(-1) + factors.matmul(weights))
        return torch.cat(draws).movedim(-1, 0)

    def batches(self, x: Inputs, posterior: Posterior, progress: bool) -> Iterator[Inputs]:
        """Batches of rows whose factors and dense pieces fit in memory."""
        rows = self._rows_at_once(posterior)
        total = -(-num_rows(x) // rows)
        return track(row_batches(x, rows), "predicting", total=total, show=progress)

    def _rows_at_once(self, posterior: Posterior) -> int:
        """Of how many rows the factors and dense pieces fit in memory."""
        training = self.laplace.training
        per_row = posterior.bytes_per_row() + training.factor_bytes // training.num_data
        self._check("the posterior at one row", per_row, "use inducing points or fewer weights")
        rows = max(1, dense_bytes(self.memory) // per_row)
        return int(training.shards.smallest(rows)) if posterior.takes_all_ranks else rows

    def _check(self, what: str, needed: float, remedy: str) -> None:
        """Raise if what takes so many bytes doesn't fit in memory."""
        if needed > self.memory:
            raise MemoryError(
                f"{what} takes {format_bytes(needed)}, more than the {format_bytes(self.memory)} "
                f"of memory there is; {remedy}, or raise memory_budget"
            )


def _moved(outputs: Tensor, factors: Factors, shift: Tensor | None) -> Tensor:
    """f + J shift, (n x C)."""
    if shift is None:
        return outputs
    return outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)

"""The predictive of many rows, a fixed number of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from lingp.likelihoods import Likelihood, Predictive

_NODE_BYTES = 1 << 26  # of latent nodes alive at a time
_NODES = 1000  # nodes that a predictive has unless told otherwise


def predictive_of(
    likelihood: Likelihood,
    mean: Tensor,
    covariance: Tensor,
    method: str | None,
    *,
    known: Tensor | None,
    num_samples: int | None,
    generator: torch.Generator | None,
) -> Predictive:
    """`likelihood.predictive` in blocks of rows, as many as latent nodes take little memory for.

    Blocks depend on the number of outputs and samples only, never on the memory there is, so that
    draws with a seeded generator are the same everywhere. Each block has a seed of its own and can
    be made again whenever it is needed.

    Parameters
    ----------
    mean
        Of f, (N x C).
    covariance
        Of the outputs of f at each datum, (N x C x C).
    """
    num_data, num_outputs = mean.shape
    node = num_outputs * max(num_samples or 0, _NODES) * mean.element_size()
    size = max(1, _NODE_BYTES // node)
    rows = [slice(start, start + size) for start in range(0, num_data, size)]
    seeds = torch.zeros(len(rows), dtype=torch.int64)
    if likelihood.check_method(method) == "monte_carlo":
        device = "cpu" if generator is None else generator.device
        seeds = torch.randint(2**62, (len(rows),), generator=generator, device=device).cpu()

    def make(index: int) -> Predictive:
        block = rows[index]
        return likelihood.predictive(
            mean[block],
            covariance[block],
            method,
            known=None if known is None else known[block],
            num_samples=num_samples,
            generator=torch.Generator(mean.device).manual_seed(int(seeds[index])),
        )

    if len(rows) == 1:
        return make(0)
    return RowBlocks(make, [range(num_data)[block] for block in rows])


class RowBlocks(Predictive):
    """The predictives of successive blocks of rows as one; moments are computed once.

    Parameters
    ----------
    make
        Gives the predictive of a block.
    rows
        The rows of each block.
    """

    def __init__(self, make: Callable[[int], Predictive], rows: list[range]) -> None:
        self._make = make
        self._rows = rows
        make(0)  # what is wrong shows at once

    def _blocks(self) -> Iterator[Predictive]:
        with torch.no_grad():
            yield from map(self._make, range(len(self._rows)))

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        parts = [(p.mean, p.epistemic_variance, p.aleatoric_variance) for p in self._blocks()]
        mean, epistemic, aleatoric = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, epistemic, aleatoric

    @property
    def mean(self) -> Tensor:
        return self._moments[0]

    @property
    def epistemic_variance(self) -> Tensor:
        return self._moments[1]

    @property
    def aleatoric_variance(self) -> Tensor:
        return self._moments[2]

    @property
    def probs(self) -> Tensor:
        return torch.cat([p.probs for p in self._blocks()])

    def log_prob(self, y: Tensor) -> Tensor:
        parts = zip(self._blocks(), self._rows, strict=True)
        return torch.cat([p.log_prob(y[rows.start : rows.stop]) for p, rows in parts])

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        ends = [p.interval(level) for p in self._blocks()]
        return torch.cat([end[0] for end in ends]), torch.cat([end[1] for end in ends])

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.cat([p.sample(num_samples, generator) for p in self._blocks()], 1)

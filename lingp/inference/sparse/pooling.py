"""Inducing points where data are spread over processes: all ranks' candidates, one choice.

Every rank gives some of its rows as candidates, rank 0 chooses among all of them, and every rank
makes the Jacobian at the chosen ones: the points are the same on all ranks, and with all rows as
candidates they are those that one process would choose.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from lingp.inference.sparse.candidates import (
    InducingChoice,
    Points,
    choose_inducing,
    rows_that_count,
    spread,
    wanted_candidates,
)
from lingp.inference.sparse.inducing import InducingPoints
from lingp.inference.training_set import TrainingSet
from lingp.linearization.inputs import Inputs, map_inputs


@torch.no_grad()
def choose_from_all(
    training: TrainingSet,
    variances: Tensor,
    *,
    num_inducing: int | None = None,
    points: Points = "inputs",
    num_candidates: int | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> tuple[InducingPoints, InducingChoice]:
    """`choose_inducing` from the rows of all ranks; called by all of them.

    Parameters
    ----------
    training
        The training data of this rank.
    variances, num_inducing, points, options
        The same as for `choose_inducing`.
    num_candidates
        The number of all ranks together, by default that of `choose_inducing`; "random" too chooses
        among so many.
    generator
        The source of randomness, of which that of rank 0 counts.

    Returns
    -------
    tuple
        The points, and how they were chosen: `InducingChoice.rows` are numbers of rows in the order
        of ranks.
    """
    shards = training.shards
    if num_candidates is None:
        block = training.num_outputs if points == "inputs" else 1
        num_candidates = wanted_candidates(num_inducing, training.num_outputs, block)
    numbers, pool = _pool(training, num_candidates, generator)

    def choose() -> tuple[InducingChoice, Tensor | None] | None:
        if shards.rank != 0:
            return None
        found, choice = choose_inducing(
            pool,
            variances,
            num_inducing=num_inducing,
            points=points,
            num_candidates=pool.num_data,
            generator=generator,
            **options,
        )
        columns = None if found.columns is None else found.columns.cpu()
        return dataclasses.replace(choice, rows=choice.rows.cpu()), columns

    chosen = shards.first(shards.attempt(choose))
    assert chosen is not None
    choice, columns = chosen
    factors = pool.factors_at(choice.rows)
    choice = dataclasses.replace(choice, rows=numbers[choice.rows], num_data=shards.num_rows)
    return InducingPoints(factors, columns), choice


def _pool(
    training: TrainingSet, size: int, generator: torch.Generator | None
) -> tuple[Tensor, TrainingSet]:
    """Candidates of all ranks, each with its row number; the same training set on every rank."""
    shards, device = training.shards, training.outputs.device
    rows = rows_that_count(training).cpu()
    counts = shards.exchange(len(rows))
    total, start = sum(counts), sum(counts[: shards.rank])
    places = shards.first(spread(total, min(size, total), generator).cpu())
    own = rows[places[(places >= start) & (places < start + len(rows))] - start]
    given = training.subset(own)
    numbers = torch.cat(shards.exchange(own + shards.rows.start))
    inputs, outputs, targets = zip(
        *shards.exchange((_cpu(given.inputs), given.outputs.cpu(), given.targets.cpu())),
        strict=True,
    )
    pool = TrainingSet(
        training.linearized,
        [map_inputs(lambda t: t.to(device), x) for batches in inputs for x in batches],
        torch.cat(outputs).to(device),
        torch.cat(targets).to(device),
        None,
        factor_bytes=training.factor_bytes * len(numbers) // training.num_data,
        chunk_bytes=training.chunk_bytes,
        progress=False,
    )
    return numbers, pool


def _cpu(batches: list[Inputs]) -> list[Inputs]:
    return [map_inputs(lambda t: t.cpu(), x) for x in batches]

"""Inducing points from the training set: how many, among which candidates, by which rule."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.sparse.inducing import InducingPoints
from lingp.inference.sparse.selection import Rule, choose_candidates, random_order
from lingp.inference.training_set import TrainingSet
from lingp.linearization import Factors
from lingp.operators import gram
from lingp.runtime.memory import format_bytes
from lingp.runtime.plain import storable

Points = Literal["inputs", "pairs"]

_DEFAULT_ROWS = 1000  # inducing points, if nothing is said
_FEWEST_INPUTS = 32  # inducing inputs, if nothing is said
_PER_POINT = 4  # candidates for each point
_MOST_ROWS = 8000  # of the candidates' kernel, if nothing is said
_SHARES = 4  # the candidates' kernel and factors each take at most this part of the memory


@storable
@dataclass(frozen=True)
class InducingChoice:
    """How inducing points were chosen.

    Attributes
    ----------
    select
        The rule.
    rows
        (M,), the training rows that inducing points are at; in the order they were chosen where
        whole inputs are.
    num_points
        m, the number of inducing points.
    num_candidates
        Number of inputs the rule chose from.
    num_data
        N.
    residual
        After each choice, the residual trace as a share of the candidates' whole trace; None where
        the rule didn't need it.
    """

    select: Rule
    rows: Tensor
    num_points: int
    num_candidates: int
    num_data: int
    residual: Tensor | None

    def __str__(self) -> str:
        line = (
            f"{self.num_points} inducing points at {len(self.rows)} inputs, {self.select} among "
            f"{self.num_candidates} of {self.num_data}"
        )
        if self.residual is None:
            return line
        return f"{line}, which leaves {float(self.residual[-1]):.1e} of their prior variance"


@torch.no_grad()
def choose_inducing(
    training: TrainingSet,
    variances: Tensor,
    *,
    num_inducing: int | None = None,
    select: Rule = "kmeans++",
    points: Points = "inputs",
    tolerance: float | None = None,
    num_candidates: int | None = None,
    generator: torch.Generator | None = None,
    memory: float = math.inf,
) -> tuple[InducingPoints, InducingChoice]:
    """Choose inducing points among the training inputs.

    Candidates are one random row from each of equally long stretches of the data: data that are
    sorted (by class, by time) are covered as evenly as by every k-th row, data that repeat with
    period k too. Rows of weight zero are left out. Fewer points than asked for are chosen if the
    others are copies, up to rounding, of what the chosen ones span (greedy) or of them (kmeans++).

    Parameters
    ----------
    training
        The training data.
    variances
        Prior variances (L,) for the kernel that rules use.
    num_inducing
        Number of inputs, or of (input, output) pairs; with a tolerance, the most there may be. By
        default about 1000 inducing points, at 32 inputs or more.
    select
        "greedy", "kmeans++" or "random": see `lingp.inference.sparse.selection`.
    points
        "inputs": all outputs of each; "pairs": single outputs.
    tolerance
        Take the smallest number of points whose residual trace is at most this share of the
        candidates' whole trace.
    num_candidates
        Number of inputs to choose from, at most all. By default enough for four times as many
        points, within what an (n·C x n·C) kernel of 8000 rows and a quarter of the memory allow.
        "random" without a tolerance needs no kernel and chooses from all.
    generator
        Source of randomness; torch's global one by default. "greedy" draws only the candidates,
        where they aren't all inputs.
    memory
        Bytes that may be used.

    Raises
    ------
    ValueError
        If a number is out of range, a name is unknown, or the candidates' kernel is zero or not
        finite.
    MemoryError
        If the kernel of so many candidates takes more than a quarter of the memory.

    Warns
    -----
    ConvergenceWarning
        If `num_inducing` points miss the tolerance, or it took so large a part of the candidates
        to reach it that little is known of other rows.
    """
    _check_names(select, points)
    rows = rows_that_count(training)
    outputs = training.num_outputs
    block = outputs if points == "inputs" else 1
    _check_numbers(len(rows), outputs // block, num_inducing, tolerance, num_candidates)
    most = _most_inputs(training, memory)
    number = num_inducing
    if number is None and tolerance is None:
        number = _default_number(len(rows), outputs, block, most)

    if select == "random" and tolerance is None:
        order = random_order(len(rows) * outputs // block, generator)
        chosen, residual, size = order[:number].sort().values.to(rows.device), None, len(rows)
        places, columns = _split(chosen, outputs, block)
        factors = training.factors_at(rows[places])
    else:
        size = _num_candidates(len(rows), outputs, block, number, most, num_candidates, memory)
        rows = rows[spread(len(rows), size, generator).to(rows.device)]
        candidates = training.factors_at(rows)
        kernel = _kernel(candidates, variances)
        limit = min(number or len(kernel), len(kernel) // block)
        found = choose_candidates(
            select, kernel, block, limit, tolerance=tolerance, generator=generator
        )
        chosen, residual = found.chosen, found.residual
        places, columns = _split(chosen, outputs, block)
        factors = candidates.rows(places)
    choice = InducingChoice(
        select, rows[places], len(chosen) * block, size, training.num_data, residual
    )
    if tolerance is not None:
        _warn_of_tolerance(choice, tolerance, outputs, number)
    return InducingPoints(factors, columns), choice


def rows_that_count(training: TrainingSet) -> Tensor:
    """Numbers of the rows that have a weight other than zero."""
    if training.weights is None:
        return torch.arange(training.num_data, device=training.outputs.device)
    return training.weights.nonzero().squeeze(-1)


def _kernel(candidates: Factors, variances: Tensor) -> Tensor:
    """The candidates' kernel, checked to be one that can be chosen from."""
    kernel = gram(candidates, variances=variances)
    total = float(kernel.diagonal().sum())
    if not 0 < total < math.inf:
        raise ValueError(
            f"inducing points: the kernel of {candidates.num_data} candidates has trace {total}; "
            "expected a finite number above 0. Check that the network's outputs depend on the "
            "chosen parameters at these inputs, and that inputs and prior variances are finite"
        )
    return kernel


def _split(chosen: Tensor, outputs: int, block: int) -> tuple[Tensor, Tensor | None]:
    """The inputs of chosen candidates, and which of their rows are meant (None: all)."""
    if block == outputs:
        return chosen, None
    places, which = torch.unique(chosen // outputs, return_inverse=True)
    return places, which * outputs + chosen % outputs


def wanted_candidates(number: int | None, outputs: int, block: int) -> int:
    """Number of inputs to choose `number` points among, if nothing is said and memory allows."""
    wanted = _MOST_ROWS if number is None else max(_PER_POINT * number * block, _DEFAULT_ROWS)
    return max(1, min(wanted, _MOST_ROWS) // outputs)


def spread(count: int, size: int, generator: torch.Generator | None) -> Tensor:
    """One random number from each of `size` equally long stretches of 0..count-1, ascending."""
    if size == count:
        return torch.arange(count)
    device = "cpu" if generator is None else generator.device
    edges = torch.arange(size + 1, device=device) * count // size
    uniform = torch.rand(size, generator=generator, device=device, dtype=torch.float64)
    return edges[:-1] + (uniform * edges.diff()).long()


def _most_inputs(training: TrainingSet, memory: float) -> int:
    """Number of candidates whose kernel, and whose factors, take a quarter of the memory."""
    if memory == math.inf:
        return training.num_data
    share = max(memory, 0.0) / _SHARES
    by_kernel = math.isqrt(int(share / training.outputs.element_size())) // training.num_outputs
    if training.factors_kept or not training.factor_bytes:
        return by_kernel
    return min(by_kernel, int(share * training.num_data / training.factor_bytes))


def _default_number(count: int, outputs: int, block: int, most: int) -> int:
    """How many points to choose if the user doesn't say."""
    inputs = min(max(_FEWEST_INPUTS, _DEFAULT_ROWS // outputs), max(most, 1), count)
    return inputs if block == outputs else min(inputs * outputs, _DEFAULT_ROWS)


def _num_candidates(
    count: int,
    outputs: int,
    block: int,
    number: int | None,
    most: int,
    asked: int | None,
    memory: float,
) -> int:
    """How many inputs to choose from: `asked`, or what goes with `number` points."""
    rows = 1 if number is None else number * block
    needed = -(-rows // outputs)
    if asked is None:
        asked = max(needed, min(wanted_candidates(number, outputs, block), most))
    size = min(asked, count)
    if size < needed:
        raise ValueError(
            f"num_candidates: got {asked}; expected at least {needed} inputs, to choose {rows} "
            f"inducing points among their {outputs} outputs each"
        )
    if size > most:
        raise MemoryError(
            f"inducing points: the kernel or the Jacobian factors of {size} candidates with "
            f"{outputs} outputs take more than a quarter of the {format_bytes(memory)} of memory "
            "there is. Choose num_inducing or num_candidates smaller, or raise memory_budget"
        )
    return size


def _check_names(select: str, points: str) -> None:
    for name, given, known in (("select", select, Rule), ("points", points, Points)):
        if given not in get_args(known):
            choices = ", ".join(repr(k) for k in get_args(known))
            raise ValueError(f"{name}: got {given!r}; expected one of {choices}")


def _check_numbers(
    count: int, per_input: int, number: int | None, tolerance: float | None, candidates: int | None
) -> None:
    for name, given in (("num_inducing", number), ("num_candidates", candidates)):
        if given is not None and (not isinstance(given, (int, np.integer)) or given < 1):
            raise ValueError(f"{name}: got {given!r}; expected a positive integer, or None")
    if number is not None and number > count * per_input:
        what = "inputs" if per_input == 1 else "(input, output) pairs"
        raise ValueError(
            f"num_inducing: got {number}, more than the {count * per_input} {what} of the training "
            f"data; expected at most {count * per_input}, or None for a number that fits"
        )
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(
            f"tolerance: got {tolerance}; expected a share of the prior variance, 0 <= tolerance "
            "< 1, or None"
        )


def _warn_of_tolerance(
    choice: InducingChoice, tolerance: float, outputs: int, number: int | None
) -> None:
    left = float(choice.residual[-1]) if choice.residual is not None else 0.0
    share = choice.num_points / (choice.num_candidates * outputs)
    if left > tolerance:
        warnings.warn(
            f"{number} inducing points leave {left:.1e} of the candidates' prior variance, above "
            f"the tolerance {tolerance:.1e}: raise num_inducing",
            ConvergenceWarning,
            stacklevel=3,
        )
    elif share > 0.5 and choice.num_candidates < choice.num_data:
        warnings.warn(
            f"the tolerance {tolerance:.1e} took {choice.num_points} inducing points, {share:.0%} "
            f"of the {choice.num_candidates} candidates' rows: more will be left of the "
            "other training rows. Raise num_candidates, or the tolerance",
            ConvergenceWarning,
            stacklevel=3,
        )

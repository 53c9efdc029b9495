"""Counted flops and bytes of the inference methods.

All methods are counted for the same job: posteriors (several where curvature is iterated), the
evidence, and covariances at as many rows as there are data. Multiplications of layers' factors are
counted by the shapes of parameters, for one position: a matrix (out x in) takes in + C² out per
pair of inputs, any other tensor at most C² times its size (see `lingp.operators.contractions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lingp.runtime.memory import format_bytes

_ITERATIONS = 30  # of CG with a preconditioner, to 1e-4, as measured on trained networks
_PROBES = 16  # right-hand sides of the evidence
_SPARSE_SHARE = 0.75  # of memory; features of the data may be kept in the rest
# N x C x C arrays alive while curvature is averaged over the posterior
_SITE_ARRAYS = 16


@dataclass(frozen=True)
class Workload:
    """The job that methods are compared by.

    Attributes
    ----------
    num_data, num_outputs
        N and C.
    num_columns
        K, the rank of each datum's curvature root.
    parameter_shapes
        The shapes of the L parameter tensors.
    itemsize
        Bytes of a number.
    factor_bytes
        Memory of the factors of all data.
    num_posteriors
        The number of posteriors that are made, each with other curvature.
    averaged
        Whether curvature is averaged over the posterior: each posterior then gives the covariance
        at the data.
    chunk_bytes
        Memory of the dense pieces that data are streamed in.
    columnwise
        Whether prior variances vary along both axes of matrices, which then take C² times their
        size per pair of inputs.
    row_flops
        The flops of a row's part in Jᵀ Λ J, or in the diagonal blocks of J S Jᵀ, by the layers'
        factors; None where it is multiplied as K columns.
    """

    num_data: int
    num_outputs: int
    num_columns: int
    parameter_shapes: Sequence[Sequence[int]]
    itemsize: int
    factor_bytes: float = 0.0
    num_posteriors: int = 1
    averaged: bool = False
    chunk_bytes: float = 0.0
    columnwise: bool = False
    row_flops: float | None = None

    @cached_property
    def num_parameters(self) -> int:
        """P."""
        return sum(math.prod(shape) for shape in self.parameter_shapes)

    @property
    def rows(self) -> float:
        """N·C."""
        return float(self.num_data * self.num_outputs)

    @property
    def weighted_rows(self) -> float:
        """N·K, the rows of Φ."""
        return float(self.num_data * self.num_columns)

    @property
    def num_covariances(self) -> int:
        """The number of times that covariances at N rows are computed."""
        return 1 + self.averaged * self.num_posteriors

    @cached_property
    def pair_flops(self) -> float:
        """Flops of a C x C block K(x, x')."""
        squared = self.num_outputs**2
        return 2.0 * sum(
            shape[1] + squared * shape[0]
            if len(shape) == 2 and not self.columnwise
            else squared * math.prod(shape)
            for shape in self.parameter_shapes
        )

    @property
    def data_bytes(self) -> float:
        """The bytes of outputs, residuals, curvature roots and covariances of any method."""
        per_row = 8 * self.num_outputs + 3 * self.num_outputs * self.num_columns
        if self.averaged:
            per_row += _SITE_ARRAYS * self.num_outputs**2
        return float(self.num_data * per_row * self.itemsize)


@dataclass(frozen=True)
class Cost:
    """The cost of a method for a workload.

    Attributes
    ----------
    flops
        The flops of the whole job.
    bytes
        The bytes at its peak.
    tuning_bytes
        The peak with a gradient of the evidence.
    """

    flops: float
    bytes: float
    tuning_bytes: float

    def __str__(self) -> str:
        return f"{self.flops:.1e} flops, {format_bytes(self.bytes)}"


def weight_space_cost(work: Workload) -> Cost:
    """Jᵀ Λ J (P x P) and its Cholesky factor for each posterior, a solve for covariances.

    Where curvature is averaged, covariances at the data can take an inverse instead.

    flops   posteriors (N r + P³/3) + covariances N·C P², r = 2 K P² or by the layers' factors;
            with an inverse 2/3 P³ + N r for a covariance
    bytes   5 P² and pieces; one more where curvature is averaged, 3 more for a gradient (measured)
    """
    size = float(work.num_parameters)
    gram = 2 * work.weighted_rows * size**2
    solved = inverted = work.rows * size**2
    if work.row_flops is not None:
        gram = work.num_data * work.row_flops
        inverted = min(solved, 2 / 3 * size**3 + gram)
    flops = work.num_posteriors * (gram + size**3 / 3)
    flops += solved + (work.num_covariances - 1) * inverted
    piece = min(work.chunk_bytes / work.itemsize, work.rows * size)
    numbers = (5 + work.averaged) * size**2 + 3 * piece
    return _cost(work, flops, numbers, 3 * size**2)


def function_space_cost(work: Workload) -> Cost:
    """J Σ0 Jᵀ (N·C x N·C), a Cholesky factor (N·K x N·K) for each posterior, solves.

    The symmetric kernel of the data is half the work of that with test rows; the first serves all
    posteriors.

        flops   1½ N² pairs + posteriors (N·K)³/3 + covariances (N·K)² N·C
        bytes   4 (N·C)² and the factors; one more where curvature is averaged, 3 more for a
                gradient (measured)
    """
    rows, weighted = work.rows, work.weighted_rows
    flops = 1.5 * work.num_data**2 * work.pair_flops
    flops += work.num_posteriors * weighted**3 / 3 + work.num_covariances * weighted**2 * rows
    factors = work.factor_bytes / work.itemsize
    return _cost(work, flops, (4 + work.averaged) * rows**2 + factors, 3 * rows**2)


def sparse_cost(work: Workload, num_inducing: int) -> Cost:
    """Ψ = K(x, Z) L⁻ᵀ of all rows in chunks, A = I + Ψᵀ Λ Ψ (m x m) with m = M·C.

    flops   (posteriors + covariances) (N·M pairs + N·C m²)        K(x, Z) and Ψ
            + posteriors (2 N·K m² + m³/3) + covariances N·C m²    A, and Ψ* A⁻¹ Ψ*ᵀ
            + M² pairs + m³/3                                      K(Z, Z)
    bytes   4/3 of 8 m², the factors of Z, a chunk of factors and its pieces: a quarter of the
            memory is for features that are kept; free of N
    """
    size = float(num_inducing * work.num_outputs)
    passes = work.num_posteriors + work.num_covariances
    flops = passes * (work.num_data * num_inducing * work.pair_flops + work.rows * size**2)
    flops += work.num_posteriors * (2 * work.weighted_rows * size**2 + size**3 / 3)
    flops += work.num_covariances * work.rows * size**2
    flops += num_inducing**2 * work.pair_flops + size**3 / 3
    factors = work.factor_bytes * num_inducing / work.num_data
    pieces = 2 * min(work.chunk_bytes, _piece_bytes(work, size))
    numbers = 8 * size**2 + (factors + pieces) / work.itemsize
    return _cost(work, flops, numbers / _SPARSE_SHARE, 4 * size**2)


def iterative_cost(work: Workload, num_inducing: int, dense: bool) -> Cost:
    """Conjugate gradients on I + Φ Φᵀ, preconditioned by inducing points.

    Right-hand sides are the evidence's probes and the columns of covariances at N new rows;
    curvature is averaged over the sparse posterior that preconditions. 30 iterations are assumed.

    flops   iterations · right-hand sides · (product + 4 N·K m),  product = 4 N P, or 2 (N·K)² with
            a dense kernel of N² pairs / 2; and those of sparse inference
    bytes   vectors of N·C and of P for the C right-hand sides of one row, or a chunk of them; a
            quarter of the memory is for features N·C m, half of it for a dense kernel (N·C)²,
            which takes the factors of all rows
    """
    rows, weighted = work.rows, work.weighted_rows
    size = float(num_inducing * work.num_outputs)
    product = 2 * weighted**2 if dense else 4.0 * work.num_data * work.num_parameters
    flops = _ITERATIONS * (rows + _PROBES) * (product + 4 * weighted * size)
    flops += sparse_cost(work, num_inducing).flops
    block = work.num_outputs * (12 * rows + 3 * work.num_parameters) * work.itemsize
    rest = (
        2 * max(block, min(work.chunk_bytes, _piece_bytes(work, size)))
        + 8 * size**2 * work.itemsize
    )
    kernel = 0.0
    if dense:
        flops += 0.5 * work.num_data**2 * work.pair_flops
        kernel = rows**2 * work.itemsize + 2 * work.factor_bytes
    count = max(2 * kernel, 4 * rows * size * work.itemsize, 4 * rest)
    return _cost(work, flops, count / work.itemsize, 0.0)


def _piece_bytes(work: Workload, size: float) -> float:
    """Features of all data, with their temporaries, and factors: what one piece could take."""
    return 4 * work.rows * size * work.itemsize + work.factor_bytes


def _cost(work: Workload, flops: float, numbers: float, tuning: float) -> Cost:
    count = numbers * work.itemsize + work.data_bytes
    return Cost(flops, count, count + tuning * work.itemsize)

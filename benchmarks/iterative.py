"""The iterative posterior: iterations, time, certificates; against the exact one on fewer rows.

kin40k (split 0: 36,000 training rows), an MLP 8-1024-1024-1 (P ≈ 1.06M) trained by Adam, Gaussian
noise of the variance of test residuals, prior precisions 100 and 1, M inducing inputs.

    all rows     variances at test rows and the evidence, to a relative residual of 1e-4; iterations
                 of a few right-hand sides with and without the preconditioner (those without end at
                 ``--most`` times as many, or after ``--seconds``)
    fewer rows   (``--exact-rows``) errors against function space; certificates; iterations with
                 and without; what is left when the iteration ends after 5, 20, 80 products

    python benchmarks/iterative.py --output iterative.md --cache ~/.cache/lingp-benchmarks
    python benchmarks/iterative.py --rows 8000 --points 200            # a few minutes
    python benchmarks/iterative.py --rows 0                            # fewer rows only
    python benchmarks/iterative.py --quick
"""

from __future__ import annotations

import argparse
import math
import platform
import warnings
from dataclasses import replace
from pathlib import Path

import datasets
import torch
from harness import command_line, table
from iterative_measures import (
    TOLERANCE,
    Exact,
    Iterations,
    bound,
    exact,
    iterations,
    timed,
    variances,
)
from iterative_task import Task, make_task, set_precision, stage
from torch import Tensor

import lingp
from lingp.inference import ConvergenceWarning, LinearizedLaplace
from lingp.inference.evidence import evidence
from lingp.inference.iterative import BoundIterative

EARLY = (5, 20, 80)
_ROUNDING = 1e-8  # of a variance that is 1e-5 of the prior's
_UNLIMITED = 10**5  # products


@torch.no_grad()
def on_all_rows(
    laplace: LinearizedLaplace, task: Task, points: int, arguments: argparse.Namespace
) -> list[str]:
    """Cells of one prior precision: variances, evidence, iterations with and without."""
    precision = _precision(laplace)
    with stage(f"precision {precision:g}: preconditioner"):
        _, setup = timed(lambda: laplace.posterior().preconditioner)
    few = task.test[: arguments.columns]
    with stage(f"precision {precision:g}: {arguments.columns} columns"):
        kept, took = timed(lambda: _counted(laplace, few, most=_UNLIMITED))
    most = arguments.most * max(kept.counts)
    affordable = arguments.seconds * max(kept.counts) / took
    with stage(f"precision {precision:g}: {arguments.columns} columns, no preconditioner"):
        plain = _counted(
            laplace, few, preconditioned=False, most=max(1, round(min(most, affordable)))
        )
    with stage(f"precision {precision:g}: variances"):
        (found, posterior), seconds = timed(
            lambda: variances(laplace, task.test[:points], arguments.block)
        )
    certificate = posterior.certificate
    with stage(f"precision {precision:g}: evidence"):
        parts, evidence_seconds = timed(lambda: evidence(laplace))
    return [
        f"{precision:g}",
        str(len(found)),
        f"{setup:.1f}",
        str(certificate.iterations),
        f"{seconds:.1f}",
        table.scientific(certificate.residual),
        table.scientific(certificate.share),
        f"{parts.value:.1f} ± {parts.standard_error:.2g}",
        f"{evidence_seconds:.1f}",
        str(kept),
        str(plain),
        plain.ratio(kept),
    ]


@torch.no_grad()
def against_exact(
    laplace: LinearizedLaplace, truth: Exact, test: Tensor, arguments: argparse.Namespace
) -> tuple[list[str], bool]:
    """Cells of one prior precision, and whether no error is above its certificate."""
    found, posterior = variances(laplace, test, arguments.block)
    error, certificate = found - truth.variance, posterior.certificate
    parts = evidence(laplace)
    off = abs(parts.value - truth.evidence)
    # Cholesky's own rounding, relative to the prior's variance
    rounding = 1e-10 * float(posterior.variances[0]) * _largest_prior(laplace, test)
    cells = [
        f"{_precision(laplace):g}",
        str(certificate.iterations),
        table.scientific(float(error.max())),
        table.scientific(certificate.bound),
        table.scientific(float((error / truth.variance).max())),
        table.scientific(certificate.share),
        table.scientific(float((error / truth.variance).min())),
        f"{truth.evidence:.2f}",
        f"{parts.value:.2f} ± {parts.standard_error:.2g}",
        f"{off / parts.standard_error:.1f}",
    ]
    return cells, bool((error <= certificate.bound + rounding).all())


def _largest_prior(laplace: LinearizedLaplace, test: Tensor) -> float:
    """The largest |J(x)|² of some inputs."""
    _, factors = laplace.training.linearized.factors(test)
    return float(lingp.operators.diagonal_blocks(factors).max())


@torch.no_grad()
def stopped_early(
    laplace: LinearizedLaplace, truth: Exact, test: Tensor, arguments: argparse.Namespace
) -> tuple[list[list[str]], float, float]:
    """A row per number of products; the least excess over exact, the largest rise from the last."""
    method, rows = laplace.method, []
    before, lowest, rise = None, math.inf, -math.inf
    for count in EARLY:
        options = replace(method.options, max_iterations=count, tolerance=1e-12)
        laplace.method = BoundIterative(options, method.sparse, method.product, method.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found, posterior = variances(laplace, test, arguments.block)
        excess = (found - truth.variance) / truth.variance
        lowest = min(lowest, float(excess.min()))
        if before is not None:
            rise = max(rise, float(((found - before) / truth.variance).max()))
        before = found
        values = (float(excess.median()), float(excess.max()), float(excess.min()))
        rows.append(
            [
                f"{_precision(laplace):g}",
                str(count),
                *map(table.scientific, values),
                table.scientific(posterior.certificate.share),
            ]
        )
    laplace.method = method
    return rows, lowest, rise


def on_few_rows(task: Task, precisions: list[float], arguments: argparse.Namespace) -> list[str]:
    """The part of the report that compares with function space."""
    rows = min(arguments.exact_rows, len(task.x))
    test = task.test[: arguments.exact_points]
    laplace = task.laplace(rows, precisions[0])
    truths = {}
    with stage(f"exact, N = {rows}"):
        for precision in precisions:
            set_precision(laplace, precision)
            truths[precision] = exact(laplace, test)
    errors, counts, early, targets = [], [], [], []
    for precision in precisions:
        set_precision(laplace, precision)
        with stage(f"precision {precision:g}, N = {rows}"):
            laplace.method = bound(laplace, arguments.inducing, arguments.probes, arguments.share)
            cells, within = against_exact(laplace, truths[precision], test, arguments)
            errors.append(cells)
            counts += compared(laplace, test[: arguments.columns], arguments.most)
            found, lowest, rise = stopped_early(laplace, truths[precision], test, arguments)
            early += found
        name = f"precision {precision:g}"
        targets += [
            f"- {name}: errors of variances within their certificate: {_met(within)}",
            f"- {name}: stopped early, least (v - exact) / exact {table.scientific(lowest)}, "
            f"never below but for rounding: {_met(lowest >= -_ROUNDING)}",
            f"- {name}: largest rise from one number of products to the next "
            f"{table.scientific(rise)}: {_met(rise <= _ROUNDING)}",
        ]
    return [
        f"## N = {rows} against function space, {len(test)} test rows",
        "",
        table.markdown_table(_ERRORS, errors),
        "",
        "Error: of variances, v - exact; bound: the certificate's; share: both as shares of the "
        "variance. Off: distance of the evidences in standard errors.",
        "",
        table.markdown_table(_COUNTS, counts),
        "",
        f"Products for {arguments.columns} right-hand sides (median) with and without the "
        f"preconditioner: until |r| <= {TOLERANCE:g} |k|, or until variances are certified too.",
        "",
        table.markdown_table(_EARLY, early),
        "",
        "(v - exact) / exact of the variances when the iteration ends after so many products.",
        "",
        *targets,
    ]


def _counted(
    laplace: LinearizedLaplace,
    test: Tensor,
    *,
    most: int,
    certified: bool = False,
    preconditioned: bool = True,
) -> Iterations:
    return iterations(laplace, test, certified=certified, preconditioned=preconditioned, most=most)


def compared(laplace: LinearizedLaplace, test: Tensor, most: float) -> list[list[str]]:
    """A row per criterion: iterations with and without the preconditioner."""
    rows = []
    for certified in (False, True):
        kept = _counted(laplace, test, certified=certified, most=_UNLIMITED)
        limit = round(most * max(kept.counts))
        plain = _counted(laplace, test, certified=certified, preconditioned=False, most=limit)
        rows.append(
            [
                f"{_precision(laplace):g}",
                "certified" if certified else "residual",
                str(kept),
                str(plain),
                plain.ratio(kept),
            ]
        )
    return rows


def _precision(laplace: LinearizedLaplace) -> float:
    return laplace.prior.precision.item()


def _met(target: bool) -> str:
    return "met" if target else "not met"


_ERRORS = [
    "precision",
    "iterations",
    "largest error",
    "bound",
    "largest error / v",
    "share",
    "least error / v",
    "exact evidence",
    "evidence",
    "off",
]
_COUNTS = ["precision", "until", "with", "without", "ratio"]
_EARLY = ["precision", "products", "median", "largest", "least", "certified share"]
_ALL = [
    "precision",
    "test rows",
    "preconditioner (s)",
    "iterations",
    "variances (s)",
    "residual",
    "certified share",
    "evidence",
    "evidence (s)",
    "columns: iterations",
    "without",
    "ratio",
]


def on_many_rows(task: Task, precisions: list[float], arguments: argparse.Namespace) -> list[str]:
    """The part of the report about all rows."""
    rows = min(arguments.rows, len(task.x))
    laplace = task.laplace(rows, precisions[0])
    with stage(f"kernel, N = {rows}"):
        _, seconds = timed(laplace.training.unit_gram)
    with stage("inducing points"):
        laplace.method, choosing = timed(
            lambda: bound(laplace, arguments.inducing, arguments.probes, arguments.share)
        )
    cells = []
    for precision, points in zip(precisions, arguments.points, strict=True):
        set_precision(laplace, precision)
        cells.append(on_all_rows(laplace, task, points, arguments))
    targets = []
    for row in cells:
        ratio, prefix = row[-1].removeprefix("> "), "at least " * row[-1].startswith(">")
        targets += [
            table.verdict(
                f"precision {row[0]}: {prefix}so many times fewer iterations", float(ratio), 10
            ),
            table.verdict(
                f"precision {row[0]}: residual", float(row[5]), TOLERANCE, at_most=True, unit=""
            ),
        ]
    return [
        f"## N = {rows}",
        "",
        f"Kernel {seconds:.1f} s, inducing points {choosing:.1f} s: {laplace.method}",
        "",
        table.markdown_table(_ALL, cells),
        "",
        f"Iterations: the most of any right-hand side. Evidence: {arguments.probes} probes, ± its "
        f"standard error. The last three: products until |r| <= {TOLERANCE:g} |k| for "
        f"{arguments.columns} right-hand sides (median), with and without the preconditioner, and "
        "the ratio of their sums.",
        "",
        *([] if arguments.quick else targets),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    parser.add_argument("--data", metavar="FOLDER", help="see datasets.py")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep trained weights here")
    parser.add_argument("--rows", type=int, help="training rows (36000; 0: leave that part out)")
    parser.add_argument("--points", help="test rows for each precision (1000,50)")
    parser.add_argument("--precisions", default="100,1", help="of the prior, with commas")
    parser.add_argument("--exact-rows", type=int, help="rows for the exact posterior (5000; 0)")
    parser.add_argument("--exact-points", type=int, help="test rows there (200)")
    parser.add_argument("--inducing", type=int, help="M (512)")
    parser.add_argument(
        "--share", type=float, default=TOLERANCE, help="of a variance its error may be (1e-4)"
    )
    parser.add_argument("--columns", type=int, default=4, help="columns without preconditioner")
    parser.add_argument("--most", type=float, default=10.5, help="times the iterations with it")
    parser.add_argument("--seconds", type=float, default=120.0, help="for them at all rows")
    parser.add_argument("--probes", type=int, default=16, help="of the evidence")
    parser.add_argument("--block", type=int, default=250, help="test rows solved together")
    parser.add_argument("--noise", type=float, help="its variance (that of test residuals)")
    parser.add_argument("--epochs", type=int, help="of training (40)")
    parser.add_argument("--width", type=int, help="of the hidden layers (1024)")
    arguments = parser.parse_args()
    defaults = {"rows": 36000, "points": "1000,50", "exact_rows": 5000, "exact_points": 200}
    defaults |= {"inducing": 512, "epochs": 40, "width": 1024}
    if arguments.quick:
        defaults = {"rows": 300, "points": "8", "exact_rows": 100, "exact_points": 5}
        defaults |= {"inducing": 20, "epochs": 1, "width": 16}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    precisions = [float(p) for p in arguments.precisions.split(",")]
    points = [int(n) for n in arguments.points.split(",")]
    arguments.points = points * len(precisions) if len(points) == 1 else points
    if len(arguments.points) != len(precisions):
        raise SystemExit(
            f"--points: got {len(points)} numbers for {len(precisions)} precisions; give one, or "
            "as many"
        )
    torch.set_num_threads(arguments.threads)
    task = make_task(
        datasets.folder(arguments.data), arguments.width, arguments.epochs, arguments.cache
    )
    if arguments.noise is not None:
        task = replace(task, noise=arguments.noise)
    parts = []
    if arguments.rows:
        parts += on_many_rows(task, precisions, arguments)
    if arguments.exact_rows:
        parts += on_few_rows(task, precisions, arguments)
    weights = sum(p.numel() for p in task.network.parameters())
    report = [
        f"# Iterative posterior, kin40k, MLP 8-{arguments.width}-{arguments.width}-1, "
        f"P = {weights}, M = {arguments.inducing}",
        "",
        f"{table.processor()}, {arguments.threads} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}; noise {task.noise:.2g}, float64, tolerance {TOLERANCE:g}, of "
        f"variances {arguments.share:g}",
        "",
        *parts,
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()

"""Exact linearised Laplace for classification in function space: lingp against laplace-torch.

The work: the Gram matrix of N = 100 examples with C = 10 outputs (MLP, P about 150,000), the
Cholesky factorisation, and the joint predictive covariances (C x C each) of 100 test points, from
the network and the data on. The reference is the same posterior from dense Jacobians in float64.

laplace-torch drops the off-diagonal part of the softmax curvature (it says so in its
documentation), so its covariances are compared with that approximation's dense reference as well:
what then remains is not the approximation.

    python benchmarks/exact.py                      # the full table, float64
    python benchmarks/exact.py --quick              # small sizes
    python benchmarks/exact.py --only lingp         # no other environment needed
"""

from __future__ import annotations

from collections.abc import Sequence

import networks
import numpy as np
import peers
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Result
from reference import jacobian, relative_error
from torch import Tensor, nn

OURS, LAPLACE = "lingp", "laplace-torch"
PRECISION = 1.0


def contenders() -> list[Contender]:
    """Ours and laplace-torch's function-space Laplace."""
    return [
        Contender(OURS, "contenders.exact_lingp"),
        Contender(LAPLACE, "contenders.exact_laplace", peers.LAPLACE),
    ]


def curvature_roots(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """R with R Rᵀ = diag(p) - p pᵀ, and its diagonal approximation, both (N x C x C), float64."""
    with torch.no_grad():
        p = torch.softmax(network.double()(x.double()), dim=-1)
    full = torch.diag_embed(p.sqrt()) - p.unsqueeze(-1) * p.sqrt().unsqueeze(-2)
    return full, torch.diag_embed((p * (1 - p)).sqrt())


def covariances(train: Tensor, test: Tensor, roots: Sequence[Tensor]) -> list[np.ndarray]:
    """Φ* (I - Φᵀ (I + ΦΦᵀ)⁻¹ Φ) Φ*ᵀ for every test point, (n x C x C), from dense Jacobians.

    Parameters
    ----------
    train, test : (N x C x P) and (n x C x P), whitened by the prior
    roots : (N x C x C) each; one result for each
    """
    train_rows, test_rows = train.flatten(0, 1), test.flatten(0, 1)
    kernel, cross = train_rows @ train_rows.T, train_rows @ test_rows.T
    prior, found = test @ test.mT, []
    for root in roots:
        r = torch.block_diag(*root)  # (N C x N C)
        lower = torch.linalg.cholesky(torch.eye(len(r)).to(r) + r.T @ kernel @ r)
        half = torch.linalg.solve_triangular(lower, r.T @ cross, upper=False)
        half = half.T.unflatten(0, test.shape[:2])  # (n, C, N C)
        found.append((prior - half @ half.mT).numpy())
    return found


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = [8, 16, 16, 3] if arguments.quick else [64, 256, 256, 256, 10]
    num_data = 10 if arguments.quick else 100
    dtype = getattr(torch, arguments.dtype)

    torch.manual_seed(0)
    network = networks.build({"kind": "mlp", "sizes": sizes}).to(dtype)
    x, test = (torch.randn(num_data, sizes[0]).to(dtype) for _ in range(2))
    y = torch.randint(sizes[-1], (num_data,))
    data = {**networks.weights(network), "x": x.numpy(), "y": y.numpy(), "test": test.numpy()}
    case = {
        "architecture": {"kind": "mlp", "sizes": sizes},
        "dtype": arguments.dtype,
        "precision": PRECISION,
    }
    gemm = Contender("gemm", "contenders.gemm", timed_only=True)
    gemm_size = 512 if arguments.quick else 4096
    chosen = command_line.chosen(contenders(), arguments)
    schedule = command_line.schedule(arguments)
    with Field(chosen, command_line.cache(arguments), arguments.threads) as field:
        results = field.compete(case, data, schedule)
        gemm_case = {"dtype": arguments.dtype, "gemm_size": gemm_size}
        rate = 2 * gemm_size**3 / field.compete(gemm_case, {}, schedule, [gemm])["gemm"].median
        versions = field.versions

    dense = [jacobian(network, inputs) / PRECISION**0.5 for inputs in (x, test)]
    exact, approximate = covariances(*dense, curvature_roots(network, x))

    def median(name: str) -> float:
        return results.get(name, Result()).median

    rows, errors = [], {}
    for name, result in results.items():
        found = result.arrays.get("covariance")
        errors[name] = float("nan") if found is None else relative_error(found, exact)
        rows.append(
            [
                arguments.dtype,
                name,
                *table.timing_cells(result),
                table.factor(result.median / median(OURS)),
                table.mebibytes(result.peak),
                table.scientific(errors[name]),
                table.scientific(None if found is None else relative_error(found, approximate)),
            ]
        )
    header = [
        "dtype",
        "contender",
        "median (ms)",
        "range (ms)",
        "runs",
        f"time / {OURS}",
        "peak (MiB)",
        "error",
        "error to diagonal Λ",
    ]
    parameters = sum(p.numel() for p in network.parameters())
    layers = "-".join(map(str, sizes))
    targets = [
        table.verdict(f"{LAPLACE} / {OURS}", median(LAPLACE) / median(OURS), 100),
        table.verdict(
            f"{OURS}: error", errors.get(OURS, float("nan")), 1e-8, at_most=True, unit=""
        ),
    ]
    report = [
        f"# Function-space Laplace, MLP {layers}, P = {parameters}, N = {num_data}",
        "",
        table.machine(field, {arguments.dtype: rate}),
        "",
        table.versions(versions),
        "",
        table.markdown_table(header, rows),
        "",
        f"Work: Gram matrix, Cholesky, {num_data} joint predictive covariances; prior precision "
        f"{PRECISION:g}. Peak: rise of the process's resident set during one run.",
        "Error: Frobenius norm of all covariances relative to dense Jacobians in float64, with the "
        "softmax curvature Λ, and with its diagonal only.",
        "",
        *table.failures(results, arguments.dtype),
        *([] if arguments.quick else targets),
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()

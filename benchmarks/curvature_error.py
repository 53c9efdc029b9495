"""How exact softmax posteriors are: covariances, evidence and its gradient, against dense float64.

MLPs of one to three hidden layers of 12 tanh units and 2 to 10 classes, trained a little on 40
random rows with labels from another network. The reference forms the (N C x P) Jacobian and the
P x P precision ``δ I + Σ Jᵀ (diag(p) - p pᵀ) J`` in float64. Everything is in float64 here, and
laplace-torch is called as it is shipped: its "full" structure, and its "gp" structure with all rows
and dependent outputs (which drops the off-diagonal part of the curvature, as it documents).

    python benchmarks/curvature_error.py                 # the full table
    python benchmarks/curvature_error.py --only "lingp weight space,lingp function space"
"""

from __future__ import annotations

import networks
import numpy as np
import peers
import torch
from harness import command_line, table
from harness.rounds import Contender, Field, Schedule
from reference import jacobian, relative_error
from torch import Tensor, nn
from training import train

OURS, PEER = "lingp", "laplace-torch"
PRECISION = 2.0
QUANTITIES = ("covariance", "evidence", "gradient")
TARGET = 1e-8


def contenders() -> list[Contender]:
    """Ours in both spaces, laplace-torch's two structures without an approximation of rank."""
    ours = [
        Contender(f"{OURS} {space}", "contenders.curvature_lingp", options={"space": name})
        for name, space in (
            ("weight_space", "weight space"),
            ("function_space", "function space"),
        )
    ]
    theirs = [
        Contender(
            f"{PEER} {name}", "contenders.curvature_laplace", peers.LAPLACE, {"structure": name}
        )
        for name in ("full", "gp")
    ]
    return [*ours, *theirs]


def reference(network: nn.Module, x: Tensor, y: Tensor, test: Tensor) -> dict[str, np.ndarray]:
    """Covariances (n x C x C), evidence and its derivative in log δ, from dense matrices."""
    rows, stars = jacobian(network, x), jacobian(network, test)
    weights = torch.cat([p.detach().flatten() for p in network.parameters()])
    with torch.no_grad():
        log_p = torch.log_softmax(network(x), dim=-1)
    p = log_p.exp()
    curvature = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)  # (N, C, C)
    ggn = rows.flatten(0, 1).T @ (curvature @ rows).flatten(0, 1)
    precision = ggn + PRECISION * torch.eye(len(weights))
    inverse = torch.linalg.inv(precision)
    evidence = (
        log_p[torch.arange(len(y)), y].sum()
        - 0.5 * PRECISION * weights @ weights
        - 0.5 * (torch.logdet(precision) - len(weights) * np.log(PRECISION))
    )
    # d/d log δ of -½ δ |θ|² - ½ log det (I + GGN / δ)
    gradient = -0.5 * PRECISION * weights @ weights + 0.5 * (inverse * ggn.T).sum()
    return {
        "covariance": (stars @ inverse @ stars.mT).numpy(),
        "evidence": evidence.numpy(),
        "gradient": gradient.numpy(),
    }


def problem(sizes: list[int], num_data: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network and its data."""
    torch.manual_seed(sizes[-1] + 100 * len(sizes))
    teacher, network = (
        networks.build({"kind": "mlp", "sizes": sizes, "activation": "tanh"}).double()
        for _ in range(2)
    )
    x, test = torch.randn(num_data, sizes[0]), torch.randn(8, sizes[0])
    y = (teacher(x) + 0.3 * torch.randn(num_data, sizes[-1])).argmax(-1)

    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, y, reduction="sum")

    train(network, loss, x, steps=200, precision=0.1)
    return network, {"x": x, "y": y, "test": test}


def main() -> None:
    parser = command_line.parser(__doc__)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float64)
    classes = (2, 3) if arguments.quick else (2, 3, 10)
    depths = (1, 2) if arguments.quick else (1, 2, 3)
    rows, worst, failures = [], {}, []
    with Field(
        command_line.chosen(contenders(), arguments),
        command_line.cache(arguments),
        arguments.threads,
    ) as field:
        for num_classes in classes:
            for depth in depths:
                sizes = [6, *[12] * depth, num_classes]
                network, data = problem(sizes, 40)
                dense = reference(network, **data)
                case = {
                    "architecture": {"kind": "mlp", "sizes": sizes, "activation": "tanh"},
                    "dtype": "float64",
                    "precision": PRECISION,
                }
                arrays = {name: value.numpy() for name, value in data.items()}
                results = field.answers(case, {**networks.weights(network), **arrays}, Schedule())
                layers = "-".join(map(str, sizes))
                for name, result in results.items():
                    if result.failure:
                        continue
                    errors = [relative_error(result.arrays[q], dense[q]) for q in QUANTITIES]
                    worst[name] = np.maximum(worst.get(name, 0.0), errors)
                    rows.append([layers, name, *map(table.scientific, errors)])
                failures += table.failures(results, layers)
        versions = field.versions
    verdicts = [
        table.verdict(f"{name}: {q}, worst of all", float(error), TARGET, at_most=True, unit="")
        for name, errors in worst.items()
        if name.startswith(OURS)
        for q, error in zip(QUANTITIES, errors, strict=True)
    ]
    report = [
        "# Softmax posteriors against dense float64",
        "",
        table.versions(versions),
        "",
        table.markdown_table(["network", "contender", *QUANTITIES], rows),
        "",
        "Relative errors: posterior covariances of 8 test rows (Frobenius norm), log marginal "
        "likelihood, its derivative in the log prior precision.",
        "",
        *failures,
        *verdicts,
    ]
    command_line.publish("\n".join(report), arguments.output)


if __name__ == "__main__":
    main()

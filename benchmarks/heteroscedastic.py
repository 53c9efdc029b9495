"""Noise that depends on the input: predictives of the heteroscedastic natural head on UCI sets.

Standard splits 0 to 3 of yacht, energy, concrete (two hidden layers of 50 GELU units) and boston
(one). Inputs and targets standardised; full-batch Adam, 1e-2 to 1e-5 by a cosine, 2400 steps; every
300 steps the prior precision τ becomes that of largest evidence,

    LinearizedGP(net, Heteroscedastic(), prior=τ).fit(X, y).optimize_hyperparameters()

and training goes on with the weight decay ½ τ |θ|². In the same way, with the noise too, for the
homoscedastic network (Gaussian likelihood). Test log-likelihoods are in the units of the data.

    MAP         the network alone: log p(y | f*)
    mixture     the full mixture over both natural parameters (lingp's default)
    natural     the published predictive: variance σ² + v_f, with η₂ held fixed
    delta       moments by linearising mean and variance

    python benchmarks/heteroscedastic.py --output heteroscedastic.md --raw heteroscedastic.json
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import datasets
import networks
import numpy as np
import scores
import torch
from harness import command_line, table
from torch import Tensor, nn
from training import train

import lingp
from lingp.likelihoods import Gaussian, Heteroscedastic

SETS = ("yacht", "energy", "boston", "concrete")
HIDDEN_LAYERS = {"yacht": 2, "energy": 2, "boston": 1, "concrete": 2}
STEPS, UPDATE_EVERY = 2400, 300
TARGETS = {"yacht": -0.71, "energy": -0.73, "boston": -2.19, "concrete": -2.85}
PUBLISHED = {"yacht": -1.17, "energy": -1.20, "boston": -2.23, "concrete": -2.90}
METHODS = ("mixture", "natural", "delta")
_START = 1.0  # the prior precision before the first update

Record = dict[str, float]


def tensors(rows: datasets.Rows) -> tuple[Tensor, Tensor]:
    """Inputs (n x D) and targets (n, 1), float64."""
    return torch.from_numpy(rows.x), torch.from_numpy(rows.y).unsqueeze(-1)


def network_for(num_inputs: int, hidden: int, outputs: int, seed: int) -> nn.Module:
    """GELU layers of 50 units."""
    torch.manual_seed(seed)
    sizes = [num_inputs, *[50] * hidden, outputs]
    return networks.build({"kind": "mlp", "sizes": sizes}).double()


def posterior(
    network: nn.Module,
    likelihood: lingp.likelihoods.Likelihood,
    precision: float,
    data: tuple[Tensor, Tensor],
    mean: str = "network",
) -> lingp.LinearizedGP:
    """The GP of a network in its present state."""
    prior = lingp.priors.Isotropic(precision=precision)
    gp = lingp.LinearizedGP(network, likelihood, prior=prior, mean=mean)
    return gp.fit(*data, progress=False)


def tuned(
    network: nn.Module,
    likelihood: lingp.likelihoods.Likelihood,
    data: tuple[Tensor, Tensor],
    steps: int,
) -> lingp.LinearizedGP:
    """Train, updating prior precision and likelihood by the evidence; the GP at the end."""
    x, y = data
    found = {"precision": _START}

    def update() -> float:
        gp = posterior(network, likelihood, found["precision"], data)
        gp.optimize_hyperparameters()
        found["precision"] = gp.prior.precision.item()
        return found["precision"]

    def loss(f: Tensor) -> Tensor:
        return -likelihood.log_prob(y, f).sum()

    for parameter in likelihood.parameters():
        parameter.requires_grad_(False)  # moved by the evidence, not by Adam
    every = UPDATE_EVERY * steps // STEPS

    def with_gradients() -> float:
        for parameter in likelihood.parameters():
            parameter.requires_grad_(True)
        precision = update()
        for parameter in likelihood.parameters():
            parameter.requires_grad_(False)
        return precision

    train(
        network,
        loss,
        x,
        steps=steps,
        precision=_START,
        update_every=every,
        update=with_gradients,
    )
    with_gradients()
    return posterior(network, likelihood, found["precision"], data)


def run_split(split: datasets.Split, hidden: int, seed: int, steps: int) -> Record:
    """Mean test log-likelihoods in the units of the data, RMSE, seconds."""
    data, (x, y) = tensors(split.train), tensors(split.test)
    start = time.perf_counter()
    unit = math.log(split.target_std)  # log densities per unit of the data
    record: Record = {}

    network = network_for(x.shape[1], hidden, 2, seed)
    gp = tuned(network, Heteroscedastic(), data, steps)
    record["precision"] = gp.prior.precision.item()
    with torch.no_grad():
        record["MAP"] = gp.likelihood.log_prob(y, network(x)).mean().item() - unit
    refit = posterior(network, gp.likelihood, record["precision"], data, mean="refit")
    for suffix, model in (("", gp), (" refit", refit)):
        for method in METHODS:
            prediction = model.predict(x, method=method, progress=False)
            record[method + suffix] = prediction.log_prob(y).mean().item() - unit
            if method == METHODS[0]:
                record[f"rmse{suffix}"] = rmse(prediction.mean, y) * split.target_std

    network = network_for(x.shape[1], hidden, 1, seed)
    gp = tuned(network, Gaussian(noise=0.1), data, steps)
    refit = posterior(network, gp.likelihood, gp.prior.precision.item(), data, mean="refit")
    for suffix, model in (("", gp), (" refit", refit)):
        prediction = model.predict(x, progress=False)
        record[f"homoscedastic{suffix}"] = prediction.log_prob(y).mean().item() - unit
        record[f"homoscedastic rmse{suffix}"] = rmse(prediction.mean, y) * split.target_std
    record["seconds"] = time.perf_counter() - start
    return record


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error."""
    return (mean.reshape(y.shape) - y).square().mean().sqrt().item()


def report(records: dict[str, dict[int, Record]], quick: bool, seconds: float) -> str:
    """Tables of log-likelihoods and errors, and the targets."""

    def cells(name: str, columns: tuple[str, ...]) -> list[str]:
        return [scores.cell([r[c] for r in records[name].values()], 2) for c in columns]

    likelihoods = ("MAP", "mixture", "natural", "delta", "mixture refit", "natural refit")
    others = ("homoscedastic", "homoscedastic refit")
    errors = ("rmse", "rmse refit", "homoscedastic rmse", "homoscedastic rmse refit")
    splits = [str(len(records[name])) for name in records]
    lines = [
        "# Heteroscedastic regression: test log-likelihood in the units of the data",
        "",
        f"Mean ± standard error over splits; {seconds:.0f} s for all.",
        "",
        table.markdown_table(
            ["set", "splits", *likelihoods, *others],
            [
                [name, count, *cells(name, (*likelihoods, *others))]
                for name, count in zip(records, splits, strict=True)
            ],
        ),
        "",
        "Root mean squared error:",
        "",
        table.markdown_table(
            ["set", "splits", *errors],
            [
                [name, count, *cells(name, errors)]
                for name, count in zip(records, splits, strict=True)
            ],
        ),
        "",
    ]
    if not quick:
        for name, found in records.items():
            mixture = np.mean([record["mixture"] for record in found.values()])
            natural = np.mean([record["natural"] for record in found.values()])
            met = "met" if mixture >= TARGETS[name] - 0.005 else "not met"
            lines.append(
                f"- {name}: natural {natural:.2f} → mixture **{mixture:.2f}** (target "
                f"{PUBLISHED[name]:.2f} → {TARGETS[name]:.2f}: {met})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:4")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    if arguments.quick:
        arguments.sets, arguments.splits = arguments.sets or SETS[0], "0:1"
    steps = 80 if arguments.quick else STEPS
    start = time.perf_counter()
    records: dict[str, dict[int, Record]] = {}
    for name in datasets.chosen_sets(SETS, arguments):
        records[name] = {}
        for index in datasets.chosen_splits(arguments):
            split = datasets.regression(where, name, index)
            records[name][index] = run_split(split, HIDDEN_LAYERS[name], index, steps)
    if arguments.raw is not None:
        arguments.raw.parent.mkdir(parents=True, exist_ok=True)
        arguments.raw.write_text(json.dumps(records, indent=1) + "\n")
    made = report(records, arguments.quick, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()

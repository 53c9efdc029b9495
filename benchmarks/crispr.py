"""CRISPR-Cas13 guide efficacy: natural-parameter Laplace on the splits of a published comparison.

Three sets, ten stored splits each. Inputs are the one-hot codes of 38 bases, each without its last
category, standardised; one hidden layer of 50 GELU units. Log-likelihoods are in the units of the
data, as in the re-run of the published methods, see `crispr_data.py`. Rows, for networks that give
the natural parameters of N(y; μ(x), σ²(x)):

    MAP, by validation     the network alone, its prior precision τ the one of a grid with the best
                           validation log-likelihood; then trained again on all but the test rows
    mixture, by validation Laplace's posterior and the full mixture over both parameters (lingp's
                           default), τ the best of the grid for that
    MAP / mixture          τ by the evidence of all but the test rows, `train_with_evidence`
    natural, delta         other predictives of the same posterior
    homoscedastic          Gaussian noise; noise and τ by the evidence

Adam on batches of 256, 1e-2 to 1e-5 by a cosine. Posteriors are sparse, with 500 inducing points
for the evidence and the grid and 1000 for predictions; `--exact` has weight space instead (minutes
per posterior). No choice is made on test rows.

Calibration of the epistemic part: test rows in ten bins by predicted epistemic variance, and
what their squared errors exceed the predicted aleatoric variance by, in units of the data squared;
of the mixture, and of "delta", which has no tails from precisions near zero.

    python benchmarks/crispr.py --output crispr.md --raw crispr.json --plot crispr.png

A file of raw numbers that is there already is gone on with.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crispr_data
import crispr_report
import datasets
import networks
import numpy as np
import torch
from harness import command_line
from torch import Tensor, nn
from training import train_in_batches

import lingp
from lingp.inference.choice import Inference
from lingp.likelihoods import Gaussian, Heteroscedastic, Likelihood
from lingp.models import LinearizedGP
from lingp.training import initialize_head, train_with_evidence

GRID = (32.0, 56.0, 100.0, 178.0, 316.0, 562.0, 1000.0)
START = 100.0  # τ before the first evidence step
HIDDEN, BATCH, STEPS, UPDATES = 50, 256, 1500, 4
METHODS = ("mixture", "natural", "delta")
BINNED = ("mixture", "delta")
OURS = "mixture, by validation"

Data = tuple[Tensor, Tensor]


class Splits:
    """One split: its data as tensors, and what is done with all of them alike."""

    def __init__(self, split: datasets.Split, seed: int, options: argparse.Namespace) -> None:
        def tensors(*parts: datasets.Rows) -> Data:
            x, y = (
                np.concatenate(arrays) for arrays in zip(*((p.x, p.y) for p in parts), strict=True)
            )
            return torch.from_numpy(x).float(), torch.from_numpy(y).float().unsqueeze(-1)

        self.train, self.valid = tensors(split.train), tensors(split.valid)
        self.both, self.test = tensors(split.train, split.valid), tensors(split.test)
        self.std, self.seed, self.options = split.target_std, seed, options
        self.seconds: dict[str, float] = {}

    def network(self, data: Data, likelihood: Likelihood) -> nn.Module:
        """Untrained."""
        torch.manual_seed(self.seed)
        natural = isinstance(likelihood, Heteroscedastic)
        sizes = [data[0].shape[1], HIDDEN, 2 if natural else 1]
        made = networks.build({"kind": "mlp", "sizes": sizes})
        if natural:
            initialize_head(made, data[1], likelihood)
        return made

    def maximum(self, data: Data, precision: float) -> nn.Module:
        """The natural network of largest posterior density for a fixed τ."""
        likelihood = Heteroscedastic()
        return train_in_batches(
            self.network(data, likelihood),
            lambda f, y: -likelihood.log_prob(y, f).sum(),
            *data,
            epochs=-(-self.options.steps // -(-len(data[0]) // BATCH)),
            precision=precision,
            batch_size=BATCH,
            learning_rate=(1e-2, 1e-5),
        )

    def posterior(
        self, net: nn.Module, likelihood: Likelihood, precision: float, data: Data, num: int
    ) -> LinearizedGP:
        """With so many inducing points."""
        inference = self.inference(num)
        made = LinearizedGP(net, likelihood, prior=precision, inference=inference)
        return made.fit(*data, progress=False)

    def inference(self, num: int) -> Inference:
        return "weight_space" if self.options.exact else lingp.Sparse(num)

    def log_likelihood(self, log_prob: Tensor) -> float:
        """Mean, in the units of the data."""
        return log_prob.mean().item() - math.log(self.std)

    def bins(self, prediction: Any) -> dict[str, list[float]]:
        """Calibration of the epistemic variance on the test rows, in units of the data squared."""
        y = self.test[1]
        off = self.std * (y - prediction.mean.reshape(y.shape))
        variances = (prediction.epistemic_variance, prediction.aleatoric_variance)
        found = [*(self.std**2 * v for v in variances), off]
        return crispr_report.bins(*(t.double().numpy().ravel() for t in found))

    def timed(self, stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        return found


def by_validation(at: Splits, few: int) -> dict[str, float]:
    """The τ of the grid with the best validation log-likelihood: of MAP, and of the mixture."""
    likelihood = Heteroscedastic()
    x, y = at.valid
    best = {"MAP": (-math.inf, 0.0), "mixture": (-math.inf, 0.0)}
    for precision in at.options.grid:
        net = at.maximum(at.train, precision)
        gp = at.posterior(net, likelihood, precision, at.train, few)
        with torch.no_grad():
            alone = likelihood.log_prob(y, net(x)).mean().item()
        mixture = gp.predict(x, progress=False).log_prob(y).mean().item()
        best = {
            "MAP": max(best["MAP"], (alone, precision)),
            "mixture": max(best["mixture"], (mixture, precision)),
        }
    return {name: precision for name, (_, precision) in best.items()}


def answers(at: Splits) -> crispr_report.Record:
    """Every row's scores on the test rows."""
    likelihood = Heteroscedastic()
    few, many = at.options.inducing
    found: dict[str, Any] = {"ll": {}, "rmse": {}, "precision": {}}
    x, y = at.test

    def score(row: str, log_prob: Tensor, mean: Tensor) -> None:
        found["ll"][row] = at.log_likelihood(log_prob)
        found["rmse"][row] = at.std * (mean.reshape(y.shape) - y).square().mean().sqrt().item()

    def alone(row: str, net: nn.Module) -> None:
        with torch.no_grad():
            f = net(x)
        score(row, likelihood.log_prob(y, f), likelihood.conditional_mean(f))

    def predictives(gp: LinearizedGP, suffix: str) -> Any:
        made = {method: gp.predict(x, method=method, progress=False) for method in METHODS}
        for method, prediction in made.items():
            score(f"{method}{suffix}", prediction.log_prob(y), prediction.mean)
        return made

    chosen = at.timed("grid", lambda: by_validation(at, few))
    nets = {
        precision: at.timed("final", lambda p=precision: at.maximum(at.both, p))
        for precision in set(chosen.values())
    }
    alone("MAP, by validation", nets[chosen["MAP"]])
    best = chosen["mixture"]
    gp = at.posterior(nets[best], likelihood, best, at.both, many)
    made = at.timed("final", lambda: predictives(gp, ", by validation"))
    found["bins"] = {method: at.bins(made[method]) for method in BINNED}
    found["precision"] |= {f"{name}, valid": value for name, value in chosen.items()}

    for own in (Heteroscedastic(), Gaussian(noise=0.5)):
        natural = isinstance(own, Heteroscedastic)
        stage = "evidence" if natural else "homoscedastic"
        trained = at.timed(
            stage,
            lambda own=own: train_with_evidence(
                at.network(at.both, own),
                *at.both,
                likelihood=own,
                prior=START,
                steps=at.options.steps,
                updates=at.options.updates,
                batch_size=BATCH,
                inference=at.inference(few),
                generator=torch.Generator().manual_seed(at.seed),
                progress=False,
            ),
        )
        precision = trained.prior.precision.item()
        gp = at.posterior(trained.net, trained.likelihood, precision, at.both, many)
        found["precision"][stage] = precision
        if natural:
            alone("MAP, by evidence", trained.net)
            at.timed(stage, lambda gp=gp: predictives(gp, ", by evidence"))
        else:
            made = at.timed(stage, lambda gp=gp: gp.predict(x, progress=False))
            score("homoscedastic, by evidence", made.log_prob(y), made.mean)
    return found | {"seconds": at.seconds}


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits=f"0:{crispr_data.SPLITS}")
    parser.add_argument("--raw", type=Path, help="keep every number in this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the calibration to this file")
    parser.add_argument("--exact", action="store_true", help="weight space, no inducing points")
    arguments = parser.parse_args()
    arguments.grid, arguments.steps, arguments.updates = GRID, STEPS, UPDATES
    arguments.inducing = (500, 1000)
    if arguments.quick:
        arguments.sets, arguments.splits = arguments.sets or crispr_data.SETS[0], "0:1"
        arguments.grid, arguments.steps, arguments.updates = GRID[2:4], 40, 2
        arguments.inducing = (20, 40)
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    names = datasets.chosen_sets(crispr_data.SETS, arguments)
    start = time.perf_counter()
    records: crispr_report.Records = {name: {} for name in names}
    if arguments.raw is not None and arguments.raw.exists():
        for name, kept in json.loads(arguments.raw.read_text()).items():
            records[name] = {int(index): record for index, record in kept.items()}
    for index in datasets.chosen_splits(arguments):
        for name in names:
            if index in records[name]:
                continue
            split = crispr_data.split(where, name, index)
            records[name][index] = answers(Splits(split, index, arguments))
            if arguments.raw is not None:
                arguments.raw.parent.mkdir(parents=True, exist_ok=True)
                arguments.raw.write_text(json.dumps(records, indent=1) + "\n")
    reruns = {name: crispr_data.rerun(where, name) for name in records}
    made = crispr_report.report(records, reruns, OURS, time.perf_counter() - start)
    if arguments.plot is not None:
        crispr_report.plot(records, arguments.plot)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()

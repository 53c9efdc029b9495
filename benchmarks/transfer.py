"""Pretrained networks and few rows of another task: priors at their weights or at zero.

A network of two hidden layers is trained on one task: a sine, or the half of a data set with the
smaller first input. The Gaussian process sees few rows of another: a sine of another height and
phase, or the other half. With --scratch the network is trained on the few rows instead. Test NLL,
means over seeds.

    python benchmarks/transfer.py --data FOLDER                      # sine and three UCI sets
    python benchmarks/transfer.py --data FOLDER --labels             # three sets of class labels
    python benchmarks/transfer.py --sets sine --scratch --splits 0:3
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path

import datasets
import numpy as np
import torch
from harness.table import markdown_table
from torch import Tensor, nn

from lingp.likelihoods import Gaussian, Likelihood
from lingp.models import LinearizedGP
from lingp.priors import Isotropic
from lingp.training import train_with_evidence

NUMBERS, LABELS = ("sine", "concrete", "boston", "energy"), ("vehicle", "banana", "waveform")
VALID = {False: 20, True: 30}
FEW = {"sine": 20}  # else 30; 40 rows of labels
SCRATCH = {"sine": 60}  # else 100; 60 rows of labels

Part = tuple[Tensor, Tensor]


def sines(seed: int, num_rows: int) -> list[Part]:
    """Rows to pretrain on, few rows, validation and test rows; the last three of another sine."""
    g = torch.Generator().manual_seed(seed)

    def noisy(x: Tensor, height: Tensor | float, phase: Tensor | float) -> Part:
        return x / 3, height * torch.sin(x + phase) + 0.1 * torch.randn(x.shape, generator=g)

    first = noisy(10 * torch.rand(400, 1, generator=g) - 5, 1.0, 0.0)
    height, phase = 0.5 + torch.rand(1, generator=g), torch.rand(1, generator=g)
    sizes = (num_rows, VALID[False], 500)
    return [first, *(noisy(10 * torch.rand(n, 1, generator=g) - 5, height, phase) for n in sizes)]


def halves(file: Path, labels: bool, seed: int, num_rows: int) -> list[Part]:
    """The same of a data set, pretraining on the rows below the median of the first input."""
    with np.load(file, allow_pickle=False) as content:
        X, y = torch.from_numpy(content["X"]).float(), torch.from_numpy(content["y"])
    X = (X - X.mean(0)) / X.std(0).clamp(min=1e-6)
    below = X[:, 0] <= X[:, 0].median()
    g = torch.Generator().manual_seed(seed)
    there = (~below).nonzero().squeeze(1)
    there = there[torch.randperm(len(there), generator=g)]
    here = below.nonzero().squeeze(1)
    if labels:
        y = torch.unique(y, return_inverse=True)[1]
        here = here[torch.randperm(len(here), generator=g)][:1000]
    else:
        y = y.float().view(-1, 1)
        y = (y - y[below].mean()) / y[below].std()
    ends = num_rows, num_rows + VALID[labels]
    rest = there[ends[1] : ends[1] + 1500] if labels else there[ends[1] :]
    return [(X[i], y[i]) for i in (here, there[: ends[0]], there[ends[0] : ends[1]], rest)]


def trained(part: Part, num_outputs: int, labels: bool, seed: int, steps: int) -> nn.Module:
    """A network with small weight decay, at the end of a cosine."""
    torch.manual_seed(seed)
    sizes = part[0].shape[1], 50, 50, num_outputs
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]  # noqa: RUF007
    net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
    loss = nn.functional.cross_entropy if labels else nn.functional.mse_loss
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net(part[0]), part[1]).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def scores(parts: list[Part], labels: bool, seed: int, scratch: bool) -> dict[str, float]:
    """Test NLL of each way."""
    first, few, valid, test = parts
    if scratch and not labels:
        mean, std = few[1].mean(), few[1].std()
        few, valid, test = ((x, (y - mean) / std) for x, y in (few, valid, test))
    outputs = int(torch.cat([y for _, y in parts]).max()) + 1 if labels else 1
    steps = 600 if labels else 800 if scratch else 1500
    net = trained(few if scratch else first, outputs, labels, seed, steps)

    def nll(gp: LinearizedGP) -> float:
        return -float(gp.predict(test[0]).log_prob(test[1]).mean())

    with torch.no_grad():
        if labels:
            found = {"the network": float(nn.functional.cross_entropy(net(test[0]), test[1]))}
        else:
            noise = float((valid[1] - net(valid[0])).square().mean())
            misfit = float((test[1] - net(test[0])).square().mean()) / noise
            alone = 0.5 * (math.log(2 * math.pi * noise) + misfit)
            found = {"the network, noise from validation rows": alone}
    for centre, name in ((0.0, "0"), ("network", "network")):
        for mean in ("network", "refit"):
            for way in ("evidence", "validation rows"):
                likelihood: Likelihood | str = "categorical" if labels else Gaussian(1.0)
                prior = Isotropic(1.0, mean=centre)
                gp = LinearizedGP(net, likelihood, prior=prior, mean=mean)
                gp.fit(*few, progress=False)
                options = {} if way == "evidence" else {"validation": valid, "absorb": False}
                gp.optimize_hyperparameters(**options)
                found[f"{mean} mean, μ0 = {name}, {way}"] = nll(gp)
        if not labels:
            further = train_with_evidence(
                net,
                *few,
                prior=Isotropic(1.0, mean=centre),
                learning_rate=(1e-3, 1e-5),
                steps=1000,
                progress=False,
            )
            found[f"train_with_evidence, μ0 = {name}"] = nll(further.gp)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    datasets.add_flags(parser, splits="0:5")
    parser.add_argument("--labels", action="store_true", help="class labels, not numbers")
    parser.add_argument("--scratch", action="store_true", help="networks of the few rows alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of precisions that run off, of which the table tells
    labels, scratch = arguments.labels, arguments.scratch
    sets = (arguments.sets or ",".join(LABELS if labels else NUMBERS)).split(",")
    columns = []
    for name in sets:
        if labels:
            num_rows = 60 if scratch else 40
        else:
            num_rows = SCRATCH.get(name, 100) if scratch else FEW.get(name, 30)
        each = []
        for seed in datasets.chosen_splits(arguments):
            if name == "sine":
                parts = sines(seed, num_rows)
            else:
                where = datasets.folder(arguments.data)
                file = where / f"{'cls' if labels else 'uci'}_{name}.npz"
                parts = halves(file, labels, seed, num_rows)
            each.append(scores(parts, labels, seed, scratch))
        columns.append({way: np.mean([one[way] for one in each]) for way in each[0]})
    rows = [[way, *(f"{column[way]:.2f}" for column in columns)] for way in columns[0]]
    print(markdown_table(["", *sets], rows))


if __name__ == "__main__":
    main()

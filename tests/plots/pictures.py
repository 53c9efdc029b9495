"""Small models that are the same everywhere, and one picture of each kind.

`python tests/plots/pictures.py` draws the stored pictures anew; look at them before they go in.
"""

from contextlib import contextmanager
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch

from lingp import LinearizedGP, plots
from lingp.likelihoods import Gaussian, Poisson
from lingp.metrics import Influence
from lingp.training import EvidenceStep, History

FOLDER = Path(__file__).parent / "baseline"


def network(num_inputs, num_outputs, width=8):
    """With weights from sines: no random numbers, which differ between versions of torch."""
    net = torch.nn.Sequential(
        torch.nn.Linear(num_inputs, width), torch.nn.Tanh(), torch.nn.Linear(width, num_outputs)
    ).double()
    with torch.no_grad():
        for place, p in enumerate(net.parameters()):
            number = torch.arange(p.numel(), dtype=torch.float64) + 10 * place
            p.copy_(torch.sin(1 + 2.3 * number).reshape(p.shape))
    return net


def line():
    X = torch.cat([torch.linspace(-2, -0.5, 12), torch.linspace(0.7, 2, 10)]).double().unsqueeze(1)
    return X, torch.sin(2 * X) + 0.2 * torch.sin(37 * X)


def plane():
    angle = torch.linspace(0, 12.0, 24, dtype=torch.float64)
    return torch.stack([angle.sin() * (1 + angle / 12), angle.cos() * (1 + angle / 12)], 1)


@cache
def regression():
    X, y = line()
    return LinearizedGP(network(1, 1), Gaussian(noise=0.05), prior=1.0, mean="refit").fit(X, y)


@cache
def counts():
    X, _ = line()
    y = (2 + 2 * X + torch.sin(37 * X)).clamp(min=0).round()
    return LinearizedGP(network(1, 1), Poisson(), prior=4.0, mean="refit").fit(X, y)


@cache
def two_classes():
    X = plane()
    y = (X[:, 0] + 0.3 * X[:, 1] > 0.1).double()
    return LinearizedGP(network(2, 1), "bernoulli", prior=0.2, mean="refit").fit(X, y)


@cache
def three_classes():
    X = plane()
    y = (X[:, 0] > 0.2).long() + (X[:, 1] > 0.5).long()
    return LinearizedGP(network(2, 3), "categorical", prior=0.2, mean="refit").fit(X, y)


def labels_and_probabilities():
    """300 rows that are too sure."""
    number = np.arange(900).reshape(300, 3)
    logits = 2 * np.sin(1.7 * number)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    uniform = np.modf(np.arange(1, 301) * (np.sqrt(5) - 1) / 2)[0]
    q = np.exp(0.5 * logits)
    q /= q.sum(axis=1, keepdims=True)
    return p, (uniform[:, None] > q.cumsum(axis=1)).sum(axis=1)


def history():
    steps = [
        EvidenceStep(
            evidence_before=-60 / (k + 1) - 20,
            evidence=-50 / (k + 1) - 18,
            log_likelihood=-40 / (k + 1) - 5,
            effective_parameters=5 + 3 * k / (k + 1),
            hyperparameters={"prior.precision": [0.5 / (k + 1), 2.0], "likelihood.noise": 0.1},
            seconds=0.1,
            step=100 * (k + 1),
        )
        for k in range(8)
    ]
    return History(steps)


def influential():
    number = np.arange(40)
    leverage = 0.05 + 0.4 * np.sin(number) ** 8
    without = -0.3 - 2 * np.sin(1.3 * number) ** 6
    return Influence(leverage, without + 4 * leverage * (0.2 - without), without)


PICTURES = {
    "bands": lambda ax: plots.bands(regression(), ax=ax),
    "bands_counts": lambda ax: plots.bands(counts(), ax=ax),
    "map_probability": lambda ax: plots.map_2d(two_classes(), resolution=25, ax=ax),
    "map_largest": lambda ax: plots.map_2d(three_classes(), resolution=25, ax=ax),
    "map_epistemic": lambda ax: plots.map_2d(two_classes(), what="epistemic", resolution=25, ax=ax),
    "reliability": lambda ax: plots.reliability_diagram(
        *labels_and_probabilities(), num_bins=10, ax=ax
    ),
    "coverage": lambda ax: plots.coverage_curve(regression().predict(line()[0]), line()[1], ax=ax),
    "trace": lambda ax: plots.evidence_trace(history(), ax=ax),
    "spectrum": lambda ax: plots.kernel_spectrum(regression(), ax=ax),
    "leverage": lambda ax: plots.leverage(influential(), ax=ax),
}


@contextmanager
def default_style():
    """Matplotlib as it comes, with the font that it ships."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.use("Agg")
        matplotlib.rcParams.update(
            {"font.family": "DejaVu Sans", "text.hinting": "none", "text.antialiased": True}
        )
        yield


def draw(name, path):
    """One picture of 300 x 200 points, without text or ticks, in the same place for all fonts.

    Letters, layouts that make room for them, and ticks differ between versions of matplotlib and
    FreeType by more than a line that is wrong; labels are tested as text.
    """
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator

    with default_style():
        figure = pyplot.figure(figsize=(6, 4), dpi=50)
        ax = figure.subplots(3 if name == "trace" else 1, sharex=True)
        try:
            PICTURES[name](ax)
            for each in figure.axes:
                each.set(title="", xlabel="", ylabel="")
                for axis in (each.xaxis, each.yaxis):
                    axis.set_major_locator(NullLocator())
                    axis.set_minor_locator(NullLocator())
                for text in [*each.texts, *filter(None, [each.get_legend()])]:
                    text.remove()
            figure.savefig(path, dpi=50, metadata={"Software": None})
        finally:
            pyplot.close(figure)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in PICTURES:
        draw(each, FOLDER / f"{each}.png")

"""The table of cases: what a case is, how one is added, and parts that several share."""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and what is expected of its linearisation.

    Attributes
    ----------
    make : builds the network.
    shape : of one input row; a list of shapes makes a tuple of inputs, a dict a dict.
    vocabulary : if given, inputs are integers below it (one number for each input, 0 for floats).
    fallback : names of parameters (shell patterns) that go through the general fallback.
    smooth : whether factors may be differentiated in x (finite differences agree).
    groups : tags to select cases by.
    """

    make: Callable[[], nn.Module]
    shape: tuple | list | dict
    vocabulary: object = 0
    fallback: tuple[str, ...] = ()
    smooth: bool = True
    groups: frozenset = field(default_factory=frozenset)

    def network(self, dtype=torch.float64, seed=0):
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return randomise(self.make()).to(dtype).eval()

    def inputs(self, rows, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(1000 + seed)

        def draw(shape, vocabulary):
            if vocabulary:
                return torch.randint(vocabulary, (rows, *shape), generator=generator)
            return torch.randn(rows, *shape, generator=generator, dtype=torch.float64).to(dtype)

        if isinstance(self.shape, dict):
            sizes = self.vocabulary or dict.fromkeys(self.shape, 0)
            return {key: draw(shape, sizes[key]) for key, shape in self.shape.items()}
        if isinstance(self.shape, list):
            sizes = self.vocabulary or [0] * len(self.shape)
            return tuple(draw(*pair) for pair in zip(self.shape, sizes, strict=True))
        return draw(self.shape, self.vocabulary)


def randomise(net):
    """Move every parameter and running statistic away from its special initial value."""
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn_like(p)
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b += 0.3 * torch.randn_like(b)
            elif name.endswith("running_var"):
                b *= 0.5 + torch.rand_like(b)
    return net


CASES: dict[str, Case] = {}


def case(name, shape, *, groups=(), **options):
    """Decorator: add what a function builds to the table."""

    def add(make):
        CASES[name] = Case(make, shape, groups=frozenset(groups), **options)
        return make

    return add


def add(name, make, shape, **options):
    case(name, shape, **options)(make)


def names(*groups):
    """Names of all cases, or of those in one of `groups`."""
    return [name for name, c in CASES.items() if not groups or c.groups & set(groups)]


class Mean(nn.Module):
    """Mean over the last `axes` axes."""

    def __init__(self, axes=1):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.flatten(-self.axes).mean(-1)


class MeanSteps(nn.Module):
    """Mean over axis 1, of (N, T, d)."""

    def forward(self, x):
        return x.mean(1)


class Net(nn.Module):
    """A module from a forward function `f(self, *inputs)` and named parts."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.f(self, *args, **kwargs)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


def mlp(*widths, activation=nn.Tanh):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])

"""What the functions of this package share."""

import os
import tempfile
from collections import UserDict
from contextlib import contextmanager

import torch
from torch import nn

import lingp


class Provocations(UserDict):
    """Functions by the message that calling them gives; … stands for anything."""

    def __call__(self, message):
        def add(function):
            assert message not in self, message
            self[message] = function
            return function

        return add


says = Provocations()


def rows(n=20, d=3):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator).double()
    return X, X.sum(1, keepdim=True).sin()


def mlp(outputs=1, inputs=3, hidden=6):
    torch.manual_seed(0)
    layers = nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers).double()


def fit(net=None, likelihood="gaussian", X=None, y=None, fit=(), **options):
    """A GP of 20 rows, unless it is told otherwise."""
    own_X, own_y = rows()
    gp = lingp.LinearizedGP(mlp() if net is None else net, likelihood, **options)
    data = own_X if X is None else X, own_y if y is None else y
    return gp.fit(*data, progress=False, **dict(fit))


@contextmanager
def folder():
    """The name of a file in a folder of its own."""
    with tempfile.TemporaryDirectory() as where:
        yield os.path.join(where, "file.pt")

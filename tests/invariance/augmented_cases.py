"""Augmented networks, small data for them, and their evidence."""

import torch
from torch import nn

from lingp import LinearizedGP
from lingp.likelihoods import Categorical, Gaussian
from lingp.training import (
    Augmentation,
    Augmented,
    Composed,
    InputScale,
    RandomAffine,
    RandomRotation,
)


class Shift(Augmentation):
    """x + exp(a) ε in every input, as a user would write one."""

    def __init__(self):
        super().__init__()
        self.log_size = nn.Parameter(torch.tensor([-1.0, 0.3, -0.5]))

    @property
    def num_noises(self):
        return 3

    def forward(self, x, noise):
        return x + self.log_size.exp() * noise


def vectors(num_outputs, augmentation, num_data):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, num_outputs))
    x = torch.randn(num_data, 3, dtype=torch.float64)
    return Augmented(net, augmentation, 3).double(), x


def images(num_outputs, augmentation, num_data):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(2 * 3 * 4, num_outputs)]
    x = torch.rand(num_data, 1, 5, 6, dtype=torch.float64)
    return Augmented(nn.Sequential(*layers), augmentation, 4).double(), x


def scales():
    return InputScale(3, [0.5, 2.0, 1.0])


CASES = {
    "scale": (vectors, scales),
    "own": (vectors, Shift),
    "rotation": (images, lambda: RandomRotation(25.0)),
    "affine": (images, lambda: RandomAffine([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])),
    "composed": (vectors, lambda: Composed(scales(), Shift())),
}


def problem(case, kind, num_data):
    make, augmentation = CASES[case]
    num_outputs = 1 if kind == "one output" else 3
    net, x = make(num_outputs, augmentation(), num_data)
    if kind == "labels":
        return net, x, torch.arange(num_data) % 3, Categorical()
    return net, x, torch.randn(num_data, num_outputs).double(), Gaussian(noise=0.3)


def evidence(net, x, y, likelihood, prior):
    gp = LinearizedGP(net, likelihood, prior=prior).fit(x, y, progress=False)
    return gp.log_marginal_likelihood().item()

"""Training: what makes each error of the page appear."""

import torch
from torch import nn

from error_cases.shared import folder, mlp, rows, says
from lingp.training import train_with_evidence


def train(X=None, y=None, net=None, **options):
    own_X, own_y = rows()
    data = own_X if X is None else X, own_y if y is None else y
    return train_with_evidence(
        mlp() if net is None else net,
        *data,
        progress=False,
        **{"steps": 10, "updates": 1} | options,
    )


@says("the loss became inf at a learning rate of")
def _():
    train(X=1e200 * rows()[0], y=1e200 * rows()[1], net=nn.Linear(3, 1).double())


@says("the noise variance ran to …, where the data are fitted to rounding")
def _():
    X, _ = rows()
    exact = nn.Linear(3, 1).double()
    train(y=exact(X).detach(), net=exact, steps=1, updates=1, learning_rate=1e-12)


@says("all targets are the same, so that there is no noise to find")
def _():
    flat = nn.Linear(3, 1).double()
    nn.init.zeros_(flat.weight)
    nn.init.constant_(flat.bias, 2.0)
    train(y=torch.full((20, 1), 2.0), net=flat, steps=1, learning_rate=1e-12)


@says("log likelihood and log prior are … together, those of the untrained network …")
def _():
    train(learning_rate=100.0, steps=20, updates=2)


@says("checkpoint: … is of another training: its network is …, here it is …")
def _():
    with folder() as path:
        train(checkpoint=path)
        train(checkpoint=path, net=mlp(hidden=7))


@says("checkpoint: … can't be read")
def _():
    with folder() as path:
        with open(path, "wb") as file:
            file.write(b"nothing of the kind")
        train(checkpoint=path)


@says("X: generator can be gone through only once, but training takes many epochs")
def _():
    X, y = rows()
    train_with_evidence(mlp(), ((X, y) for _ in range(2)), progress=False)

"""Kinds of inputs and outputs."""

import torch
from torch import nn

from cases.table import Net, add, mlp

add("image output", lambda: nn.Conv2d(1, 2, 2), (1, 3, 3), groups=("outputs",))
add("sequence output", lambda: mlp(2, 3, 2), (3, 2), groups=("outputs",))
add(
    "dict input",
    lambda: Net(
        lambda s, image, token: s.o(s.c(image).flatten(1).tanh() * s.e(token)),
        c=nn.Conv2d(1, 1, 2),
        e=nn.Embedding(4, 4),
        o=nn.Linear(4, 2),
    ),
    {"image": (1, 3, 3), "token": ()},
    vocabulary={"image": 0, "token": 4},
    groups=("inputs",),
)


class OneArgument(nn.Module):
    """Takes its tensors in one container."""

    def __init__(self, join, width):
        super().__init__()
        self.join, self.o = join, nn.Linear(width, 2)

    def forward(self, batch):
        return self.o(self.join(batch)).tanh()


add(
    "dict input as one argument",
    lambda: OneArgument(lambda batch: batch["a"] + batch["b"], 3),
    {"a": (3,), "b": (3,)},
    groups=("inputs",),
)
add(
    "tuple input as one argument",
    lambda: OneArgument(lambda pair: torch.cat(pair, 1), 5),
    [(3,), (2,)],
    groups=("inputs",),
)

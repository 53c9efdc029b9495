"""Weights that are used more than once."""

import torch
from torch import nn
from torch.nn import functional as F

from cases.table import Net, case, mlp, parameter


@case("layer used twice", (3,), groups=("shared",))
def layer_used_twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 2))


@case("convolution used on two sizes", (2, 8), groups=("shared",))
def convolution_used_twice():
    def forward(s, x):
        h = s.c(x).tanh()
        return s.c(h[..., ::2]).tanh().mean(2)

    return Net(forward, c=nn.Conv1d(2, 2, 3, padding=1))


@case("tied embedding and output", (4,), vocabulary=5, groups=("shared",))
def tied_embedding():
    net = Net(
        lambda s, x: s.o(torch.tanh(s.e(x).mean(1))),
        e=nn.Embedding(5, 3),
        o=nn.Linear(3, 5, bias=False),
    )
    net.o.weight = net.e.weight
    return net


@case("tied autoencoder", (3,), groups=("shared",))
def tied_autoencoder():
    return Net(
        lambda s, x: F.linear(torch.tanh(F.linear(x, s.w, s.b)), s.w.t(), s.c),
        w=parameter(2, 3),
        b=parameter(2),
        c=parameter(3),
    )


@case("tied by matmul", (3,), groups=("shared",))
def tied_by_matmul():
    return Net(lambda s, x: torch.tanh(F.linear(x, s.w)) @ s.w, w=parameter(2, 3))


@case("one bias for two layers", (3,), groups=("shared",))
def one_bias_for_two_layers():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    net[2].bias = net[0].bias
    return net


@case("one weight with two biases", (3,), groups=("shared",))
def one_weight_with_two_biases():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


@case("bias used bare too", (3,), groups=("shared",))
def bias_used_bare():
    return Net(lambda s, x: s.l(x).tanh() + s.l.bias, l=nn.Linear(3, 2))


@case("siamese", [(3,), (3,)], groups=("shared",))
def siamese():
    return Net(lambda s, a, b: s.o(s.net(a) * s.net(b)), net=mlp(3, 4, 3), o=nn.Linear(3, 2))


@case("linear and pointwise convolution", (3, 4), groups=("shared",))
def linear_and_convolution():
    def forward(s, x):
        h = F.linear(x.mT, s.w[:, :, 0], s.b).tanh().mT
        return F.conv1d(h, s.w, s.b).mean(2)

    return Net(forward, w=parameter(3, 3, 1), b=parameter(3))


@case("parts of one matrix", (3,), groups=("shared",))
def parts_of_one_matrix():
    def forward(s, x):
        gate, value = F.linear(x, s.w[:4]), F.linear(x, s.w[4:], s.b)
        return s.o(torch.sigmoid(gate) * value)

    return Net(forward, w=parameter(8, 3), b=parameter(4), o=nn.Linear(4, 2))


@case("overlapping parts", (3,), groups=("shared",))
def overlapping_parts():
    return Net(lambda s, x: F.linear(x, s.w[:2]).tanh() * F.linear(x, s.w[1:]), w=parameter(3, 3))

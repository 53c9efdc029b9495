"""Networks as people write them."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from cases.table import Net, case, mlp, parameter


@case("in-place activations", (3,), groups=("written",))
def in_place_activations():
    def forward(s, x):
        h = F.relu_(s.a(x))
        h = s.b(h)
        h += x
        h.mul_(2.0).tanh_()
        return s.c(h)

    return Net(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3), c=nn.Linear(3, 2))


@case("in-place gain and shift", (4, 3), groups=("written",))
def in_place_gain():
    def forward(s, x):
        h = s.a(x)
        kept = h[:, 0]
        h *= s.gain
        h += s.shift
        h.sub_(s.offset).div_(s.scale)
        return s.b(torch.tanh(h.mean(1) + kept))

    parts = {name: parameter(3) for name in ("gain", "shift", "offset", "scale")}
    return Net(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 2), **parts)


class PreActivation(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.c1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.c2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.c1(self.act(self.n1(x)))
        h = self.c2(self.act(self.n2(h)))
        h += x
        return h


@case("pre-activation ResNet", (2, 4, 4), groups=("written", "basic"))
def resnet():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        PreActivation(3),
        PreActivation(3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    )


@case("weight norm", (3,), groups=("written",), fallback=("*.original*",))
def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("old weight norm", (3,), groups=("written",), fallback=("*_g", "*_v"))
def old_weight_norm():
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("spectral norm", (3,), groups=("written",), fallback=("*.original*",))
def spectral_norm():
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)
    )


@case("old spectral norm", (3,), groups=("written",), fallback=("0.weight_orig",))
def old_spectral_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("pruned", (3,), groups=("written",), fallback=("0.weight_orig",))
def pruned():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    return net


@case("masked weight", (3,), groups=("written",), fallback=("w",))
def masked_weight():
    net = Net(
        lambda s, x: s.o(F.linear(x, s.w * s.mask).tanh()), w=parameter(3, 3), o=nn.Linear(3, 2)
    )
    net.register_buffer("mask", torch.ones(3, 3).tril())
    return net


@case("low-rank correction", (3,), groups=("written",), fallback=("down", "up", "w"))
def low_rank_correction():
    def forward(s, x):
        return s.o(F.linear(x, s.w + s.up @ s.down).tanh())

    return Net(
        forward, w=parameter(4, 3), up=parameter(4, 1), down=parameter(1, 3), o=nn.Linear(4, 2)
    )


@case("containers", (3,), groups=("written",), fallback=("scale.a", "shifts.0"))
def containers():
    def forward(s, x):
        for layer in s.layers:
            x = layer(x).tanh()
        return s.heads["mean"](x) + s.scale["a"] * s.shifts[0]

    return Net(
        forward,
        layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
        heads=nn.ModuleDict({"mean": nn.Linear(3, 2), "unused": nn.Linear(3, 5)}),
        scale=nn.ParameterDict({"a": parameter(1)}),
        shifts=nn.ParameterList([parameter(2)]),
    )


@case("functional", (2, 4, 4), groups=("written",))
def functional():
    def forward(s, x):
        h = F.conv2d(x, s.w, s.b, padding=1).relu()
        h = F.group_norm(h, 1, s.gain)
        return F.linear(h.mean((2, 3)), weight=s.v)

    return Net(
        forward, w=parameter(3, 2, 3, 3), b=parameter(3), gain=parameter(3), v=parameter(2, 3)
    )


@case("matrix products", (4, 3), groups=("written",))
def matrix_products():
    def forward(s, x):
        h = torch.matmul(x, s.a).tanh()
        h = (h @ s.b).tanh()
        h = h.matmul(s.c.T).tanh().mean(1)
        h = torch.addmm(s.bias, h, s.d).tanh()
        return h.mm(s.e) + s.shift

    return Net(
        forward,
        a=parameter(3, 3),
        b=parameter(3, 3),
        c=parameter(2, 3),
        bias=parameter(3),
        d=parameter(2, 3),
        e=parameter(3, 2),
        shift=parameter(2),
    )


@case("einsum", (4, 3), groups=("written",), fallback=("a",))
def einsum():
    return Net(
        lambda s, x: s.o(torch.einsum("nti,io->nto", x, s.a).tanh().mean(1)),
        a=parameter(3, 3),
        o=nn.Linear(3, 2),
    )


@case("bare parameters", (4, 3), groups=("written", "basic"), fallback=("constant",))
def bare_parameters():
    def forward(s, x):
        h = torch.tanh(s.gain * x + s.positions[:, : x.shape[1]])
        h = h - s.shift
        h = h.mul(s.scalar).add(s.bias) / s.temperature + s.constant.exp()
        return s.o(h.mean(1))

    return Net(
        forward,
        gain=parameter(3),
        positions=parameter(1, 6, 3),
        shift=parameter(3),
        scalar=parameter(),
        bias=parameter(1, 1, 3),
        temperature=parameter(1),
        constant=parameter(1),
        o=nn.Linear(3, 2),
    )


@case("class token", (3, 4), groups=("written",))
def class_token():
    def forward(s, x):
        x = torch.cat([s.token.expand(len(x), -1, -1), x], 1) + s.positions
        return s.o(s.enc(x)[:, 0])

    return Net(
        forward,
        token=parameter(1, 1, 4),
        positions=parameter(1, 4, 4),
        enc=nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
        o=nn.Linear(4, 2),
    )


@case(
    "positions by arange",
    (4,),
    vocabulary=5,
    groups=("written",),
    fallback=("positions.weight",),
)
def positions_by_arange():
    def forward(s, x):
        h = s.tokens(x) + s.positions(torch.arange(x.shape[1], device=x.device))
        return s.o(h.tanh().mean(1))

    return Net(forward, tokens=nn.Embedding(5, 3), positions=nn.Embedding(6, 3), o=nn.Linear(3, 2))


@case("queries", (3, 4), groups=("written",))
def queries():
    def forward(s, x):
        q = s.queries.expand(len(x), -1, -1)
        return s.o(s.m(q, x, x, need_weights=False)[0].flatten(1))

    return Net(
        forward,
        queries=parameter(2, 4),
        m=nn.MultiheadAttention(4, 2, batch_first=True),
        o=nn.Linear(8, 2),
    )


@case("time folded in rows", (4, 3), groups=("written", "folded"))
def time_folded_in_rows():
    def forward(s, x):
        n, t, _ = x.shape
        h = s.norm(s.a(x.reshape(n * t, -1)).tanh())
        return s.o(h.view(n, t, -1).mean(1))

    return Net(forward, a=nn.Linear(3, 3), norm=nn.LayerNorm(3), o=nn.Linear(3, 2))


@case("rows folded in time", (4, 3), groups=("written", "folded"))
def rows_folded_in_time():
    def forward(s, x):
        n, t, _ = x.shape
        h = s.a(x.transpose(0, 1).reshape(t * n, -1)).tanh()
        return s.o(h.view(t, n, -1).mean(0))

    return Net(forward, a=nn.Linear(3, 3), o=nn.Linear(3, 2))


@case("frames folded in rows", (2, 1, 4, 4), groups=("written", "folded"))
def frames_folded():
    def forward(s, x):
        h = s.n(s.c(x.flatten(0, 1))).relu().mean((2, 3))
        return s.o(h.view(len(x), -1))

    return Net(forward, c=nn.Conv2d(1, 3, 3), n=nn.BatchNorm2d(3), o=nn.Linear(6, 2))


@case("time first", (4, 3), groups=("written", "folded"))
def time_first():
    return Net(
        lambda s, x: s.o(s.n(s.a(x.transpose(0, 1)).tanh())).mean(0),
        a=nn.Linear(3, 3),
        n=nn.LayerNorm(3),
        o=nn.Linear(3, 2),
    )


@case("bare parameters, time first", (4, 3), groups=("written", "folded"))
def bare_parameters_time_first():
    def forward(s, x):
        h = x.transpose(0, 1) * s.gain + s.positions
        return s.o((h - s.shift).tanh()).mean(0)

    return Net(
        forward,
        gain=parameter(3),
        positions=parameter(4, 1, 3),
        shift=parameter(1),
        o=nn.Linear(3, 2),
    )


@case("functional call", (3,), groups=("written",))
def subnet_called_functionally():
    def forward(s, x):
        own = dict(s.sub.named_parameters())
        return torch.func.functional_call(s.sub, own, (x,)).tanh()

    return Net(forward, sub=mlp(3, 4, 2))


@case("ensemble by vmap", (3,), groups=("written",), fallback=("w", "b"))
def ensemble_by_vmap():
    def forward(s, x):
        members = torch.func.vmap(F.linear, in_dims=(None, 0, 0))(x, s.w, s.b)
        return members.tanh().mean(0)

    return Net(forward, w=parameter(3, 2, 3), b=parameter(3, 2))


@case("hypernetwork", (3,), groups=("written",))
def hypernetwork():
    def forward(s, x):
        w = s.hyper(x).view(len(x), 2, 3)
        return torch.bmm(w, x.unsqueeze(2)).squeeze(2)

    return Net(forward, hyper=mlp(3, 4, 6))


@case("checkpointed", (3,), groups=("written", "warns"), fallback=("*",), smooth=False)
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    def forward(s, x):
        return s.o(checkpoint(s.body, x, use_reentrant=False))

    return Net(forward, body=mlp(3, 4, 3), o=nn.Linear(3, 2))


class Doubling(torch.autograd.Function):
    """A custom function that uses a weight, invisible to torch's function interception."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return 2 * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * g * w, (2 * g * x).sum(0)


@case("custom function", (3,), groups=("written",), fallback=("w",), smooth=False)
def custom_function():
    return Net(lambda s, x: s.o(Doubling.apply(x, s.w).tanh()), w=parameter(3), o=nn.Linear(3, 2))


@case("stop gradient", (3,), groups=("written",))
def stop_gradient():
    return Net(
        lambda s, x: s.b(s.a(x).tanh().detach()) + s.a(x)[:, :2] * s.b.weight.detach()[0, :2],
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 2),
    )

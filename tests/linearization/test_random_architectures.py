"""Stacks of layers drawn at random: factors equal the dense Jacobian whatever is combined."""

import torch
from dense import dense_jacobian, relative_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lingp.linearization import LinearizedNetwork
from lingp.operators import diagonal_blocks, expand_variances, gram

REPEATABLE = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Residual(nn.Module):
    def __init__(self, body, in_place):
        super().__init__()
        self.body, self.in_place = body, in_place

    def forward(self, x):
        h = self.body(x)
        if self.in_place:
            h += x
            return h
        return x + h


class Transposed(nn.Module):
    """Runs its body with rows second, or folded with the steps."""

    def __init__(self, body, how):
        super().__init__()
        self.body, self.how = body, how

    def forward(self, x):
        n, t, d = x.shape
        if self.how == "time first":
            return self.body(x.transpose(0, 1)).transpose(0, 1)
        if self.how == "rows, steps":
            return self.body(x.reshape(n * t, d)).view(n, t, -1)
        return self.body(x.transpose(0, 1).reshape(t * n, d)).view(t, n, -1).transpose(0, 1)


class Twice(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(torch.tanh(self.body(x)))


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * self.gain + self.shift


class Pool(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2)


class PoolSteps(nn.Module):
    def forward(self, x):
        return x.mean(1)


ACTIVATIONS = [
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.ELU(inplace=True),
    lambda: nn.Dropout(0.3),
    lambda: nn.LeakyReLU(0.1, inplace=True),
]


def activation(draw):
    return draw(st.sampled_from(ACTIVATIONS))()


@st.composite
def vectors(draw):
    """Networks on (N, 3)."""
    width, layers = 3, []
    for _ in range(draw(st.integers(1, 3))):
        new = draw(st.integers(1, 4))
        layers.append(nn.Linear(width, new, bias=draw(st.booleans())))
        width = new
        kind = draw(
            st.sampled_from(["none", "layer", "batch", "rms", "scaled", "twice", "residual"])
        )
        body = nn.Sequential(nn.Linear(width, width), activation(draw))
        layers += {
            "none": [],
            "layer": [nn.LayerNorm(width, bias=draw(st.booleans()))],
            "batch": [nn.BatchNorm1d(width)],
            "rms": [nn.RMSNorm(width)],
            "scaled": [Scaled(width)],
            "twice": [Twice(nn.Linear(width, width))],
            "residual": [Residual(body, draw(st.booleans()))],
        }[kind]
        layers.append(activation(draw))
    if draw(st.booleans()):
        layers.append(nn.Linear(width, draw(st.integers(1, 3))))
    return nn.Sequential(*layers), (3,)


@st.composite
def images(draw):
    """Convolutional networks on (N, 2, 5, 6)."""
    width, size, layers = 2, (5, 6), []
    for _ in range(draw(st.integers(1, 2))):
        groups = draw(st.sampled_from([g for g in (1, 2) if width % g == 0]))
        new = groups * draw(st.integers(1, 2))
        kernel = tuple(draw(st.integers(1, 2)) for _ in size)
        if draw(st.booleans()):
            options = {
                "stride": draw(st.integers(1, 2)),
                "padding": draw(st.integers(0, 1)),
                "dilation": draw(st.integers(1, 2)),
            }
            mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
            if draw(st.booleans()):
                options |= {"stride": 1, "padding": "same"}
            layer = nn.Conv2d(width, new, kernel, groups=groups, padding_mode=mode, **options)
        else:
            stride = draw(st.integers(1, 2))
            layer = nn.ConvTranspose2d(
                *(width, new, kernel),
                stride=stride,
                output_padding=draw(st.integers(0, stride - 1)),
                groups=groups,
                bias=draw(st.booleans()),
            )
        layers.append(layer)
        width = new
        kind = draw(st.sampled_from(["none", "batch", "group", "instance", "prelu"]))
        layers += {
            "none": [],
            "batch": [nn.BatchNorm2d(width)],
            "group": [nn.GroupNorm(1, width)],
            "instance": [nn.InstanceNorm2d(width, affine=True)],
            "prelu": [nn.PReLU(draw(st.sampled_from([1, width])))],
        }[kind]
        layers.append(activation(draw))
    return nn.Sequential(*layers, Pool(), nn.Linear(width, draw(st.integers(1, 2)))), (2, 5, 6)


@st.composite
def sequences(draw):
    """Networks on (N, 3, 4): linear, residual and attention layers in any order of axes."""
    layers = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["linear", "encoder", "residual", "twice", "scaled"]))
        if kind == "encoder":
            layers.append(
                nn.TransformerEncoderLayer(
                    4,
                    draw(st.sampled_from([1, 2])),
                    3,
                    norm_first=draw(st.booleans()),
                    batch_first=True,
                )
            )
            continue
        body = {
            "linear": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
            "residual": lambda: Residual(
                nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), True
            ),
            "twice": lambda: Twice(nn.Linear(4, 4)),
            "scaled": lambda: Scaled(4),
        }[kind]()
        how = draw(st.sampled_from(["plain", "time first", "rows, steps", "steps, rows"]))
        layers.append(body if how == "plain" else Transposed(body, how))
        layers.append(activation(draw))
    return nn.Sequential(*layers, PoolSteps(), nn.Linear(4, draw(st.integers(1, 3)))), (3, 4)


def prepared(drawn, seed, rows):
    """The network with random weights and statistics, and inputs."""
    net, shape = drawn
    generator = torch.Generator().manual_seed(seed)
    net = net.double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 + 0.7 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(torch.randn(b.shape, generator=generator))
    return net, torch.randn(rows, *shape, generator=generator, dtype=torch.float64)


@REPEATABLE
@given(
    drawn=st.one_of(vectors(), images(), sequences()),
    seed=st.integers(0, 5),
    rows=st.integers(1, 4),
    budget=st.sampled_from([None, 1, 3000]),
)
def test_factors_and_kernels(drawn, seed, rows, budget):
    net, x = prepared(drawn, seed, rows)
    lin = LinearizedNetwork(net, memory_budget=budget)
    outputs, factors = lin.factors(x)
    expected = dense_jacobian(net, x)
    scale = float(expected.norm())
    assert float((factors.jacobian() - expected).norm()) <= 1e-10 * scale
    with torch.no_grad():
        torch.testing.assert_close(outputs, net(x).reshape(rows, -1))
    (plan,) = lin._plans.values()
    assert plan.fallback is None  # every layer here has a rule

    flat = expected.flatten(0, 1)
    variances = torch.linspace(0.5, 1.5, len(factors.slices), dtype=torch.float64)
    weighted = flat * expand_variances(factors, variances)
    kernel = weighted @ flat.T
    bound = 1e-10 * float(kernel.norm()) + 1e-300
    assert float((gram(factors, variances=variances) - kernel).norm()) <= bound
    part = factors.rows(slice(0, 1))
    square = gram(part, factors, variances)
    assert float((square - kernel[: len(square)]).norm()) <= bound
    blocks = torch.einsum("ncp,ndp->ncd", weighted.view_as(expected), expected)
    assert float((diagonal_blocks(factors, variances) - blocks).norm()) <= bound
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(flat.shape[1], 2, generator=generator, dtype=torch.float64)
    u = torch.randn(rows, expected.shape[1], 2, generator=generator, dtype=torch.float64)
    assert relative_error_or_zero(factors.matmul(v).flatten(0, 1), flat @ v, scale)
    assert relative_error_or_zero(factors.t_matmul(u), flat.T @ u.flatten(0, 1), scale)


def relative_error_or_zero(got, expected, scale):
    return float((got - expected).norm()) <= 1e-10 * max(float(expected.norm()), scale)


@settings(REPEATABLE, max_examples=15)
@given(drawn=st.one_of(vectors(), images(), sequences()), seed=st.integers(0, 5))
def test_single_precision(drawn, seed):
    net, x = prepared(drawn, seed, 3)
    _, factors = LinearizedNetwork(net, dtype=torch.float32).factors(x)
    # With weights drawn this wide, rounding is carried through the layers: compare at its own
    # level.
    double = dense_jacobian(net, x)
    assert relative_error(factors.jacobian(), double) < 1e-3

"""Unusual parameters, precisions, inputs and outputs: linearised exactly, or refused clearly."""

import copy
import warnings

import pytest
import torch
from cases import Net, mlp, parameter
from dense import dense_jacobian, relative_error
from network_checks import assert_exact, build, drawn, fallback_of, linear
from torch import nn
from torch.nn import functional as F

from lingp.linearization import LinearizedNetwork

# Parameters that are unusual ---------------------------------------------------------------------


def test_parameters_without_effect_have_zero_columns():
    net = build(lambda s, x: s.a(x), a=linear(3, 2), b=linear(3, 2))
    lin = LinearizedNetwork(net)
    factors = assert_exact(lin, drawn(4, 3))
    columns = lin.parameter_slices[lin.parameter_names.index("b.weight")]
    assert not factors.jacobian()[..., columns].any()
    v = torch.ones(lin.num_parameters, 1, dtype=torch.float64)
    torch.testing.assert_close(factors.matmul(v), factors.jacobian() @ v)


@pytest.mark.parametrize("f", [lambda s, x: 2 * x, lambda s, x: s.a(x).detach()])
def test_outputs_that_depend_on_no_parameter(f):
    lin = LinearizedNetwork(build(f, a=linear(3, 3)))
    assert lin(drawn(4, 3)).shape == (4, 3)
    with pytest.raises(ValueError, match=r"don't depend on a.weight, a.bias.*on none of its"):
        lin.factors(drawn(4, 3))


def test_frozen_backbone():
    net = mlp(3, 4, 4, 2).double()
    for p in net[0].parameters():
        p.requires_grad_(False)
    lin = LinearizedNetwork(net)
    assert lin.parameter_names == ["2.weight", "2.bias", "4.weight", "4.bias"]
    assert_exact(lin, drawn(4, 3))


def test_backbone_under_no_grad():
    def forward(s, x):
        with torch.no_grad():
            h = s.a(x).tanh()
        return s.b(h)

    factors = assert_exact(
        LinearizedNetwork(build(forward, a=linear(3, 4), b=linear(4, 2))), drawn(4, 3)
    )
    assert not factors.jacobian()[..., :16].any()


@pytest.mark.parametrize("kind", ["closure", "plain list"])
def test_parameters_of_others_are_named(kind):
    other = nn.Linear(3, 2).double()
    net = build(lambda s, x: s.a(x) * s.others[0](x), a=linear(3, 2), others=lambda: [other])
    if kind == "closure":
        net = build(lambda s, x: s.a(x) * other(x), a=linear(3, 2))
    lin = LinearizedNetwork(net)
    with pytest.warns(UserWarning, match="2 parameter tensors that are not registered"):
        lin.factors(drawn(4, 3))
    assert_exact(lin, drawn(4, 3))


def test_complex_parameters_are_named():
    net = build(
        lambda s, x: s.a(torch.view_as_real((x + 0j) @ s.w).flatten(1)),
        a=linear(4, 2),
        w=lambda: nn.Parameter(torch.randn(3, 2, dtype=torch.complex128)),
    )
    with pytest.warns(UserWarning, match=r"\['w'\] are not real numbers"):
        lin = LinearizedNetwork(net)
    assert_exact(lin, drawn(4, 3))


def test_lazy_parameters_are_refused():
    with pytest.raises(ValueError, match="run the network once"):
        LinearizedNetwork(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda s, x: F.linear(x, s.w, s.w[:, 0]),
        lambda s, x: F.linear(x[:, :2], s.w[:, :2]),
        lambda s, x: F.linear(x, s.w.view(-1).view(2, 3)),
        lambda s, x: (s.w @ x.T).T,
        lambda s, x: F.linear(x, s.w.flip(0)),
        lambda s, x: x @ s.w.T @ s.w.T[:2],
        lambda s, x: torch.where(x > 0, x * s.w[0], s.w[1]),
        lambda s, x: s.w[0] - x,
        lambda s, x: x.sub(s.w[1]) / s.w[0].exp(),
        lambda s, x: torch.exp(-torch.cdist(x, s.w)),
        lambda s, x: F.linear(x, s.w.clone()),
    ],
)
def test_unusual_uses_of_a_matrix(f):
    net = Net(f, w=nn.Parameter(0.5 * drawn(2, 3, seed=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_exact(LinearizedNetwork(net), drawn(4, 3))


def test_operations_whose_mapped_derivative_is_wrong():
    """torch maps the derivative of cdist wrongly; here it lies behind the layer."""
    net = build(
        lambda s, x: torch.cdist(s.a(x).tanh(), s.c), a=linear(3, 4), c=lambda: parameter(2, 4)
    )
    lin = LinearizedNetwork(net)
    assert_exact(lin, drawn(4, 3))
    assert fallback_of(lin) == {"c"}


def test_memory_layouts_of_weights():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    lin = LinearizedNetwork(net.to(memory_format=torch.channels_last))
    assert_exact(lin, drawn(4, 2, 4, 4).to(memory_format=torch.channels_last))
    assert not fallback_of(lin)


def test_derivatives_inside_the_network():
    """Energies differentiated for forces."""

    def forward(s, x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            energy = s.b(s.a(z).tanh()).sum()
            return torch.autograd.grad(energy, z, create_graph=True)[0]

    lin = LinearizedNetwork(build(forward, a=linear(3, 4), b=linear(4, 1)))
    with pytest.warns(UserWarning, match="disagree with autograd"):
        assert_exact(lin, drawn(4, 3))


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2)])
def test_half_precision(dtype, tolerance):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2)
    ).to(dtype)
    lin = LinearizedNetwork(net)
    outputs, factors = lin.factors(drawn(4, 1, 4, 4))
    assert outputs.dtype == factors.dtype == dtype
    x = drawn(4, 1, 4, 4).to(dtype)
    assert relative_error(factors.jacobian(), dense_jacobian(copy.deepcopy(net), x)) < tolerance
    assert LinearizedNetwork(net, dtype=torch.float64).factors(x)[1].dtype == torch.float64


def test_networks_that_insist_on_single_precision():
    net = Net(lambda s, x: s.b(s.a(x.float()).tanh()), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    lin = LinearizedNetwork(net)
    x = drawn(4, 3)
    _, factors = lin.factors(x)
    assert factors.dtype == torch.float32
    assert not fallback_of(lin)
    plain = Net(lambda s, x: s.b(s.a(x).tanh()), a=net.a, b=net.b)
    assert (
        relative_error(factors.jacobian(), dense_jacobian(copy.deepcopy(plain), x.float())) < 1e-5
    )


def test_two_precisions_in_one_network():
    net = Net(lambda s, x: s.b(s.a(x).float()), a=nn.Linear(3, 4).bfloat16(), b=nn.Linear(4, 2))
    outputs, factors = LinearizedNetwork(net).factors(drawn(4, 3))
    assert outputs.dtype == factors.dtype == torch.float32
    assert {t.dtype for t in factors.tensors()} == {torch.float32}
    plain = Net(lambda s, x: s.b(s.a(x)), a=copy.deepcopy(net.a), b=copy.deepcopy(net.b))
    x = drawn(4, 3).bfloat16()
    assert relative_error(factors.jacobian(), dense_jacobian(plain, x)) < 2e-2


def test_autocast_inside_the_network():
    def forward(s, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = s.a(x).tanh()
        return s.b(h.float())

    net = Net(forward, a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    _, factors = LinearizedNetwork(net).factors(drawn(4, 3))
    plain = Net(lambda s, x: s.b(s.a(x).tanh()), a=copy.deepcopy(net.a), b=copy.deepcopy(net.b))
    assert factors.dtype == torch.float32
    assert relative_error(factors.jacobian(), dense_jacobian(plain, drawn(4, 3).float())) < 5e-2


def test_dtype_of_the_copy():
    net = mlp(3, 4, 2)
    lin = LinearizedNetwork(net, dtype=torch.float64)
    assert lin.factors(drawn(4, 3))[1].dtype == torch.float64
    assert next(net.parameters()).dtype == torch.float32
    assert lin.to(dtype=torch.float32).factors(drawn(4, 3))[0].dtype == torch.float32


# Inputs and outputs ------------------------------------------------------------------------------


def test_an_index_among_floating_inputs_stays_one():
    net = build(
        lambda s, x: s.o(torch.cat([s.e(x[:, 0].long()), x], 1)),
        e=lambda: nn.Embedding(4, 2),
        o=linear(4, 2),
    )
    for first in (3.0, 0.0):
        assert_exact(LinearizedNetwork(net), torch.tensor([[first, 0.1]], dtype=torch.float64))


def test_integer_columns_keep_to_their_vocabularies():
    net = build(
        lambda s, x: s.o(torch.cat([s.e(x[:, 0]), s.g(x[:, 1])], 1)),
        e=lambda: nn.Embedding(9, 2),
        g=lambda: nn.Embedding(2, 2),
        o=linear(4, 2),
    )
    for x in ([[8, 1]], [[8, 1], [8, 1], [8, 1], [7, 0]]):
        assert_exact(LinearizedNetwork(net), torch.tensor(x))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_rows(value):
    assert_exact(
        LinearizedNetwork(mlp(3, 4, 2).double()), torch.full((5, 3), value, dtype=torch.float64)
    )


def test_squeezing_networks_on_one_row():
    net = build(lambda s, x: s.b(s.a(x).tanh().squeeze()).squeeze(), a=linear(3, 4), b=linear(4, 1))
    lin = LinearizedNetwork(net)
    x = drawn(4, 1, 3)
    outputs, factors = lin.factors(x)
    one, alone = lin.factors(x[:1])
    assert one.shape == lin(x[:1]).shape == (1, 1)
    torch.testing.assert_close(one, outputs[:1])
    torch.testing.assert_close(alone.jacobian(), factors.jacobian()[:1])
    fresh = LinearizedNetwork(net)
    torch.testing.assert_close(fresh.factors(x[:1])[1].jacobian(), factors.jacobian()[:1])
    assert fresh.output_shape == ()


def test_inputs_of_changing_length():
    net = build(
        lambda s, x: s.o(s.c(x).tanh().mean(2)), c=lambda: nn.Conv1d(2, 3, 2), o=linear(3, 2)
    )
    lin = LinearizedNetwork(net)
    for length in (3, 5, 4):
        assert_exact(lin, drawn(4, 2, length))


@pytest.mark.parametrize(
    ("net", "x", "error", "match"),
    [
        (Net(lambda s, x: (x, x)), drawn(4, 3), TypeError, "output is tuple; expected one tensor"),
        (Net(lambda s, x: x.sum()), drawn(4, 3), ValueError, "expected the examples first"),
        (Net(lambda s, x: x.T), drawn(4, 3), ValueError, "expected the examples first"),
        (Net(lambda s, x: x), drawn(0, 3), ValueError, "has no rows"),
        (Net(lambda s, x: x), [drawn(4, 3), drawn(3, 3)], ValueError, r"\[3, 4\] rows"),
        (Net(lambda s, x: x), [drawn(4, 3).numpy()], TypeError, "expected a tensor"),
        (Net(lambda s, x: x), [], TypeError, "expected a tensor"),
        (Net(lambda s, x: x), torch.tensor(1.0), TypeError, "examples on its first axis"),
        (nn.Linear(2, 2).double(), drawn(4, 3), RuntimeError, "shapes cannot be multiplied"),
    ],
)
def test_errors_name_what_is_wrong(net, x, error, match):
    if not list(net.parameters()):
        net.p = parameter(2)
    lin = LinearizedNetwork(net.double())
    for call in (lin, lin.factors):
        with pytest.raises(error, match=match):
            call(x)


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        LinearizedNetwork(lambda x: x)
    with pytest.raises(ValueError, match="memory_budget"):
        LinearizedNetwork(nn.Linear(2, 2), memory_budget=0)
    with pytest.raises(RuntimeError, match="call it first"):
        LinearizedNetwork(nn.Linear(2, 2)).num_outputs  # noqa: B018


def test_attributes():
    lin = LinearizedNetwork(mlp(3, 4, 2).double())
    assert lin.num_parameters == 26
    assert lin.num_parameter_tensors == 4
    assert lin.parameter_shapes[0] == (4, 3)
    assert [s.stop for s in lin.parameter_slices] == [12, 16, 24, 26]
    assert lin.weights().shape == (26,)
    assert lin.dtype == torch.float64
    assert lin.device == torch.device("cpu")

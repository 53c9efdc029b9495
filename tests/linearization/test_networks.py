"""Networks as people write them: nothing is silently wrong, and what cannot be done says so."""

import copy
import warnings

import pytest
import torch
from cases import Net, mlp, parameter
from dense import dense_jacobian, relative_error
from torch import nn
from torch.nn import functional as F

from lingp.linearization import LinearizedNetwork


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def build(f, **parts):
    torch.manual_seed(0)
    return Net(f, **{name: part() for name, part in parts.items()}).double()


def linear(i, o):
    return lambda: nn.Linear(i, o)


def plan_of(lin):
    return list(lin._plans.values())[-1]


def fallback_of(lin):
    plan = plan_of(lin)
    return set(plan.fallback.names) if plan.fallback else set()


def assert_exact(lin, x, tolerance=1e-10):
    _, factors = lin.factors(x)
    net = copy.deepcopy(lin).network
    expected = dense_jacobian(net, x, lin.parameter_names)
    assert relative_error(factors.jacobian(), expected) < tolerance
    return factors


# Rows that depend on each other ------------------------------------------------------------------


class NoisyForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x) + torch.randn(2, dtype=x.dtype)


DEPENDENT = {
    "batch statistics": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)
    ),
    "batch mean of inputs": lambda: build(lambda s, x: s.a(x - x.mean(0)), a=linear(3, 2)),
    "batch mean of outputs": lambda: build(lambda s, x: s.a(x) - s.a(x).mean(0), a=linear(3, 2)),
    "attention across the batch": lambda: build(
        lambda s, x: s.m(x, x, x)[0], m=lambda: nn.MultiheadAttention(3, 1)
    ),
    "noise": NoisyForward,
    "functional dropout": lambda: build(lambda s, x: F.dropout(s.a(x)), a=linear(3, 2)),
    "sorted rows": lambda: build(lambda s, x: s.a(x.sort(0)[0]), a=linear(3, 2)),
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_rows_are_refused(name, rows):
    lin = LinearizedNetwork(DEPENDENT[name]().double())
    with pytest.raises(ValueError, match=r"depends on which other rows .* net\.eval\(\)"):
        lin.factors(drawn(rows, 3))


def test_dependence_that_equal_rows_hide_is_found_with_the_first_different_ones():
    net = build(
        lambda s, x: s.m(*[s.e(x)] * 3)[0].mean(1),
        e=lambda: nn.Embedding(5, 4),
        m=lambda: nn.MultiheadAttention(4, 2),  # takes the first axis for time
    )
    lin = LinearizedNetwork(net)
    lin.factors(torch.tensor([[1, 2, 3]]))  # alone, nothing is wrong
    with pytest.raises(ValueError, match="depends on which other rows"):
        lin.factors(torch.tensor([[1, 2, 3], [3, 0, 1], [2, 2, 4]]))


@pytest.mark.parametrize(
    "f",
    [
        lambda s, x: s.a(x) + (x.mean() if len(x) > 3 else 0),
        lambda s, x: s.a(x) * (2 if len(x) > 3 else 1),
    ],
)
def test_dependence_on_the_size_of_the_batch_is_refused(f):
    lin = LinearizedNetwork(build(f, a=linear(3, 2)))
    with pytest.raises(ValueError, match="depends on which other rows"):
        lin.factors(drawn(6, 3))


# Modes -------------------------------------------------------------------------------------------


def test_a_network_in_train_mode_is_linearised_in_eval_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).double()
    net(drawn(20, 3))
    net.train()
    lin = LinearizedNetwork(net)
    assert_exact(lin, drawn(5, 3))
    assert net.training
    assert net[1].training


@pytest.mark.parametrize(
    "compiled",
    [
        lambda net: torch.compile(net, backend="eager"),
        lambda net: nn.Sequential(torch.compile(net, backend="eager"), nn.Linear(2, 2).double()),
        lambda net: nn.DataParallel(net),
    ],
)
def test_wrapped_networks(compiled):
    net = compiled(mlp(3, 4, 2).double())
    lin = LinearizedNetwork(net)
    assert not any("_orig_mod" in name or "module" in name for name in lin.parameter_names)
    assert_exact(lin, drawn(4, 3))
    assert not fallback_of(lin)
    first = next(iter(net.parameters()))
    assert LinearizedNetwork(net, [first]).parameter_names == lin.parameter_names[:1]


@pytest.mark.parametrize(
    "script", [torch.jit.script, lambda net: torch.jit.trace(net, drawn(2, 3))]
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_networks_go_through_the_fallback(script):
    net = script(mlp(3, 4, 2).double())
    lin = LinearizedNetwork(net)
    assert (
        relative_error(lin.factors(drawn(4, 3))[1].jacobian(), dense_jacobian(net, drawn(4, 3)))
        < 1e-10
    )
    assert fallback_of(lin) == set(lin.parameter_names)


# Values decide -----------------------------------------------------------------------------------


def test_another_branch_is_refused():
    net = build(lambda s, x: s.a(x) if x.mean() > 0 else s.b(x), a=linear(3, 2), b=linear(3, 2))
    lin = LinearizedNetwork(net)
    x = drawn(5, 3).abs()
    lin.factors(x)
    with pytest.raises(RuntimeError, match="branches on its inputs' values"):
        lin.factors(-x)


def test_another_use_of_a_parameter_in_a_branch_is_refused():
    net = build(
        lambda s, x: s.a(x) + (0 if x.mean() > 0 else s.a.weight.square().sum()), a=linear(3, 2)
    )
    lin = LinearizedNetwork(net)
    x = drawn(5, 3).abs()
    lin.factors(x)
    with pytest.raises(RuntimeError, match="branches on its inputs' values"):
        lin.factors(-x)


@pytest.mark.parametrize(
    "hidden",
    [
        lambda w: w.square().sum(),
        lambda w: torch.ops.aten.sum.default(w),
        lambda w: w.data.sum() * w[0, 0],
    ],
)
def test_a_use_without_effect_on_the_first_rows_is_seen(hidden):
    net = build(
        lambda s, x: s.a(x) + torch.relu(x.sum(1, keepdim=True) - 50) * hidden(s.a.weight),
        a=linear(3, 2),
    )
    lin = LinearizedNetwork(net)
    lin.factors(drawn(5, 3))
    assert_exact(lin, 100 * drawn(5, 3).abs())
    assert "a.weight" in fallback_of(lin)


def test_layers_that_are_off_on_the_first_rows():
    net = build(
        lambda s, x: s.a(x) + torch.relu(x.sum(1, keepdim=True) - 50) * s.b(x),
        a=linear(3, 2),
        b=linear(3, 2),
    )
    lin = LinearizedNetwork(net)
    lin.factors(drawn(5, 3))
    assert_exact(lin, 100 * drawn(5, 3).abs())


def test_positions_that_look_alike_on_the_first_rows():
    """Zeros folded as (T·N) could be read either way; other rows tell that there is one."""

    def forward(s, x):
        n, t, _ = x.shape
        h = torch.relu(x - 50).transpose(0, 1).reshape(t * n, -1)
        return torch.relu(s.a(h)).view(t, n, -1).mean(0)

    net = build(forward, a=linear(3, 2))
    net.a.bias.data.fill_(-1.0)
    lin = LinearizedNetwork(net)
    lin.factors(drawn(5, 4, 3))
    assert_exact(lin, 100 * drawn(5, 4, 3).abs())


def test_dead_units():
    net = mlp(3, 6, 2, activation=nn.ReLU).double()
    net[0].bias.data[:4] = -100.0
    assert_exact(LinearizedNetwork(net), drawn(5, 3))


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
    outputs, factors = lin.factors(drawn(4, 3))
    assert factors.jacobian().shape == (4, 3, 12)
    assert not factors.jacobian().any()
    assert outputs.shape == (4, 3)


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

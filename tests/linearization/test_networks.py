"""Networks as people write them: nothing is silently wrong, and what cannot be done says so."""

import pytest
import torch
from cases import mlp
from dense import dense_jacobian, relative_error
from network_checks import assert_exact, build, drawn, fallback_of, linear
from torch import nn
from torch.nn import functional as F

from lingp.linearization import LinearizedNetwork

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

"""Rules for layers of the user's own."""

import warnings

import pytest
import torch
from cases import Net
from dense import dense_jacobian, relative_error
from torch import nn

from lingp.linearization import (
    Dense,
    LinearizedNetwork,
    Lookup,
    Outer,
    check_rule,
    register_rule,
    unregister_rule,
)


class LowRank(nn.Module):
    """h = U V x + b, by a custom function that no built-in rule sees into."""

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.u = nn.Parameter(torch.randn(outputs, rank))
        self.v = nn.Parameter(torch.randn(rank, inputs))
        self.b = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.einsum("...i,ri,or->...o", x, self.v, self.u) + self.b


class Table(nn.Module):
    """A table read with a weight."""

    def __init__(self, rows, width):
        super().__init__()
        self.entries = nn.Parameter(torch.randn(rows, width))

    def forward(self, x):
        return torch.einsum(
            "nv,vo->no", nn.functional.one_hot(x, len(self.entries)).double(), self.entries
        )


def outer_rule(module, x, g):
    a = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
    g = g.flatten(2, -2) if g.dim() > 3 else g.unsqueeze(2)
    return {"u": Outer(a @ module.v.T, g, bias="b"), "v": Outer(a, g @ module.u)}


def dense_rule(module, x, g):
    g = g.reshape(*g.shape[:2], -1, g.shape[-1])
    a = x.reshape(len(x), -1, x.shape[-1])
    return {
        "u": torch.einsum("cbso,bsr->cbor", g, a @ module.v.T),
        "v": Dense(torch.einsum("cbsr,bsi->cbri", g @ module.u, a)),
        "b": g.sum(2),
    }


def partial_rule(module, x, g):
    return {"u": dense_rule(module, x, g)["u"]}


def wrong_rule(module, x, g):
    pieces = dense_rule(module, x, g)
    return {**pieces, "v": Dense(2 * pieces["v"].jacobian)}


@pytest.fixture
def registered():
    """Register rules for `LowRank`, and forget them afterwards."""
    yield lambda rule, **options: register_rule(LowRank, **options)(rule)
    unregister_rule(LowRank)


def network(positions=False):
    torch.manual_seed(0)
    return nn.Sequential(
        LowRank(4, 5, 2), nn.Tanh(), LowRank(5, 3, 2), *([nn.Flatten()] if positions else [])
    ).double()


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def fallback_of(lin):
    (plan,) = lin._plans.values()
    return set(plan.fallback.names) if plan.fallback else set()


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("rule", [outer_rule, dense_rule])
def test_a_rule_is_used(registered, rule, positions):
    x = inputs(4, 3, 4) if positions else inputs(4, 4)
    expected = dense_jacobian(network(positions), x)
    unaided = LinearizedNetwork(network(positions))
    assert relative_error(unaided.factors(x)[1].jacobian(), expected) < 1e-10
    assert {"0.u", "0.v"} <= fallback_of(unaided)
    assert registered(rule) is rule
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lin = LinearizedNetwork(network(positions))
        assert relative_error(lin.factors(x)[1].jacobian(), expected) < 1e-10
    assert not fallback_of(lin)


def test_what_a_rule_leaves_out_goes_through_the_fallback(registered):
    registered(partial_rule)
    x = inputs(4, 4)
    lin = LinearizedNetwork(network())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, factors = lin.factors(x)
    assert relative_error(factors.jacobian(), dense_jacobian(network(), x)) < 1e-10
    assert fallback_of(lin) == {"0.v", "0.b", "2.v", "2.b"}


def test_a_wrong_rule_is_set_aside_and_named_once(registered):
    registered(wrong_rule)
    x = inputs(4, 4)
    lin = LinearizedNetwork(network())
    with pytest.warns(UserWarning, match=r"\['0\.v', '2\.v'\] disagree with autograd"):
        _, factors = lin.factors(x)
    assert relative_error(factors.jacobian(), dense_jacobian(network(), x)) < 1e-10
    assert fallback_of(lin) == {"0.v", "2.v"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lin.factors(x[:2])


def test_a_wrong_rule_in_a_branch_that_is_off_is_found(registered):
    registered(wrong_rule)
    torch.manual_seed(0)
    net = Net(
        lambda s, x: s.a(x) + torch.relu(s.gate - 5) * s.low(x),
        a=nn.Linear(4, 3),
        low=LowRank(4, 3, 2),
        gate=nn.Parameter(torch.zeros(3)),
    ).double()
    lin = LinearizedNetwork(net, lambda name, p: name != "gate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lin.factors(inputs(4, 4))
    expected = dense_jacobian(lin.network, inputs(4, 4), lin.parameter_names)
    assert relative_error(lin.factors(inputs(4, 4))[1].jacobian(), expected) < 1e-10


def test_a_rule_that_raises_leaves_the_fallback(registered):
    def broken(module, x, g):
        raise ZeroDivisionError("in the rule")

    registered(broken)
    lin = LinearizedNetwork(network())
    with pytest.warns(UserWarning, match="could not be recorded .ZeroDivisionError: in the rule"):
        _, factors = lin.factors(inputs(4, 4))
    assert relative_error(factors.jacobian(), dense_jacobian(network(), inputs(4, 4))) < 1e-10


def test_any_axis(registered):
    registered(dense_rule, any_axis=True)
    net = Net(lambda s, x: s.m(x.transpose(0, 1)).mean(0), m=LowRank(4, 3, 2)).double()
    x = inputs(5, 3, 4)
    lin = LinearizedNetwork(net)
    assert relative_error(lin.factors(x)[1].jacobian(), dense_jacobian(lin.network, x)) < 1e-10
    assert not fallback_of(lin)


def test_a_layer_used_twice_and_also_outside(registered):
    registered(outer_rule)
    torch.manual_seed(0)
    net = Net(lambda s, x: s.m(s.m(x).tanh()) + s.m.b, m=LowRank(4, 4, 2)).double()
    x = inputs(5, 4)
    lin = LinearizedNetwork(net)
    assert relative_error(lin.factors(x)[1].jacobian(), dense_jacobian(lin.network, x)) < 1e-10
    assert fallback_of(lin) == {"m.b"}


def test_lookup_rule():
    @register_rule(Table)
    def rule(module, x, g):
        return {
            "entries": Lookup(x[:, None], torch.ones_like(x[:, None], dtype=g.dtype), g[:, :, None])
        }

    try:
        net = nn.Sequential(Table(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        x = torch.tensor([0, 3, 3, 4])
        lin = LinearizedNetwork(net)
        assert relative_error(lin.factors(x)[1].jacobian(), dense_jacobian(lin.network, x)) < 1e-10
        assert not fallback_of(lin)
        assert check_rule(Table(5, 3), x)["entries"] < 1e-12
    finally:
        unregister_rule(Table)


def test_subclasses_are_not_covered(registered):
    registered(dense_rule)

    class Special(LowRank):
        pass

    lin = LinearizedNetwork(Special(4, 3, 2).double())
    lin.factors(inputs(4, 4))
    assert {"u", "v"} <= fallback_of(lin)


def test_unregister(registered):
    registered(dense_rule)
    unregister_rule(LowRank)
    unregister_rule(LowRank)  # again does nothing
    lin = LinearizedNetwork(network())
    lin.factors(inputs(4, 4))
    assert {"0.u", "0.v"} <= fallback_of(lin)


@pytest.mark.parametrize("rule", [outer_rule, dense_rule])
@pytest.mark.parametrize("shape", [(4, 4), (4, 3, 4)])
def test_check_rule(registered, rule, shape):
    registered(rule)
    errors = check_rule(LowRank(4, 3, 2), inputs(*shape))
    assert set(errors) == {"u", "v", "b"}
    assert max(errors.values()) < 1e-12


def test_check_rule_names_parameter_and_error(registered):
    registered(wrong_rule)
    with pytest.raises(
        AssertionError, match=r"rule for LowRank is wrong, relatively: v by 1\.0e\+00"
    ):
        check_rule(LowRank(4, 3, 2), inputs(4, 4))
    assert check_rule(LowRank(4, 3, 2), inputs(4, 4), rtol=1.5)["u"] < 1e-12


def test_check_rule_refuses_what_it_cannot_check(registered):
    with pytest.raises(ValueError, match="no rule is registered for LowRank"):
        check_rule(LowRank(4, 3, 2), inputs(4, 4))
    registered(lambda module, x, g: {"weight": g})
    with pytest.raises(
        ValueError, match=r"names \['weight'\]; its parameters are \['b', 'u', 'v'\]"
    ):
        check_rule(LowRank(4, 3, 2), inputs(4, 4))


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), int, "Linear"])
def test_only_module_classes_take_rules(layer):
    with pytest.raises(TypeError, match=r"expected a subclass of torch\.nn\.Module"):
        register_rule(layer)

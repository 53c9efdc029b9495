"""Which parameters are uncertain."""

import pytest
import torch
from cases import CASES, mlp
from dense import dense_jacobian, relative_error
from torch import nn

from lingp.linearization import LinearizedNetwork, select_parameters


def net():
    return mlp(3, 4, 4, 2).double()


ALL = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("all", ALL),
        ("last_layer", ALL[4:]),
        ("4.*", ALL[4:]),
        ("*.bias", ALL[1::2]),
        ("[02].weight", ["0.weight", "2.weight"]),
        ("2.bias", ["2.bias"]),
        (lambda name, p: p.dim() == 2, ALL[::2]),
        (["4.bias", "0.weight"], ["0.weight", "4.bias"]),
        (("2.bias",), ["2.bias"]),
    ],
)
def test_selections(selection, expected):
    assert list(select_parameters(net(), selection)) == expected
    lin = LinearizedNetwork(net(), selection)
    assert lin.parameter_names == expected


def test_by_parameter_objects():
    network = net()
    assert list(select_parameters(network, [network[2].bias])) == ["2.bias"]
    assert list(select_parameters(network, network[4].parameters())) == ALL[4:]
    assert list(select_parameters(network, [network[0].weight, "2.bias"])) == ["0.weight", "2.bias"]


def test_only_those_that_require_grad():
    network = net()
    network[0].requires_grad_(False)
    network[4].requires_grad_(False)
    assert list(select_parameters(network)) == ALL[2:4]
    assert list(select_parameters(network, "last_layer")) == ALL[2:4]
    assert list(select_parameters(network, "0.*")) == ALL[:2]  # asked for by name


def test_last_layer_is_the_last_submodule_with_parameters():
    network = nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2), nn.Tanh()), nn.Flatten()
    )
    assert list(select_parameters(network, "last_layer")) == ["1.0.weight", "1.0.bias"]


def test_tied_weights_count_once():
    network = CASES["tied embedding and output"].network()
    assert list(select_parameters(network)) == ["e.weight"]
    assert list(select_parameters(network, ["o.weight"])) == ["e.weight"]  # the same tensor
    assert list(select_parameters(network, "last_layer")) == ["e.weight"]


@pytest.mark.parametrize(
    ("selection", "error", "match"),
    [
        ("head.*", ValueError, "selects none of the network's 6 parameters"),
        (lambda name, p: False, ValueError, "selects none"),
        ([], ValueError, "selects none"),
        (["0.weight", "7.weight"], ValueError, "'7.weight' is not in the network"),
        ([nn.Parameter(torch.zeros(2, 2))], ValueError, r"a parameter of shape \(2, 2\) is not in"),
        (3, TypeError, "got int; expected 'all'"),
    ],
)
def test_errors(selection, error, match):
    with pytest.raises(error, match=match):
        select_parameters(net(), selection)


def test_a_network_without_parameters_is_refused():
    with pytest.raises(ValueError, match="it has none"):
        LinearizedNetwork(nn.Flatten())


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "tied autoencoder",
        "encoder",
        "bare parameters",
        "pre-activation ResNet",
        "one bias for two layers",
        "class token",
        "LSTM",
        "weight norm",
        "attention bias on keys and values",
    ],
)
@pytest.mark.parametrize("part", ["first", "last", "every other", "biases"])
def test_columns_of_a_subset(name, part):
    case = CASES[name]
    every = [n for n, p in case.network().named_parameters()]
    chosen = {
        "first": every[:1],
        "last": every[-1:],
        "every other": every[::2],
        "biases": [n for n in every if n.endswith(("bias", "b"))] or every,
    }[part]
    lin = LinearizedNetwork(case.network(), chosen)
    x = case.inputs(4)
    _, factors = lin.factors(x)
    expected = dense_jacobian(case.network(), x, lin.parameter_names)
    assert relative_error(factors.jacobian(), expected) < 1e-10


class TwoHeads(nn.Module):
    """A body with a head, and another head that is defined later."""

    def __init__(self, uses="head", bias=True):
        super().__init__()
        self.body = mlp(3, 5).double()
        self.head = nn.Linear(5, 2).double()
        self.auxiliary = nn.Linear(5, 3, bias=bias).double()
        self.uses = uses

    def forward(self, x):
        h = self.body(x).tanh()
        self.auxiliary(h)
        return {
            "head": self.head,
            "both": lambda h: self.head(h) + 0.0 * self.auxiliary(h)[:, :2],
            "off": lambda h: self.head(h) + (self.auxiliary(h)[:, :2] - 1e3).relu(),
            "in place": lambda h: self.head(h).add_(self.auxiliary(h)[:, :2]),
            "neither": lambda h: h,
            "nothing": lambda h: self.head(h).detach(),
        }[self.uses](h)


HEAD, AUXILIARY = (["head.weight", "head.bias"], ["auxiliary.weight", "auxiliary.bias"])
ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    ("uses", "names"),
    [
        ("head", HEAD),
        ("both", AUXILIARY),
        ("off", AUXILIARY),
        ("in place", AUXILIARY),
        ("neither", ["body.0.weight", "body.0.bias"]),
    ],
)
@pytest.mark.parametrize("first", ["outputs", "factors"])
def test_the_last_layer_that_the_outputs_depend_on(uses, names, first):
    network = TwoHeads(uses)
    lin, expected = LinearizedNetwork(network, "last_layer"), LinearizedNetwork(network, names)
    before = torch.get_rng_state()
    lin(ROWS) if first == "outputs" else lin.factors(ROWS)
    assert torch.equal(before, torch.get_rng_state())
    assert lin.parameter_names == names
    assert lin.parameter_slices == expected.parameter_slices
    assert torch.equal(lin.weights(), expected.weights())
    found, jacobian = lin.factors(ROWS)[1].jacobian(), expected.factors(ROWS)[1].jacobian()
    assert torch.equal(found, jacobian)
    assert not any(p.requires_grad for p in lin.network.parameters())
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    "selection",
    ["auxiliary.*", AUXILIARY, lambda name, p: name.startswith("aux"), ["auxiliary.bias"]],
)
def test_weights_that_the_outputs_do_not_depend_on_are_refused(selection):
    lin = LinearizedNetwork(TwoHeads(), selection)
    with pytest.raises(ValueError, match=r"don't depend on auxiliary\..*head.weight, head.bias"):
        lin.factors(ROWS)


@pytest.mark.parametrize("selection", ["all", "last_layer", "head.*"])
def test_outputs_that_depend_on_no_weights_are_refused(selection):
    lin = LinearizedNetwork(TwoHeads("nothing"), selection)
    with pytest.raises(ValueError, match="they depend on none of its parameters"):
        lin.factors(ROWS)


def test_some_weights_may_be_out_of_reach_and_any_slope_may_vanish():
    lin = LinearizedNetwork(TwoHeads(), ["head.bias", "auxiliary.bias"])
    jacobian = lin.factors(ROWS)[1].jacobian()
    assert torch.equal(jacobian[..., 2:], torch.zeros(6, 2, 3).double())
    assert torch.equal(jacobian[..., :2], torch.eye(2).double().expand(6, 2, 2))
    off = LinearizedNetwork(TwoHeads("off"), "last_layer")
    assert not off.factors(ROWS)[1].jacobian().any()  # behind a unit that is off for all rows

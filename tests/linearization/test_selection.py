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

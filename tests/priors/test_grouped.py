"""Priors with one precision per unit or per weight: which weights share one, and the doors."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from torch import nn

import lingp
from lingp.linearization import LinearizedNetwork
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.training import penalty

NAMES, SHAPES = ["0.weight", "0.bias", "2.weight"], [(2, 3), (2,), (1, 2)]


class Mixed(nn.Module):
    """Layers whose weights are stored in different orders."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2)
        self.conv = nn.Conv1d(2, 3, 2)
        self.up = nn.ConvTranspose1d(3, 5, 2)
        self.norm = nn.LayerNorm(5)
        self.matrix = nn.Parameter(torch.randn(5, 6))
        self.out = nn.Linear(6, 7)

    def forward(self, x):
        h = self.up(self.conv(self.table(x).mT).tanh()).mean(-1)
        return self.out((self.norm(h) @ self.matrix).tanh())


COUNTS = {
    "inputs": {
        "matrix": (5,),
        "table.weight": (4,),
        "conv.weight": (2,),
        "conv.bias": (),
        "up.weight": (3,),
        "up.bias": (),
        "norm.weight": (),
        "norm.bias": (),
        "out.weight": (6,),
        "out.bias": (),
    },
    "outputs": {
        "matrix": (6,),
        "table.weight": (2,),
        "conv.weight": (3,),
        "conv.bias": (3,),
        "up.weight": (5,),
        "up.bias": (5,),
        "norm.weight": (5,),
        "norm.bias": (5,),
        "out.weight": (7,),
        "out.bias": (7,),
    },
}


@pytest.mark.parametrize("units", COUNTS)
def test_units_of_every_kind_of_layer(units):
    net = Mixed()
    network = LinearizedNetwork(net)
    prior = UnitWise(units=units, inputs_first=("matrix",)).bind_to(network)
    shapes = {name: tuple(p.shape) for name, p in prior.named_precisions().items()}
    assert shapes == COUNTS[units]
    assert prior.num_groups == len(prior.precision)
    prior.precision = torch.arange(1.0, prior.num_groups + 1)
    variances = prior.variances().split([p.numel() for p in net.parameters()])
    for (name, weight), values in zip(net.named_parameters(), variances, strict=True):
        precision = prior.named_precisions()[name]
        axis = {"inputs": 1, "outputs": 0}[units]
        if name in ("matrix", "table.weight", "up.weight"):
            axis = 1 - axis
        if weight.dim() < 2:
            expected = precision.expand(weight.shape)
        else:
            expected = precision.view([-1 if a == axis else 1 for a in range(weight.dim())])
            expected = expected.expand(weight.shape)
        assert torch.equal(1 / values.view(weight.shape), 1 / (1 / expected))


def test_a_first_layer_by_its_inputs():
    prior = UnitWise().bind(NAMES, SHAPES)
    prior.precision = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    expected = [1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 1 / 8, 1 / 8, 1 / 16, 1 / 32]
    torch.testing.assert_close(prior.variances().tolist(), expected, rtol=1e-14, atol=0)
    assert prior.group.tolist() == [0, 1, 2, 0, 1, 2, 3, 3, 4, 5]
    assert not prior.isotropic
    assert not prior.columnwise


def test_diagonal_has_one_for_each_weight():
    values = torch.linspace(0.5, 2, 10, dtype=torch.float64)
    prior = Diagonal(values).bind(NAMES, SHAPES)
    torch.testing.assert_close(prior.variances(), 1 / values, rtol=1e-14, atol=0)
    assert prior.named_precisions()["0.weight"].shape == (2, 3)
    assert prior.columnwise


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (2.0, [2.0] * 6),
        (torch.arange(1.0, 7.0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        (
            {"2.weight": torch.tensor([5.0, 6.0]), "0.weight": 1.0, "0.bias": 2.0},
            [1.0, 1.0, 1.0, 2.0, 5.0, 6.0],
        ),
    ],
)
def test_precisions_to_start_from(precision, expected):
    prior = UnitWise(precision).bind(NAMES, SHAPES)
    torch.testing.assert_close(prior.precision.tolist(), expected, rtol=1e-14, atol=0)
    assert "units='inputs'" in repr(prior)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r'units: expected "inputs" or "outputs", got \'rows\''):
        UnitWise(units="rows")
    with pytest.raises(ValueError, match=r"needs the shapes.*LinearizedGP"):
        UnitWise().bind(NAMES)
    with pytest.raises(ValueError, match="got 2 for 3 parameter tensors"):
        UnitWise().bind(NAMES, SHAPES[:2])
    with pytest.raises(ValueError, match=r"inputs_first: 'head.*' matches none"):
        UnitWise(inputs_first=("head.*",)).bind(NAMES, SHAPES)
    for prior in (
        UnitWise(torch.ones(4)),
        UnitWise({**dict.fromkeys(NAMES, 1.0), NAMES[0]: torch.ones(2)}),
    ):
        with pytest.raises(ValueError, match=r"precision: got . values for"):
            prior.bind(NAMES, SHAPES)
        assert prior.names is None
    with pytest.raises(ValueError, match="missing"):
        Diagonal({"0.weight": 1.0}).bind(NAMES, SHAPES)
    with pytest.raises(ValueError, match="finite positive") as raised:
        Diagonal(torch.zeros(10_000))
    assert len(str(raised.value)) < 200  # not all of them
    for prior in (UnitWise(), Diagonal()):
        with pytest.raises(RuntimeError, match="bind"):
            prior.variances()
        with pytest.raises(RuntimeError, match="bind"):
            prior.named_precisions()


def test_binding_again():
    for kind in (Isotropic, Layerwise, UnitWise, Diagonal):
        prior = kind().bind(NAMES, SHAPES)
        raw = prior.raw_precision
        assert prior.bind(NAMES, SHAPES).bind(NAMES) is prior
        assert prior.raw_precision is raw
        with pytest.raises(ValueError, match=r"already belongs.*shape \(3, 2\)"):
            prior.bind(NAMES, [(3, 2), (2,), (1, 2)])
    # names first, shapes later
    prior = Layerwise().bind(NAMES).bind(NAMES, SHAPES)
    assert prior.shapes == tuple(torch.Size(s) for s in SHAPES)


@pytest.mark.parametrize("kind", [UnitWise, Diagonal])
def test_copies_state_and_conversion(kind):
    prior = kind(0.1).bind(NAMES, SHAPES)
    prior.precision = 0.3
    assert prior.precision[0].item() == pytest.approx(0.3, rel=1e-15)
    for twin in (copy.deepcopy(prior), pickle.loads(pickle.dumps(prior))):
        assert torch.equal(twin.variances(), prior.variances())
    other = kind().bind(NAMES, SHAPES)
    other.load_state_dict(prior.state_dict())
    assert torch.equal(other.variances(), prior.variances())
    assert "group" not in prior.state_dict()
    assert prior.float().variances().dtype == torch.float32


@pytest.mark.parametrize("kind", [UnitWise, Diagonal])
@pytest.mark.parametrize("where", ["precision", "raw_precision"])
def test_hyperpriors_may_be_registered_before_binding(kind, where):
    prior = kind()
    prior.register_prior("hyper", gpytorch.priors.NormalPrior(0.0, 1.0), where)
    prior.bind(NAMES, SHAPES)
    ((_, module, density, closure, _),) = list(prior.named_priors())
    log_prob = density.log_prob(closure(module))
    assert log_prob.shape == prior.raw_precision.shape
    (slope,) = torch.autograd.grad(log_prob.sum(), prior.raw_precision)
    assert slope.isfinite().all()


@pytest.mark.parametrize("constraint", [gpytorch.constraints.Interval(0.5, 2.0), None])
def test_gradients_gather_over_groups(constraint):
    prior = UnitWise(1.0, precision_constraint=constraint).bind(NAMES, SHAPES)
    weights = torch.arange(10.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda raw: torch.func.functional_call(
            Weighted(prior, weights), {"prior.raw_precision": raw}
        ),
        prior.raw_precision.detach().clone().requires_grad_(),
    )


class Weighted(nn.Module):
    def __init__(self, prior, weights):
        super().__init__()
        self.prior, self.weights = prior, weights

    def forward(self):
        return self.weights @ self.prior.variances()


@pytest.mark.parametrize(
    "make", [lambda: UnitWise(2.0, "inputs"), lambda: UnitWise(2.0, "outputs"), Diagonal]
)
def test_penalty_of_training(make):
    net = Mixed().double()
    prior = make().bind_to(LinearizedNetwork(net))
    prior.precision = torch.linspace(0.5, 3, prior.num_groups)
    theta = nn.utils.parameters_to_vector(net.parameters())
    expected = 0.5 * (theta.square() / prior.variances()).sum()
    torch.testing.assert_close(penalty(net, prior), expected, rtol=1e-12, atol=0)
    slopes = torch.autograd.grad(penalty(net, prior), list(net.parameters()))
    wanted = theta / prior.variances()
    torch.testing.assert_close(torch.cat([s.flatten() for s in slopes]), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", [lambda: UnitWise(2.0), Diagonal])
def test_kernel_of_gpytorch(make):
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    prior = make()
    kernel = lingp.NTKernel.from_model(net, prior=prior).double()
    prior.precision = torch.linspace(0.5, 3, prior.num_groups)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jacobian = kernel.network.factors(x).jacobian().flatten(0, 1)
    dense = (jacobian * prior.variances()) @ jacobian.mT
    torch.testing.assert_close(kernel(x).to_dense(), dense, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(kernel(x, diag=True), dense.diagonal(), rtol=1e-10, atol=1e-12)
    (slope,) = torch.autograd.grad(kernel(x).logdet(), prior.raw_precision)
    (wanted,) = torch.autograd.grad(dense.logdet(), prior.raw_precision)
    torch.testing.assert_close(slope, wanted, rtol=1e-7, atol=1e-9)

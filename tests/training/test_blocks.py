"""Blocks of rows: both bounds of the evidence, their estimates, errors and derivatives."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import gpytorch
import pytest
import torch
from dense import dense_jacobian
from torch import Tensor, nn

import lingp
from lingp.inference import Blocks, LinearizedLaplace, TrainingSet, optimize
from lingp.inference.blocks import BoundBlocks
from lingp.inference.evidence import evidence
from lingp.likelihoods import Categorical, CorrelatedGaussian, Gaussian, Poisson, Tempered
from lingp.linearization import LinearizedNetwork
from lingp.priors import Isotropic, Layerwise
from lingp.training import hyperparameter_step, train_with_evidence

COVARIANCE = [[0.3, 0.1, 0.0], [0.1, 0.2, -0.05], [0.0, -0.05, 0.4]]
LIKELIHOODS = {
    "gaussian": lambda: Gaussian([0.3, 0.1, 0.2]),
    "one noise": lambda: Gaussian(0.2),
    "correlated": lambda: CorrelatedGaussian(COVARIANCE),
    "categorical": Categorical,
    "tempered": lambda: Tempered(Categorical(), 0.6, learn=True),
    "poisson": Poisson,
}
OPTIONS = {
    "joint": ("lower", "joint"),
    "separate": ("lower", "separate"),
    "upper": ("upper", "joint"),
}


def network(width: int = 4, outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)
        return nn.Sequential(*layers).double()


@dataclass
class Model:
    """A model, and Φ by its definition."""

    net: nn.Module
    x: Tensor
    laplace: LinearizedLaplace

    def phi(self) -> Tensor:
        """(N x K x P)."""
        prior, root = self.laplace.prior, self.laplace.curvature_root().dense()
        sizes = torch.tensor([p.numel() for p in self.net.parameters()])
        scale = prior.variances().sqrt().repeat_interleave(sizes)
        return (root.mT @ (dense_jacobian(self.net, self.x) * scale)).detach()

    def with_blocks(self, rows, total=None, option="joint") -> LinearizedLaplace:
        rows = [torch.as_tensor(r) for r in rows]
        method = BoundBlocks(self.laplace.training, rows, total or len(rows), *OPTIONS[option])
        return replace(self.laplace, method=method)


def model(name="gaussian", prior=None, num_data=11, width=4, keep=1 << 30) -> Model:
    """Weighted data in batches of four rows."""
    net, likelihood = network(width), LIKELIHOODS[name]()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_data, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = likelihood.sample(net(x), generator=generator)
    y = y.squeeze(-1) if likelihood.num_labels((3,)) else y
    y = likelihood.check_targets(y, (3,), torch.float64)
    weights = torch.linspace(0.5, 2, num_data, dtype=torch.float64)
    linearized = LinearizedNetwork(net, dtype=torch.float64)
    batches = zip(x.split(4), y.split(4), weights.split(4), strict=True)
    training = TrainingSet.collect(linearized, batches, keep_bytes=keep, progress=False)
    prior = prior or Layerwise(torch.tensor([0.5, 1.5, 0.9, 0.3]))
    prior.bind(linearized.parameter_names)
    return Model(
        net, x, LinearizedLaplace(training, prior, likelihood, lingp.inference.WeightSpace)
    )


def log_det(phi: Tensor, scale: float = 1.0) -> Tensor:
    rows = phi.reshape(-1, phi.shape[-1])
    return torch.logdet(torch.eye(len(rows), dtype=rows.dtype) + scale * rows @ rows.mT)


def partitions(num_data: int) -> list[list[Tensor]]:
    """Blocks of one row, of several sizes, and of all rows."""
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(3))
    found = [list(order.split(size)) for size in (1, 3, num_data)]
    return [*found, list(order.split([1, 7, num_data - 8]))]


@pytest.mark.parametrize("width", [1, 4])  # weights fewer than rows of a block, and more
@pytest.mark.parametrize("prior", [Isotropic(0.7), None], ids=["isotropic", "layerwise"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_one_block_of_all_rows_is_exact(name, prior, width):
    case = model(name, prior and Isotropic(0.7), width=width)
    exact = evidence(case.laplace).value
    for option in ("joint", "upper"):
        found = evidence(case.with_blocks([range(11)], option=option))
        assert found.value == pytest.approx(exact, rel=1e-12)
        assert found.standard_error == 0


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_bounds_of_any_partition(name):
    case = model(name)
    phi = case.phi()
    exact = float(log_det(phi))
    for blocks in partitions(11):
        values = {
            option: float(case.with_blocks(blocks, option=option).posterior().log_determinant())
            for option in OPTIONS
        }
        together = sum(log_det(phi[rows]) for rows in blocks)
        apart = sum(log_det(phi[rows][:, k]) for rows in blocks for k in range(phi.shape[1]))
        upper = sum(log_det(phi[rows], len(blocks)) for rows in blocks) / len(blocks)
        assert values["joint"] == pytest.approx(float(together), rel=1e-10)
        assert values["separate"] == pytest.approx(float(apart), rel=1e-10)
        assert values["upper"] == pytest.approx(float(upper), rel=1e-10)
        slack = 1e-10 * exact
        assert values["upper"] <= exact + slack
        assert exact <= values["joint"] + slack <= values["separate"] + 2 * slack


@pytest.mark.parametrize("option", OPTIONS)
def test_the_estimate_is_unbiased_and_its_error_right(option):
    """Over all choices of blocks: mean and variance are those of the sampled sum, exactly."""
    case = model()
    parts = list(torch.arange(11).tensor_split(5))
    whole = float(case.with_blocks(parts, option=option).posterior().log_determinant())
    values, errors = [], []
    for chosen in itertools.combinations(parts, 3):
        posterior = case.with_blocks(chosen, 5, option).posterior()
        values.append(float(posterior.log_determinant()))
        errors.append(posterior.log_determinant_error())
    values, errors = torch.tensor(values), torch.tensor(errors)
    assert float(values.mean()) == pytest.approx(whole, rel=1e-6)
    assert float(values.var(correction=0)) == pytest.approx(float(errors.square().mean()), rel=1e-4)
    assert float(values.std()) > 1e-2
    single = case.with_blocks(parts[:1], 5, option).posterior()
    assert math.isnan(single.log_determinant_error())


def test_every_block_is_drawn_as_often():
    """Blocks of 3 and of 2 rows: were the first ones of a draw larger, its mean would be off."""
    training = model().laplace.training
    options = Blocks(3, num_blocks=1, generator=torch.Generator().manual_seed(0))
    count = torch.zeros(11)
    repeats = 2000
    for _ in range(repeats):
        bound = options.bind(training, None, 1e12)
        assert bound.total == 4 and bound.rows[0].tolist() == sorted(bound.rows[0].tolist())
        count[bound.rows[0]] += 1
    share = count / repeats
    error = (0.25 * 0.75 / repeats) ** 0.5  # of a row's share, 1/4
    assert float((share - 0.25).abs().max()) < 4 * error
    assert float(count.sum()) / repeats == pytest.approx(11 / 4, abs=4 * 0.5 / repeats**0.5)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["gaussian", "one noise", "tempered", "correlated"])
@pytest.mark.parametrize("width", [1, 4])
def test_gradients_by_finite_differences(name, option, width):
    case = model(name, width=width)
    laplace = case.with_blocks([[0, 3, 9, 4, 7], [2, 5, 10]], 4, option)
    parameters = [*laplace.prior.parameters(), *laplace.likelihood.parameters()]
    if option == "separate" and name in ("tempered", "correlated"):
        with pytest.raises(ValueError, match=r"outputs: \"separate\" has no derivatives"):
            laplace.log_marginal_likelihood()
        for p in laplace.likelihood.parameters():
            p.requires_grad_(False)
        parameters = list(laplace.prior.parameters())
    found = torch.autograd.grad(laplace.log_marginal_likelihood(), parameters)
    step = 1e-5
    for p, gradient in zip(parameters, found, strict=True):
        for index in range(p.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    p.view(-1)[index] += sign * step
                    values.append(float(laplace.log_marginal_likelihood()))
                    p.view(-1)[index] -= sign * step
            difference = (values[0] - values[1]) / (2 * step)
            # central differences: rounding 1e-14 / step and the third derivative, step²
            assert float(gradient.view(-1)[index]) == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_second_derivatives_are_refused():
    laplace = model().with_blocks([[0, 3], [2, 5]], 5)
    raw = laplace.prior.raw_precision
    value = laplace.posterior().log_determinant
    assert not value().requires_grad
    first = torch.autograd.grad(laplace.log_marginal_likelihood(), raw, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(first.sum(), raw)

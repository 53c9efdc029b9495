"""Blocks of rows: both bounds of the evidence, their estimates, errors and derivatives."""

from __future__ import annotations

import itertools
import math

import gpytorch
import pytest
import torch
from block_models import LIKELIHOODS, OPTIONS, Model, log_det, model
from torch import Tensor, nn

import lingp
from lingp.inference import Blocks
from lingp.inference.blocks import BoundBlocks
from lingp.inference.evidence import evidence
from lingp.likelihoods import Categorical, Gaussian
from lingp.linearization import LinearizedNetwork
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise
from lingp.training import TrainingPlan, hyperparameter_step, train_with_evidence


def occam_of(laplace):
    """What the evidence takes, without a graph."""
    with torch.no_grad():
        return laplace.solution().occam


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
    for option in ("lower", "upper", "between"):
        found = evidence(case.with_blocks([range(11)], option=option))
        assert found.value == pytest.approx(exact, rel=1e-12)
        assert found.standard_error == 0


def between(phi: Tensor, blocks: list[Tensor], lower: Tensor, upper: Tensor) -> Tensor:
    """Where both would meet, by what halving the blocks does to them."""
    count, halved_lower, halved_upper = len(blocks), 0.0, 0.0
    for rows in blocks:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        for half in order.chunk(2):
            halved_lower += log_det(phi[rows[half]])
            halved_upper += log_det(phi[rows[half]], 2 * count) / (2 * count)
    weight = (upper - halved_upper) / (halved_lower - lower + upper - halved_upper)
    return weight * lower + (1 - weight) * upper


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_bounds_of_any_partition(name):
    case = model(name)
    phi = case.phi()
    exact = float(log_det(phi))
    for blocks in partitions(11):
        values = {
            option: float(occam_of(case.with_blocks(blocks, option=option)).log_determinant())
            for option in OPTIONS
        }
        count = len(blocks)
        single = [phi[rows][:, k] for rows in blocks for k in range(phi.shape[1])]
        lower = sum(log_det(phi[rows]) for rows in blocks)
        upper = sum(log_det(phi[rows], count) for rows in blocks) / count
        expected = {
            "lower": lower,
            "upper": upper,
            "between": between(phi, blocks, lower, upper),
            "separate": sum(log_det(piece) for piece in single),
            "separate upper": sum(log_det(p, len(single)) for p in single) / len(single),
        }
        for option, value in values.items():
            assert value == pytest.approx(float(expected[option]), rel=1e-10), option
        order = ["separate upper", "upper", "exact", "lower", "separate"]
        values["exact"] = exact
        for smaller, larger in itertools.pairwise(order):
            assert values[smaller] <= values[larger] * (1 + 1e-10)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_estimate_is_unbiased_and_its_error_right(option):
    """Over all choices of blocks: mean and variance are those of the sampled sum, exactly."""
    case = model()
    parts = list(torch.arange(11).tensor_split(5))
    laplace = case.with_blocks(parts, option=option)
    whole = float(occam_of(laplace).log_determinant())
    weight = laplace.method.weight
    values, errors = [], []
    for chosen in itertools.combinations(parts, 3):
        laplace = case.with_blocks(chosen, 5, option)
        laplace.method.weight = weight
        occam = occam_of(laplace)
        values.append(float(occam.log_determinant()))
        errors.append(occam.log_determinant_error())
    values, errors = torch.tensor(values), torch.tensor(errors)
    assert float(values.mean()) == pytest.approx(whole, rel=1e-6)
    assert float(values.var(correction=0)) == pytest.approx(float(errors.square().mean()), rel=1e-4)
    assert float(values.std()) > 1e-2
    single = occam_of(case.with_blocks(parts[:1], 5, option))
    assert math.isnan(single.log_determinant_error())


def test_every_block_is_drawn_as_often():
    """Blocks of 3 and of 2 rows: were the first ones of a draw larger, its mean would be off."""
    training = model().laplace.training
    options = Blocks(3, num_blocks=1, generator=torch.Generator().manual_seed(0))
    count = torch.zeros(11)
    repeats = 800
    for _ in range(repeats):
        bound = options.bind(training, None, 1e12)
        assert bound.total == 4
        assert bool((bound.rows[0].diff() > 0).all())
        count[bound.rows[0]] += 1
    share = count / repeats
    error = (0.25 * 0.75 / repeats) ** 0.5  # of a row's share, 1/4
    assert float((share - 0.25).abs().max()) < 4 * error
    assert float(count.sum()) / repeats == pytest.approx(11 / 4, abs=4 * 0.5 / repeats**0.5)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("name", "width"),  # a width of 1: fewer weights than rows of a block
    [("gaussian", 1), ("one noise", 4), ("one noise", 1), ("tempered", 4), ("correlated", 1)],
)
def test_gradients_by_finite_differences(name, option, width):
    case = model(name, width=width)
    laplace = case.with_blocks([[0, 3, 9, 4, 7], [2, 5, 10]], 4, option)
    parameters = [*laplace.prior.parameters(), *laplace.likelihood.parameters()]
    if option.startswith("separate") and name in ("tempered", "correlated"):
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
    value = occam_of(laplace).log_determinant
    assert not value().requires_grad
    first = torch.autograd.grad(laplace.log_marginal_likelihood(), raw, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(first.sum(), raw)


def tuned(case: Model, inference, **options):
    """Hyperparameters of a step that starts from the same values, (precisions and noise)."""
    prior, likelihood = Layerwise(1.0), Gaussian(0.3)
    x, y = case.x, case.laplace.training.targets
    step = hyperparameter_step(
        case.net, x, y, likelihood=likelihood, prior=prior, inference=inference, **options
    )
    return torch.cat([prior.precision, likelihood.noise.reshape(1)]).detach().log(), step


def test_hyperparameters_approach_the_exact_ones():
    case = model("one noise", num_data=120, width=16)
    exact, step = tuned(case, "function_space")
    errors = {}
    for estimate in ("lower", "upper", "between"):
        found = [tuned(case, Blocks(m, 120 // m, estimate)) for m in (10, 40, 120)]
        errors[estimate] = [float((values - exact).abs().max()) for values, _ in found]
        assert errors[estimate][0] > 1.2 * errors[estimate][1] > 1e3 * errors[estimate][2]
        assert found[2][1].evidence == pytest.approx(step.evidence, rel=1e-8)
    assert errors["between"][0] < 0.6 * min(errors["lower"][0], errors["upper"][0])


def test_mackay_and_l_bfgs_agree():
    case = model("one noise", num_data=40)
    found = []
    for method in ("mackay", "l-bfgs"):
        prior, likelihood = Layerwise(0.7), Gaussian(0.3)
        gp = lingp.LinearizedGP(case.net, likelihood, prior=prior, inference=Blocks(8, 3))
        gp.fit(case.x, case.laplace.training.targets, progress=False)
        result = gp.optimize_hyperparameters(method=method, num_restarts=0, tolerance=1e-7)
        assert result.converged
        found.append(result.log_marginal_likelihood)
    assert found[0] == pytest.approx(found[1], rel=1e-8)


def test_gpytorch_priors_count():
    case = model("one noise", num_data=40)
    plain = tuned(case, Blocks(8, 3))[0]
    prior, likelihood = Layerwise(1.0), Gaussian(0.3)
    density = gpytorch.priors.NormalPrior(torch.tensor(2.0), torch.tensor(1e-3))
    prior.register_prior("sure", density, lambda m: m.precision.log())
    hyperparameter_step(
        case.net,
        case.x,
        case.laplace.training.targets,
        likelihood=likelihood,
        prior=prior,
        inference=Blocks(8, 3),
    )
    assert prior.precision.log().tolist() == pytest.approx([2.0] * 4, abs=0.01)
    assert float((plain[:4] - 2).abs().min()) > 0.05


@pytest.mark.parametrize("prior", [UnitWise(), Diagonal()], ids=["unit-wise", "diagonal"])
def test_a_precision_per_unit_or_weight(prior):
    case = model("one noise", prior)
    laplace = case.with_blocks([range(11)], option="lower")
    values, gradients = [], []
    for each in (laplace, case.laplace):
        value = each.log_marginal_likelihood()
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, prior.raw_precision)[0])
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-10)


def test_other_blocks_every_step_and_the_same_ones_again():
    case = model("one noise", num_data=40)
    y = case.laplace.training.targets
    draws = []
    for _ in range(2):
        options = Blocks(8, 2)
        gp = lingp.LinearizedGP(case.net, Gaussian(0.3), inference=options)
        for _ in range(2):
            gp.fit(case.x, y, progress=False)
            value = gp.evidence().value
            assert gp.evidence().value == value  # they stay
            draws.append(value)
        assert "2 of 5 blocks of 8 rows" in str(gp.inference_choice)
    assert draws[:2] == draws[2:]
    assert draws[0] != draws[1]


@pytest.mark.parametrize("budget", ["plenty", "tight"])
def test_only_factors_of_drawn_rows_are_made(budget, monkeypatch):
    case = model("categorical", num_data=40)
    x, y = case.x, case.laplace.training.targets.squeeze(-1).long()
    inference = Blocks(10, 2, "lower")
    gp = lingp.LinearizedGP(case.net, Categorical(), prior=Layerwise(), inference=inference)
    gp.fit(x, y, progress=False)
    assert not gp.laplace.training.factors_kept
    bound = gp.laplace.method
    if budget == "tight":
        bound = BoundBlocks(gp.laplace.training, bound.rows, 4, "lower", "joint", keep_bytes=0)
        gp.laplace.method = bound
    rows = []
    factors = LinearizedNetwork.factors
    counted = lambda self, x: rows.append(len(x)) or factors(self, x)  # noqa: E731
    monkeypatch.setattr(LinearizedNetwork, "factors", counted)
    first = float(gp.log_marginal_likelihood().detach())
    assert sum(rows) == 20
    gp.prior.precision = 2.0
    assert float(gp.log_marginal_likelihood().detach()) != first
    assert sum(rows) == (20 if budget == "plenty" else 40)


def test_inputs_of_several_kinds_and_sizes():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.layer(a).sum(1) + self.layer(b).sum(1)

    net = Two().double()
    generator = torch.Generator().manual_seed(0)

    def batch(length):
        shape = 6, length, 2
        a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        return (a, b), torch.zeros(6, 1, dtype=torch.float64)

    data = [batch(length) for length in (2, 2, 3)]
    whole = lingp.LinearizedGP(net, inference="weight_space").fit(data, progress=False)
    blocks = lingp.LinearizedGP(net, inference=Blocks(18)).fit(data, progress=False)
    assert blocks.evidence().value == pytest.approx(whole.evidence().value, rel=1e-12)


def test_what_needs_a_posterior_says_so():
    case = model("one noise")
    gp = lingp.LinearizedGP(case.net, Gaussian(0.3), inference=Blocks(5))
    gp.fit(case.x, case.laplace.training.targets, progress=False)
    calls = [
        lambda: gp.predict(case.x),
        lambda: gp.posterior(case.x).covariance_matrix,
        lambda: gp.sample(case.x, 2),
        lambda: gp.leave_one_out(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="estimates the evidence and gives no posterior"):
            call()
    refit = lingp.LinearizedGP(case.net, Gaussian(0.3), inference=Blocks(5), mean="refit")
    refit.fit(case.x, case.laplace.training.targets, progress=False)
    with pytest.raises(ValueError, match='nor for a refitted mean; use mean="network"'):
        refit.evidence()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size: got 0; expected 1 or more"),
        ({"num_blocks": 0}, "num_blocks: got 0"),
        ({"estimate": "best"}, 'estimate: expected one of "between", "lower", "upper", got'),
        ({"outputs": True}, 'outputs: expected one of "joint", "separate", got True'),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Blocks(**options)


def test_a_block_too_large_for_memory():
    net = nn.Sequential(nn.Linear(2, 400), nn.Tanh(), nn.Linear(400, 3))
    x, y = torch.zeros(1000, 2), torch.zeros(1000, 3)
    gp = lingp.LinearizedGP(net, inference=Blocks(800), memory_budget=40_000_000)
    with pytest.raises(MemoryError, match="size: a block of 800 rows with 3 outputs takes"):
        gp.fit(x, y, progress=False)
    with pytest.raises(ValueError, match="the class Blocks; give an object of it"):
        lingp.LinearizedGP(net, inference=Blocks)


def test_killed_and_resumed_training_draws_the_same_blocks(tmp_path):
    case, path = model("one noise", num_data=40), tmp_path / "training.pt"
    y = case.laplace.training.targets
    options = {"progress": False, "prior": Layerwise()}

    def training(optimizer, **more):
        plan = TrainingPlan(12, updates=3, learning_rate=(1e-2, 1e-5), optimizer=optimizer)
        return train_with_evidence(
            case.net, case.x, y, plan=plan, inference=Blocks(8, 2), **options, **more
        )

    class KilledError(Exception):
        pass

    def kill(params):
        optimizer = torch.optim.Adam(params, 1e-2)
        optimizer.register_step_pre_hook(lambda *_: steps.append(1) or fail(len(steps)))
        return optimizer

    def fail(count):
        if count == 7:
            raise KilledError

    steps: list[int] = []
    whole = training(lambda p: torch.optim.Adam(p, 1e-2))
    with pytest.raises(KilledError):
        training(kill, checkpoint=path)
    resumed = training(lambda p: torch.optim.Adam(p, 1e-2), checkpoint=path)
    assert torch.equal(whole.prior.precision, resumed.prior.precision)
    assert [s.evidence for s in whole.history] == [s.evidence for s in resumed.history]


def test_float32():
    case = model("one noise", num_data=40)
    y = case.laplace.training.targets
    values = []
    for dtype in (torch.float32, torch.float64):
        gp = lingp.LinearizedGP(case.net, Gaussian(0.3), inference=Blocks(8, 2), dtype=dtype)
        gp.fit(case.x.to(dtype), y.to(dtype), progress=False)
        values.append(gp.evidence().value)
        assert gp.log_marginal_likelihood().dtype == dtype
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_training_on_blocks():
    """The noise, and the evidence of all data, are those of training with the exact evidence."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(240, 1, generator=generator) - 2
    y = (2 * x).sin() + 0.1 * torch.randn(240, 1, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    noise, values = [], []
    for inference in (Blocks(30), "weight_space", Blocks(30, estimate="lower")):
        trained = train_with_evidence(
            net, x, y, prior=Layerwise(), steps=100, updates=3, inference=inference, progress=False
        )
        noise.append(trained.likelihood.noise.item())
        values.append(trained.gp.evidence().value)  # of all data
    assert noise[0] == pytest.approx(noise[1], rel=0.05)
    assert values[0] > values[1] - 2
    assert values[2] < values[1] - 10

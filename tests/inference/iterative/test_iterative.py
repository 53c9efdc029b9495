"""Iterative inference: within its certificate of the exact posterior, whatever it is given."""

from __future__ import annotations

import warnings

import pytest
import torch
from dense_reference import build as build_dense
from laplace_cases import CASES, dense_jacobian, dense_reference, hyperparameters, make_laplace, mlp
from likelihood_cases import CASES as LIKELIHOODS
from torch import Tensor

from lingp.inference import ConvergenceWarning, FunctionSpace, LinearizedLaplace
from lingp.inference.iterative import BoundIterative, Iterative
from lingp.inference.iterative.kernel_product import KernelProduct

NETWORKS = {1: CASES[2], 3: CASES[3]}  # two hidden layers
SIZE = 40
MEMORY = 1e9


def iterative_laplace(
    num_outputs: int,
    kind: str = "layerwise/scalar",
    mean: str = "network",
    num_inducing: int = 6,
    dtype: torch.dtype = torch.float64,
    keep_bytes: int = 1 << 30,
    memory: float = MEMORY,
    seed: int = 0,
    **options,
) -> tuple[LinearizedLaplace, tuple]:
    """Laplace with iterative inference, and what `dense_reference` takes."""
    net, x, y, x_test = NETWORKS[num_outputs].build(SIZE)
    prior, likelihood = hyperparameters(kind, num_outputs)
    laplace = make_laplace(
        net, x, y, prior, likelihood, "weight", mean, dtype=dtype, keep_bytes=keep_bytes
    )
    bind(laplace, memory, num_inducing=num_inducing, seed=seed, **options)
    return laplace, (net, x, y, x_test, prior, likelihood, mean)


def bind(laplace: LinearizedLaplace, memory: float = MEMORY, seed: int = 0, **options) -> None:
    options.setdefault("generator", torch.Generator().manual_seed(seed))
    laplace.method = Iterative(**options).bind(laplace.training, laplace.prior, memory)


def test_factors(laplace, x_test):
    return laplace.training.linearized.factors(x_test)[1]


test_factors.__test__ = False


def blocks_of(covariance: Tensor, num_outputs: int) -> Tensor:
    shape = (len(covariance) // num_outputs, num_outputs) * 2
    return torch.einsum("ncnd->ncd", covariance.view(shape))


@pytest.mark.parametrize("num_inducing", [0, 6])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_covariances_are_within_their_certificate(num_outputs, tolerance, num_inducing):
    laplace, given = iterative_laplace(num_outputs, tolerance=tolerance, num_inducing=num_inducing)
    exact = dense_reference(*given).covariance.detach()
    factors = test_factors(laplace, given[3])
    posterior = laplace.posterior()
    covariance = posterior.covariance(factors)
    found = posterior.certificate
    assert found.residual <= tolerance
    rounding = 1e-13 * float((dense_jacobian(given[0], given[3]) ** 2).sum(1).max())
    values = torch.linalg.eigvalsh(covariance - exact)
    assert values[0] >= -rounding  # never below, in any direction
    error = (covariance - exact).diagonal()
    assert (error <= found.bound + rounding).all()
    assert (error <= tolerance * covariance.diagonal() + rounding).all()
    torch.testing.assert_close(covariance, covariance.mT, rtol=0, atol=0)
    # blocks come from the same solutions
    blocks = posterior.marginal_covariance(factors)
    torch.testing.assert_close(
        blocks, blocks_of(covariance, num_outputs), rtol=0, atol=max(rounding, 1e-12)
    )


def test_variances_have_a_tolerance_of_their_own():
    """Residuals alone may leave large shares of small variances; asked for, they are small."""
    counts = {}
    for share in (0.5, 1e-6):
        laplace, given = iterative_laplace(3, tolerance=1e-2, variance_tolerance=share)
        exact = dense_reference(*given).covariance.detach().diagonal()
        posterior = laplace.posterior()
        variances = posterior.covariance(test_factors(laplace, given[3])).diagonal()
        assert posterior.certificate.residual <= 1e-2
        assert posterior.certificate.share <= share
        assert (variances - exact <= share * variances + 1e-12 * exact.max()).all()
        counts[share] = posterior.certificate.iterations
    assert counts[1e-6] > counts[0.5]


@pytest.mark.parametrize("num_inducing", [0, 6])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_stopped_early_it_is_above_the_exact_one_and_falls(num_outputs, num_inducing):
    laplace, given = iterative_laplace(num_outputs, num_inducing=num_inducing)
    exact = dense_reference(*given).covariance.detach()
    factors, before = test_factors(laplace, given[3]), None
    rounding = 1e-12 * float(exact.diagonal().max())
    for count in (1, 2, 5, 20):
        bind(laplace, num_inducing=num_inducing, max_iterations=count, tolerance=1e-12)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            covariance = laplace.posterior().covariance(factors)
        if count <= 5:
            assert "never too small" in str(said[0].message)
        assert torch.linalg.eigvalsh(covariance - exact)[0] >= -rounding
        error = (covariance - exact).diagonal()
        assert (error <= laplace.posterior().certificate.bound + rounding).all()
        assert laplace.posterior().certificate.iterations <= count
        if before is not None:
            assert (covariance.diagonal() <= before + rounding).all()
        before = covariance.diagonal()


@pytest.mark.parametrize(
    ("kind", "mean"),
    [
        ("isotropic/scalar", "network"),
        ("isotropic/scalar", "refit"),
        ("layerwise/per-output", "refit"),
    ],
)
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_evidence_and_mean(num_outputs, kind, mean):
    laplace, given = iterative_laplace(num_outputs, kind, mean, tolerance=1e-6, num_probes=20)
    dense = dense_reference(*given)
    with torch.no_grad():
        evidence = laplace.log_marginal_likelihood()
    posterior = laplace.posterior()
    # half of the log determinant's error; the mean's is of second order
    allowed = 0.5 * 4 * posterior.log_determinant_error() + 1e-6
    assert posterior.log_determinant_error() > 0
    assert abs(float(evidence - dense.log_evidence.detach())) < allowed
    outputs, factors = laplace.training.linearized.factors(given[3])
    shift = laplace.weight_shift()
    if shift is not None:
        outputs = outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)
    deviation = dense.covariance.detach().diagonal().sqrt()
    assert ((outputs.reshape(-1) - dense.mean.detach()).abs() <= 1e-6 * deviation + 1e-12).all()


@pytest.mark.parametrize(
    ("num_inducing", "kind", "mean"),
    [
        (0, "layerwise/per-output", "network"),
        (6, "isotropic/scalar", "network"),
        (6, "layerwise/per-output", "refit"),
    ],
)
def test_gradients_of_the_evidence(num_inducing, kind, mean):
    laplace, given = iterative_laplace(3, kind, mean)
    parameters = [*laplace.prior.parameters(), *laplace.likelihood.parameters()]
    dense = dense_reference(*given)
    exact = flat(torch.autograd.grad(dense.log_evidence, parameters))
    draws = []
    bind(laplace, num_inducing=num_inducing, tolerance=1e-5, num_probes=10)
    for seed in range(16):  # independent probes, so that their spread is known
        laplace.method.seed = seed
        draws.append(flat(torch.autograd.grad(laplace.log_marginal_likelihood(), parameters)))
    found = torch.stack(draws)
    error = found.std(0) / len(draws) ** 0.5
    # Student's t with 15 degrees of freedom: 2e-4 for one of them by chance
    assert ((found.mean(0) - exact).abs() < 5 * error + 1e-5 * exact.abs()).all()
    assert (error < 0.1 * exact.abs().max()).all()


def flat(gradients) -> Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])


def test_a_preconditioner_makes_evidence_and_gradient_certain():
    errors, spreads = [], []
    for num_inducing in (0, 6, SIZE):
        values, gradients = [], []
        laplace, _ = iterative_laplace(1, num_inducing=num_inducing, num_probes=4)
        for seed in range(6):
            laplace.method.seed = seed
            parameters = list(laplace.prior.parameters())
            evidence = laplace.log_marginal_likelihood()
            gradients.append(flat(torch.autograd.grad(evidence, parameters)))
            values.append(evidence.detach())
        errors.append(float(torch.stack(values).std()))
        spreads.append(float(torch.stack(gradients).std(0).norm()))
    assert errors[0] > 3 * errors[1] > 100 * errors[2]
    assert spreads[0] > 3 * spreads[1] > 100 * spreads[2]


def test_the_evidence_is_the_same_each_time_and_smooth():
    laplace, _ = iterative_laplace(1, "isotropic/scalar", num_probes=4)
    raw = laplace.prior.raw_precision
    start = raw.item()
    values = []
    with torch.no_grad():
        for step in (0.0, 1e-3, 2e-3, 3e-3, 0.0):
            raw.fill_(start + step)
            values.append(float(laplace.log_marginal_likelihood()))
    assert values[0] == values[-1]
    third = values[3] - 3 * values[2] + 3 * values[1] - values[0]
    assert abs(third) < 1e-3 * abs(values[1] - values[0])


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_solutions_are_differentiable(num_outputs):
    laplace, _ = iterative_laplace(num_outputs, tolerance=1e-8)
    parameters = [*laplace.prior.parameters(), *laplace.likelihood.parameters()]
    data, training = laplace.data_term, laplace.training
    g = torch.Generator().manual_seed(1)
    z = torch.randn(SIZE, num_outputs, generator=g, dtype=torch.float64, requires_grad=True)
    b = torch.randn(training.num_parameters, 2, generator=g, dtype=torch.float64)
    b.requires_grad_()
    found = []
    for method in (laplace.method, FunctionSpace):
        posterior = method(training, laplace.prior, data.curvature_root(training.outputs))
        weights = torch.linspace(-1, 1, training.num_parameters, dtype=torch.float64)
        value = (weights * posterior.solve(z)).sum()
        value = value + (weights @ posterior.precision_solve(b)).square().sum()
        gradients = torch.autograd.grad(value, [*parameters, z, b])
        found.append([value.detach(), *gradients])
    for actual, wanted in zip(*found, strict=True):
        scale = float(wanted.abs().max())
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("mean", ["network", "refit"])
def test_softmax(mean):
    case = next(c for c in LIKELIHOODS if c.num_outputs > 1 and "categorical" in c.name)
    dense = build_dense(case, depth=1, num_data=10)
    laplace = make_laplace(
        dense.net, dense.x, dense.y, dense.prior, dense.likelihood, "function", mean
    )
    factors = test_factors(laplace, dense.x[:3] + 0.1)
    exact = laplace.posterior().covariance(factors), laplace.mode().e
    expected = laplace.log_marginal_likelihood()
    parameters = list(dense.prior.parameters())
    exact_gradient = flat(torch.autograd.grad(expected, parameters))
    # all data are inducing points: the gradient has no noise to speak of
    bind(laplace, num_inducing=10, tolerance=1e-8)
    posterior = laplace.posterior()
    torch.testing.assert_close(posterior.covariance(factors), exact[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(laplace.mode().e, exact[1], rtol=0, atol=1e-6)
    evidence = laplace.log_marginal_likelihood()
    torch.testing.assert_close(evidence, expected, rtol=1e-7, atol=1e-7)
    gradient = flat(torch.autograd.grad(evidence, parameters))
    torch.testing.assert_close(gradient, exact_gradient, rtol=0, atol=1e-5)


def test_samples_have_the_posterior_covariance():
    laplace, given = iterative_laplace(3, num_inducing=6, tolerance=1e-3)
    exact = dense_reference(*given).covariance.detach()
    factors = test_factors(laplace, given[3])
    posterior, count = laplace.posterior(), 2000
    e = posterior.sample(count, torch.Generator().manual_seed(0))
    again = posterior.sample(2, torch.Generator().manual_seed(0))
    assert again.shape == (laplace.training.num_parameters, 2)
    f = factors.matmul(posterior.scale.unsqueeze(-1) * e).flatten(0, 1)
    found = f @ f.mT / count
    spread = (exact.diagonal().outer(exact.diagonal()) + exact.square()) / count
    assert ((found - exact).abs() < 4.5 * spread.sqrt() + 2e-3 * exact.diagonal().max()).all()
    assert (f.mean(1).abs() < 4.5 * (exact.diagonal() / count).sqrt()).all()


def test_a_preconditioner_saves_iterations():
    taken = []
    for num_inducing in (0, 6, SIZE):
        laplace, given = iterative_laplace(1, num_inducing=num_inducing)
        laplace.posterior().marginal_covariance(test_factors(laplace, given[3]))
        taken.append(laplace.posterior().certificate.iterations)
    assert taken[0] > taken[1] > taken[2]
    assert taken[2] <= 2


@pytest.mark.parametrize("kind", ["isotropic/scalar", "layerwise/scalar"])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_all_ways_of_multiplying_agree(num_outputs, kind):
    g = torch.Generator().manual_seed(0)
    w = torch.randn(SIZE * num_outputs, 4, generator=g, dtype=torch.float64)
    x = torch.randn(SIZE, 3, generator=g, dtype=torch.float64)
    net = mlp(num_outputs, 2, width=30).double()  # wide enough for the kernel to be cheaper
    prior, likelihood = hyperparameters(kind, num_outputs)
    found = {}
    for keep_bytes, memory in ((1 << 30, MEMORY), (1 << 30, 0.0), (0, 0.0)):
        laplace = make_laplace(
            net, x, net(x).detach(), prior, likelihood, "weight", keep_bytes=keep_bytes
        )
        product = KernelProduct(laplace.training, memory)
        root = laplace.curvature_root()
        variances, isotropic = laplace.prior.variances(), laplace.prior.isotropic
        product.expect(1e9, variances, isotropic)
        found[product.way] = product(w, root, variances, isotropic)
        assert "dense kernel" in product.reason
    jacobian = dense_jacobian(net, x)
    kernel = jacobian @ (laplace.training.per_weight(prior.variances()).unsqueeze(-1) * jacobian.mT)
    expected = (kernel @ w / likelihood.noise).detach()
    assert set(found) == {"dense", "factors", "recomputed"}
    for product_value in found.values():
        torch.testing.assert_close(product_value.detach(), expected, rtol=1e-11, atol=1e-9)


def test_the_kernel_is_formed_once_it_pays_and_forgotten_with_the_variances():
    laplace, _ = iterative_laplace(1)
    product = KernelProduct(laplace.training, MEMORY)
    root, prior = laplace.curvature_root(), laplace.prior
    w = torch.ones(SIZE, 1, dtype=torch.float64)
    many = int(product.break_even)
    assert 1 < many < 1000
    product(w, root, prior.variances(), prior.isotropic)
    assert product.way == "factors"
    for _ in range(many + 1):
        product(w, root, prior.variances(), prior.isotropic)
    assert product.way == "dense"
    with torch.no_grad():
        prior.raw_precision += 0.1
    product.expect(0, prior.variances(), prior.isotropic)
    assert product.way == "factors"


def test_a_missed_tolerance_warns_with_the_numbers():
    laplace, given = iterative_laplace(1, num_inducing=0, max_iterations=3, tolerance=1e-6)
    with pytest.warns(ConvergenceWarning, match=r"after 3 iterations.*Raise max_iterations"):
        laplace.posterior().marginal_covariance(test_factors(laplace, given[3]))
    with pytest.warns(ConvergenceWarning, match="log det"):
        laplace.posterior().log_determinant()
    with pytest.warns(ConvergenceWarning, match="1 of 1 right-hand sides"):
        laplace.posterior().solve(torch.ones(SIZE, 1, dtype=torch.float64))


def test_float32():
    laplace, given = iterative_laplace(3, dtype=torch.float32, tolerance=1e-2)
    dense = dense_reference(*given)
    factors = test_factors(laplace, given[3].float())
    posterior = laplace.posterior()
    covariance = posterior.covariance(factors)
    assert covariance.dtype == torch.float32
    exact = dense.covariance.detach()
    prior = torch.as_tensor((dense_jacobian(given[0], given[3]) ** 2).sum(1)).max()
    error = (covariance.double() - exact).diagonal()
    assert (error.abs() <= 1e-2 * exact.diagonal() + 1e-5 * prior).all()
    with torch.no_grad():
        evidence = laplace.log_marginal_likelihood()
    expected = float(dense.log_evidence.detach())
    allowed = 2 * posterior.log_determinant_error() + 1e-4 * abs(expected)
    assert abs(float(evidence) - expected) < allowed


def test_making_a_posterior_costs_nothing():
    laplace, _ = iterative_laplace(1, keep_bytes=0)
    calls = []
    original = laplace.training.linearized.factors
    laplace.training.linearized.factors = lambda x: calls.append(1) or original(x)
    laplace.posterior()
    assert not calls


def test_training_covariance_is_that_of_the_preconditioner():
    laplace, _ = iterative_laplace(3, num_inducing=6)
    posterior = laplace.posterior()
    torch.testing.assert_close(
        posterior.training_covariance(), posterior.preconditioner.training_covariance()
    )
    bind(laplace, num_inducing=0, tolerance=1e-8)
    assert laplace.posterior().preconditioner is None
    with torch.no_grad():
        root = laplace.curvature_root()
        exact = FunctionSpace(laplace.training, laplace.prior, root).training_covariance()
    torch.testing.assert_close(
        laplace.posterior().training_covariance(), exact, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_inducing": -1}, "num_inducing"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"variance_tolerance": 0.0}, "variance_tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"num_probes": 1}, "num_probes"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Iterative(**options)


def test_it_says_what_it_does():
    laplace, given = iterative_laplace(1, num_inducing=6)
    assert isinstance(laplace.method, BoundIterative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplace.posterior().marginal_covariance(test_factors(laplace, given[3]))
    assert "6 inducing points" in str(laplace.method)
    assert "columns so far" in str(laplace.method)

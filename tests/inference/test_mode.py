"""Newton's method on the linearised model: monotone, converged, honest when it isn't."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import pytest
import torch
from dense_reference import build
from laplace_cases import make_laplace
from likelihood_cases import CASES

from lingp.inference import ConvergenceWarning, FunctionSpace, RoundingWarning, WeightSpace
from lingp.inference import factorize as factorize_module
from lingp.inference.conjugate_gradients import conjugate_gradients
from lingp.inference.factorize import OutOfRangeError
from lingp.inference.mode import WhitenedModel, newton_mode
from lingp.inference.prior_values import PriorValues
from lingp.likelihoods import Gaussian, StudentT
from lingp.priors import Isotropic

SPACES = {"weight": WeightSpace, "function": FunctionSpace}
NAMES = [
    "categorical-3",
    "poisson",
    "ordinal-3",
    "student-t",
    "heteroscedastic-softplus-3",
    "heteroscedastic-exp-1",
]
CHOSEN = {case.name: case for case in CASES if case.name in NAMES}
every = pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN)


def laplace_of(dense, space="function", dtype=torch.float64):
    return make_laplace(
        dense.net, dense.x, dense.y, dense.prior, dense.likelihood, space, "refit", dtype
    )


def model_of(laplace):
    """The linearised model that the mode is the optimum of."""
    data, features = laplace.data_term, laplace.conditioned.method.features
    prior = PriorValues.of(laplace.prior)
    return WhitenedModel(data, features(laplace.training, prior), laplace.prior_outputs())


def away(model):
    """A start with outputs some units from those at the prior's mean."""
    return (
        0.2
        * torch.ones_like(model.features.scale).cumsum(0).sin()
        * min(1.0, 3 / model.features.scale.max())
    )


def newton(laplace, start, **options):
    """Newton's method on a model from one start."""
    with torch.no_grad():
        model = model_of(laplace)

        def posterior(f):
            return laplace.method(laplace.training, laplace.prior, model.data.curvature_root(f))

        return model, newton_mode(model, [start(model)], posterior, **options)[0]


@pytest.mark.parametrize("precision", [1e-3, 1.0])
@pytest.mark.parametrize("space", SPACES)
@every
def test_every_step_raises_the_objective_and_the_end_is_stationary(case, space, precision):
    """From away, under a tight and a loose prior, whether log p is concave or not."""
    laplace = laplace_of(build(case, 2, num_data=5, precision=precision), space)
    model, mode = newton(laplace, away)
    assert mode.converged
    assert mode.num_iterations <= 25
    gradient = model.gradient(mode.e, model.outputs(mode.e))
    terms = model.features.scale * model.features.training.t_matmul(
        model.data.residual(mode.outputs).abs().unsqueeze(-1)
    ).squeeze(-1)
    assert gradient.abs().max() < 1e-9 * (1 + terms.abs().max())


@every
def test_the_objective_never_falls(case):
    laplace = laplace_of(build(case, 2, num_data=5, precision=1e-1))
    model, mode = newton(laplace, away)
    before = model.objective(away(model), model.outputs(away(model)))
    steps = range(1, mode.num_iterations + 1)
    values = [before, *(newton(laplace, away, max_iterations=n)[1].objective for n in steps)]
    assert values[-1] == mode.objective > before
    for previous, value in itertools.pairwise(values):
        assert value >= previous - 1e-13 * abs(previous)


def test_newton_on_a_quadratic_likelihood_is_the_linear_solve():
    case = next(case for case in CASES if case.name == "gaussian-per-output")
    dense = build(case, 2)
    for space in SPACES:
        laplace = laplace_of(dense, space)
        solved = laplace.mode()
        _, found = newton(laplace, lambda model: torch.zeros_like(model.features.scale))
        torch.testing.assert_close(found.e, solved.e, rtol=0, atol=3e-14 * 10)
        assert found.num_iterations <= 3
        assert solved.num_iterations == 1
        assert solved.converged
        assert found.converged


@pytest.mark.parametrize("precision", [1e-4, 1e4])
def test_the_better_start_is_taken(precision):
    """Under a tight prior the prior's mean is nearer to the optimum, under a loose one θ*."""
    dense = build(CHOSEN["poisson"], 2, precision=precision)
    laplace = laplace_of(dense)
    with torch.no_grad():
        model = model_of(laplace)
        network = laplace.prior_deviation().neg() / model.features.scale
        values = [
            model.objective(e, model.outputs(e)) for e in (network, torch.zeros_like(network))
        ]
    mode = laplace.mode()
    assert mode.objective >= max(values)
    assert mode.converged


def test_few_steps_where_the_ggn_is_not_the_hessian():
    """Newton's method, not a fixed point of the GGN: convergence is fast all the same."""
    for name in ("student-t", "heteroscedastic-softplus-3", "heteroscedastic-exp-1"):
        mode = laplace_of(build(CHOSEN[name], 2)).mode()
        assert mode.converged
        assert mode.num_iterations <= 12
        assert mode.gradient_norm < 1e-10


def test_an_unfinished_refit_says_so(monkeypatch):
    from lingp.inference import conditioned as module

    def stopped(*arguments):
        return newton_mode(*arguments, max_iterations=1)

    monkeypatch.setattr(module, "newton_mode", stopped)
    laplace = laplace_of(build(CHOSEN["categorical-3"], 2, precision=1e-3))
    with pytest.warns(ConvergenceWarning, match=r"after 1 Newton steps.*standard deviations"):
        mode = laplace.mode()
    assert not mode.converged
    assert "not converged" in str(mode)
    assert laplace.mode() is mode


def test_an_unfinished_derivative_says_so(monkeypatch):
    from lingp.inference import implicit

    monkeypatch.setattr(implicit, "_MAX_ITERATIONS", 1)
    dense = build(CHOSEN["student-t"], 2)
    evidence = laplace_of(dense).log_marginal_likelihood()
    with pytest.warns(ConvergenceWarning, match=r"derivative of the refitted mean.*residual"):
        evidence.backward()


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_second_derivatives_raise_where_they_would_be_wrong(space, everything):
    """Also asked of chosen inputs only, where torch's once_differentiable says nothing."""
    dense = build(CHOSEN["student-t"], 1, num_data=4)
    laplace = make_laplace(
        dense.net, dense.x, dense.y, dense.prior, dense.likelihood, space, "refit"
    )
    parameters = [dense.prior.raw_precision, dense.likelihood.raw_scale]
    evidence = laplace.log_marginal_likelihood()
    gradients = torch.autograd.grad(evidence, parameters, create_graph=True)
    chosen = None if everything else parameters[1:]
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradients[1].backward(inputs=chosen)


@pytest.mark.parametrize("name", ["student-t", "categorical-3"])
def test_second_derivatives_around_the_network_are_those_of_differences(name):
    """In both spaces: Jᵀ Λ J and its adjoint are each other's derivatives."""
    dense = build(CHOSEN[name], 1, num_data=4)
    dense.prior.initialize(precision=0.7)  # where a factor of curvature matters
    modules = (dense.prior, dense.likelihood)
    parameters = [p for module in modules for p in module.parameters()]
    hessians = {}

    def gradients(space, **options):
        laplace = make_laplace(
            dense.net, dense.x, dense.y, dense.prior, dense.likelihood, space, "network"
        )
        return torch.autograd.grad(laplace.log_marginal_likelihood(), parameters, **options)

    for space in SPACES:
        slopes = gradients(space, create_graph=True)
        rows = [torch.autograd.grad(g.sum(), parameters, retain_graph=True) for g in slopes]
        hessians[space] = torch.stack([torch.cat([h.reshape(-1) for h in row]) for row in rows])
    torch.testing.assert_close(hessians["weight"], hessians["function"], rtol=1e-9, atol=1e-9)
    step, columns = 1e-5, []
    for p in parameters:
        ends = []
        for way in (step, -step):
            with torch.no_grad():
                p += way
            ends.append([g.sum() for g in gradients("weight")])
            with torch.no_grad():
                p -= way
        columns.append([(up - down) / (2 * step) for up, down in zip(*ends, strict=True)])
    differences = torch.tensor(columns, dtype=torch.float64).mT
    summed = torch.stack(
        [
            torch.stack([part.sum() for part in row.split([p.numel() for p in parameters])])
            for row in hessians["weight"]
        ]
    )
    # central differences: of second order in the step, and rounding over it
    torch.testing.assert_close(summed, differences, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_results_dont_depend_on_memory(space):
    dense = build(CHOSEN["categorical-3"], 2)
    results = []
    for keep_bytes, chunk_bytes in ((1 << 30, 1 << 27), (0, 1)):
        laplace = make_laplace(
            dense.net, dense.x, dense.y, dense.prior, dense.likelihood, space, "refit",
            keep_bytes=keep_bytes, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        evidence = laplace.log_marginal_likelihood()
        (gradient,) = torch.autograd.grad(evidence, dense.prior.raw_precision)
        results.append((evidence, gradient, laplace.mode().e))
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=1e-11, atol=1e-11)


def test_newton_steps_share_the_kernel(monkeypatch):
    """Only R changes from step to step."""
    from lingp.operators import training_jacobian

    laplace = laplace_of(build(CHOSEN["categorical-3"], 2))
    calls, original = [], training_jacobian.gram
    counted = lambda *a, **k: calls.append(a) or original(*a, **k)  # noqa: E731
    monkeypatch.setattr(training_jacobian, "gram", counted)
    with torch.no_grad():
        laplace.log_marginal_likelihood()
        assert laplace.mode().num_iterations > 2
        assert len(calls) == 1
        laplace.prior.initialize(precision=2.0)
        laplace.log_marginal_likelihood()
    assert len(calls) == 2


def test_options_are_checked():
    laplace = laplace_of(build(CHOSEN["categorical-3"], 1, num_data=3))
    arguments = (laplace.training, laplace.prior, laplace.likelihood, laplace.method)
    with pytest.raises(ValueError, match='mean: expected "network" or "refit", got \'map\''):
        type(laplace)(*arguments, "map")
    with pytest.raises(ValueError, match='sites: expected "mean", "network" or "expected", got 3'):
        type(laplace)(*arguments, "refit", 3)


def test_an_impossible_start_is_named():
    dense = build(next(c for c in CASES if c.name == "heteroscedastic-softplus-1"), 1)
    laplace = laplace_of(dense)
    laplace.training.targets.fill_(1e200)
    with pytest.raises(OutOfRangeError, match="log likelihood is not finite"):
        laplace.mode()


@pytest.mark.parametrize("space", SPACES)
@every
def test_float32_converges_to_its_own_accuracy(case, space):
    dense = build(case, 2)
    single = laplace_of(dense, space, torch.float32).mode()
    double = laplace_of(dense, space).mode()
    assert single.converged
    # in units of prior standard deviations
    assert (single.e.double() - double.e).abs().max() < 1e-3
    assert single.outputs.dtype == torch.float32


@pytest.mark.parametrize("space", SPACES)
def test_past_rounding_it_works_by_qr_and_says_it_once(space, monkeypatch):
    dense = build(CHOSEN["categorical-3"], 2)
    expected = laplace_of(dense, space).mode()
    monkeypatch.setattr(factorize_module, "ROUNDING_LIMIT", 0.0)
    laplace = laplace_of(dense, space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        laplace.posterior()
        laplace.weight_shift()
    assert [w.category for w in caught] == [RoundingWarning]
    torch.testing.assert_close(laplace.mode().e, expected.e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("limit", [0.0, 1e-2], ids=["qr", "cholesky"])
def test_precision_solve_is_the_inverse_of_the_precision(space, limit, monkeypatch):
    monkeypatch.setattr(factorize_module, "ROUNDING_LIMIT", limit)
    dense = build(CHOSEN["categorical-3"], 2)
    laplace = laplace_of(dense, space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        posterior = laplace.posterior()
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(len(posterior.scale), 2, generator=generator, dtype=torch.float64)
    solved = posterior.precision_solve(b)
    back = solved + posterior.whitened_t_product(posterior.whitened_product(solved))
    torch.testing.assert_close(back, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_precision_solve_is_differentiable(space):
    dense = build(CHOSEN["categorical-3"], 1)
    laplace = laplace_of(dense, space)
    parameters = list(dense.prior.parameters())
    b = torch.linspace(-1, 1, laplace.training.num_parameters, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        root = laplace.curvature_root()
    posterior = laplace.method(laplace.training, dense.prior, root)
    found = torch.autograd.grad((b * posterior.precision_solve(b)).sum(), parameters)
    curvature = torch.block_diag(*root.values @ root.values.mT)
    scale = dense.variances().sqrt()
    ggn = scale[:, None] * (dense.jacobian.mT @ curvature @ dense.jacobian) * scale
    solved = torch.linalg.solve(torch.eye(len(ggn), dtype=torch.float64) + ggn, b)
    for a, e in zip(found, torch.autograd.grad((b * solved).sum(), parameters), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-9)


def test_results_inside_inference_mode():
    dense = build(CHOSEN["categorical-3"], 2)
    expected = laplace_of(dense).weight_shift()
    laplace = laplace_of(dense)
    with torch.inference_mode():
        shift = laplace.weight_shift()
    torch.testing.assert_close(shift, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("space", "mean"), [("weight", "network"), ("function", "refit")])
def test_nothing_is_stale_when_the_likelihood_changes(space, mean):
    """Its parameters, a temperature-like factor, the object itself, options: all are noticed."""
    dense = build(CHOSEN["student-t"], 1, num_data=5)

    def fresh(laplace):
        made = make_laplace(
            dense.net, dense.x, dense.y, laplace.prior, laplace.likelihood, space, laplace.mean,
            sites=laplace.sites,
        )  # fmt: skip
        return [*state(made)]

    def state(laplace):
        with torch.no_grad():
            yield laplace.log_marginal_likelihood()
            yield laplace.posterior().log_determinant()
            yield laplace.mode().e
            yield from laplace.curvature_root().tensors()

    laplace = make_laplace(
        dense.net, dense.x, dense.y, dense.prior, StudentT(4.0, 0.7), space, mean
    )  # fmt: skip
    [*state(laplace)]

    def exchange(name, value):
        return lambda: setattr(laplace, name, value)

    prior = Isotropic(2.0).bind(laplace.prior.names)
    changes = [
        lambda: laplace.likelihood.initialize(scale=0.5),
        lambda: laplace.likelihood.initialize(degrees_of_freedom=9.0),
        lambda: laplace.prior.initialize(precision=1.3),
        exchange("likelihood", StudentT(9.0, 0.5)),
        exchange("likelihood", Gaussian(0.4)),
        exchange("likelihood", StudentT(3.0, 0.4)),
        exchange("prior", prior),
        exchange("sites", "network"),
        exchange("mean", "network" if mean == "refit" else "refit"),
    ]
    for change in changes:
        change()
        for kept, new in zip(state(laplace), fresh(laplace), strict=True):
            torch.testing.assert_close(kept, new, rtol=1e-12, atol=1e-12)
    assert laplace.posterior() is laplace.posterior()
    assert laplace.mode() is laplace.mode()


def test_conjugate_gradients_solve_and_stop_at_negative_curvature():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(8, dtype=torch.float64)
    b = torch.randn(8, generator=generator, dtype=torch.float64)
    diagonal = matrix.diagonal()
    found = conjugate_gradients(
        lambda v: matrix @ v, b, lambda v: v / diagonal, tolerance=1e-14, max_iterations=50
    )
    torch.testing.assert_close(found.x, torch.linalg.solve(matrix, b), rtol=1e-10, atol=1e-10)
    assert found.positive
    assert found.residual < 1e-14
    indefinite = torch.diag(torch.tensor([2.0, 1.0, -1.0]).double())
    ones = torch.ones(3, dtype=torch.float64)
    found = conjugate_gradients(
        lambda v: indefinite @ v, ones, lambda v: v, tolerance=0.0, max_iterations=9
    )
    assert not found.positive
    assert found.x @ ones > 0
    nothing = conjugate_gradients(
        lambda v: v, 0 * ones, lambda v: v, tolerance=0.1, max_iterations=9
    )
    assert nothing.x.abs().max() == 0


def test_the_hessian_is_that_of_the_objective():
    dense = build(CHOSEN["heteroscedastic-exp-1"], 1)
    laplace = laplace_of(dense)
    with torch.no_grad():
        model: WhitenedModel = replace(model_of(laplace))
        product = model.hessian(model.offset)
        identity = torch.eye(len(model.features.scale), dtype=torch.float64)
        columns = torch.stack([product(v) for v in identity], 1)
    at = torch.full_like(dense.weights, float(dense.prior.mean))
    scale = dense.variances().sqrt()
    expected = scale[:, None] * dense.hessian(at) * scale
    torch.testing.assert_close(columns, expected.detach(), rtol=0, atol=1e-11)

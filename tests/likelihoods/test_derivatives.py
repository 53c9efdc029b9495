"""Residual and curvature of every likelihood against torch.func, also at saturation."""

from __future__ import annotations

import pytest
import torch
from likelihood_cases import CASES, NAMES
from likelihood_cases.case import log_prob_of

every = pytest.mark.parametrize("case", CASES, ids=NAMES)
extreme = pytest.mark.parametrize(
    ("case", "index"),
    [(case, i) for case in CASES for i in range(len(case.extremes))],
    ids=lambda value: str(value),
)


def dense(root):
    """R as a matrix per datum, (n, C, K)."""
    eye = torch.eye(root.rank, dtype=torch.float64)
    return root.apply(eye.expand(root.num_data, -1, -1))


def close(actual, expected, tolerance=1e-12):
    """Relative to the largest entry of each datum: rounding in one entry is that of its sums."""
    scale = expected.abs().flatten(1).amax(1).clamp(min=1.0)
    error = ((actual - expected).abs().flatten(1).amax(1) / scale).max()
    assert error < tolerance, f"relative error {float(error):.1e}"


@every
def test_residual_is_the_gradient_of_log_prob(case):
    likelihood, y, f = case.build()
    expected = torch.func.vmap(torch.func.grad(log_prob_of(likelihood), 1))(y, f)
    close(likelihood.residual(y, f), expected)


@every
def test_root_squared_is_the_curvature(case):
    likelihood, y, f = case.build()
    root = dense(likelihood.curvature_root(y, f))
    close(root @ root.mT, case.reference(likelihood, y, f))


@every
def test_leading_dimensions_are_draws(case):
    likelihood, y, f = case.build()
    stack = torch.stack([f, 0.5 * f, -f])
    for method in (likelihood.log_prob, likelihood.residual):
        expected = torch.stack([method(y, g) for g in stack])
        torch.testing.assert_close(method(y, stack), expected, rtol=1e-13, atol=1e-13)
    for moment in (likelihood.conditional_mean, likelihood.conditional_variance):
        expected = torch.stack([moment(g) for g in stack])
        torch.testing.assert_close(moment(stack), expected, rtol=1e-13, atol=1e-13)
    draws = likelihood.sample(stack, generator=torch.Generator().manual_seed(0))
    again = likelihood.sample(stack, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)
    assert draws.shape[:2] == stack.shape[:2]


@every
def test_root_and_residual_are_differentiable_in_hyperparameters_and_outputs(case):
    likelihood, y, f = case.build(num_data=3)
    parameters = [p for p in likelihood.parameters() if p.requires_grad]
    inputs = [f.requires_grad_(), *parameters]

    def evaluate(*_):
        root = dense(likelihood.curvature_root(y, f))
        return root @ root.mT, likelihood.residual(y, f), likelihood.log_prob(y, f)

    assert torch.autograd.gradcheck(evaluate, inputs, rtol=1e-4, atol=1e-6)


@extreme
def test_saturation_leaves_everything_finite(case, index):
    likelihood = case.make()
    targets, f = case.extremes[index]
    f = f.double()
    y = likelihood.check_targets(targets, case.output_shape, torch.float64)
    root = dense(likelihood.curvature_root(y, f))
    residual = likelihood.residual(y, f)
    assert torch.isfinite(root).all()
    assert torch.isfinite(residual).all()
    assert torch.isfinite(likelihood.log_prob(y, f)).all()
    expected = torch.func.vmap(torch.func.grad(log_prob_of(likelihood), 1))(y, f)
    if torch.isfinite(expected).all():
        close(residual, expected)
    curvature = case.reference(likelihood, y, f)
    if torch.isfinite(curvature).all():
        close(root @ root.mT, curvature)


@pytest.mark.parametrize("case", [c for c in CASES if c.missing], ids=lambda c: c.name)
def test_missing_targets_add_nothing(case):
    likelihood, y, f = case.build()
    kept = y.clone()
    kept[0], kept[1, -1] = float("nan"), float("nan")
    f.requires_grad_()
    log_prob = likelihood.log_prob(kept, f)
    assert log_prob[0] == 0.0
    (gradient,) = torch.autograd.grad(log_prob.sum(), f)
    residual = likelihood.residual(kept, f)
    close(residual, gradient)
    root = dense(likelihood.curvature_root(kept, f))
    assert residual[0].abs().max() == 0.0
    assert root[0].abs().max() == 0.0
    torch.testing.assert_close(log_prob[2:], likelihood.log_prob(y, f)[2:])

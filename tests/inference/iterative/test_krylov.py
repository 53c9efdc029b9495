"""Conjugate gradients and Lanczos quadrature against eigendecompositions in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lingp.inference.iterative.krylov import Variances, solve
from lingp.inference.iterative.lanczos import LogDeterminantEstimate, stochastic_log_determinant

NUM_ROWS = 60


@dataclass(frozen=True)
class System:
    """B = I + K and P = I + W Wᵀ with W Wᵀ a Nyström approximation of K."""

    kernel: Tensor
    root: Tensor
    dtype: torch.dtype = torch.float64

    @property
    def matrix(self) -> Tensor:
        return self.kernel + torch.eye(len(self.kernel), dtype=torch.float64)

    @property
    def preconditioner(self) -> Tensor:
        return self.root @ self.root.mT + torch.eye(len(self.root), dtype=torch.float64)

    def product(self, v: Tensor) -> Tensor:
        return v + self.kernel.to(self.dtype) @ v

    def precondition(self, v: Tensor) -> Tensor:
        root = self.root.to(self.dtype)
        inner = self.root.mT @ self.root + torch.eye(self.root.shape[1], dtype=torch.float64)
        factor = torch.linalg.cholesky(inner).to(self.dtype)
        return v - root @ torch.cholesky_solve(root.mT @ v, factor)

    def probes(self, count: int, seed: int) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        plain = torch.randn(NUM_ROWS, count, generator=g, dtype=torch.float64)
        inner = torch.randn(self.root.shape[1], count, generator=g, dtype=torch.float64)
        return (plain + self.root @ inner).to(self.dtype)

    def estimate(self, count: int, seed: int, tolerance: float = 1e-6) -> LogDeterminantEstimate:
        return stochastic_log_determinant(
            self.product,
            self.precondition,
            self.probes(count, seed),
            tolerance=tolerance,
            max_iterations=400,
        )

    def exact(self) -> float:
        return float(torch.logdet(self.matrix) - torch.logdet(self.preconditioner))


def system(rank: int, top: float = 1e7, dtype: torch.dtype = torch.float64) -> System:
    """A kernel whose eigenvalues fall from `top` to about 1."""
    g = torch.Generator().manual_seed(rank)
    basis = torch.linalg.qr(torch.randn(NUM_ROWS, NUM_ROWS, generator=g, dtype=torch.float64)).Q
    values = top ** torch.linspace(1, 0, NUM_ROWS, dtype=torch.float64)
    kernel = (basis * values) @ basis.mT
    kernel = 0.5 * (kernel + kernel.mT)
    chosen = torch.randperm(NUM_ROWS, generator=g)[:rank]
    factor = torch.linalg.cholesky(kernel[chosen][:, chosen])
    root = torch.linalg.solve_triangular(factor, kernel[chosen], upper=False).mT
    return System(kernel, root, dtype)


def right_sides(count: int = 5) -> Tensor:
    """Of very different sizes, one of them zero."""
    g = torch.Generator().manual_seed(1)
    right = torch.randn(NUM_ROWS, count, generator=g, dtype=torch.float64)
    right = right * torch.logspace(-4, 4, count, dtype=torch.float64)
    return torch.cat([right, torch.zeros(NUM_ROWS, 1, dtype=torch.float64)], 1)


@pytest.mark.parametrize("rank", [0, 20, NUM_ROWS])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-4, 1e-8])
def test_every_column_meets_the_tolerance(rank, tolerance):
    case, right = system(rank), right_sides()
    found = solve(case.product, right, case.precondition, tolerance=tolerance, max_iterations=2000)
    residual = right - case.matrix @ found.x
    assert (residual.norm(dim=0) <= tolerance * right.norm(dim=0) * (1 + 1e-6)).all()
    # rounding of B x is eps |B| |x|
    bound = 1e-14 * 1e7 * found.x.norm(dim=0).max()
    torch.testing.assert_close(found.residual, residual, atol=float(bound), rtol=0)
    torch.testing.assert_close(found.relative[:-1], (residual.norm(dim=0) / right.norm(dim=0))[:-1])
    assert found.relative[-1] == 0
    assert (found.x[:, -1] == 0).all()


def test_the_energy_norm_of_the_error_falls_with_every_iteration():
    case, right = system(20), right_sides()[:, :-1]
    exact = torch.linalg.solve(case.matrix, right)
    errors = []
    counts = (0, 1, 2, 3, 4, 5, 8, 16, 32, 64)
    for count in counts:
        found = solve(case.product, right, case.precondition, tolerance=1e-12, max_iterations=count)
        assert found.iterations == count
        errors.append(((found.x - exact) * (case.matrix @ (found.x - exact))).sum(0))
    stacked = torch.stack(errors)
    assert (stacked[1:] <= stacked[:-1] * (1 + 1e-6)).all()
    assert (stacked[-1] < 1e-2 * stacked[0]).all()


def test_a_preconditioner_saves_iterations():
    right = right_sides()
    taken = [
        solve(c.product, right, c.precondition, tolerance=1e-6, max_iterations=2000).iterations
        for c in (system(0), system(20), system(40), system(NUM_ROWS))
    ]
    assert taken[0] > 1.5 * taken[1] > 1.5 * taken[2]
    assert taken[3] <= 2


def test_columns_that_have_converged_are_not_multiplied_again():
    case, widths = system(20), []

    def product(v: Tensor) -> Tensor:
        widths.append(v.shape[1])
        return case.product(v)

    hard = right_sides()[:, :2]
    easy = case.preconditioner @ hard  # less is left of it after the preconditioner
    solve(
        product,
        torch.cat([hard, easy, torch.zeros_like(hard)], 1),
        case.precondition,
        tolerance=1e-6,
        max_iterations=500,
    )
    assert widths[0] == 4
    assert 1 <= widths[-2] < 4
    assert widths[:-1] == sorted(widths[:-1], reverse=True)


@pytest.mark.parametrize("rank", [0, 20])
def test_variances_are_certified(rank):
    case, right = system(rank), right_sides()
    informed = (right * torch.linalg.solve(case.matrix, right)).sum(0)
    # from hardly anything left of the prior variance to hardly anything explained
    share_left = torch.tensor([1e-6, 1e-3, 0.1, 0.5, 1 - 1e-6, 0.5], dtype=torch.float64)
    prior = (informed / (1 - share_left)).clamp(min=1e-3)
    exact = prior - informed
    for share in (1e-1, 1e-4):
        found = solve(
            case.product,
            right,
            case.precondition,
            tolerance=1.0,
            max_iterations=2000,
            variances=Variances(prior, share),
        )
        variance = prior - (right * found.x).sum(0) - (found.x * found.residual).sum(0)
        rounding = 1e-13 * prior
        assert found.converged.all()
        assert (variance >= exact - rounding).all()
        assert (variance - exact <= found.bound + rounding).all()
        assert (found.bound <= share * variance + rounding).all()


def test_float32_reports_what_rounding_leaves():
    case, right = system(20, 1e5, torch.float32), right_sides().float()
    found = solve(case.product, right, case.precondition, tolerance=1e-12, max_iterations=2000)
    assert found.x.dtype == torch.float32
    assert found.iterations < 2000
    true = (right.double() - case.matrix @ found.x.double()).norm(dim=0)[:-1]
    true = true / right.double().norm(dim=0)[:-1]
    # the reported residual is itself computed in float32, eps |B| |x| / |y|
    noise = 2e-7 * 1e5 * found.x.norm(dim=0)[:-1] / right.norm(dim=0)[:-1]
    assert ((found.relative[:-1] - true).abs() < noise).all()
    loose = solve(case.product, right, case.precondition, tolerance=0.1, max_iterations=2000)
    assert (loose.relative < 0.1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [0, 20, 40])
def test_log_determinant_is_within_its_standard_errors(rank, dtype):
    # float32 resolves eigenvalues of 1 beside 1e4, not beside 1e7
    case = system(rank, 1e7 if dtype == torch.float64 else 1e4, dtype)
    found = case.estimate(20, seed=0, tolerance=1e-4 if dtype == torch.float64 else 1e-3)
    allowed = 4 * found.standard_error + found.truncation + 1e-4
    assert abs(found.mean - case.exact()) < allowed
    assert found.standard_error > 0
    assert found.truncation < 1e-2 * found.standard_error + 1e-6


def test_a_better_preconditioner_leaves_less_to_estimate():
    errors = [
        system(rank, 1e4).estimate(20, seed=0, tolerance=1e-3).standard_error
        for rank in (0, 30, 55)
    ]
    assert errors[0] > 1.2 * errors[1] > 2 * errors[2]
    complete = system(NUM_ROWS).estimate(30, seed=0)
    assert abs(complete.mean) < 1e-6
    assert complete.standard_error < 1e-6


@pytest.mark.parametrize("rank", [0, 30])
def test_standard_errors_are_honest(rank):
    case, num_seeds = system(rank, 1e4), 60
    found = [case.estimate(20, seed, tolerance=1e-2) for seed in range(num_seeds)]
    scores = torch.tensor([(f.mean - case.exact()) / f.standard_error for f in found])
    # 95 % within 2.09 standard errors by Student's t of 19 degrees of freedom; binomial
    # deviations of 60 draws
    inside = int((scores.abs() < 2.09).sum())
    assert inside >= 51
    assert abs(float(scores.mean())) < 4 * float(scores.std()) / num_seeds**0.5
    assert 0.7 < float(scores.std()) < 1.4


def test_quadrature_encloses_the_value_of_the_probes():
    case = system(20)
    whitener = torch.linalg.inv(torch.linalg.cholesky(case.preconditioner))
    values, vectors = torch.linalg.eigh(whitener @ case.matrix @ whitener.mT)
    probes = case.probes(6, 0)
    units = whitener @ probes
    units = units / units.norm(dim=0)
    exact = NUM_ROWS * ((vectors.mT @ units).square() * values.log().unsqueeze(-1)).sum(0).mean()
    widths = []
    for count in (1, 2, 4, 8, 16, 32):
        found = stochastic_log_determinant(
            case.product, case.precondition, probes, tolerance=1e-10, max_iterations=count
        )
        assert found.solution.iterations == count
        assert abs(found.mean - float(exact)) <= found.truncation + 1e-8
        widths.append(found.truncation)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.1 * widths[0]


@pytest.mark.parametrize("rank", [0, 30])
def test_gradient_from_the_probes(rank):
    case, num_probes = system(rank, 1e4), 100
    g = torch.Generator().manual_seed(2)
    change = torch.randn(NUM_ROWS, 3, generator=g, dtype=torch.float64)
    direction = change @ change.mT
    exact = float((torch.linalg.inv(case.matrix) * direction).sum())
    found = case.estimate(num_probes, seed=1, tolerance=1e-4)
    values = found.weights * (found.solution.x * (direction @ found.preconditioned)).sum(0)
    error = float(values.std()) / num_probes**0.5
    assert abs(float(values.mean()) - exact) < 4 * error
    assert error < 0.5 * abs(exact)


def test_one_probe_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        system(20).estimate(1, seed=0)


def test_energy_rises_with_every_iteration_where_residuals_rise_first():
    """Few large eigenvalues that right-hand sides say little of: CG finds them late."""
    values = torch.cat([torch.linspace(1, 2, 20), torch.logspace(2, 8, 40)]).double()
    right = torch.ones(60, 1, dtype=torch.float64)
    right[-40:] *= 1e-2
    energies, residuals = [], []
    for count in range(1, 25):
        found = solve(
            lambda v: values.unsqueeze(-1) * v,
            right,
            lambda v: v,
            tolerance=1e-12,
            max_iterations=count,
        )
        energies.append(float(((right + found.residual) * found.x).sum()))
        residuals.append(float(found.relative))
    exact = float((right.square() / values.unsqueeze(-1)).sum())
    assert max(residuals) > 1  # so that x = 0 looks better
    assert energies[0] > 0
    assert all(a <= b + 1e-12 * exact for a, b in itertools.pairwise(energies))
    assert max(energies) <= exact * (1 + 1e-12)

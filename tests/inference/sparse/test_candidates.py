"""Inducing points chosen among training inputs: how many, which rows, what is refused."""

import numpy as np
import pytest
import torch
from laplace_cases import CASES, Case, dense_jacobian
from torch import Tensor

from lingp.inference import ConvergenceWarning, TrainingSet
from lingp.inference.sparse.candidates import choose_inducing
from lingp.linearization import LinearizedNetwork

RULES = ["greedy", "kmeans++", "random"]


def training_of(
    case: Case, num_data: int = 30, keep: bool = True, weights: Tensor | None = None
) -> TrainingSet:
    net, x, y, _ = case.build(num_data)
    pieces = [None] * len(x.split(7)) if weights is None else weights.split(7)
    return TrainingSet.collect(
        LinearizedNetwork(net),
        zip(x.split(7), y.split(7), pieces, strict=True),
        keep_bytes=1 << 30 if keep else 0,
        progress=False,
    )


def ones(training: TrainingSet) -> Tensor:
    return torch.ones(len(training.linearized.parameter_names), dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "recomputed"])
@pytest.mark.parametrize("points", ["inputs", "pairs"])
@pytest.mark.parametrize("select", RULES)
def test_points_are_rows_of_the_training_jacobian(select, points, keep):
    case = CASES[3]
    training = training_of(case, keep=keep)
    inducing, choice = choose_inducing(
        training,
        ones(training),
        num_inducing=7,
        select=select,
        points=points,
        num_candidates=20,
        generator=seeded(),
    )
    net, x, _, _ = case.build(30)
    rows = dense_jacobian(net, x[choice.rows]).view(len(choice.rows), 3, -1).flatten(0, 1)
    rows = rows if inducing.columns is None else rows[inducing.columns]
    assert inducing.num_points == choice.num_points == (21 if points == "inputs" else 7)
    assert len(choice.rows.unique()) == len(choice.rows) == inducing.num_inputs
    kernel = inducing.kernel(ones(training))
    torch.testing.assert_close(kernel, rows @ rows.mT, rtol=1e-12, atol=1e-12)
    assert (choice.residual is not None) == (select == "greedy")
    assert f"{inducing.num_points} inducing points at {len(choice.rows)} inputs" in str(choice)


@pytest.mark.parametrize("points", ["inputs", "pairs"])
def test_greedy_residual_is_that_of_the_points(points):
    """With all data as candidates: tr(K - Ψ Ψᵀ) / tr K of the training set."""
    training = training_of(CASES[3], 20)
    variances = torch.linspace(0.4, 2, len(ones(training)), dtype=torch.float64)
    inducing, choice = choose_inducing(
        training,
        variances,
        num_inducing=5,
        select="greedy",
        points=points,
        num_candidates=1000,
    )
    assert choice.num_candidates == 20
    cross = inducing.cross(training.factors(), variances)
    total = training.kernel(variances).trace()
    explained = (cross @ torch.linalg.solve(inducing.kernel(variances), cross.mT)).trace()
    expected = float((total - explained) / total)
    assert float(choice.residual[-1]) == pytest.approx(expected, rel=1e-7)


def test_variances_decide_the_kernel():
    training = training_of(CASES[3])
    chosen = []
    for last in (1e-4, 1e4):
        variances = ones(training)
        variances[-2:] = last
        chosen.append(choose_inducing(training, variances, num_inducing=6)[1].rows)
    assert not torch.equal(*chosen)


def test_candidates_are_one_row_of_each_stretch():
    training = training_of(CASES[0], 30)
    seen = torch.zeros(30)
    for seed in range(60):
        _, choice = choose_inducing(
            training, ones(training), num_inducing=7, num_candidates=7, generator=seeded(seed)
        )
        rows = choice.rows.sort().values
        edges = torch.arange(8) * 30 // 7
        assert bool((edges[:-1] <= rows).all() and (rows < edges[1:]).all())
        seen[rows] += 1
    assert bool((seen > 0).all())


@pytest.mark.parametrize("select", RULES)
def test_rows_of_weight_zero_are_left_out(select):
    weights = torch.ones(30, dtype=torch.float64)
    weights[::2] = 0
    training = training_of(CASES[3], weights=weights)
    _, choice = choose_inducing(
        training, ones(training), num_inducing=15, select=select, generator=seeded()
    )
    assert choice.rows.sort().values.tolist() == [*range(1, 30, 2)]


@pytest.mark.parametrize("points", ["inputs", "pairs"])
@pytest.mark.parametrize("select", RULES)
def test_tolerance_chooses_the_number(select, points):
    training = training_of(CASES[3])
    _, choice = choose_inducing(
        training,
        ones(training),
        select=select,
        points=points,
        tolerance=0.05,
        generator=seeded(),
    )
    assert float(choice.residual[-1]) <= 0.05 < float(choice.residual[-2])
    assert choice.num_candidates == 30
    assert 1 < choice.num_points < 90


def test_a_tolerance_missed_is_said():
    training = training_of(CASES[3])
    with pytest.warns(ConvergenceWarning, match="2 inducing points leave .* raise num_inducing"):
        choose_inducing(training, ones(training), num_inducing=2, tolerance=1e-3)


def test_a_tolerance_reached_by_most_candidates_is_said():
    training = training_of(CASES[3])
    with pytest.warns(ConvergenceWarning, match="Raise num_candidates"):
        choose_inducing(
            training, ones(training), num_candidates=4, tolerance=1e-3, generator=seeded()
        )


@pytest.mark.parametrize("select", RULES)
def test_choices_are_repeatable(select):
    training = training_of(CASES[3])
    state = torch.get_rng_state()
    first, second = (
        choose_inducing(
            training,
            ones(training),
            num_inducing=5,
            select=select,
            num_candidates=12,
            generator=seeded(4),
        )[1].rows
        for _ in range(2)
    )
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("points", ["inputs", "pairs"])
def test_float32_chooses_as_float64_does(points):
    net, x, y, _ = CASES[3].build(30)
    rows = []
    for dtype in (torch.float64, torch.float32):
        training = TrainingSet.collect(
            LinearizedNetwork(net, dtype=dtype),
            [(x.to(dtype), y.to(dtype), None)],
            keep_bytes=1 << 30,
            progress=False,
        )
        inducing, choice = choose_inducing(
            training,
            ones(training).to(dtype),
            num_inducing=np.int64(6),
            select="greedy",
            points=points,
        )
        assert inducing.kernel(ones(training).to(dtype)).dtype == dtype
        rows.append(choice.rows)
    assert torch.equal(*rows)


def test_default_number_is_bounded():
    few = training_of(CASES[1], 20)
    chosen, _ = choose_inducing(few, ones(few), select="greedy")
    assert chosen.num_inputs == 13  # 38 weights, 3 at a time
    many = training_of(CASES[2], 1200)
    _, choice = choose_inducing(many, ones(many), select="random")
    assert len(choice.rows) == 1000
    _, choice = choose_inducing(many, ones(many), select="random", memory=4 * 8 * 50**2)
    assert len(choice.rows) == 50


def test_candidates_keep_within_the_memory():
    training = training_of(CASES[3])
    memory = 4 * 8 * (3 * 10) ** 2  # a quarter holds the kernel of 10 candidates
    options = {"num_inducing": 5, "generator": seeded(), "memory": memory}
    assert choose_inducing(training, ones(training), **options)[1].num_candidates == 10
    with pytest.raises(MemoryError, match=r"kernel .* of 11 candidates with 3 outputs"):
        choose_inducing(training, ones(training), num_candidates=11, **options)
    options["num_inducing"] = 11
    with pytest.raises(MemoryError, match="num_inducing or num_candidates smaller"):
        choose_inducing(training, ones(training), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_inducing": 0}, "num_inducing: got 0; expected a positive integer"),
        ({"num_inducing": 2.5}, "num_inducing: got 2.5; expected a positive integer"),
        ({"num_inducing": 31}, "num_inducing: got 31, more than the 30 inputs"),
        ({"num_inducing": 91, "points": "pairs"}, r"got 91, more than the 90 \(input, output\)"),
        ({"num_candidates": -1}, "num_candidates: got -1"),
        ({"num_inducing": 9, "num_candidates": 8}, "num_candidates: got 8; expected at least 9"),
        ({"tolerance": -0.1}, "tolerance: got -0.1"),
        ({"tolerance": 1.0}, "tolerance: got 1.0"),
        ({"select": "best"}, "select: got 'best'; expected one of 'greedy'"),
        ({"points": "rows"}, "points: got 'rows'; expected one of 'inputs'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    training = training_of(CASES[3])
    with pytest.raises(ValueError, match=message):
        choose_inducing(training, ones(training), **options)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_kernels_that_say_nothing_are_refused(value):
    training = training_of(CASES[3])
    with pytest.raises(ValueError, match="the kernel of 30 candidates has trace"):
        choose_inducing(training, value * ones(training), num_inducing=3)

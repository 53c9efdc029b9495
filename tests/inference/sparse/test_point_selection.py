"""Selection rules against dense Schur complements and the exact probabilities of their draws."""

import pytest
import torch
from laplace_cases import CASES, Case, dense_jacobian
from torch import Tensor

from lingp.inference.sparse.selection import ConditionalVariance, choose_candidates

RULES = ["greedy", "kmeans++", "random"]
DTYPES = [torch.float64, torch.float32]


def kernel_of(case: Case, num_data: int, repeats: int = 1) -> Tensor:
    """K of a random network at random inputs, each `repeats` times, with unequal variances."""
    net, x, _, _ = case.build(num_data)
    jacobian = dense_jacobian(net, x).view(num_data, -1).repeat(repeats, 1)
    jacobian = jacobian.view(repeats * num_data * case.num_outputs, -1)
    variances = torch.linspace(0.5, 2, jacobian.shape[1], dtype=torch.float64)
    return (jacobian * variances) @ jacobian.mT


def schur(kernel: Tensor, rows: list[int]) -> Tensor:
    """K - K_Z K_ZZ⁺ K_Zᵀ by an eigendecomposition of K_ZZ."""
    values, vectors = torch.linalg.eigh(kernel[rows][:, rows])
    kept = values > 1e-13 * kernel.diagonal().max()
    half = (vectors[:, kept] / values[kept].sqrt()).mT @ kernel[rows]
    return kernel - half.mT @ half


def block_rows(candidates: list[int], block: int) -> list[int]:
    return [i * block + c for i in candidates for c in range(block)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("pairs", [False, True], ids=["inputs", "pairs"])
def test_greedy_takes_the_largest_schur_complement(case, pairs):
    kernel = kernel_of(case, 12)
    block = 1 if pairs else case.num_outputs
    found = choose_candidates("greedy", kernel, block, len(kernel) // block)
    total = float(kernel.trace())
    chosen: list[int] = []
    compared = 0
    for candidate, residual in zip(found.chosen.tolist(), found.residual.tolist(), strict=True):
        left = schur(kernel, block_rows(chosen, block)) if chosen else kernel
        traces = left.diagonal().view(-1, block).sum(-1)
        if float(traces.sum()) < 1e-6 * total:
            break  # below, what is left of single candidates has few digits
        assert candidate == int(traces.argmax())
        chosen.append(candidate)
        after = float(schur(kernel, block_rows(chosen, block)).trace()) / total
        # each step loses a few eps of K, through pivots of at least 1e-6: their root's worth
        assert residual == pytest.approx(after, rel=1e-7, abs=1e-13)
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("block", [1, 3])
def test_every_step_conditions_on_the_whole_block(block):
    kernel = kernel_of(CASES[3], 9)  # 27 rows of 68 weights
    variance = ConditionalVariance(kernel, block, 4)
    order = [5, 0, 7, 2]
    for step, candidate in enumerate(order):
        variance.condition(candidate)
        expected = schur(kernel, block_rows(order[: step + 1], block)).diagonal()
        expected = expected.view(-1, block).sum(-1)
        torch.testing.assert_close(variance.left, expected, rtol=1e-8, atol=1e-11)
    assert not variance.left[order].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ["greedy", "kmeans++"])
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[7]], ids=lambda c: c.name)
def test_copies_of_chosen_inputs_are_never_chosen(case, rule, dtype):
    kernel = kernel_of(case, 6, repeats=3).to(dtype)
    options = {} if rule == "greedy" else {"generator": torch.Generator().manual_seed(1)}
    found = choose_candidates(rule, kernel, case.num_outputs, 18, **options)
    originals = (found.chosen % 6).tolist()
    assert sorted(originals) == [*range(6)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [False, True], ids=["inputs", "pairs"])
def test_a_rank_deficient_kernel_is_exhausted(pairs, dtype):
    case = CASES[1]  # P = 38, N·C = 90
    kernel = kernel_of(case, 30).to(dtype)
    block = 1 if pairs else case.num_outputs
    found = choose_candidates("greedy", kernel, block, len(kernel) // block)
    rank = 38 // block
    # a candidate that the others span to rounding only may come on top
    assert rank <= len(found.chosen) <= rank + 3
    assert len(found.chosen.unique()) == len(found.chosen)
    assert bool(found.residual.isfinite().all())
    rows = block_rows(found.chosen.tolist(), block)
    left = schur(kernel.double(), rows).diagonal().clamp_min(0).sum() / kernel.double().trace()
    # what rounding leaves of K: eps of every row, and 64 eps are not told from zero
    assert float(left) < 100 * torch.finfo(dtype).eps
    assert float(found.residual[-1]) < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_that_are_copies_of_others_change_nothing(dtype):
    """Every block is singular: outputs (f1, f2, f3, f1, -f2)."""
    kernel = kernel_of(CASES[3], 20)
    copies = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, -1], [0, 0, 1, 0, 0]]).double()
    spread = torch.block_diag(*[copies] * 20)
    found = choose_candidates("greedy", (spread.mT @ kernel @ spread).to(dtype), 5, 10)
    chosen: list[int] = []
    for candidate, residual in zip(found.chosen.tolist(), found.residual.tolist(), strict=True):
        left = schur(kernel, block_rows(chosen, 3)) if chosen else kernel
        traces = (spread.mT @ left @ spread).diagonal().view(-1, 5).sum(-1)
        assert candidate == int(traces.argmax())
        chosen.append(candidate)
        after = (spread.mT @ schur(kernel, block_rows(chosen, 3)) @ spread).trace()
        total = (spread.mT @ kernel @ spread).trace()
        # some hundred eps of K, the smallest pivot being about 1e-3 of it
        error = 300 * torch.finfo(dtype).eps
        assert residual == pytest.approx(float(after / total), rel=error * 100, abs=error)


def test_rounding_is_not_divided_by_rounding():
    """An output without variance, whose covariances are what rounding left of zero."""
    kernel = torch.diag(torch.tensor([3.0, 1e-30, 1.0, 1.0], dtype=torch.float64))
    kernel[1, 2] = kernel[2, 1] = 1e-16
    found = choose_candidates("greedy", kernel, 2, 2)
    assert found.chosen.tolist() == [0, 1]
    assert found.residual.tolist() == pytest.approx([0.4, 0.0], rel=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_nothing_is_left_once_all_candidates_are_chosen(case, rule):
    kernel = kernel_of(case, 8)
    found = choose_candidates(rule, kernel, case.num_outputs, 8, tolerance=0.0)
    assert float(found.residual[-1]) == 0.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tolerance", [0.3, 0.03, 1e-3])
def test_tolerance_takes_the_fewest_points_that_reach_it(rule, tolerance):
    kernel = kernel_of(CASES[3], 20)
    options = {} if rule == "greedy" else {"generator": torch.Generator().manual_seed(3)}
    found = choose_candidates(rule, kernel, 3, 20, tolerance=tolerance, **options)
    total = float(kernel.trace())
    for count in range(1, len(found.chosen) + 1):
        left = schur(kernel, block_rows(found.chosen[:count].tolist(), 3)).trace() / total
        assert float(found.residual[count - 1]) == pytest.approx(float(left), rel=1e-6, abs=1e-12)
    assert float(found.residual[-1]) <= tolerance
    assert len(found.chosen) == 1 or float(found.residual[-2]) > tolerance


def test_tolerance_only_cuts_the_greedy_order():
    kernel = kernel_of(CASES[3], 20)
    whole = choose_candidates("greedy", kernel, 3, 20)
    cut = choose_candidates("greedy", kernel, 3, 20, tolerance=0.05)
    assert len(cut.chosen) < len(whole.chosen)
    assert torch.equal(cut.chosen, whole.chosen[: len(cut.chosen)])


def squared_distances(kernel: Tensor, block: int) -> Tensor:
    count = len(kernel) // block
    traces = kernel.view(count, block, count, block).diagonal(dim1=1, dim2=3).sum(-1)
    return traces.diagonal() + traces.diagonal().unsqueeze(-1) - 2 * traces


@pytest.mark.parametrize("block", [1, 3])
def test_first_two_draws_of_kmeans_have_the_stated_probabilities(block):
    kernel = kernel_of(CASES[3], 5)[: 5 * block, : 5 * block].contiguous()
    sizes = torch.linspace(1, 3, 5, dtype=torch.float64).repeat_interleave(block)
    kernel = sizes.unsqueeze(-1) * kernel * sizes
    distances = squared_distances(kernel, block)
    expected = distances / distances.sum(-1, keepdim=True) / 5
    runs = 2000
    generator = torch.Generator().manual_seed(11)
    counts = torch.zeros(5, 5, dtype=torch.float64)
    for _ in range(runs):
        found = choose_candidates("kmeans++", kernel, block, 2, generator=generator, num_trials=1)
        counts[found.chosen[0], found.chosen[1]] += 1
    error = (expected * (1 - expected) / runs).sqrt()
    assert bool(((counts / runs - expected).abs() <= 4 * error).all())


def test_trials_of_kmeans_keep_the_best_of_their_draws():
    kernel = kernel_of(CASES[3], 10)
    distances = squared_distances(kernel, 3)
    found = choose_candidates(
        "kmeans++", kernel, 3, 3, generator=torch.Generator().manual_seed(0), num_trials=2000
    )
    first, second, third = found.chosen.tolist()
    left = torch.minimum(distances[first], distances)  # (10, 10)
    assert second == int(left.sum(-1).argmin())
    left = torch.minimum(left[second], distances)
    assert third == int(left.sum(-1).argmin())


def test_random_takes_every_candidate_equally_often():
    kernel = kernel_of(CASES[0], 5)
    generator = torch.Generator().manual_seed(5)
    counts = torch.zeros(5, dtype=torch.float64)
    runs = 2000
    for _ in range(runs):
        chosen = choose_candidates("random", kernel, 1, 2, generator=generator).chosen
        assert chosen[0] != chosen[1]
        counts[chosen] += 1
    error = (0.4 * 0.6 / runs) ** 0.5
    assert bool(((counts / runs - 0.4).abs() <= 4 * error).all())


@pytest.mark.parametrize("rule", RULES)
def test_draws_are_repeatable_and_leave_the_global_state_alone(rule):
    kernel = kernel_of(CASES[3], 12)

    def run() -> Tensor:
        options = {} if rule == "greedy" else {"generator": torch.Generator().manual_seed(7)}
        return choose_candidates(rule, kernel, 3, 6, **options).chosen

    state = torch.get_rng_state()
    first, second = run(), run()
    assert torch.equal(first, second)
    assert len(first) == 6
    assert torch.equal(state, torch.get_rng_state())


def test_float32_chooses_as_float64_does():
    kernel = kernel_of(CASES[3], 20)
    exact, rounded = (
        choose_candidates("greedy", kernel, 3, 8),
        choose_candidates("greedy", kernel.float(), 3, 8),
    )
    assert torch.equal(exact.chosen, rounded.chosen)
    assert rounded.residual.dtype == torch.float32
    # eps of K through the smallest pivot so far
    torch.testing.assert_close(rounded.residual.double(), exact.residual, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [0, 5])
def test_numbers_of_points_that_cannot_be_are_refused(rule, count):
    kernel = kernel_of(CASES[0], 4)
    with pytest.raises(ValueError, match=f"max_points: got {count}; expected 1 to 4"):
        choose_candidates(rule, kernel, 1, count)


def test_a_zero_kernel_has_nothing_to_choose():
    found = choose_candidates("greedy", torch.zeros(6, 6, dtype=torch.float64), 2, 3)
    assert len(found.chosen) == 0
    assert len(found.residual) == 0

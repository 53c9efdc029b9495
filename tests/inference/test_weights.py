"""A weight is a repetition: posterior, mode, evidence and gradients; and adding data."""

from __future__ import annotations

import pytest
import torch
from dense_reference import build
from laplace_cases import make_laplace
from likelihood_cases import CASES

from lingp.inference import TrainingSet
from lingp.inference.data_term import DataTerm
from lingp.likelihoods import Gaussian
from lingp.linearization import LinearizedNetwork

NAMES = [
    "gaussian",
    "gaussian-per-output",
    "categorical-3",
    "binomial-trials-2",
    "heteroscedastic-softplus-1",
    "student-t",
]
CHOSEN = {case.name: case for case in CASES if case.name in NAMES}
every = pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN)
means = pytest.mark.parametrize("mean", ["network", "refit"])
WEIGHTS = torch.tensor([1, 3, 0, 2, 1, 0, 4]).double()


def results(dense, x, y, weights, space, mean, sites="mean"):
    laplace = make_laplace(
        dense.net, x, y, dense.prior, dense.likelihood, space, mean, weights=weights, sites=sites
    )
    parameters = [
        p for m in (dense.prior, dense.likelihood) for p in m.parameters() if p.requires_grad
    ]
    evidence = laplace.log_marginal_likelihood()
    gradients = torch.autograd.grad(evidence, parameters)
    _, factors = laplace.training.linearized.factors(1.5 * dense.x[:3])
    found = [evidence, *gradients, laplace.posterior().covariance(factors)]
    if mean == "refit":
        found += [laplace.mode().e, laplace.weight_shift()]
    return found, laplace.data_term.num_observed


@means
@pytest.mark.parametrize("space", ["weight", "function"])
@every
def test_weights_are_repetitions(case, space, mean):
    dense = build(case, 1 + len(case.name) % 2, num_data=len(WEIGHTS))
    repeated = WEIGHTS.long()
    x, y = (t.repeat_interleave(repeated, 0) for t in (dense.x, dense.y))
    weighted, observed = results(dense, dense.x, dense.y, WEIGHTS, space, mean)
    rows, expected = results(dense, x, y, None, space, mean)
    assert observed == expected
    for a, e in zip(weighted, rows, strict=True):
        scale = max(1.0, float(e.detach().abs().max()))
        torch.testing.assert_close(a, e, rtol=0, atol=1e-10 * scale)


@means
@pytest.mark.parametrize("name", ["categorical-3", "student-t"])
def test_fractional_weights_equal_dense_formulas(name, mean):
    weights = torch.tensor([0.3, 1.7, 0.0, 2.5, 1.0, 1e-3, 4.0]).double()
    dense = build(CHOSEN[name], 2, num_data=len(weights), row_weights=weights)
    found, _ = results(dense, dense.x, dense.y, weights, "weight", mean)
    start = dense.weights + found[-1] if mean == "refit" else None
    expected = dense.log_evidence(mean, start=start)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    by = dense.prior.raw_precision
    (gradient,) = torch.autograd.grad(expected, by)
    torch.testing.assert_close(found[1], gradient, rtol=1e-8, atol=1e-8)


@means
def test_weights_of_one_change_nothing(mean):
    dense = build(CHOSEN["categorical-3"], 2, num_data=7)
    plain, _ = results(dense, dense.x, dense.y, None, "function", mean)
    ones, _ = results(dense, dense.x, dense.y, torch.ones(7).double(), "function", mean)
    for a, e in zip(ones, plain, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


def test_missing_targets_are_not_counted():
    y = torch.tensor([[1.0, torch.nan], [2.0, 3.0], [torch.nan, torch.nan]]).double()
    assert DataTerm(Gaussian(1.0), y).num_observed == 3
    assert DataTerm(Gaussian(1.0), y, torch.tensor([2.0, 0.5, 9.0]).double()).num_observed == 3
    known = torch.stack([y, torch.ones_like(y)], -1)
    assert DataTerm(Gaussian(1.0), known).num_observed == 3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(6), r"one per datum, \(7,\), got \(6,\)"),
        (torch.ones(7, 1), r"got \(7, 1\)"),
        (-torch.ones(7), ">= 0"),
        (torch.full((7,), torch.nan), "NaN"),
    ],
)
def test_bad_weights_are_named(weights, message):
    dense = build(CHOSEN["gaussian"], 1, num_data=7)
    with pytest.raises(ValueError, match=f"weights: .*{message}"):
        TrainingSet.collect(
            LinearizedNetwork(dense.net), [(dense.x, dense.y, weights)], keep_bytes=1 << 30
        )


@pytest.mark.parametrize("keep_bytes", [0, 1 << 30], ids=["streamed", "kept"])
@pytest.mark.parametrize("parts", ["none", "first", "second", "both"])
def test_extended_data_are_all_data(parts, keep_bytes):
    dense = build(CHOSEN["categorical-3"], 2, num_data=7)
    linearized = LinearizedNetwork(dense.net)
    weights = [WEIGHTS[:4] + 1, WEIGHTS[4:]]
    given = [
        weights[0] if parts in ("first", "both") else None,
        weights[1] if parts in ("second", "both") else None,
    ]
    pieces = [
        (x, y, w)
        for x, y, w in zip(dense.x.split(4), dense.y.split(4), given, strict=True)
    ]  # fmt: skip
    options = {"keep_bytes": keep_bytes, "progress": False}
    first = TrainingSet.collect(linearized, pieces[:1], **options)
    unit = [first.unit_ggn()] + ([first.unit_gram()] if keep_bytes else [])
    calls = []
    linearized.factors, original = lambda x: calls.append(len(x)) or original(x), linearized.factors
    grown = first.extended(pieces[1:])
    assert calls == [3] if keep_bytes else 4 not in calls
    whole = TrainingSet.collect(linearized, pieces, **options)
    assert grown.num_data == 7
    assert grown.factors_kept == whole.factors_kept == bool(keep_bytes)
    for name in ("outputs", "targets", "weights"):
        ours, theirs = getattr(grown, name), getattr(whole, name)
        assert (ours is None) == (theirs is None) == (name == "weights" and parts == "none")
        if ours is not None:
            assert torch.equal(ours, theirs)
    calls.clear()
    torch.testing.assert_close(grown.unit_ggn(), whole.unit_ggn(), rtol=1e-12, atol=1e-12)
    if keep_bytes:
        assert calls == []
    torch.testing.assert_close(grown.unit_gram(), whole.unit_gram(), rtol=1e-12, atol=1e-12)
    assert first.num_data == 4
    assert torch.equal(first.unit_ggn(), unit[0])

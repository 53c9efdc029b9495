"""The scale of the mean of class labels, held to dense float64 and to what it is for."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from laplace_cases import make_laplace
from scipy.optimize import minimize_scalar
from torch import nn

from lingp.inference import mean_scale
from lingp.inference.mean_scale import (
    _WORTH,
    Matched,
    best_scale,
    flattening,
    left_out_covariance,
    matched_scale,
    undecided_row,
)
from lingp.likelihoods import Bernoulli, Categorical, Ordinal, Tempered
from lingp.priors import Isotropic
from lingp.runtime.shards import Shards

N = 30
LIKELIHOODS = {
    "bernoulli": (Bernoulli, 1),
    "categorical": (Categorical, 3),
    "ordinal": (lambda: Ordinal(4), 1),
    "tempered": (lambda: Tempered(Categorical(), 2.0), 3),
}


def model(name, space="function", mean="network", precision=0.3, *, weights=None, sharpness=10.0):
    """A small network that is sure of itself, with labels drawn from it."""
    make, outputs = LIKELIHOODS[name]
    likelihood, generator = make(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    with torch.no_grad():
        net[-1].weight *= sharpness
    x = torch.randn(N, 2, dtype=torch.float64, generator=generator)
    y = likelihood.sample(net(x).detach(), generator=generator)
    return make_laplace(
        net, x, y, Isotropic(precision), likelihood, space, mean, sites="expected", weights=weights
    )


def dense_left_out(laplace):
    """C_-n by an inverse without the datum: (Σ0⁻¹ + Σ_{m≠n} J_mᵀ Λ_m J_m)⁻¹ in outputs."""
    posterior = laplace.posterior()
    jacobian = laplace.training.factors().jacobian()  # (N, C, P)
    root = posterior.root.dense()
    terms = jacobian.mT @ (root @ root.mT) @ jacobian
    prior = torch.diag(1 / posterior.scale.square())
    return torch.stack(
        [j @ torch.linalg.solve(prior + terms.sum(0) - t, j.mT)
         for j, t in zip(jacobian, terms, strict=True)]
    )  # fmt: skip


@pytest.mark.parametrize("space", ["weight", "function"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_covariances_without_a_datum_are_those_of_an_inverse_without_it(name, space):
    laplace = model(name, space)
    found = left_out_covariance(laplace.data_term, laplace.posterior(), torch.arange(N))
    wanted = dense_left_out(laplace)
    # 1 - leverage loses some digits where it is small
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-10)


def test_one_repetition_of_a_row_with_a_weight_is_left_out():
    weights = torch.ones(N, dtype=torch.float64)
    weights[0] = 3.0
    laplace = model("categorical", weights=weights)
    found = left_out_covariance(laplace.data_term, laplace.posterior(), torch.tensor([0]))
    posterior = laplace.posterior()
    root, jacobian = posterior.root.dense(), laplace.training.factors().jacobian()
    terms = jacobian.mT @ (root @ root.mT) @ jacobian
    rest = torch.diag(1 / posterior.scale.square()) + terms.sum(0) - terms[0] / 3
    wanted = jacobian[0] @ torch.linalg.solve(rest, jacobian[0].mT)
    torch.testing.assert_close(found[0], wanted, rtol=1e-7, atol=1e-10)


def dense_objective(laplace, covariance, scale):
    """The rule for one logit, by Gauss-Hermite quadrature in place of 512 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    m = laplace.training.outputs
    q = torch.sigmoid(scale * m + covariance.reshape(-1, 1).sqrt() * nodes) @ weights
    p = torch.sigmoid(m).squeeze(1)
    each = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return float(each.mean()) + _WORTH * math.log(scale)


def test_the_scale_is_the_best_of_a_dense_search():
    laplace = model("bernoulli", precision=1e-4, sharpness=20.0)
    covariance = dense_left_out(laplace)
    found = matched_scale(laplace.data_term, laplace.training.outputs, laplace.posterior())
    wanted = minimize_scalar(
        lambda s: dense_objective(laplace, covariance, s), bounds=(1.0, 20.0), method="bounded"
    ).x
    assert wanted > 1.2
    # 512 nodes and a resolution of 5e-3 of log s; the minimum is flat
    assert found == pytest.approx(wanted, rel=0.02)
    flat = flattening(laplace.data_term, laplace.training.outputs, laplace.posterior(), found)
    direct = dense_objective(laplace, covariance, found) - _WORTH * math.log(found)
    assert flat == pytest.approx(direct, abs=1e-3)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_what_the_average_takes_is_given_back(name):
    laplace = model(name, precision=0.05)
    data, mean, posterior = laplace.data_term, laplace.training.outputs, laplace.posterior()
    scale = matched_scale(data, mean, posterior)
    assert scale > 1
    assert flattening(data, mean, posterior, scale) < flattening(data, mean, posterior, 1.0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_doubt_there_is_nothing_to_give_back(name):
    laplace = model(name, precision=1e8)
    scale = matched_scale(laplace.data_term, laplace.training.outputs, laplace.posterior())
    assert scale == 1.0


@pytest.mark.parametrize("mean", ["network", "refit"])
def test_the_rule_follows_the_hyperparameters(mean):
    laplace = model("categorical", mean=mean, precision=0.05)
    laplace.mean_scale = Matched()
    before = laplace.scale_of_mean()
    assert laplace.scale_of_mean() == before
    laplace.prior.precision = 1e8
    assert laplace.scale_of_mean() == 1.0 < before
    laplace.mean_scale = Matched(1.5)
    assert laplace.scale_of_mean() == 1.5
    laplace.mean_scale = 2.5
    assert laplace.scale_of_mean() == 2.5


@pytest.mark.parametrize("rows", [400, 1500])
def test_many_rows_are_looked_at_in_part(rows, monkeypatch):
    """The same from 1,000 rows as from all: rows are drawn from all of them, not from the first."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(2 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    x = torch.randn(rows, 2, dtype=torch.float64, generator=generator)
    x = x[x[:, 0].argsort()]
    y = (net(x).detach() > 0).double()
    prior = Isotropic(1e-3)
    laplace = make_laplace(net, x, y, prior, Bernoulli(), "weight", sites="mean")
    part = matched_scale(laplace.data_term, laplace.training.outputs, laplace.posterior())
    monkeypatch.setattr("lingp.inference.mean_scale._NUM_ROWS", 10**6)
    whole = matched_scale(laplace.data_term, laplace.training.outputs, laplace.posterior())
    assert part == pytest.approx(whole, rel=0.1 if rows > 1000 else 1e-12)


def test_labels_choose_the_scale_with_which_they_are_most_probable():
    """Logits 2.5 times too small, no doubt: the scale is found to the noise of 4,000 labels."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(4000, 3, dtype=torch.float64, generator=generator)
    y = Categorical().sample(2.5 * mean, generator=generator)
    nothing = torch.zeros(4000, 3, 3, dtype=torch.float64)
    options = {"shards": Shards.single().with_rows(4000), "start": 1.0}
    found = best_scale(Categorical(), y, None, mean, nothing, **options)

    def loss(s):
        probs = (s * mean).softmax(-1).amax(-1)
        undecided = 0.5 * (probs.log() + (1 - probs).log()).mean()
        return float(-Categorical().log_prob(y, s * mean).sum() - undecided)

    wanted = minimize_scalar(loss, bounds=(0.1, 20.0), method="bounded").x
    assert found == pytest.approx(wanted, rel=0.01)
    assert found == pytest.approx(2.5, rel=0.1)
    held = best_scale(Categorical(), y, None, mean, nothing, typical=1e-3, **options)
    assert held < 1.1  # a scale that is all but known stays
    twice = torch.full((4000,), 2.0, dtype=torch.float64)
    doubled = best_scale(Categorical(), y, twice, mean, nothing, **options)
    assert doubled == pytest.approx(found, rel=2e-3)  # one undecided row to 8,000


def test_nodes_are_made_once_for_each_scale_that_is_tried(monkeypatch):
    """And their root once for all scales."""
    roots, averages = [], []

    class Counted(Categorical):
        def conditional_mean(self, f):
            averages.append(len(f))
            return super().conditional_mean(f)

        def log_prob(self, y, f):
            averages.append(len(f))
            return super().log_prob(y, f)

        def with_scaled_mean(self, mean, scale):
            scales.append(scale)
            return super().with_scaled_mean(mean, scale)

    scales, psd_root = [], mean_scale.psd_root
    monkeypatch.setattr(mean_scale, "psd_root", lambda c: roots.append(1) or psd_root(c))
    made, chunks = [], mean_scale.row_chunks
    monkeypatch.setattr(mean_scale, "row_chunks", lambda *a: made.append(1) or chunks(*a))
    mean = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = mean.argmax(1, keepdim=True).double()
    covariance = torch.eye(3).double().expand(20, 3, 3)
    best_scale(
        Counted(), y, None, mean, covariance, shards=Shards.single().with_rows(20), start=1.0
    )
    assert len(roots) == 1
    assert len(made) == len(scales) > 5
    assert len(averages) == 2 * len(scales)


@pytest.mark.parametrize("num_rows", [20, 200])
def test_rows_without_an_error_are_not_believed_to_be_certain(num_rows):
    """Half right, half wrong: n log(1 - e) + ½ log e + ½ log(1 - e) is largest at ½ / (n + 1)."""
    mean = torch.full((num_rows, 1), 2.0, dtype=torch.float64)
    y = torch.ones(num_rows, 1, dtype=torch.float64)
    nothing = torch.zeros(num_rows, 1, 1, dtype=torch.float64)
    shards = Shards.single().with_rows(num_rows)
    found = best_scale(Bernoulli(), y, None, mean, nothing, shards=shards, start=1.0)
    error = 0.5 / (num_rows + 1)
    assert 2 * found == pytest.approx(math.log((1 - error) / error), rel=5e-3)


def test_an_undecided_row_is_right_or_wrong_in_each_of_its_labels():
    probs = torch.tensor([[0.9, 0.2], [0.5, 0.6]], dtype=torch.float64)
    found = undecided_row(Bernoulli().label_probs(probs), Shards.single().with_rows(2))
    wanted = [0.5 * math.log(p * (1 - p)) + 0.5 * math.log(q * (1 - q)) for p, q in probs.tolist()]
    assert found.tolist() == pytest.approx([w / 2 for w in wanted])
    probs = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    found = undecided_row(Categorical().label_probs(probs), Shards.single().with_rows(1))
    assert float(found) == pytest.approx(0.5 * math.log(0.7 * 0.3))


def test_the_cutpoints_of_ordered_labels_are_scaled_too():
    likelihood = Ordinal(cutpoints=[-1.0, 0.5, 2.0])
    mean = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(1)
    scaled, location = likelihood.with_scaled_mean(mean, 2.0)
    assert (likelihood.conditional_mean(mean).argmax(-1) == 0).any()
    below = torch.sigmoid(2.0 * (likelihood.cutpoints.detach() - mean))
    torch.testing.assert_close(scaled.conditional_mean(location).cumsum(-1)[:, :-1], below)
    assert scaled.label_probs(scaled.conditional_mean(location)).shape == (7, 1, 4)
    assert likelihood.with_scaled_mean(mean, 1.0) == (likelihood, mean)


def test_a_datum_without_a_weight_has_no_say():
    weights = torch.ones(N, dtype=torch.float64)
    weights[:10] = 0.0
    laplace = model("categorical", precision=0.05, weights=weights)
    data, posterior = laplace.data_term, laplace.posterior()
    mean = laplace.training.outputs
    changed = dataclasses.replace(data)
    other = mean.clone()
    other[:10] = 100.0
    assert matched_scale(data, mean, posterior) == matched_scale(changed, other, posterior)

"""`mean_scale` at the front door: what predictions do with it, and who sets it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from trained_networks import make_inputs, make_net

import lingp
from lingp.likelihoods import Bernoulli, Categorical, Ordinal, Tempered
from lingp.models import LinearizedGP
from lingp.models.doubts import PosteriorWarning, constant_log_prob

X, X_TEST = make_inputs(40), 2 * make_inputs(7, seed=1)
LABELS = torch.arange(40) % 3
MODELS = {
    "categorical": (Categorical, 3, LABELS),
    "bernoulli": (Bernoulli, 1, LABELS % 2),
    "ordinal": (lambda: Ordinal(3), 1, LABELS),
    "tempered": (lambda: Tempered(Categorical(), 2.0), 3, LABELS),
}
METHODS = ["quadrature", "probit", "laplace_bridge"]


def fitted(name, **options):
    make, outputs, y = MODELS[name]
    net = make_net(outputs)
    with torch.no_grad():
        net[-1].weight *= 12
    return LinearizedGP(net, make(), prior=0.01, **options).fit(X, y)


def by_hand(gp, prediction, scale, num_nodes=200_000):
    """E p(y | s m + ε), by draws; labels' probabilities, and their standard errors at most."""
    generator = torch.Generator().manual_seed(0)
    m, covariance = prediction.latent_mean, prediction.latent_covariance
    root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(m.shape[1]))
    noise = torch.randn(num_nodes, *m.shape, generator=generator, dtype=m.dtype)
    f = scale * m + torch.einsum("ncd,snd->snc", root, noise)
    likelihood = gp.likelihood.likelihood if isinstance(gp.likelihood, Tempered) else gp.likelihood
    if isinstance(likelihood, Ordinal):
        below = torch.sigmoid(scale * likelihood.cutpoints.detach() - f)
        edges = torch.ones_like(f)
        p = torch.cat([below, edges], -1) - torch.cat([0 * edges, below], -1)
    elif isinstance(likelihood, Bernoulli):
        p = torch.cat([torch.sigmoid(-f), torch.sigmoid(f)], -1)
    else:
        p = f.softmax(-1)
    return p.mean(0)


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_averages_around_the_scaled_mean(name, scale):
    gp = fitted(name, mean_scale=scale)
    prediction = gp.predict(X_TEST)
    assert prediction.mean_scale == scale == gp.mean_scale
    wanted = by_hand(gp, prediction, scale)
    # 200,000 draws have a standard error of at most 0.0012
    torch.testing.assert_close(prediction.probs, wanted, rtol=0, atol=5e-3)
    y = MODELS[name][2][:7]
    chosen = wanted.gather(1, y.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(prediction.log_prob(y).exp(), chosen, rtol=0, atol=5e-3)
    together = gp.predict_joint(X_TEST[:1], num_samples=20_000)
    torch.testing.assert_close(together.log_prob(y[:1]).exp(), chosen[0], rtol=0, atol=0.02)
    information = prediction.mutual_information.flatten()
    assert (information >= 0).all()
    assert (information <= prediction.entropy + 1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scales(method):
    gp = fitted("categorical", mean_scale=3.0)
    prediction = gp.predict(X_TEST, method=method)
    plain = Categorical().predictive(
        3.0 * prediction.latent_mean, prediction.latent_covariance, method
    )
    torch.testing.assert_close(prediction.probs, plain.mean)


def test_the_latent_posterior_is_not_scaled():
    gp, other = fitted("categorical", mean_scale=3.0), fitted("categorical", mean_scale=1.0)
    torch.testing.assert_close(gp.posterior(X_TEST).mean, other.posterior(X_TEST).mean)
    one, two = gp.predict(X_TEST), other.predict(X_TEST)
    torch.testing.assert_close(one.latent_mean, two.latent_mean)
    assert not torch.allclose(one.probs, two.probs, atol=1e-2)


def test_other_targets_have_no_scale():
    gp = LinearizedGP(make_net()).fit(X, X.sum(1))
    assert gp.mean_scale == 1.0
    gp.mean_scale = 2.0
    with pytest.raises(ValueError, match=r"mean_scale: got 2.0, but Gaussian is not of class"):
        gp.predict(X_TEST)


@pytest.mark.parametrize("value", ["network", 0.0, -1.0, float("nan"), float("inf"), None])
def test_values_that_mean_nothing_are_refused(value):
    with pytest.raises(ValueError, match=r'mean_scale: expected "auto", "matched" or a positive'):
        LinearizedGP(make_net(3), "categorical", mean_scale=value)
    gp = LinearizedGP(make_net(3), "categorical")
    with pytest.raises(ValueError, match="mean_scale: expected"):
        gp.mean_scale = value


def test_nothing_is_stale_after_prior_data_or_likelihood_changed():
    gp = fitted("categorical")
    first = gp.mean_scale
    gp.prior.precision = 1e6
    assert gp.mean_scale == 1.0 < first
    gp.prior.precision = 0.01
    assert gp.mean_scale == pytest.approx(first)
    gp.add_data(X_TEST, LABELS[:7])
    assert gp.mean_scale != first
    gp.likelihood = Categorical()
    assert gp.mean_scale > 1.0


class Sharp(nn.Module):
    """Logits that are `factor` times those which labels are drawn from."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.net, self.factor = make_net(3, width=8), factor
        with torch.no_grad():
            self.net[-1].weight *= 4

    def forward(self, x):
        return self.factor * self.net(x)


def drawn(num_rows, seed):
    x = make_inputs(num_rows, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return x, Categorical().sample(Sharp(1.0)(x), generator=generator).long().squeeze(1)


@pytest.mark.parametrize("factor", [0.3, 1.0, 6.0])
def test_validation_rows_make_it_as_sure_as_it_should_be(factor):
    """Never worse than the network on rows of their kind, whether it was too sure or not enough."""
    x, y = drawn(100, 1)
    gp = LinearizedGP(Sharp(factor), "categorical").fit(x, y)
    result = gp.optimize_hyperparameters(validation=drawn(400, 2), absorb=False)
    assert result.mean_scale == pytest.approx(gp.mean_scale)
    assert result.value >= result.network_value
    x_test, y_test = drawn(2000, 3)
    with torch.no_grad():
        alone = Categorical().log_prob(y_test.unsqueeze(1), Sharp(factor)(x_test))
    each = gp.predict(x_test).log_prob(y_test) - alone
    # 400 rows choose a scale to some 10 %, which costs less than a hundredth of a nat
    assert each.mean() > -0.01
    if factor != 1.0:
        assert each.mean() > 0.05


def test_a_number_is_kept_and_a_rule_is_free():
    kept = fitted("categorical", mean_scale=2.0)
    result = kept.optimize_hyperparameters(validation=drawn(30, 5), absorb=False)
    assert result.mean_scale is None
    assert kept.mean_scale == 2.0
    free = fitted("categorical")
    matched = free.mean_scale
    found = free.optimize_hyperparameters(validation=drawn(30, 5), absorb=False)
    assert free.mean_scale == pytest.approx(found.mean_scale)
    factor = free.laplace.mean_scale.factor
    free.add_data(*drawn(60, 6))  # less is left open, so that less has to be given back
    assert free.mean_scale < found.mean_scale
    free.mean_scale = "matched"
    assert free.mean_scale < matched
    assert factor * free.mean_scale < found.mean_scale
    free.mean_scale = 2.0
    assert free.mean_scale == 2.0


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("inference", ["weight_space", "function_space"])
def test_files_keep_it(tmp_path, inference, tuned):
    gp = fitted("categorical", inference=inference)
    if tuned:
        gp.optimize_hyperparameters(validation=drawn(30, 5))
    gp.save(tmp_path / "gp.pt")
    loaded = LinearizedGP.load(tmp_path / "gp.pt", make_net(3))
    assert loaded.mean_scale == gp.mean_scale
    torch.testing.assert_close(
        loaded.predict(X_TEST).probs, gp.predict(X_TEST).probs, rtol=0, atol=0
    )


@pytest.mark.parametrize("inference", [lingp.Sparse(10), lingp.Iterative(10)])
def test_sparse_and_iterative_posteriors_have_one(inference):
    exact, other = fitted("categorical"), fitted("categorical", inference=inference)
    assert other.mean_scale > 1
    assert other.mean_scale == pytest.approx(exact.mean_scale, rel=0.3)


# Signs --------------------------------------------------------------------------------------------


def learned():
    """A network that has learned forty labels without error, and the labels."""
    net = Sharp(20.0)
    with torch.no_grad():
        return net, net(X).argmax(1)


def said(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught if w.category is PosteriorWarning]


def test_a_network_that_has_learned_its_labels_is_named():
    net, y = learned()
    (message,) = said(lambda: LinearizedGP(net, "categorical", prior=0.002).fit(X, y))
    assert "of 51 weights, has learned 40 of 40 labels without error" in message
    assert "optimize_hyperparameters(validation=(X, y))" in message
    assert not said(lambda: LinearizedGP(net, "categorical", prior=1e6).fit(X, y))
    # that the averages are flat is said where they were asked for
    (message,) = said(lambda: LinearizedGP(net, "categorical", prior=0.002, mean_scale=1).fit(X, y))
    assert "flatter than the network's by" in message
    assert "mean_scale=1" in message


def test_a_posterior_as_wide_as_the_prior_is_named():
    net, x = Sharp(20.0), make_inputs(300)
    with torch.no_grad():
        best = net(x).topk(2, dim=1).values
        x = x[(best[:, 0] - best[:, 1]).argsort()[-40:]]  # none is near a boundary
        y = net(x).argmax(1)
    messages = said(lambda: LinearizedGP(net, "categorical", prior=0.01, sites="mean").fit(x, y))
    assert any("of the prior's variance at the training data" in message for message in messages)
    messages = said(lambda: LinearizedGP(net, "categorical", prior=0.01).fit(x, y))
    assert not any("of the prior's variance" in message for message in messages)


def test_evidence_below_that_of_constant_probabilities_is_named():
    y = LABELS  # which have nothing to do with the inputs
    gp = LinearizedGP(Sharp(8.0), "categorical").fit(X, y)
    constant = float((torch.bincount(y).double() / len(y)).log()[y].sum())
    assert constant_log_prob(gp.laplace.data_term) == pytest.approx(constant, rel=1e-12)
    messages = said(gp.optimize_hyperparameters)
    assert gp.evidence().value < constant
    assert any(f"is below {constant:.6g}" in message for message in messages)


def test_constant_probabilities_of_weighted_and_missing_labels():
    gp = LinearizedGP(make_net((2, 3)), "categorical")
    y = torch.stack([LABELS, (LABELS + X[:, 0].gt(0)) % 3], 1).double()
    y[3, 0] = torch.nan
    weights = torch.linspace(0.5, 2.0, 40, dtype=torch.float64)
    gp.fit(X, y, sample_weight=weights, missing="nan")
    wanted = 0.0
    for column in y.T:
        counts = np.array([float(weights[column == k].sum()) for k in range(3)])
        wanted += float(counts @ np.log(counts / counts.sum()))
    assert constant_log_prob(gp.laplace.data_term) == pytest.approx(wanted, rel=1e-12)


def test_what_is_not_prepared_waits_and_says_nothing():
    net, y = learned()
    gp = LinearizedGP(net, "categorical", prior=0.002)
    assert not said(lambda: gp.fit(X, y, prepare=False))
    assert gp.laplace.kept_root() is None
    assert said(gp.prepare)
    assert gp.laplace.kept_root() is not None

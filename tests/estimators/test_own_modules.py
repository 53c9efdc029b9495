"""Networks of the user's own, trained already or not."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from small_tables import classifier, labelled, network, regressor, table
from torch import nn

from lingp.models import LinearizedGP


def tensors(net):
    return [t.clone() for t in net.state_dict().values()]


def trained(outputs=1):
    """A network of raw inputs, by a few steps of Adam; in single precision."""
    X, y = table()
    x, z = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    net = network(outputs, torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        out = net(torch.from_numpy(x).float())
        (out - torch.from_numpy(z).float().unsqueeze(1)).square().mean().backward()
        optimizer.step()
    return net, x, z


@pytest.mark.parametrize("prefit", [False, True])
def test_the_module_stays_as_it_is(prefit):
    net, x, z = trained()
    net.train()
    before = tensors(net)
    model = regressor(module=net, prefit=prefit).fit(x, z)
    model.predict(x)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(net), strict=True))
    assert net.training
    assert all(p.grad is not None for p in net.parameters()), "those of its own training"
    assert model.module is net
    assert model.module_ is not net
    assert not model.module_.training


def test_a_prefit_module_is_conditioned_on_data_as_they_are():
    net, x, z = trained()
    raw = 3 * z + 40
    shifted = nn.Sequential(copy.deepcopy(net), nn.Linear(1, 1))
    with torch.no_grad():
        shifted[1].weight.fill_(3.0)
        shifted[1].bias.fill_(40.0)
    model = regressor(module=shifted, prefit=True).fit(x, raw)
    outputs = shifted.double()(torch.from_numpy(x)).detach().numpy()[:, 0]
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, outputs, rtol=1e-12)
    assert model.n_iter_ == 0
    assert list(model.history_) == []
    # prior and noise of largest evidence
    gp = LinearizedGP(shifted).fit(torch.from_numpy(x), raw, progress=False)
    gp.optimize_hyperparameters()
    value = gp.evidence().value
    # the optimum is quadratic: a search that stops at 1e-6 in slope is nearer than this
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, abs=1e-3)
    np.testing.assert_allclose(std, gp.predict(torch.from_numpy(x)).stddev.squeeze(1), rtol=1e-2)


def test_a_prefit_module_with_a_refitted_mean():
    net, x, z = trained()
    model = regressor(module=net, prefit=True, mean="refit").fit(x, z)
    assert model.gp_.mean == "refit"
    kept = regressor(module=net, prefit=True).fit(x, z)
    assert kept.gp_.mean == "network"
    assert np.abs(model.predict(x) - z).sum() < np.abs(kept.predict(x) - z).sum()


def test_a_prefit_heteroscedastic_module_and_a_prefit_classifier():
    X, y = table()
    net = network(2)
    model = regressor(module=net, prefit=True, heteroscedastic=True).fit(X, y / 100)
    f = net(torch.from_numpy(X)).detach()
    assert model.gp_.predict(torch.from_numpy(X)).latent_mean.allclose(f, rtol=1e-12)
    assert math.isfinite(model.log_marginal_likelihood_value_)
    X, y = labelled(num_classes=2)
    net = network(1)
    model = classifier(module=net, prefit=True).fit(X, y)
    mean, _ = model.latent_mean_and_variance(X)
    np.testing.assert_allclose(mean, net(torch.from_numpy(X)).detach().numpy()[:, 0], rtol=1e-12)


def test_a_module_of_images():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 1, 4, 4)) * 5 + 3
    y = X[:, 0, 0, 0] * 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1))
    model = regressor(module=net, mean="network").fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert std.shape == (12,)
    assert model.x_scaler_.scale.shape == (1, 4, 4)
    x = torch.from_numpy((X - X.mean(0)) / X.std(0))
    outputs = model.module_.double()(x).detach().numpy()[:, 0] * y.std() + y.mean()
    np.testing.assert_allclose(mean, outputs, rtol=1e-9)


def test_a_module_in_single_precision():
    X, y = table()
    net = network(1, torch.float32)
    model = regressor(module=net).fit(X, y)
    assert next(model.module_.parameters()).dtype == torch.float32
    assert model.predict(X).dtype == np.float64


def test_errors_say_what_to_do():
    X, y = table()
    with pytest.raises(TypeError, match=r"module: expected a torch\.nn\.Module or None, got str"):
        regressor(module="mlp").fit(X, y)
    with pytest.raises(ValueError, match="prefit: True, but there is no module"):
        regressor(prefit=True).fit(X, y)
    with pytest.raises(ValueError, match=r"activation: expected one of 'gelu'.*got 'step'"):
        regressor(activation="step").fit(X, y)
    for sizes in ((5, 0), (2.5,), "50"):
        with pytest.raises(ValueError, match="hidden_layer_sizes: expected whole numbers >= 1"):
            regressor(hidden_layer_sizes=sizes).fit(X, y)
    with pytest.raises(ValueError, match='mean: expected "auto", "network" or "refit"'):
        regressor(mean="median").fit(X, y)
    with pytest.raises(ValueError, match="steps: expected"):
        regressor(steps=-1).fit(X, y)

"""Priors, likelihoods, constraints and options come back as they were."""

from __future__ import annotations

import re

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from saved_cases import (
    LABELS,
    LIKELIHOODS,
    X,
    Y,
    fitted,
    loaded,
    make_gp,
    make_net,
    results,
    same,
    through_file,
)

import lingp
from lingp.likelihoods import (
    Gaussian,
)
from lingp.linearization import LinearizedNetwork
from lingp.models import LinearizedGP
from lingp.priors import Diagonal, Isotropic, Layerwise, UnitWise


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_are_the_same(tmp_path, name):
    gp = fitted(name, "weight space", "network")
    gp.save(tmp_path / "model.lingp", include_data=True)
    back = loaded(name, tmp_path / "model.lingp")
    assert torch.equal(*[g.laplace.training.targets for g in (gp, back)])
    assert torch.equal(*[g.log_marginal_likelihood() for g in (gp, back)])
    assert repr(back.likelihood) == repr(gp.likelihood)
    old, new = (dict(g.likelihood.named_parameters()) for g in (gp, back))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[k], new[k]) for k in old)
    assert [p.requires_grad for p in old.values()] == [p.requires_grad for p in new.values()]


PRIORS = {
    "isotropic": lambda: Isotropic(0.3, precision_constraint=GreaterThan(1e-3)),
    "layerwise": lambda: Layerwise(torch.tensor([0.5, 1.0, 2.0, 4.0])),
    "layerwise by name": lambda: Layerwise(
        {"2.bias": 4.0, "0.weight": 1.0, "0.bias": 2.0, "2.weight": 0.5}
    ),
    "unit-wise inputs": lambda: UnitWise(torch.linspace(0.5, 2, 8)),
    "unit-wise outputs": lambda: UnitWise(1.5, "outputs", inputs_first=["2.weight"]),
    "diagonal": lambda: Diagonal(torch.linspace(0.5, 2, 17)),
    "mean": lambda: Isotropic(2.0, mean=torch.linspace(-1, 1, 17)),
    "at the network": lambda: UnitWise(torch.linspace(0.5, 2, 8), mean="network"),
    "float32 hyperparameters": lambda: Isotropic(0.3).float(),
    "fixed": lambda: Isotropic(0.3).requires_grad_(False),
}


@pytest.mark.parametrize("inference", ["weight_space", "function_space", "sparse"])
@pytest.mark.parametrize("name", PRIORS)
def test_priors(tmp_path, name, inference):
    gp = make_gp(prior=PRIORS[name](), inference=inference, mean="refit")
    back = through_file(gp, tmp_path)
    assert same(results(gp), results(back))
    assert type(back.prior) is type(gp.prior)
    for old, new in zip(gp.prior.parameters(), back.prior.parameters(), strict=True):
        assert torch.equal(old, new)
        assert (old.dtype, old.requires_grad) == (new.dtype, new.requires_grad)
    assert torch.equal(gp.prior.variances(), back.prior.variances())
    assert repr(back.prior) == repr(gp.prior)


@pytest.mark.parametrize("include_data", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_a_mean_at_the_network_stays_there_or_where_it_was_held(tmp_path, held, include_data):
    start = make_net(seed=1)
    prior = Isotropic(2.0, mean="network").bind_to(LinearizedNetwork(start))
    if held:
        prior.hold_mean()
    gp = LinearizedGP(make_net(), prior=prior, inference="weight_space", mean="refit")
    gp.fit(X, Y, progress=False)
    where = torch.cat([p.detach().flatten() for p in (start if held else make_net()).parameters()])
    gp.save(tmp_path / "model.lingp", include_data=include_data)
    # what the file says counts, also where an object is given
    for options in ({}, {"prior": Isotropic(mean="network")}):
        back = LinearizedGP.load(tmp_path / "model.lingp", make_net(seed=2), **options)
        assert torch.equal(back.predict(X).mean, gp.predict(X).mean)
        assert torch.equal(back.prior.mean, where)
        assert back.prior.follows_network is not held


@pytest.mark.parametrize(
    "constraint",
    [Positive(), GreaterThan(1e-4), LessThan(9.0), Interval(0.01, 5.0), Positive(None)],
    ids=str,
)
def test_constraints(tmp_path, constraint):
    gp = make_gp(Gaussian(0.2, noise_constraint=constraint), inference="weight_space")
    back = through_file(gp, tmp_path)
    kept = back.likelihood.raw_noise_constraint
    assert type(kept) is type(constraint)
    assert torch.equal(gp.likelihood.noise, back.likelihood.noise)
    back.likelihood.noise = 0.5
    torch.testing.assert_close(back.likelihood.noise.item(), 0.5, rtol=1e-6, atol=0)


def test_options(tmp_path):
    gp = make_gp(
        "categorical",
        3,
        LABELS,
        parameters="2.*",
        inference=lingp.Iterative(2, num_probes=4, generator=torch.Generator().manual_seed(7)),
        sites="network",
        memory_budget=10**8,
    )
    back = through_file(gp, tmp_path)
    assert back.linearized.parameter_names == ["2.weight", "2.bias"]
    assert back.sites == "network"
    assert back.memory_budget == 10**8
    assert back.inference.num_probes == 4
    assert torch.equal(back.inference.generator.get_state(), gp.inference.generator.get_state())
    assert str(back.inference_choice) == str(gp.inference_choice)
    assert same(results(gp), results(back))


@pytest.mark.parametrize("inference", ["weight_space", "function_space", "sparse", "iterative"])
def test_float32(tmp_path, inference):
    gp = make_gp(inference=inference, dtype=torch.float32)
    back = through_file(gp, tmp_path)
    assert back.dtype == torch.float32
    assert results(back)["latent mean"].dtype == torch.float32
    assert same(results(gp), results(back))


def test_auto_keeps_what_was_chosen(tmp_path):
    gp = make_gp()
    back = through_file(gp, tmp_path)
    assert back.inference == "auto"
    assert back.inference_choice == gp.inference_choice
    assert same(results(gp), results(back))


def test_hyperpriors_take_an_object(tmp_path):
    def make():
        prior = Isotropic(1.0)
        prior.register_prior("gamma", gpytorch.priors.GammaPrior(2.0, 1.0), "precision")
        return prior

    gp = make_gp(prior=make(), inference="weight_space")
    with pytest.raises(ValueError, match=re.escape("LinearizedGP.load(path, net, prior=...)")):
        through_file(gp, tmp_path)
    given = make()
    back = through_file(gp, tmp_path, prior=given)
    assert same(results(gp), results(back))
    assert given.names is None  # it was copied
    assert len(list(back.prior.named_priors())) == 1

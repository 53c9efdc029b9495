"""Priors: values, gradients, binding, errors at the door."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch

from lingp.priors import Isotropic, Layerwise, Prior, as_prior

NAMES = ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize("precision", [1e-6, 0.1, 1.0, 3, 1e6, torch.tensor(0.25)])
def test_isotropic_variance_is_one_over_precision(precision):
    prior = Isotropic(precision).bind(NAMES)
    expected = torch.full((3,), 1.0 / float(precision), dtype=torch.float64)
    torch.testing.assert_close(prior.variances(), expected, rtol=1e-14, atol=0)
    assert prior.isotropic


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (2.0, [2.0, 2.0, 2.0]),
        (torch.tensor([1.0, 2.0, 4.0]), [1.0, 2.0, 4.0]),
        ({"2.weight": 4.0, "0.weight": 1.0, "0.bias": 2.0}, [1.0, 2.0, 4.0]),
    ],
)
def test_layerwise_has_one_precision_per_tensor(precision, expected):
    prior = Layerwise(precision).bind(NAMES)
    expected = torch.tensor(expected, dtype=torch.float64)
    assert prior.raw_precision.shape == (3,)
    torch.testing.assert_close(prior.variances(), 1.0 / expected, rtol=1e-14, atol=0)
    assert not prior.isotropic


@pytest.mark.parametrize("prior", [Isotropic(0.3), Layerwise(0.3)])
def test_variances_are_differentiable_by_logarithm(prior):
    prior.bind(NAMES).variances().sum().backward()
    # d(1/p) / d log p = -1/p, over three tensors
    assert prior.raw_precision.grad.sum().item() == pytest.approx(-3 / 0.3)


@pytest.mark.parametrize("prior", [Isotropic(1.0), Layerwise(1.0)])
def test_precision_can_be_set_and_priors_registered(prior):
    prior.bind(NAMES)
    prior.precision = 5.0
    assert torch.allclose(prior.variances(), torch.tensor(0.2, dtype=torch.float64))
    prior.register_prior("precision_prior", gpytorch.priors.GammaPrior(2.0, 1.0), "precision")
    ((_, module, hyperprior, closure, _),) = list(prior.named_priors())
    assert torch.isfinite(hyperprior.log_prob(closure(module))).all()
    with pytest.raises(ValueError, match="precision"):
        prior.precision = -1.0


def test_a_users_constraint_is_kept():
    constraint = gpytorch.constraints.Interval(0.5, 2.0)
    prior = Isotropic(1.0, precision_constraint=constraint).bind(NAMES)
    assert prior.precision.item() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="constraint"):
        Isotropic(3.0, precision_constraint=gpytorch.constraints.Interval(0.5, 2.0))


def test_bind_is_idempotent_and_refuses_another_network():
    prior = Layerwise(1.0).bind(NAMES)
    parameter = prior.raw_precision
    assert prior.bind(NAMES) is prior
    assert prior.raw_precision is parameter
    with pytest.raises(ValueError, match="already belongs"):
        prior.bind(NAMES[:2])
    assert copy.deepcopy(prior).bind(NAMES).names == tuple(NAMES)


def test_unbound_prior_says_what_to_do():
    for prior in (Isotropic(), Layerwise()):
        with pytest.raises(RuntimeError, match="bind"):
            prior.variances()


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Isotropic, Layerwise])
def test_precision_must_be_finite_and_positive(kind, precision):
    with pytest.raises(ValueError, match="precision"):
        kind(precision)


def test_wrong_precisions_are_named():
    with pytest.raises(TypeError, match=r"precision.*str"):
        Isotropic("big")
    with pytest.raises(ValueError, match="Layerwise"):
        Isotropic(torch.ones(3))
    with pytest.raises(ValueError, match="got 2 values for 3"):
        Layerwise(torch.ones(2)).bind(NAMES)
    with pytest.raises(ValueError, match=r"missing: \['0.bias'\].*\['1.bias'\]"):
        Layerwise({"0.weight": 1.0, "1.bias": 1.0, "2.weight": 1.0}).bind(NAMES)


def test_mean_is_a_number_or_a_flat_tensor():
    assert Isotropic(mean=2.0).mean.item() == 2.0
    assert Isotropic(mean=torch.ones(5)).mean.shape == (5,)
    with pytest.raises(ValueError, match="mean"):
        Isotropic(mean=torch.ones(2, 2))
    with pytest.raises(ValueError, match="mean"):
        Isotropic(mean=float("nan"))


def test_as_prior():
    prior = Layerwise()
    assert as_prior(prior) is prior
    assert as_prior(None).bind(NAMES).variances()[0] == 1.0
    assert as_prior(4).bind(NAMES).variances()[0] == 0.25
    assert isinstance(as_prior(0.5), Prior)
    with pytest.raises(TypeError, match="prior"):
        as_prior("isotropic")


def test_a_prior_of_ones_own_needs_no_precision():
    class Unit(Prior):
        def variances(self):
            return torch.ones(self.num_parameter_tensors)

    assert repr(Unit()) == "Unit()"

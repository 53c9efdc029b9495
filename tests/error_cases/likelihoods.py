"""Likelihood and prior: what makes each error of the page appear."""

import torch
from torch import nn

from error_cases.shared import fit, mlp, rows, says
from lingp import likelihoods
from lingp.priors import Isotropic, Layerwise


@says("likelihood: 'normal' is not known; the names are 'bernoulli', 'binomial'")
def _():
    fit(likelihood="normal")


@says("y: expected class labels 0..2, whole numbers, got 3 in row 1 (10 such values)")
def _():
    fit(mlp(3), "categorical", y=torch.tensor([1, 3] * 10))


@says("y: has shape (N, 3), one number per class; give labels 0..2 of shape (N,): y.argmax(-1)")
def _():
    fit(mlp(3), "categorical", y=torch.eye(3)[torch.zeros(20, dtype=torch.long)])


@says("likelihood: Categorical needs a network with one output per class on the last axis")
def _():
    fit(mlp(1), "categorical", y=torch.zeros(20, dtype=torch.long))


@says("net: Heteroscedastic needs outputs (2T,) for T targets")
def _():
    fit(mlp(1), "heteroscedastic")


@says("y: expected counts 0, 1, 2, ..., got -1 in row 0")
def _():
    fit(likelihood="poisson", y=-torch.ones(20, 1))


@says("y: has shape (N, 1), but this likelihood takes (count, exposure) along a last axis of two")
def _():
    fit(likelihood=likelihoods.Poisson(exposure=True))


@says("noise: expected finite positive numbers, got 0.0")
def _():
    likelihoods.Gaussian(noise=0.0)


@says("noise: has 2 values, but the network has 1 outputs")
def _():
    fit(likelihood=likelihoods.Gaussian(noise=[0.1, 0.2]))


@says("log_prob: can't be differentiated under torch.vmap")
def _():
    fit(likelihood=likelihoods.AutodiffLikelihood(lambda y, f: -f.sum() if y > 0 else f.sum()))


@says("variance: this likelihood was made from log_prob alone; give AutodiffLikelihood(")
def _():
    own = likelihoods.AutodiffLikelihood(lambda y, f: -(y - f).square().sum(), mean=lambda f: f)
    print(fit(likelihood=own).predict(rows()[0]).variance)


@says(
    "method: Categorical predicts by 'quadrature', 'probit', 'laplace_bridge', 'monte_carlo', got"
)
def _():
    gp = fit(mlp(3), "categorical", y=torch.tensor([0, 1] * 10))
    gp.predict(rows()[0], method="mc")


@says("prior: expected an object from lingp.priors, a number (the precision of an isotropic prior)")
def _():
    fit(prior="isotropic")


@says("this Isotropic prior already belongs to a network with 4 parameter tensors")
def _():
    prior = Isotropic()
    fit(prior=prior)
    fit(nn.Linear(3, 1), prior=prior)


@says('mean: "network" takes the weights of a network, got names only; call bind_to')
def _():
    Isotropic(mean="network").bind(["0.weight"])


@says("precision: got 3 values for 4 parameter tensors")
def _():
    fit(prior=Layerwise(torch.ones(3)))


@says("precision: the mapping must name every parameter tensor; missing: ['0.bias', '2.weight'")
def _():
    fit(prior=Layerwise({"0.weight": 1.0}))

"""Hyperparameters: what makes each error of the page appear."""

import torch

from error_cases.shared import fit, mlp, rows, says
from lingp.priors import Isotropic, Layerwise


@says("hyperparameters did not converge: gradient norm … after … evaluations, tolerance …")
def _():
    fit(prior=Layerwise()).optimize_hyperparameters(max_evaluations=2, num_restarts=0)


@says("leave-one-out with the network's mean drives prior precisions to infinity")
def _():
    fit().optimize_hyperparameters(objective="leave_one_out", max_evaluations=20, num_restarts=0)


@says(
    "with a refitted mean, log marginal likelihood drives prior precisions of Categorical models …"
)
def _():
    gp = fit(mlp(3), "categorical", y=torch.tensor([0, 1] * 10), mean="refit")
    gp.optimize_hyperparameters(objective="evidence", max_evaluations=2, num_restarts=0)


@says(
    "with the network's mean and a prior centred at the network's weights, log marginal likelihood"
)
def _():
    gp = fit(prior=Isotropic(mean="network"))
    gp.optimize_hyperparameters(max_evaluations=2, num_restarts=0)


@says("the best hyperparameters found lie at the edge of what was searched")
def _():
    X, _ = rows()
    gp = fit()
    gp.likelihood.requires_grad_(False)
    gp.optimize_hyperparameters(validation=(X, mlp()(X).detach()))


@says("there is nothing to optimise: no hyperparameter of prior and likelihood requires grad")
def _():
    gp = fit()
    gp.prior.requires_grad_(False)
    gp.likelihood.requires_grad_(False)
    gp.optimize_hyperparameters()


@says("method: MacKay updates are for precisions of the priors in lingp.priors and for noise of")
def _():
    fit(likelihood="student_t").optimize_hyperparameters(method="mackay")

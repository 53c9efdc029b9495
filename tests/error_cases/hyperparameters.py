"""Hyperparameters: what makes each error of the page appear."""

import torch

from error_cases.shared import fit, mlp, rows, says
from lingp.inference import tune_on_validation
from lingp.priors import Isotropic, Layerwise


def sure(factor=20.0):
    """A network whose outputs are large."""
    net = mlp(3, hidden=12)
    with torch.no_grad():
        for p in net[-1].parameters():
            p.mul_(factor)
    return net


def _labels():
    """Forty rows with the labels that such a network predicts."""
    X = 2 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        return X, sure()(X).argmax(1)


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
    tune_on_validation(gp.laplace, [(X, mlp()(X).detach(), None)], span=10.0)


@says(
    "the largest log marginal likelihood found, …, is below …, the log density of labels that have "
    "the same probabilities in all rows"
)
def _():
    X, y = _labels()
    fit(sure(), "categorical", X=X, y=(y + torch.arange(40)) % 3).optimize_hyperparameters()


@says(
    "the network, of … weights, has learned 40 of 40 labels without error, so they don't tell "
    "whether it is too sure"
)
def _():
    X, y = _labels()
    fit(sure(), "categorical", X=X, y=y, prior=0.002)


@says(
    "averaged over what the data leave open, predictions at rows left out are flatter than the "
    "network's by …"
)
def _():
    X, y = _labels()
    fit(sure(), "categorical", X=X, y=y, prior=0.002, mean_scale=1.0)


@says(
    "the posterior has …% of the prior's variance at the training data, as if most of them had "
    "never been seen"
)
def _():
    X, y = _labels()
    fit(sure(1e5), "categorical", X=X, y=y, sites="mean")


@says('mean_scale: expected "auto", "matched" or a positive number, got')
def _():
    fit(mean_scale="sure")


@says("mean_scale: got 2.0, but Gaussian is not of class labels")
def _():
    fit(mean_scale=2.0)


@says("there is nothing to optimise: no hyperparameter of prior and likelihood requires grad")
def _():
    gp = fit()
    gp.prior.requires_grad_(False)
    gp.likelihood.requires_grad_(False)
    gp.optimize_hyperparameters()


@says("method: MacKay updates are for precisions of the priors in lingp.priors and for noise of")
def _():
    fit(likelihood="student_t").optimize_hyperparameters(method="mackay")

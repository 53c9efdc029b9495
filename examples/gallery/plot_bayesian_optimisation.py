"""
Bayesian optimisation: where to look next
=========================================

The least value of a function that is known here, found by evaluating it at few points: a linearised
network in BoTorch's loop, beside BoTorch's own Gaussian process.
"""

# %%
# Branin's function has three minima, all with the value 0.398. The models see inputs in the unit
# square, and BoTorch maximises, so the sign is changed.

import warnings

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib import pyplot as plt

from lingp.integrations.botorch import fit_linearized_gp

branin = Branin().double()
lower, upper = branin.bounds
unit_square = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def function(x):
    """What is to be maximised, at points of the unit square (n x 2)."""
    return -branin(lower + (upper - lower) * x).unsqueeze(-1)


# %%
# ``fit_linearized_gp`` stands where ``SingleTaskGP`` and its fit stand. What it gives is a BoTorch
# model like any other: acquisition functions differentiate its posterior in the inputs.


def fit_network(X, Y):
    """A linearised network on scales that are learned."""
    return fit_linearized_gp(X, Y, bounds=unit_square)


def fit_single_task(X, Y):
    """BoTorch's Gaussian process."""
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


# %%
# The loop: fit, find the point where the expected improvement is largest, evaluate. Both models
# start from the same four random points.


def optimise(fit, evaluations=16):
    """Points and values, in the order of their evaluation."""
    X = torch.rand(4, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    Y = function(X)
    torch.manual_seed(0)
    for _ in range(evaluations):
        acquisition = qLogExpectedImprovement(fit(X, Y), best_f=Y.max())
        point, _ = optimize_acqf(acquisition, unit_square, q=1, num_restarts=5, raw_samples=128)
        X, Y = torch.cat([X, point]), torch.cat([Y, function(point)])
    return X, Y


warnings.filterwarnings("ignore", "Optimization failed")  # BoTorch then tries other starts
found = {"lingp": optimise(fit_network), "SingleTaskGP": optimise(fit_single_task)}

# %%
# The regret is how far the best value so far is from the least there is.

fig, ax = plt.subplots(layout="constrained")
for (name, (_, Y)), style in zip(found.items(), ("-o", "--s"), strict=True):
    regret = -branin.optimal_value - Y.squeeze().cummax(0).values[3:]
    ax.semilogy(regret, style, markersize=4, label=name)
ax.set_xlabel("evaluations after the first points")
ax.set_ylabel("simple regret")
ax.legend(frameon=False)
plt.show()

# %%
# One run says little about which of two models is better; many runs of three functions are in
# :doc:`/bayesian-optimisation`. Where the points went says more: near the minima (stars), and to
# the borders, of which little is known.

axis = torch.linspace(0, 1, 60, dtype=torch.float64)
grid = torch.cartesian_prod(axis, axis)
height = -function(grid).view(60, 60).T
fig, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
minima = (branin.optimizers - lower) / (upper - lower)
for ax, (name, (X, _)) in zip(axes, found.items(), strict=True):
    ax.contourf(axis, axis, (height - branin.optimal_value + 1).log(), 20, cmap="cividis")
    ax.plot(*X[:4].T, "o", color="white", label="first points")
    ax.scatter(*X[4:].T, c=range(16), cmap="Reds", edgecolor="black", label="later ones, darker")
    ax.plot(*minima.T, "*", color="#56B4E9", markersize=13, markeredgecolor="black")
    ax.set_title(name)
axes[0].legend(loc="upper center", fontsize="small")
plt.show()

# %%
# The posterior at batches of points, and what a model expects once it has seen one more
# observation, without a new fit:

model = fit_network(*found["lingp"])
batch = model.posterior(torch.rand(8, 3, 2, generator=torch.Generator().manual_seed(0)).double())
print("mean and variance:", tuple(batch.mean.shape), tuple(batch.variance.shape))
more = model.condition_on_observations(minima[:1], function(minima[:1]))
before, after = (m.posterior(minima[:1]).variance.sqrt().item() for m in (model, more))
print(f"standard deviation at a minimum: {before:.3f}, and once it was observed {after:.3f}")

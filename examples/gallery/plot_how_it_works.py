"""
How it works, in pictures
=========================

A small network with one input, so that everything can be drawn: what linearising it in its weights
means, the kernel that comes out, and the Gaussian process with that kernel before and after it has
seen the data. The text that goes with the pictures is :doc:`/how-it-works`.
"""

# %%
# A trained network
# -----------------
# Twenty-four measurements of a sine, with a gap, and a network with 30 hidden units, trained as
# usual. Its noise and prior are chosen by the marginal likelihood.

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import nn

import lingp

generator = torch.Generator().manual_seed(1)
sides = [torch.rand(12, 1, generator=generator) * 1.2 + start for start in (-1.8, 0.6)]
X = torch.cat(sides).double()
y = torch.sin(2.5 * X) + 0.1 * torch.randn(24, 1, generator=generator).double()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
for _ in range(600):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(X), y).backward()
    optimizer.step()

gp = lingp.LinearizedGP(net.eval(), inference="weight_space").fit(X, y)
gp.optimize_hyperparameters()
print(gp.prior, gp.likelihood, sep="\n")

# %%
# The network and its linearisation
# ---------------------------------
# The Jacobian J(x) has one column per weight. Move the weights a thousandth of a step that the
# posterior thinks likely, and outputs change as the linearised network says. Move them the whole
# way, and they do not, not even where the data are: the posterior belongs to the linearised
# network. So that is what lingp predicts with, and why the predictions are good (Immer et al.,
# 2021).

grid = torch.linspace(-3, 3, 200).double().unsqueeze(1)
at_data = gp.linearized.factors(X)[1].jacobian().squeeze(1)  # (N, P): there is one output
at_grid = gp.linearized.factors(grid)[1].jacobian().squeeze(1)

precision = gp.prior.precision.item()
noise = gp.likelihood.noise.item()
P = at_data.shape[1]
posterior_precision = at_data.T @ at_data / noise + precision * torch.eye(P).double()
root = torch.linalg.cholesky(posterior_precision)
steps = torch.linalg.solve_triangular(
    root.T, torch.randn(P, 3, generator=generator).double(), upper=True
).T

trained = nn.utils.parameters_to_vector(net.parameters()).detach()
colors = ("#D55E00", "#009E73", "#CC79A7")
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
with torch.no_grad():
    outputs = net(grid).squeeze(1)
    for ax, share in zip(panels, (0.001, 1.0), strict=True):
        for color, step in zip(colors, steps, strict=True):
            nn.utils.vector_to_parameters(trained + share * step, net.parameters())
            change = (net(grid).squeeze(1) - outputs) / share
            ax.plot(grid, change, color=color, linewidth=1.2)
            ax.plot(grid, at_grid @ step, color=color, linestyle=(0, (3, 2)), linewidth=2.4)
        ax.plot([], [], color="grey", linewidth=1.2, label="the network")
        ax.plot([], [], color="grey", linestyle="--", linewidth=2.4, label="its linearisation")
        ax.plot(X, torch.zeros_like(X), "|", color="black", markersize=12, label="data")
        ax.set(xlabel="x", ylim=(-5, 5))
    nn.utils.vector_to_parameters(trained, net.parameters())
panels[0].set(ylabel="change of f(x)", title="a thousandth of the step, change times 1000")
panels[1].set(title="the whole step")
panels[0].legend(frameon=False, fontsize="small", loc="upper center", ncols=3)
plt.show()

# %%
# Features and kernel
# -------------------
# The columns of J are the features of a linear model, and the kernel is the product of features,
# K(x, x') = J(x) Σ0 J(x')ᵀ. Its shape was learned, and varies from place to place as no stationary
# kernel does.

K = (at_grid @ at_grid.T / precision).numpy()
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
shown = at_grid[:, ::9]
left.plot(grid, shown, linewidth=1)
left.set(xlabel="x", title=f"{shown.shape[1]} of the {P} columns of J(x)")
image = middle.imshow(K, extent=(-3, 3, 3, -3), cmap="cividis")
figure.colorbar(image, ax=middle, shrink=0.85)
middle.set(xlabel="x'", ylabel="x", title="K(x, x')")
for color, row in zip(("#0072B2", *colors), (20, 80, 120, 180), strict=True):
    right.plot(grid, K[row] / np.sqrt(K[row, row] * K.diagonal()), color=color)
    right.axvline(grid[row].item(), color=color, linestyle=":", linewidth=1)
right.set(xlabel="x", title="correlation with the dotted places")
plt.show()

# %%
# Before and after the data
# -------------------------
# The prior over weights is a prior over functions; conditioned on the data, it is the posterior.
# Both are Gaussian processes with the kernel above, and nothing was trained in between.

kernel = lingp.NTKernel.from_model(net, prior=precision)
prior_mean = lingp.gpytorch_models.PriorMean(kernel)(grid).detach()
jitter = 1e-8 * np.trace(K) / len(K) * np.eye(len(K))
draws = np.linalg.cholesky(K + jitter) @ np.random.default_rng(0).standard_normal((len(K), 4))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(grid, prior_mean.numpy()[:, None] + draws, linewidth=1.2)
left.plot(X, y, "o", color="black", markersize=4)
left.set(xlabel="x", ylabel="f(x)", title="prior")
lingp.plots.bands(gp, grid, levels=(0.95,), ax=right)
functions = gp.sample(grid, 4, generator=generator).squeeze(-1)
right.plot(grid, functions.T, linewidth=0.8)
right.set(ylim=(-3.5, 3.5))
plt.show()

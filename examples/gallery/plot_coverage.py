"""
Honest error bars: do 90 % intervals hold 90 % of the targets?
==============================================================

The same network with two kinds of error bars, on real measurements that it has not seen.
"""

# %%
# Drag of sailing yachts, measured in a towing tank (:doc:`/data`): all twenty standard splits would
# be 620 held-out targets; here are the first four, 124 targets, with a small network each.

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import nn

import lingp
from lingp.data import load_yacht


def standardised(split):
    """Training and test data in the units of the training data, as tensors."""
    X, y, X_test, y_test = load_yacht().split(split)
    x_scaled = [torch.from_numpy((x - X.mean(0)) / X.std(0)) for x in (X, X_test)]
    y_scaled = [torch.from_numpy((t - y.mean()) / y.std()).unsqueeze(1) for t in (y, y_test)]
    return x_scaled[0], y_scaled[0], x_scaled[1], y_scaled[1]


def trained_network(X, y):
    """An ordinary network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 50), nn.GELU(), nn.Linear(50, 1)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X), y).backward()
        optimizer.step()
    return net.eval()


# %%
# With noise alone, every prediction has the same error bar, as wide as the training errors. lingp
# adds what the data leave open about the function; here with the refitted mean.

levels = np.arange(1, 20) / 20
held = {"noise alone": [], "lingp": []}
scores = {"noise alone": [], "lingp": []}
for split in range(4):
    X, y, X_test, y_test = standardised(split)
    net = trained_network(X, y)
    gp = lingp.LinearizedGP(net, mean="refit").fit(X, y, progress=False)
    gp.optimize_hyperparameters()
    prediction = gp.predict(X_test)
    held["lingp"].append(lingp.metrics.coverage_curve(prediction, y_test, levels))
    scores["lingp"].append(lingp.metrics.nll(prediction, y_test))
    with torch.no_grad():
        errors, noise = net(X_test) - y_test, (net(X) - y).square().mean().sqrt()
        alone = torch.distributions.Normal(0.0, noise)
        inside = 2 * alone.cdf(errors.abs()) - 1  # probability of the interval that just holds y
    held["noise alone"].append([float((inside <= level).double().mean()) for level in levels])
    scores["noise alone"].append(-float(alone.log_prob(errors).mean()))

for name, values in scores.items():
    at_90 = np.mean(held[name], axis=0)[17]
    print(f"{name:12} NLL {np.mean(values):6.2f}, inside their 90 % interval: {at_90:.0%}")

# %%
# NLL is that of standardised targets. In the picture, intervals are too narrow below the diagonal
# and too wide above it. Errors have heavier tails than a normal distribution: in the middle both
# hold more than they should, while at the ends, where it matters, noise alone is too narrow. For
# one prediction there is ``lingp.plots.coverage_curve``, which adds the range that chance allows.

figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
ax.plot([0, 1], [0, 1], color="grey", linestyle=":", label="calibrated")
for (name, curves), color, dash in zip(
    held.items(), ("#D55E00", "#0072B2"), ("--", "-"), strict=True
):
    ax.plot(levels, np.mean(curves, axis=0), color=color, linestyle=dash, marker="o", label=name)
ax.set(xlabel="probability of the interval", ylabel="share of targets within it")
ax.legend(frameon=False)
plt.show()

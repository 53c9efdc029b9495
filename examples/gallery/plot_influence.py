"""
Which training points matter
============================

Leverage and leave-one-out predictions of every training row, from one fit.
"""

# %%
# A curve with three rows that are not like the others: a wrong value among many right ones, a
# lonely value far from all others, and one that is both lonely and wrong.

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import nn

import lingp

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.rand(30, generator=generator) * 2 - 2.5, torch.tensor([-1.2, 1.0, 2.0])])
X = x.double().unsqueeze(1)
y = torch.sin(1.5 * X) + 0.1 * torch.randn(33, 1, generator=generator).double()
y[30] += 0.8  # wrong, among many
y[32] -= 0.8  # wrong, and lonely

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
trained = lingp.train_with_evidence(net, X, y, steps=800, updates=10, mean="refit", progress=False)

# %%
# The leverage of a row is the share of the effective parameters that it determines: 0 for a row
# that tells nothing new, 1 for one that the function goes through whatever the others say. The
# leave-one-out density says how well the others foresee it. Neither takes a refit.

influence = lingp.metrics.influence(trained.gp)
for row, kind in {30: "wrong, among many", 31: "lonely", 32: "lonely and wrong"}.items():
    print(
        f"row {row}, {kind:17} leverage {influence.leverage[row]:.2f},"
        f" log p given the others {influence.leave_one_out[row]:6.2f}"
    )
print(f"sum of leverages: {influence.leverage.sum():.1f} effective parameters")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
lingp.plots.bands(trained.gp, np.linspace(-3, 2.6, 200), levels=(0.9,), ax=left)
for row in (30, 31, 32):
    left.annotate(str(row), (X[row].item(), y[row].item()), (5, 5), textcoords="offset points")
lingp.plots.leverage(influence, num_labelled=3, ax=right)
plt.show()

# %%
# A wrong value among many has little leverage and is badly foreseen: look at it. A lonely one has
# nearly all the say about its surroundings, right or wrong, and its error can't be seen: measure
# there again.

"""
Regression: bands that open where there are no data
===================================================

A network and its prior, trained together by the evidence, on a curve with a gap.
"""

# %%
# The data are two stretches of a curve, with nothing in between.

import torch
from matplotlib import pyplot as plt
from torch import nn

import lingp

generator = torch.Generator().manual_seed(3)
sides = [torch.rand(25, 1, generator=generator) * 1.5 + start for start in (-2.5, 0.5)]
X = torch.cat(sides).double()
y = torch.sin(2 * X) + 0.1 * torch.randn(50, 1, generator=generator).double()

# %%
# ``train_with_evidence`` trains the network and sets noise and prior on the way, by the marginal
# likelihood of all data. No validation set, no weight decay to choose.

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).double()
trained = lingp.train_with_evidence(net, X, y, steps=800, updates=10, progress=False)
print(trained)

# %%
# Between the dashed lines is the function, with a probability of 95 %: what more data would narrow.
# The rest of the shade is noise, which no amount of data takes away.

lingp.plots.bands(trained.gp)
plt.show()

# %%
# The uncertain function is a distribution over functions, and can be drawn from.

grid = torch.linspace(-3.5, 3, 200).double().unsqueeze(1)
functions = trained.gp.sample(grid, 6, generator=generator).squeeze(-1)
ax = lingp.plots.bands(trained.gp, grid, levels=(0.95,))
ax.plot(grid, functions.T, color="#009E73", linewidth=0.8)
ax.set_ylim(-4, 4)
plt.show()

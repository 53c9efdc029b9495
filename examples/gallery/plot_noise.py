"""
Noise that depends on the input
===============================

Two outputs instead of one, and the network says for every input how far targets scatter.
"""

# %%
# A curve whose measurements get worse to the right.

import torch
from matplotlib import pyplot as plt
from torch import nn

import lingp
from lingp.training import initialize_head, with_natural_head

generator = torch.Generator().manual_seed(0)


def noise_at(x):
    """Standard deviation of the noise."""
    return 0.05 + 0.4 * torch.sigmoid(3 * torch.as_tensor(x))


def measured(X):
    """The curve with noise."""
    noise = noise_at(X) * torch.randn(X.shape, generator=generator).double()
    return torch.cos(1.5 * X) + noise


X = torch.rand(200, 1, generator=generator).double() * 6 - 3
y = measured(X)

# %%
# ``with_natural_head`` puts a layer on top that gives two natural parameters per target, and
# ``initialize_head`` starts it at the mean and variance of the data.

torch.manual_seed(0)
net = with_natural_head(nn.Sequential(nn.Linear(1, 50), nn.SiLU()), num_features=50).double()
initialize_head(net, y)
options = {"steps": 800, "updates": 5, "learning_rate": 0.03, "progress": False}
trained = lingp.train_with_evidence(net, X, y, likelihood="heteroscedastic", **options)

torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(1, 50), nn.SiLU(), nn.Linear(50, 1)).double()
constant = lingp.train_with_evidence(plain, X, y, **options)

# %%
# With one noise variance, bands are too wide on the left and too narrow on the right.

grid = torch.linspace(-4.5, 4.5, 90).double().unsqueeze(1)
figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
for ax, model in zip(panels, (constant, trained), strict=True):
    lingp.plots.bands(model.gp, grid, levels=(0.9,), ax=ax)
    ax.set_ylim(-3, 3)
plt.show()

# %%
# Half the width of a 68 % interval is one standard deviation where noise is normal. Against the
# noise that was put in, and in the score of targets that nobody has seen:

at = torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0]]).double()
lower, upper = trained.gp.predict(at).interval(0.683)
for x, low, high in zip(at.squeeze().tolist(), lower, upper, strict=True):
    print(f"x = {x:4.1f}: found {(high - low).item() / 2:.2f}, true {noise_at(x).item():.2f}")

X_new = torch.rand(500, 1, generator=generator).double() * 6 - 3
y_new = measured(X_new)
for name, model in {"one variance": constant, "noise by the network": trained}.items():
    print(f"{name:22} NLL {lingp.metrics.nll(model.gp.predict(X_new), y_new):.2f}")

# %%
# ``prediction.aleatoric_variance`` and ``.epistemic_variance`` split the variance here too. Where
# few data tell the noise, the first is a mean over noise levels that differ by orders of magnitude:
# quantiles say more.

"""
Classification: sure, unsure, and unsure for want of data
=========================================================

A network for three classes, and what it says where it has seen nothing.
"""

# %%
# Three groups of points in the plane; two of them overlap.

import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import make_blobs
from torch import nn

import lingp

centres = np.array([[-1.5, 0.0], [0.2, 0.0], [0.5, 2.5]])
points, labels = make_blobs([40, 40, 40], centers=centres, cluster_std=0.6, random_state=2)
X, y = torch.from_numpy(points), torch.from_numpy(labels)

# %%
# An ordinary network, trained in the ordinary way, and a Gaussian process of it: ``fit`` conditions
# on the data, and one search chooses the precision of the prior.

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 3)).double()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-4)
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(X), y).backward()
    optimizer.step()

gp = lingp.LinearizedGP(net.eval(), "categorical").fit(X, y, progress=False)
gp.optimize_hyperparameters()

# %%
# On the left, the entropy of the network's own probabilities: high along the borders between
# classes, however far from the data, and low everywhere else. In the middle, that of the Gaussian
# process: it rises away from the data, to all sides. On the right, the part of it that more data
# would take away (the mutual information of label and function). Where the two groups overlap, the
# entropy is high and this part is small: labels there are a matter of chance, and the model knows.

window = ((-5.0, 4.0), (-3.5, 6.0))
figure, panels = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
across, up = (np.linspace(*ends, 80) for ends in window)
grid = torch.from_numpy(np.stack(np.meshgrid(across, up), axis=-1))
with torch.no_grad():
    alone = torch.distributions.Categorical(logits=net(grid)).entropy()
image = panels[0].contourf(across, up, alone, levels=20, cmap="cividis")
figure.colorbar(image, ax=panels[0])
panels[0].scatter(*points.T, s=10, color="white", edgecolors="black", linewidths=0.5)
panels[0].set_title("the network alone", pad=22)
for ax, what in zip(panels[1:], ("entropy", "mutual_information"), strict=True):
    lingp.plots.map_2d(gp, window, what, resolution=36, ax=ax)
    ax.set_title("Gaussian process", pad=22)
plt.show()

# %%
# In numbers, at a place in the overlap and at one far from all data:

places = gp.predict(torch.tensor([[-0.65, 0.0], [-4.0, 5.0]]).double())
print("probabilities      ", places.probs.numpy().round(2).tolist())
print("entropy            ", places.entropy.numpy().round(2).tolist())
print("of it, lack of data", places.mutual_information.numpy().round(2).tolist())

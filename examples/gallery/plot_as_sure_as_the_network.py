"""
Digits: about as sure as the network where there are data, unsure elsewhere
===========================================================================

A small convolutional network that has learned its training images without error: how sure should
the Gaussian process of it be?
"""

# %%
# The images are scikit-learn's digits, 8 x 8 pixels. The network learns from 200 of them, and 500
# others are for the test. Two kinds of images lie outside: digits inverted, and uniform noise.

import warnings

import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import nn

import lingp

generator = torch.Generator().manual_seed(0)
images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=generator)
X = torch.from_numpy(images).float().reshape(-1, 1, 8, 8)[order] / 16
y = torch.from_numpy(labels)[order]
X, X_test, y, y_test = X[:200], X[200:700], y[:200], y[200:700]
X_outside = torch.cat([1 - X_test[:250], torch.rand(250, 1, 8, 8, generator=generator)])

torch.manual_seed(0)
net = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
    nn.Sequential(nn.Linear(256, 19), nn.ReLU(), nn.Linear(19, 10)),
)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
for _ in range(60):
    for rows in torch.randperm(200).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
net.eval()

# %%
# The Gaussian process of the network averages over functions f that agree with the data. Two
# hundred images leave most of 6,379 weights open, so the functions differ a lot, and the plain
# average, E softmax(f), is unsure of every image. By default lingp therefore scales the mean m of
# f = m + ε: it predicts E softmax(s m + ε), with s such that images left out of the training data
# get about the probabilities that the network gives them. The scale changes predictions only, so
# one fit serves for both. Its warning says that labels learned without error don't tell whether
# the network is too sure.

warnings.simplefilter("ignore", lingp.models.PosteriorWarning)
gp = lingp.LinearizedGP(net, "categorical").fit(X, y, progress=False)
print(f"scale of the mean: {gp.mean_scale:.2f}")


def probabilities(predict):
    """Those of the test images, and of the images outside."""
    return [predict(x).double() for x in (X_test, X_outside)]


with torch.no_grad():
    found = {"network": probabilities(lambda x: net(x).softmax(1))}
found["lingp"] = probabilities(lambda x: gp.predict(x, progress=False).probs)
gp.mean_scale = 1.0
found["lingp, mean_scale=1"] = probabilities(lambda x: gp.predict(x, progress=False).probs)

# %%
# On the left are the test images, in six groups of equal size from unsure to sure. With
# ``mean_scale=1`` nearly all are right, though even the surest group has a probability of little
# more than one half. The default is close to the network. It is somewhat less sure, and its
# negative log-likelihood (NLL) is somewhat larger. Images that the network hasn't seen can choose
# the scale instead: ``gp.optimize_hyperparameters(validation=(X_new, y_new))``.
#
# On the right, every dot is an image. AUROC is the probability that an image from outside has a
# larger entropy than a test image. The network gives more than 80 % to one digit for a quarter of
# the images from outside, lingp for none of them, while it stays sure of most test images.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
looks = {
    "network": ("#D55E00", "s", "left"),
    "lingp": ("#0072B2", "o", "right"),
    "lingp, mean_scale=1": ("#009E73", "^", "center"),
}
left.plot([0, 1], [0, 1], color="grey", linestyle=":")
left.text(0.3, 0.5, "not sure enough", color="grey", ha="center")
left.text(0.7, 0.5, "too sure", color="grey", ha="center")
for row, (name, (at_test, outside)) in enumerate(found.items()):
    color, marker, side = looks[name]
    nll = nn.functional.nll_loss(at_test.log(), y_test)
    bins = lingp.metrics.reliability(at_test, y_test, num_bins=6, binning="mass")
    left.plot(bins.confidence, bins.accuracy, color=color, marker=marker)
    place = (bins.confidence[0], bins.accuracy[0] - 0.03)
    left.text(*place, f"{name}\nNLL {nll:.2f}", color=color, ha=side, va="top")

    entropies = [torch.special.entr(probs).sum(1) for probs in (at_test, outside)]
    auroc = lingp.metrics.auroc(*entropies)
    right.text(0, 3 * row - 0.6, f"{name}, AUROC {auroc:.3f}", color=color)
    for height, values in zip((3 * row, 3 * row + 1), entropies, strict=True):
        heights = height + 0.6 * (torch.rand(500, generator=generator) - 0.5)
        right.scatter(values, heights, s=5, color=color, alpha=0.5, linewidths=0)
    sure = (outside.max(1).values > 0.8).double().mean()
    print(f"{name:19}  NLL {nll:.3f}  AUROC {auroc:.3f}  sure of {sure:.0%} of those outside")

left.set(
    title="500 test images: how sure, how often right",
    xlabel="probability of the most probable class",
    ylabel="share of images where it is right",
)
right.set(
    title="500 test images and 500 from outside: how unsure",
    xlabel="entropy of the prediction, from 0 (sure) to log 10 (no idea)",
    ylim=(7.6, -1.2),
)
right.set_yticks([0, 1, 3, 4, 6, 7], 3 * ["test", "outside"])
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

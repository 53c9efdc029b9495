"""A quantile regression forest out of scikit-learn's random forest.

Of a forest's prediction at x, training target i has the weight (Meinshausen, 2006)

    w_i(x) = mean over trees of  c_i 1[i in the leaf of x] / (sum of c_j in this leaf),

c_i the times that row i is in the tree's bootstrap sample: the mean of these weights is what the
forest predicts. Targets with these weights are the conditional distribution; its quantiles are the
intervals. It has atoms and no density, so the density is a normal with its mean and variance (over
the trees, the law of total variance), plus a share of the out-of-bag squared error, without which
a row whose leaves hold one target only would have density 0 elsewhere. This share and the smallest
leaf are those of the best out-of-bag log density: from the trees that did not see a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.ensemble import RandomForestRegressor

TREES = 200
LEAVES = (1, 3, 5, 10)
SHARES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class QuantileForest:
    """A fitted forest with what it learned out of bag.

    Attributes
    ----------
    forest
        scikit-learn's, fitted.
    y : (N,)
        The training targets.
    counts : (N x trees)
        How often each row is in each tree's sample.
    leaves : (N x trees)
        Node of each row in each tree.
    error : float
        Out-of-bag mean squared error.
    share : float
        What of it is added to the variance.
    score : float
        Mean out-of-bag log density.
    """

    forest: RandomForestRegressor
    y: np.ndarray
    counts: np.ndarray
    leaves: np.ndarray
    error: float
    share: float
    score: float

    def weights(self, x: np.ndarray) -> sparse.csr_array:
        """Of the training targets, (n x N); rows sum to one."""
        found = self.forest.apply(x)
        return _weights(found, np.ones_like(found), self.leaves, self.counts)

    def moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (n,) and variance (n,) of the normal density."""
        mean, variance = _moments(self.weights(x), self.y)
        return mean, variance + self.share * self.error

    def quantiles(self, x: np.ndarray, levels: tuple[float, ...]) -> list[np.ndarray]:
        """The smallest targets whose cumulated weight reaches each level, (n,) each."""
        order = np.argsort(self.y, kind="stable")
        cumulated = np.cumsum(self.weights(x).toarray()[:, order], axis=1)
        # cumulated weights end at one up to rounding
        last = len(order) - 1
        return [
            self.y[order][np.minimum((cumulated < level - 1e-12).sum(axis=1), last)]
            for level in levels
        ]


def fit(x: np.ndarray, y: np.ndarray, seed: int, trees: int = TREES) -> QuantileForest:
    """The forest whose smallest leaf and share of the error are best out of bag."""
    tried = [_fit(x, y, seed, trees, leaf) for leaf in LEAVES]
    return max(tried, key=lambda forest: forest.score)


def _fit(x: np.ndarray, y: np.ndarray, seed: int, trees: int, leaf: int) -> QuantileForest:
    forest = RandomForestRegressor(trees, min_samples_leaf=leaf, random_state=seed).fit(x, y)
    counts = np.stack(
        [np.bincount(rows, minlength=len(y)) for rows in forest.estimators_samples_], axis=1
    )
    leaves = forest.apply(x)
    seen = (counts == 0).any(axis=1)  # rows that all trees have in their samples have no say
    out = (counts == 0).astype(int)
    mean, variance = _moments(_weights(leaves[seen], out[seen], leaves, counts), y)
    squares = np.square(y[seen] - mean)
    error = float(squares.mean())
    scores = {}
    for share in SHARES:
        total = variance + share * error
        scores[share] = float(-0.5 * (np.log(2 * np.pi * total) + squares / total).mean())
    best = max(scores, key=scores.__getitem__)
    return QuantileForest(forest, y, counts, leaves, error, best, scores[best])


def _moments(weights: sparse.csr_array, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of targets with these weights; centred first, against cancellation."""
    center = y.mean()
    mean = weights @ (y - center)
    variance = weights @ np.square(y - center) - np.square(mean)
    return mean + center, np.maximum(variance, 0)


def _weights(
    leaves: np.ndarray, trees: np.ndarray, train_leaves: np.ndarray, counts: np.ndarray
) -> sparse.csr_array:
    """Weights of the training rows, (n x N).

    Parameters
    ----------
    leaves : (n x trees)
        Node of each row in each tree.
    trees : (n x trees)
        1 for the trees that count for a row, else 0; at least one a row.
    train_leaves, counts : (N x trees)
        Of the training rows.
    """
    number = leaves.shape[1]
    width = 1 + max(int(leaves.max()), int(train_leaves.max()))
    offsets = width * np.arange(number)

    def indicators(nodes: np.ndarray, values: np.ndarray) -> sparse.csr_array:
        rows = np.repeat(np.arange(len(nodes)), number)
        data = values.ravel().astype(float), (rows, (nodes + offsets).ravel())
        return sparse.csr_array(data, shape=(len(nodes), width * number))

    inside = indicators(train_leaves, counts)
    sizes = inside.sum(axis=0)
    scale = sparse.diags_array(1 / np.where(sizes > 0, sizes, 1))
    of_row = trees / trees.sum(axis=1, keepdims=True)
    return (indicators(leaves, of_row) @ scale @ inside.T).tocsr()

"""Scores of class probabilities, and of what tells known inputs from others."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from lingp.metrics.arguments import Reduction, as_array, class_probabilities, reduced


def brier(probs: Any, labels: Any, *, reduction: Reduction = "mean") -> Any:
    """Squared distance of class probabilities from the one-hot label.

        Σ_k (p_k - 1[label = k])²,   between 0 and 2

    the original form of Brier (1950, "Verification of forecasts expressed in terms of
    probability"), summed over all classes: for two classes twice (p_1 - label)². scikit-learn from
    1.7 has it as `brier_score_loss(labels, probs, scale_by_half=False)`.

    Parameters
    ----------
    probs
        (n, K), or (n,) of class 1.
    labels
        Column of each row's class, (n,).
    reduction
        "mean" over rows, or "none": one value per row.

    Examples
    --------
    >>> round(brier([[0.8, 0.1, 0.1]], [0]), 4)
    0.06
    """
    p, y = class_probabilities(probs, labels)
    return reduced(np.square(p - np.eye(p.shape[1])[y]).sum(axis=1), reduction)


def auroc(scores_in: Any, scores_out: Any) -> float:
    """How well a score tells inputs like the training data from others: area under the ROC curve.

    The probability that a row from outside has the larger score, ties counting half: 1/2 for a
    score that says nothing, 1 for one that says all. Larger must mean "out": entropy, epistemic
    variance, minus the largest probability. `sklearn.metrics.roc_auc_score` of both together, with
    label 1 for "out", but infinite scores have a rank too.

    Parameters
    ----------
    scores_in, scores_out
        Of rows like the training data and of others, 1-D, any numbers of them.

    Examples
    --------
    >>> auroc([0.1, 0.3], [0.2, 0.9])
    0.75
    """
    inside, outside = as_array(scores_in, "scores_in"), as_array(scores_out, "scores_out")
    for name, array in (("scores_in", inside), ("scores_out", outside)):
        if array.ndim != 1 or not len(array):
            raise ValueError(f"{name}: expected one score per row, got shape {array.shape}")
    wins = mannwhitneyu(outside, inside, method="asymptotic").statistic
    return float(wins / (len(inside) * len(outside)))

"""The factor of the mean with which averaged labels are as sure as the network is.

    p(y) = E p(y | s m + ε),  ε ~ N(0, C)

Averaged over a wide f, the probabilities of class labels are flatter than the network's, whose
logits were trained without an average; s > 1 gives back what the average takes. How much that is
can be seen where there are data: s is such that the average over C_-n, the covariance of f_n given
all other data, comes closest to the network's own probabilities,

    s = argmin 1/N Σ_n w_n KL( p(y | m_n) ‖ E p(y | s m_n + ε_n) ) + λ log s,    ε_n ~ N(0, C_-n),

with λ = 0.1: what s grows by has to be worth it. A network that has learned its labels without
error is so sure of all of them that without the last term the few rows of largest C_-n decide alone
how sure all others become. Covariances given all data are too small for this: new rows have those
of rows left out. No label is used, so a network that is too sure of itself stays about as sure as
it is; far from the data, where C is wider than C_-n, the average wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import scipy.optimize
import torch
from torch import Tensor

from lingp.inference.data_term import DataTerm
from lingp.inference.expected_sites import cavity_root
from lingp.inference.posterior import Posterior
from lingp.likelihoods import Likelihood
from lingp.likelihoods.predictives.draws import quasi_normal
from lingp.likelihoods.predictives.quadrature import row_chunks
from lingp.linalg.psd import psd_root
from lingp.runtime.shards import Shards


@dataclass(frozen=True)
class Matched:
    """The rule above, and a factor by which predictions should be surer than it makes them.

    A factor that rows have chosen which the network hasn't seen holds for other hyperparameters and
    with more data, too, where the scale itself would not.
    """

    factor: float = 1.0


MeanScale = float | Matched

_NUM_NODES = 512
_NUM_ROWS = 1000  # of each process; all 4,504 of satellite change s by half a hundredth
_SMALLEST, _LARGEST = 0.02, 1e3
_WORTH = 0.1  # nats per row for an e-fold of s, chosen on validation rows of 66 networks
_RESOLUTION = 5e-3  # of log s


@torch.no_grad()
def matched_scale(data: DataTerm, mean: Tensor, posterior: Posterior) -> float:
    """s by the rule above, between 1 and 1,000.

    Parameters
    ----------
    data
        The likelihood, of class labels.
    mean
        m, the posterior's mean of the outputs at the data, (N x C).
    posterior
        The posterior of the weights.
    """
    divergence = _Divergence(data, mean, posterior)
    return _least(
        lambda log_scale: divergence(math.exp(log_scale)) + _WORTH * log_scale, 1.0, expected=1.0
    )


@torch.no_grad()
def flattening(data: DataTerm, mean: Tensor, posterior: Posterior, scale: float) -> float:
    """The mean of KL( p(y | m_n) ‖ E p(y | s m_n + ε_n) ) over the data, in nats."""
    return _Divergence(data, mean, posterior)(scale)


def _least(loss: Callable[[float], float], smallest: float, expected: float) -> float:
    """s of smallest loss, a function of log s; what is expected where nothing is better."""
    found = scipy.optimize.minimize_scalar(
        loss,
        bounds=(math.log(smallest), math.log(_LARGEST)),
        method="bounded",
        options={"xatol": _RESOLUTION},
    )
    # the search never looks at its ends, and rows that don't care keep what is expected
    return expected if loss(math.log(expected)) <= found.fun else math.exp(found.x)


class _Average:
    """E p(y | s m + ε), ε ~ N(0, C), as a function of s: by the same nodes for every s.

    Parameters
    ----------
    likelihood
        The likelihood of class labels.
    mean, covariance
        m (n x C) and C (n x C x C).
    """

    def __init__(self, likelihood: Likelihood, mean: Tensor, covariance: Tensor) -> None:
        self.likelihood, self.mean = likelihood, mean
        self.normal, self.root = quasi_normal(_NUM_NODES, mean), psd_root(covariance)

    def __call__(self, scale: float, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Probabilities of labels (n x L x K), and log p(y_n) of given targets, (n,)."""
        likelihood, moved = self.likelihood.with_scaled_mean(self.mean, scale)
        moments, log_probs = [], []
        for rows in row_chunks(len(moved), self.normal.numel()):
            nodes = moved[rows] + torch.einsum("ncd,sd->snc", self.root[rows], self.normal)
            moments.append(likelihood.conditional_mean(nodes).mean(0))
            if targets is not None:
                log_probs.append(likelihood.log_prob(targets[rows], nodes).logsumexp(0))
        probs = likelihood.label_probs(torch.cat(moments))
        return probs, torch.cat(log_probs) - math.log(_NUM_NODES) if log_probs else None


class _Divergence:
    """The mean of KL( p(y | m_n) ‖ E p(y | s m_n + ε_n) ), ε_n ~ N(0, C_-n), as a function of s.

    At most 1,000 rows of each process count.
    """

    def __init__(self, data: DataTerm, mean: Tensor, posterior: Posterior) -> None:
        rows = _some_rows(data, mean)
        mean, likelihood, self.shards = mean[rows], data.likelihood, data.shards
        self.average = _Average(likelihood, mean, left_out_covariance(data, posterior, rows))
        self.weights = mean.new_ones(len(rows)) if data.weights is None else data.weights[rows]
        self.wanted = likelihood.label_probs(likelihood.conditional_mean(mean))
        self.entropy = -torch.special.xlogy(self.wanted, self.wanted).flatten(1).sum(-1)

    def __call__(self, scale: float) -> float:
        found, _ = self.average(scale)
        found = found.clamp(min=torch.finfo(found.dtype).tiny)
        each = -torch.special.xlogy(self.wanted, found).flatten(1).sum(-1) - self.entropy
        total = self.shards.total(float((self.weights * each).sum()))
        return total / max(1.0, self.shards.total(float(self.weights.sum())))


@torch.no_grad()
def best_scale(
    likelihood: Likelihood,
    targets: Tensor,
    weights: Tensor | None,
    mean: Tensor,
    covariance: Tensor,
    *,
    shards: Shards,
    start: float,
    typical: float = math.inf,
) -> float:
    """s of largest log predictive density of labels that are known, between 1/50 and 1,000.

    A row that is predicted right or wrong (see `undecided_row`) counts with them.

    Parameters
    ----------
    likelihood, targets, weights
        The likelihood of class labels; checked targets, first axis n; (n,) or None for 1.
    mean, covariance
        The moments of f, (n x C) and (n x C x C).
    shards
        The processes that the rows are spread over.
    start
        The scale that is expected.
    typical
        Standard deviation of log s around it, which counts like another row.
    """
    average = _Average(likelihood, mean, covariance)

    def loss(log_scale: float) -> float:
        probs, each = average(math.exp(log_scale), targets)
        assert each is not None
        each = each if weights is None else weights * each
        each = each + undecided_row(probs, shards)
        expected = 0.5 * ((log_scale - math.log(start)) / typical) ** 2
        return expected - shards.total(float(each.sum()))

    return _least(loss, _SMALLEST, expected=start)


def undecided_row(probs: Tensor, shards: Shards) -> Tensor:
    """The share of each row in the log density of one more row, predicted right or wrong, (n,).

        1/N Σ_n [ ½ log p_n + ½ log(1 - p_n) ],   p_n the largest probability at x_n

    It may lie at any of the inputs. Rows of which all labels are predicted right would like
    predictions to be certain; one more of which nobody knows that asks for the chance of an error
    that so many rows can't rule out. For two labels it is the row of Krichevsky and Trofimov
    (1981); Platt (1999), "Probabilistic outputs for support vector machines", section 2.2, adds one
    of each label.

    Parameters
    ----------
    probs
        The probabilities of the K values of L labels of each row, (n x L x K).
    shards
        The processes that the rows are spread over.
    """
    right = probs.amax(-1)  # (n, L)
    wrong = (probs.sum(-1) - right).clamp(min=torch.finfo(right.dtype).tiny)
    return 0.5 * (right.log() + wrong.log()).flatten(1).sum(-1) / max(1, shards.num_rows)


def left_out_covariance(data: DataTerm, posterior: Posterior, rows: Tensor) -> Tensor:
    """C_-n, the covariance of f_n given all other data, of some rows, (n x C x C).

    Of a datum of weight w > 1, one of w repetitions is left out.
    """
    informed, unseen = posterior.at_data
    root = posterior.root.rows(rows).dense()
    weights = None if data.weights is None else data.weights[rows]
    half = cavity_root(informed[rows], root @ root.mT, weights)
    covariance = half @ half.mT
    return covariance if unseen is None else covariance + unseen[rows]


def _some_rows(data: DataTerm, mean: Tensor) -> Tensor:
    """At most 1,000 rows that count, of all alike."""
    there = torch.arange(len(mean), device=mean.device)
    if data.weights is not None:
        there = there[data.weights > 0]
    if len(there) <= _NUM_ROWS:
        return there
    order = torch.randperm(len(there), generator=torch.Generator().manual_seed(0))
    return there[order[:_NUM_ROWS].to(there.device)]

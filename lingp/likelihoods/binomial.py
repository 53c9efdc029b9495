"""Successes out of a number of trials, with a logit link."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lingp.likelihoods.counts import (
    check_counts,
    log_factorial_excess,
    whole,
)
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.special import betainc
from lingp.likelihoods.targets import check_values
from lingp.runtime.described import described, same


@described(total_count=same("total_count"))
@named("binomial")
class Binomial(ElementwiseLikelihood):
    """log p(y | f) = Σ_c [ y_c log σ(f_c) + (n_c - y_c) log σ(-f_c) + log binom(n_c, y_c) ].

    r = y σ(-f) - (n - y) σ(f),   R = diag((n σ(f) σ(-f))^{1/2}).

    Parameters
    ----------
    total_count
        n, the same for all targets, which are then numbers of successes; None: targets are pairs
        (successes, trials) along a last axis of two, and at prediction `known` is the number of
        trials, one by default. Moments are those of the number of successes.
    """

    cdf_support = "counts"
    limits_fit = True

    def __init__(self, total_count: int | None = None) -> None:
        super().__init__()
        if total_count is not None and not (
            isinstance(total_count, int) and not isinstance(total_count, bool) and total_count > 0
        ):
            raise ValueError(
                "total_count: expected a whole number >= 1, or None for targets that are pairs "
                f"(successes, trials), got {total_count!r}"
            )
        self.total_count = total_count
        self.has_known = total_count is None

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        targets, successes = self.flatten(y, output_shape, dtype, "(successes, trials)")
        if self.total_count is not None:
            expected = f"numbers of successes 0, 1, ..., {self.total_count}"
            check_values(successes, whole(successes) & (successes <= self.total_count), expected)
        else:
            check_counts(successes, "numbers of successes 0, 1, 2, ...")
            valid = successes <= targets[..., 1]
            check_values(successes, valid, "no more successes than trials", "y[..., 0]")
        return targets

    def check_known(
        self, known: Tensor, name: str = "known", *, missing: Tensor | None = None
    ) -> None:
        expected = "a number of trials 0, 1, 2, ..."
        check_values(known, whole(known), expected, name, missing=missing)

    def trials(self, f: Tensor) -> Tensor:
        """n, broadcastable to f."""
        if self.known is not None:
            return self.known
        return torch.as_tensor(float(self.total_count or 1), dtype=f.dtype, device=f.device)

    def log_prob_each(self, y: Tensor, f: Tensor) -> Tensor:
        n = self.trials(f)
        share = y / n.clamp(min=1.0)
        # around the share of successes: no large terms cancel
        successes = y * logsigmoid(f) - torch.xlogy(y, share)
        failures = (n - y) * logsigmoid(-f) - torch.xlogy(n - y, 1 - share)
        excess = [log_factorial_excess(count) for count in (n, y, n - y)]
        return successes + failures + (excess[0] - excess[1] - excess[2]).to(f)

    def residual_each(self, y: Tensor, f: Tensor) -> Tensor:
        return y * (-f).sigmoid() - (self.trials(f) - y) * f.sigmoid()

    def root_each(self, y: Tensor, f: Tensor) -> Tensor:
        return self.trials(f).sqrt() * (0.5 * (logsigmoid(f) + logsigmoid(-f))).exp()

    def conditional_mean(self, f: Tensor) -> Tensor:
        return self.trials(f) * f.sigmoid()

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self.trials(f) * f.sigmoid() * (-f).sigmoid()

    def cdf_each(self, y: Tensor, f: Tensor) -> Tensor:
        n = self.trials(f)
        below = betainc((n - y).clamp(min=1.0), y + 1, (-f).sigmoid())
        return torch.where(y >= n, 1.0, below)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        trials = self.trials(f).expand_as(f)
        return torch.binomial(trials, f.sigmoid(), generator=generator)

    def extra_repr(self) -> str:
        return f"total_count={self.total_count}"

"""The predictive as a weighted mixture of p(y | f) over latent nodes: quadrature or draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lingp.likelihoods.predictives.base import Predictive

if TYPE_CHECKING:
    from lingp.likelihoods.base import Likelihood


@dataclass(frozen=True)
class LatentMixture(Predictive):
    """p(y_n) = Σ_s w_s p(y_n | f_s).

    Attributes
    ----------
    likelihood
        Gives p(y | f) and its moments.
    nodes
        Latent outputs f_s, (S x N x C).
    log_weights
        log w_s, (S x 1) or (S x N); they sum to one over s.
    known
        The known quantity of each target, (N x T), where the likelihood has one.
    """

    likelihood: Likelihood
    nodes: Tensor
    log_weights: Tensor
    known: Tensor | None = None

    def _average(self, values: Tensor) -> Tensor:
        """Σ_s w_s v_s, (S x N x M) -> (N x M)."""
        return (self.log_weights.exp().unsqueeze(-1) * values).sum(0)

    @property
    def mean(self) -> Tensor:
        return self._average(self.likelihood.conditional_mean(self.nodes, self.known))

    @property
    def epistemic_variance(self) -> Tensor:
        means = self.likelihood.conditional_mean(self.nodes, self.known)
        return self._average((means - self._average(means)).square())

    @property
    def aleatoric_variance(self) -> Tensor:
        return self._average(self.likelihood.conditional_variance(self.nodes, self.known))

    def log_prob(self, y: Tensor) -> Tensor:
        return torch.logsumexp(self.log_weights + self.likelihood.log_prob(y, self.nodes), 0)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        num_nodes, num_data, _ = self.nodes.shape
        weights = self.log_weights.exp().expand(num_nodes, num_data).mT  # (N, S)
        chosen = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
        index = chosen.mT.unsqueeze(-1).expand(-1, -1, self.nodes.shape[-1])
        f = self.nodes.gather(0, index)  # (num_samples, N, C)
        return self.likelihood.sample(f, self.known, generator=generator)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        draws = self.sample(10_000, torch.Generator(self.nodes.device).manual_seed(0))
        tail = (1 - level) / 2
        return draws.quantile(tail, 0), draws.quantile(1 - tail, 0)

"""One row of the table of likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from lingp.likelihoods import Likelihood


@dataclass(frozen=True)
class LikelihoodCase:
    """A likelihood with random targets, extreme values and its curvature by definition.

    Attributes
    ----------
    name
        Unique.
    make
        The likelihood.
    output_shape
        Of the network it belongs to.
    targets
        (generator, n) -> n valid random targets, as a user gives them.
    curvature
        Λ (n x C x C) by definition, as (likelihood, checked targets, f) -> Λ, with nothing of
        lingp but log_prob or a torch.distributions density; None: -∇² log p by torch.func.
    extremes
        Pairs (targets as a user gives them, f (n x C)) at saturation.
    scale
        Standard deviation of the random latent outputs.
    missing
        Whether NaN targets are allowed.
    with_moments
        Whether the likelihood knows its moments (a user's bare log_prob does not).
    """

    name: str
    make: Callable[[], Likelihood]
    output_shape: tuple[int, ...]
    targets: Callable[[Generator, int], Tensor]
    curvature: Callable[[Likelihood, Tensor, Tensor], Tensor] | None = None
    extremes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    scale: float = 1.0
    missing: bool = False
    with_moments: bool = True

    @property
    def num_outputs(self) -> int:
        """C."""
        return max(1, torch.Size(self.output_shape).numel())

    def build(self, num_data: int = 6, seed: int = 0) -> tuple[Likelihood, Tensor, Tensor]:
        """The likelihood, checked random targets and random latent outputs (n x C), float64."""
        generator = torch.Generator().manual_seed(seed)
        likelihood = self.make()
        targets = self.targets(generator, num_data)
        y = likelihood.check_targets(targets, self.output_shape, torch.float64)
        shape = (num_data, self.num_outputs)
        return likelihood, y, self.scale * torch.randn(*shape, generator=generator).double()

    def reference(self, likelihood: Likelihood, y: Tensor, f: Tensor) -> Tensor:
        """Λ at f, (n x C x C)."""
        if self.curvature is not None:
            return self.curvature(likelihood, y, f)
        return -torch.func.vmap(torch.func.hessian(log_prob_of(likelihood), 1))(y, f)

    def __str__(self) -> str:
        return self.name


def log_prob_of(likelihood: Likelihood) -> Callable[[Tensor, Tensor], Tensor]:
    """log p(y_n | f_n) of a single datum, for torch.func."""

    def log_prob(y: Tensor, f: Tensor) -> Tensor:
        return likelihood.log_prob(y.unsqueeze(0), f.unsqueeze(0)).squeeze(0)

    return log_prob

"""A likelihood, a prior, a layer rule and an inference method of one's own: one class, one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lingp
from lingp.inference import InferenceMethod, Options, Posterior, stored_as
from lingp.inference.weight_space import weighted_ggn
from lingp.likelihoods import ElementwiseLikelihood, flatten_targets, named
from lingp.linearization import Outer
from lingp.priors import Isotropic
from lingp.runtime.described import described, start
from lingp.runtime.plain import own, storable


@named("toy_logistic")
@described(scale=start("scale"))
class Logistic(ElementwiseLikelihood):
    """y = f + s ε with standard logistic ε; with t = tanh((y - f) / 2s)

    log p = -log 4s + log(1 - t²),   r = t / s,   Λ = (1 - t²) / (2 s²)
    """

    cdf_support = "reals"

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.register_positive("scale", scale)

    def check_targets(self, y, output_shape, dtype):
        return flatten_targets(y, output_shape, dtype, allow_missing=True)

    def _unit(self, y, f):
        s = self.positive("scale").to(f)
        return s, (y - f) / s

    def log_prob_each(self, y, f):
        s, u = self._unit(y, f)
        return -s.log() - u.abs() - 2 * torch.log1p((-u.abs()).exp())

    def residual_each(self, y, f):
        s, u = self._unit(y, f)
        return torch.tanh(u / 2) / s

    def root_each(self, y, f):
        s, u = self._unit(y, f)
        return 1 / (math.sqrt(2) * s * torch.cosh(u / 2))

    def conditional_mean(self, f):
        return f

    def conditional_variance(self, f):
        return (math.pi * self.positive("scale").to(f)).square() / 3 * torch.ones_like(f)

    def cdf_each(self, y, f):
        return torch.sigmoid(self._unit(y, f)[1])

    def sample(self, f, *, generator=None):
        u = torch.rand(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + self.positive("scale").to(f) * (u.log() - (-u).log1p())


@described()
class TighterBiases(Isotropic):
    """Biases have a tenth of the variance."""

    isotropic = False

    def variances(self):
        share = [1.0 if len(shape) > 1 else 0.1 for shape in self.shapes]
        return self.precision.new_tensor(share) / self.precision


class LowRank(nn.Module):
    """h = U V x + b."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(outputs, rank) / rank**0.5)
        self.v = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.einsum("ni,ri,or->no", x, self.v, self.u) + self.b


@lingp.register_rule(LowRank)
def low_rank_rule(module, x, g):
    x, g = x.unsqueeze(1), g.unsqueeze(2)
    return {"u": Outer(x @ module.v.T, g, bias="b"), "v": Outer(x, g @ module.u)}


class DiagonalPosterior(Posterior):
    """Cov e = (I + diag Φᵀ Φ)⁻¹."""

    def __init__(self, training, prior, root, diagonal: Tensor | None = None) -> None:
        super().__init__(training, prior, root)
        if diagonal is None:
            diagonal = self.scale.square() * weighted_ggn(training, root).diagonal()
        self.diagonal = diagonal

    def log_determinant(self):
        return self.diagonal.log1p().sum()

    def solve(self, z):
        return self.whitened_t_product(z.unsqueeze(-1)).squeeze(-1) / (1 + self.diagonal)

    def precision_solve(self, b):
        return b / (1 + self.diagonal).unsqueeze(-1)

    def _half(self, factors):
        return factors.jacobian() * self.scale / (1 + self.diagonal).sqrt()

    @torch.no_grad()
    def covariance(self, factors):
        half = self._half(factors).flatten(0, 1)
        return half @ half.mT

    @torch.no_grad()
    def marginal_covariance(self, factors):
        half = self._half(factors)
        return half @ half.mT

    @torch.no_grad()
    def sample(self, num_samples, generator=None):
        normal = self._standard_normal(len(self.scale), num_samples, generator=generator)
        return normal / (1 + self.diagonal).sqrt().unsqueeze(-1)

    def bytes_per_row(self):
        return 8 * self.training.num_outputs * len(self.scale)

    def state(self):
        return {"diagonal": own(self.diagonal)}


@stored_as("toy diagonal")
class BoundDiagonal(InferenceMethod):
    title = "diagonal"

    def __call__(self, training, prior, root):
        return DiagonalPosterior(training, prior, root)

    def to_plain(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_plain(cls, plain, training):
        return cls()

    def restored(self, state, training, prior, root):
        return DiagonalPosterior(training, prior, root, state["diagonal"])


@storable
@dataclass(frozen=True)
class ToyDiagonal(Options):
    def bind(self, training, prior, memory):
        return BoundDiagonal()


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def low_rank_net() -> nn.Module:
    return nn.Sequential(LowRank(1, 8, 2), nn.Tanh(), nn.Linear(8, 1))


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]] = {
    "likelihood": (plain_net, lambda: {"likelihood": "toy_logistic"}),
    "prior": (plain_net, lambda: {"prior": TighterBiases(2.0)}),
    "rule": (low_rank_net, dict),
    "method": (plain_net, lambda: {"inference": ToyDiagonal()}),
    "all": (
        low_rank_net,
        lambda: {
            "likelihood": Logistic(0.2),
            "prior": TighterBiases(2.0),
            "inference": ToyDiagonal(),
        },
    ),
}

"""A likelihood, a prior, a layer rule and an inference method of one's own: one class, one line.

Each goes the whole way: fit, evidence, hyperparameters, predictions, draws, a file and back,
metrics, plots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, nn

import lingp
from lingp import metrics, plots
from lingp.inference import InferenceMethod, Options, Posterior, WeightSpace, stored_as
from lingp.inference.weight_space import weighted_ggn
from lingp.likelihoods import ElementwiseLikelihood, flatten_targets, named
from lingp.linearization import Outer, check_rule
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


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "likelihood": (plain_net, {"likelihood": "toy_logistic"}),
    "prior": (plain_net, {"prior": TighterBiases(2.0)}),
    "rule": (low_rank_net, {}),
    "method": (plain_net, {"inference": ToyDiagonal()}),
    "all": (
        low_rank_net,
        {
            "likelihood": Logistic(0.2),
            "prior": TighterBiases(2.0),
            "inference": ToyDiagonal(),
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_the_whole_way(kind, tmp_path):
    make, options = KINDS[kind]
    torch.manual_seed(0)
    net = make()
    x = torch.linspace(-2, 2, 30, dtype=torch.float64).unsqueeze(1)
    y = x.sin() + 0.1 * torch.randn(30, 1, dtype=torch.float64)
    gp = lingp.LinearizedGP(net, **options).fit(x, y, progress=False)
    before = gp.evidence().value
    gp.optimize_hyperparameters()
    assert gp.evidence().value >= before
    assert 0 < float(gp.laplace.posterior().effective_parameters()) < gp.linearized.num_parameters
    prediction = gp.predict(x, progress=False)
    assert torch.isfinite(prediction.log_prob(y)).all()
    low, high = prediction.interval(0.9)
    assert bool((low < high).all())
    draws = gp.sample(x, 4000, generator=torch.Generator().manual_seed(1))
    spread = draws.var(0) / gp.posterior(x).variance.view_as(draws[0])
    assert float((spread - 1).abs().max()) < 5 * math.sqrt(2 / 4000)  # of a sample variance
    assert metrics.nll(prediction, y) == pytest.approx(-float(prediction.log_prob(y).mean()))
    plots.bands(gp)
    plt.close("all")
    gp.add_data(x[:3] + 0.05, y[:3])
    assert gp.laplace.training.num_data == 33

    gp.save(tmp_path / "gp.pt")
    back = lingp.LinearizedGP.load(tmp_path / "gp.pt", make())
    assert torch.equal(back.predict(x).variance, gp.predict(x).variance)
    assert torch.equal(back.predict(x).mean, gp.predict(x).mean)
    again = back.evidence().value
    assert again == pytest.approx(gp.evidence().value, rel=1e-12)


def test_the_rule_gives_the_jacobian_of_autograd():
    errors = check_rule(LowRank(3, 8, 2).double(), torch.randn(5, 3, dtype=torch.float64))
    assert max(errors.values()) < 1e-12


def test_the_diagonal_is_that_of_the_exact_precision():
    torch.manual_seed(0)
    x = torch.randn(20, 1, dtype=torch.float64)
    gp = lingp.LinearizedGP(plain_net(), inference=ToyDiagonal()).fit(x, x, progress=False)
    laplace = gp.laplace
    exact = WeightSpace(laplace.training, laplace.prior, laplace.curvature_root())
    factor = exact.factorization.factor
    torch.testing.assert_close(
        laplace.posterior().diagonal + 1, (factor @ factor.mT).diagonal(), rtol=1e-12, atol=0
    )


def test_the_logistic_density_has_the_derivatives_it_says():
    likelihood = Logistic(0.3)
    f = torch.linspace(-2, 2, 8, dtype=torch.float64).unsqueeze(1).requires_grad_()
    y = torch.zeros_like(f)
    log_prob = likelihood.log_prob(y, f)
    (slope,) = torch.autograd.grad(log_prob.sum(), f, create_graph=True)
    torch.testing.assert_close(likelihood.residual(y, f), slope)
    (curvature,) = torch.autograd.grad(slope.sum(), f)
    root = likelihood.curvature_root(y, f).dense().squeeze(-1)
    torch.testing.assert_close(root.square(), -curvature)

"""A network for few data: random sine features whose scales, but not whose weights, are learned.

    f(x) = V [sin(W (x ∘ s) + b), √(H/2)],      W_ij ~ N(0, 1),  b_i ~ U(-π, π)

Units come in pairs, the second a quarter of a wave behind the first, and W fills the space evenly.
The weights V of the last layer are uncertain, from 0. What is learned are s, their prior precision
and the noise, by the evidence, which is that of a Gaussian process: the features have not seen the
data. With many units the kernel is near a squared exponential with length scales 1 / s, plus a
constant as large (Rahimi and Recht, 2007, "Random features for large-scale kernel machines").
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

UNITS = 512
_START = 2.0  # what the logarithms of length scales lie below their prior's mean
_SHORTEST = 0.1  # length scale, of a cube's side: random features fit anything with shorter ones
_LEAST_NOISE = 1e-4  # variance, of standardised outcomes
_ITERATIONS = 100


class SineAndConstant(nn.Module):
    """[sin(x), constant], (..., H) -> (..., H + 1)."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.sin(), x.new_full((*x.shape[:-1], 1), self.constant)], -1)


class Waves(nn.Module):
    """V [sin(W (x ∘ s) + b), √(H/2)].

    Parameters
    ----------
    num_inputs, num_outputs
        d and m.
    generator
        Draws the weights.
    units
        Number of sines, even.
    """

    scale: Tensor

    def __init__(
        self, num_inputs: int, num_outputs: int, generator: torch.Generator, units: int = UNITS
    ) -> None:
        super().__init__()
        if units < 2 or units % 2:
            raise ValueError(f"units: expected an even number of them, got {units}")
        place = {"dtype": torch.float64, "device": generator.device}
        # without first weights of torch's, which come from its global generator
        first = nn.utils.skip_init(nn.Linear, num_inputs, units, **place)
        last = nn.utils.skip_init(nn.Linear, units + 1, num_outputs, bias=False, **place)
        with torch.no_grad():
            first.weight.copy_(_frequencies(first.weight, generator).repeat(2, 1))
            phases = torch.empty_like(first.bias[: units // 2])
            phases.uniform_(-math.pi, math.pi, generator=generator)
            first.bias.copy_(torch.cat([phases, phases + 0.5 * math.pi]))
            last.weight.zero_()
        self.register_buffer("scale", torch.ones_like(first.weight[0].detach()))
        self.features = nn.Sequential(first, SineAndConstant(math.sqrt(units / 2)))
        self.last = last
        self.units = units

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.features(x * self.scale))
        return outputs


def _frequencies(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers that fill the space evenly, (units/2 x d): scrambled Sobol points."""
    count, dimension = len(like) // 2, like.shape[1]
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    uniform = SobolEngine(dimension, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).to(like)


@dataclass(frozen=True)
class Learned:
    """Hyperparameters of largest evidence, times their priors.

    Attributes
    ----------
    scale
        s, (d,).
    precision
        The prior precision of every uncertain weight.
    noise
        Variances, (m,).
    """

    scale: Tensor
    precision: float
    noise: Tensor


def learn_scales(net: Waves, x: Tensor, y: Tensor, known: Tensor | None) -> Learned:
    """Learn by L-BFGS from one start; the priors of length scales and noise are `SingleTaskGP`'s.

    Length scales have log l ~ N(√2 + ½ log d, 3), the noise has log σ² ~ N(-4, 1) and is at least
    1e-4.

    Parameters
    ----------
    net
        Stays as it is.
    x
        Inputs, (n x d), in a cube of side 1.
    y
        Standardised outcomes, (n x m).
    known
        Noise variances, (n x m), if they are known.

    References
    ----------
    Hvarfner, Hellsten and Nardi, 2024, "Vanilla Bayesian optimization performs great in high
    dimensions".
    """
    sines = copy.deepcopy(net.features).requires_grad_(False)
    typical = math.sqrt(2) + 0.5 * math.log(x.shape[1])  # of log l
    raw = {
        "scale": torch.full_like(x[0], _START - typical),
        "precision": x.new_tensor(math.log(net.units)),
        "noise": x.new_full((y.shape[1],), math.log(1e-2)),
    }
    if known is not None:
        del raw["noise"]
    parameters = {name: value.requires_grad_() for name, value in raw.items()}

    def noise() -> Tensor:
        return parameters["noise"].exp() + _LEAST_NOISE

    def loss() -> Tensor:
        features = sines(x * parameters["scale"].exp())
        kernel = features @ features.mT * parameters["precision"].neg().exp()
        variances = noise().expand_as(y) if known is None else known
        root = psd_safe_cholesky(kernel + torch.diag_embed(variances.mT))  # (m, n, n)
        white = torch.linalg.solve_triangular(root, y.mT.unsqueeze(-1), upper=False)
        value = 0.5 * white.square().sum() + root.diagonal(dim1=1, dim2=2).log().sum()
        lengths = -parameters["scale"]
        value = value + (((lengths - typical).square() / 6) + lengths).sum()
        if known is None:
            logarithm = noise().log()
            value = value + (0.5 * (logarithm + 4).square() + logarithm).sum()
        return value / len(y)

    closure = ForwardBackwardClosure(loss, parameters)
    bounds = {
        "scale": (-7.0, -math.log(_SHORTEST)),
        "precision": (-10.0, 20.0),
        "noise": (-14.0, 3.0),
    }
    scipy_minimize(
        closure,
        parameters,
        bounds={name: bounds[name] for name in parameters},
        options={"maxiter": _ITERATIONS},
    )
    with torch.no_grad():
        return Learned(
            parameters["scale"].exp(),
            float(parameters["precision"].exp()),
            noise() if known is None else y.new_zeros(0),
        )

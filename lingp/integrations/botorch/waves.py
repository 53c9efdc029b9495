"""A network for few data: random sine features whose scales, but not whose weights, are learned.

    f(x) = v sin(W (x ∘ s) + b) + c,      W_ij ~ N(0, 1),  b_i ~ U(-π, π),  v small

Units come in pairs, the second a quarter of a wave behind the first, and W fills the space evenly.
Every weight is uncertain; what is learned are s, the prior precision and the noise, by the
evidence, which is that of a Gaussian process here: the features have not seen the data. With many
units the kernel is near a squared exponential with length scales 1 / s (Rahimi and Recht, 2007,
"Random features for large-scale kernel machines").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from lingp.linearization import LinearizedNetwork
from lingp.operators import gram

UNITS = 512
_OUTPUT = 0.01  # of v, so that its share of the kernel, which grows with |x|, is small
_START = 2.0  # what the logarithms of length scales lie below their prior's mean
_SHORTEST = 0.1  # length scale, of a cube's side: random features fit anything with shorter ones
_LEAST_NOISE = 1e-4  # variance, of standardised outcomes
_ITERATIONS = 100


class Sine(nn.Module):
    """sin(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Waves(nn.Module):
    """v sin(W (x ∘ s) + b) + c.

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
        last = nn.utils.skip_init(nn.Linear, units, num_outputs, **place)
        with torch.no_grad():
            first.weight.copy_(_frequencies(first.weight, generator).repeat(2, 1))
            phases = torch.empty_like(first.bias[: units // 2])
            phases.uniform_(-math.pi, math.pi, generator=generator)
            first.bias.copy_(torch.cat([phases, phases + 0.5 * math.pi]))
            last.weight.normal_(0, _OUTPUT / math.sqrt(units), generator=generator)
            last.bias.zero_()
        self.register_buffer("scale", torch.ones_like(first.weight[0].detach()))
        self.unscaled = nn.Sequential(first, Sine(), last)
        self.units = units

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.unscaled(x * self.scale)
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
        Of every weight.
    noise
        Variances, (m,).
    """

    scale: Tensor
    precision: float
    noise: Tensor


def learn_scales(net: Waves, x: Tensor, y: Tensor, known: Tensor | None) -> Learned:
    """By L-BFGS from one start; the priors of length scales and noise are `SingleTaskGP`'s.

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
    linearized = LinearizedNetwork(net.unscaled)
    weights = linearized.weights().unsqueeze(-1)
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
        outputs, factors = linearized.factors(x * parameters["scale"].exp())
        kernel = gram(factors) * parameters["precision"].neg().exp()
        prior_mean = outputs - factors.matmul(weights).squeeze(-1)
        variances = noise().expand_as(y) if known is None else known
        root = psd_safe_cholesky(kernel + torch.diag(variances.flatten()))
        residual = (y - prior_mean).reshape(-1, 1)
        white = torch.linalg.solve_triangular(root, residual, upper=False)
        value = 0.5 * white.square().sum() + root.diagonal().log().sum()
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

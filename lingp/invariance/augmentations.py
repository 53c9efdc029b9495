"""Differentiable augmentations of inputs, and networks that average over them.

    f̂(x) = 1/S Σ_s f(T(x, η, ε_s)),      ε_s uniform in [-1, 1]^K

(van der Wilk, Bauer, John and Hensman, 2018, "Learning invariances using the marginal likelihood";
Benton, Finzi, Izmailov and Wilson, 2020, "Learning invariances in neural networks from training
data", for the generators of affine maps). f̂ is differentiable in η, the size of the augmentation,
because the noise ε is of a fixed distribution.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Augmentation(nn.Module, ABC):
    """T(x, η, ε): a random change of inputs, with η its parameters.

    To write one: `num_noises`, a `forward` that is differentiable in the parameters, and
    parameters that may take any real value, as the logarithm of a size.
    """

    num_noises: int
    """K, how many numbers make one draw; 0 where nothing is random."""

    @abstractmethod
    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """Change each row of x (M x ...) by its row of the noise (M x K), uniform in [-1, 1]."""

    def values(self) -> dict[str, Tensor]:
        """Parameters in the units of their meaning, detached; for records and printing."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def extra_repr(self) -> str:
        values = self.values().items()
        return ", ".join(f"{n}={float(v):.4g}" for n, v in values if v.dim() == 0)


class RandomRotation(Augmentation):
    """Rotation of images (M x channels x height x width) by an angle uniform in ± max_angle.

    Bilinear interpolation, zero outside the image.

    Parameters
    ----------
    max_angle
        Where the search starts, in degrees, positive.
    learnable
        Whether `log_max_angle` is learned.
    """

    num_noises = 1

    def __init__(self, max_angle: float = 5.0, *, learnable: bool = True) -> None:
        super().__init__()
        log_angle = _logs("max_angle", math.radians(max_angle), 1)[0]
        self.log_max_angle = nn.Parameter(log_angle, requires_grad=learnable)

    @property
    def max_angle(self) -> float:
        """The angle in degrees."""
        return math.degrees(float(self.log_max_angle.detach().double().exp()))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        angle = self.log_max_angle.exp() * noise[:, 0]
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        matrix = torch.stack([cos, -sin, zero, sin, cos, zero], -1)
        return _resample(x, matrix.unflatten(-1, (2, 3)))

    def values(self) -> dict[str, Tensor]:
        return {"max_angle": self.log_max_angle.detach().exp().rad2deg()}


class RandomAffine(Augmentation):
    """Affine maps of images, exp(Σ_k η_k ε_k G_k) with the six generators of the plane.

    Parameters
    ----------
    ranges
        η: the largest translation in x and in y (1 is half the image), rotation (radians),
        logarithm of the scale in x and in y, and shear; one number for all, or six.
    learnable
        Whether `log_ranges` are learned.
    """

    num_noises = 6
    names = ("translate_x", "translate_y", "rotation", "scale_x", "scale_y", "shear")

    def __init__(self, ranges: float | Sequence[float] = 0.05, *, learnable: bool = True) -> None:
        super().__init__()
        self.log_ranges = nn.Parameter(_logs("ranges", ranges, 6), requires_grad=learnable)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        tx, ty, turn, sx, sy, shear = (self.log_ranges.exp() * noise).unbind(-1)
        zero = torch.zeros_like(tx)
        rows = [sx, shear - turn, tx, shear + turn, sy, ty, zero, zero, zero]
        generator = torch.stack(rows, -1).unflatten(-1, (3, 3))
        return _resample(x, torch.matrix_exp(generator)[:, :2])

    def values(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.log_ranges.detach().exp().unbind(), strict=True))


class InputScale(Augmentation):
    """x · exp(s), one scale per input (automatic relevance determination); nothing is random.

    With the prior of the weights fixed, an input that doesn't matter gets a small scale.

    Parameters
    ----------
    num_inputs
        D; inputs are (M x D).
    scale
        Where the search starts, one number or D.
    learnable
        Whether `log_scale` is learned.
    """

    num_noises = 0

    def __init__(
        self,
        num_inputs: int,
        scale: float | Sequence[float] | Tensor = 1.0,
        *,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(_logs("scale", scale, num_inputs), requires_grad=learnable)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        if x.shape[-1] != len(self.log_scale):
            raise ValueError(
                f"x: has {x.shape[-1]} inputs, but this InputScale is for {len(self.log_scale)}"
            )
        return x * self.log_scale.exp()

    def values(self) -> dict[str, Tensor]:
        return {"scale": self.log_scale.detach().exp()}


class Composed(Augmentation):
    """One augmentation after the other, each with noise of its own."""

    def __init__(self, *augmentations: Augmentation) -> None:
        super().__init__()
        self.augmentations = nn.ModuleList(augmentations)
        self.num_noises = sum(part.num_noises for part in augmentations)

    def _parts(self) -> list[Augmentation]:
        return [part for part in self.augmentations if isinstance(part, Augmentation)]

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        parts = self._parts()
        sizes = [part.num_noises for part in parts]
        for part, own in zip(parts, noise.split(sizes, -1), strict=True):
            x = part(x, own)
        return x

    def values(self) -> dict[str, Tensor]:
        return {
            f"{i}.{name}": value
            for i, part in enumerate(self._parts())
            for name, value in part.values().items()
        }


class Augmented(nn.Module):
    """A network averaged over augmentations of its input, f̂(x) = 1/S Σ_s f(T(x, η, ε_s)).

    A network like any other: `LinearizedGP(Augmented(net, ...))` has the averages of f and J. Only
    the weights of `net` require grad, so that they alone are trained and uncertain; what the
    augmentation has to learn is in `learnable` and moves by `InputLearner`.

    In evaluation the noise is a fixed, even set of S points, so that outputs are repeatable. In
    training mode it is shifted, differently for each row and each call, by a sequence that fills
    the range; the sequence's place is part of the state dict. No random numbers are drawn.

    Parameters
    ----------
    net
        Takes one tensor, examples first, and gives (N, C) or (N,).
    augmentation
        Changes a row of inputs into one that `net` takes; of its parameters those that require grad
        are learned.
    num_samples
        S.

    Attributes
    ----------
    learnable
        Names of the parameters of `augmentation` that are learned.
    """

    count: Tensor

    def __init__(self, net: nn.Module, augmentation: Augmentation, num_samples: int = 16) -> None:
        super().__init__()
        if not isinstance(augmentation, Augmentation):
            raise TypeError(
                f"augmentation: got {type(augmentation).__name__}; expected an Augmentation"
            )
        if num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
        self.augmentation = augmentation
        self.net = net
        self.num_samples = num_samples if augmentation.num_noises else 1
        self.learnable = tuple(n for n, p in augmentation.named_parameters() if p.requires_grad)
        augmentation.requires_grad_(False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        return averaged(self.net, self.augment(x))

    def augment(self, x: Tensor) -> Tensor:
        """The S augmented inputs of every row, (N x S x ...)."""
        rows, samples = len(x), self.num_samples
        noise = self.noise(rows, x)
        repeated = x.repeat_interleave(samples, 0)
        return self.augmentation(repeated, noise.flatten(0, 1)).unflatten(0, (rows, samples))

    def noise(self, rows: int, like: Tensor) -> Tensor:
        """ε, (N x S x K) in [-1, 1]: evenly spread over S, shifted in training mode."""
        size, samples = self.augmentation.num_noises, self.num_samples
        if size == 0:
            return like.new_zeros(rows, samples, 0)
        # in float64, whatever the network's dtype is: the sequence's place may be large
        shift = torch.full((rows, 1, size), 0.5, dtype=torch.float64, device=like.device)
        if self.training:
            place = self.count + torch.arange(rows, device=like.device)
            shift = shift + place[:, None, None] * _golden(size).to(like.device)
            self.count += rows
        s = torch.arange(samples, device=like.device).unsqueeze(-1)
        strata = (s + shift[..., :1].frac()) / samples  # the first noise evenly, (N, S, 1)
        others = (shift[..., 1:] + s * _golden(size - 1).to(like.device)).frac()
        return (2 * torch.cat([strata, others], -1) - 1).expand(rows, -1, -1).to(like.dtype)

    def values(self) -> dict[str, Tensor]:
        """Parameters of the augmentation, in the units of their meaning."""
        return self.augmentation.values()


class Averaged(nn.Module):
    """The mean of a network's outputs over the second axis of its inputs (N x S x ...)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return averaged(self.net, x)


def averaged(net: nn.Module, x: Tensor) -> Tensor:
    """Mean of `net` over the second axis of x (N x S x ...), (N x C)."""
    f: Tensor = net(x.flatten(0, 1))
    return f.unflatten(0, x.shape[:2]).mean(1)


def _golden(size: int) -> Tensor:
    """Steps of the sequence that fills [0, 1)^K most evenly, powers of 1/φ, φ^{K+1} = φ + 1."""
    phi = 2.0
    for _ in range(60):
        phi = (1 + phi) ** (1 / (size + 1))
    return torch.tensor([phi ** -(k + 1) for k in range(size)], dtype=torch.float64)


def _resample(x: Tensor, matrix: Tensor) -> Tensor:
    """Images at coordinates changed by (M x 2 x 3) matrices, bilinearly."""
    if x.dim() != 4:
        raise ValueError(
            f"x: expected images, (rows, channels, height, width), got shape {tuple(x.shape)}"
        )
    height, width = x.shape[-2:]
    if height != width:  # grids are in units of half an image, rotations in pixels
        ratio = matrix.new_tensor([[1.0, height / width, 1.0], [width / height, 1.0, 1.0]])
        matrix = matrix * ratio
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _logs(name: str, value: float | Sequence[float] | Tensor, size: int) -> Tensor:
    """The logarithms of positive numbers, (size,), from so many or from one."""
    given = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach()
    if given.dim() > 1 or given.numel() not in (1, size):
        number = "six" if size == 6 else size
        raise ValueError(f"{name}: expected one number or {number}, got shape {tuple(given.shape)}")
    if not bool((torch.isfinite(given) & (given > 0)).all()):
        raise ValueError(f"{name}: expected finite positive numbers, got {given.tolist()}")
    return given.log().expand(size).clone()

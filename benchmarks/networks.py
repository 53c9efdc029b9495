"""The networks of the benchmarks, in PyTorch; `contenders/networks_jax.py` has them in JAX.

`build(architecture)` makes one from a short description, for example
``{"kind": "mlp", "sizes": [64, 256, 10]}``; `weights` and `load_weights` carry the weights between
processes as arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}


def mlp(sizes: list[int], activation: str = "gelu") -> nn.Module:
    """Linear layers with an activation between them.

    Smooth by default: a ReLU unit within rounding of zero is on for one contender and off for
    another, and that would be the largest error in float32.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def lenet(outputs: int = 10) -> nn.Module:
    """LeNet-5 for 1 x 28 x 28 images, with tanh and average pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, outputs),
    )


def batchnorm_cnn(outputs: int = 10) -> nn.Module:
    """Two 3 x 3 convolutions with BatchNorm, for 1 x 8 x 8 images: 6,379 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 19),
        nn.ReLU(),
        nn.Linear(19, outputs),
    )


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and a shortcut (1 x 1 where shapes change)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-8 for 3 x 32 x 32 images: stem, three residual blocks, mean over pixels, head."""

    def __init__(
        self, widths: Sequence[int] = (16, 32, 64), outputs: int = 10, channels: int = 3
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        before = (widths[0], *widths[:-1])
        self.blocks = nn.Sequential(
            *(
                ResidualBlock(inputs, width, stride=1 if index == 0 else 2)
                for index, (inputs, width) in enumerate(zip(before, widths, strict=True))
            )
        )
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(h.mean(dim=(-2, -1)))


class Transformer(nn.Module):
    """`nn.TransformerEncoder` over (N x length x width), mean over positions, a linear head."""

    def __init__(
        self, width: int = 64, heads: int = 4, hidden: int = 256, outputs: int = 10
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))


class RowTransformer(nn.Module):
    """A `Transformer` whose tokens are the rows of 1 x length x features images."""

    def __init__(
        self, length: int = 8, features: int = 8, width: int = 16, outputs: int = 10
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(features, width)
        self.positions = nn.Parameter(0.1 * torch.randn(length, width))
        self.transformer = Transformer(width, heads=2, hidden=2 * width, outputs=outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer(self.embedding(x.squeeze(1)) + self.positions)


def build(architecture: Mapping[str, Any]) -> nn.Module:
    """The network a description names, in evaluation mode."""
    makers = {
        "mlp": mlp,
        "lenet": lenet,
        "batchnorm_cnn": batchnorm_cnn,
        "resnet": ResNet,
        "transformer": Transformer,
        "row_transformer": RowTransformer,
    }
    options = dict(architecture)
    network = makers[options.pop("kind")](**options)
    return network.eval()


def randomise_statistics(network: nn.Module) -> None:
    """Give BatchNorm running statistics a trained network would have, rather than 0 and 1."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)


def weights(network: nn.Module) -> dict[str, np.ndarray]:
    """Weights and statistics as arrays, names prefixed with ``net.``."""
    return {
        f"net.{name}": value.numpy()
        for name, value in network.state_dict().items()
        if value.is_floating_point()
    }


def load_weights(
    network: nn.Module, data: Mapping[str, np.ndarray], dtype: torch.dtype
) -> nn.Module:
    """The inverse of `weights`, in place; the network is cast to `dtype`."""
    state = {
        name.removeprefix("net."): torch.from_numpy(value)
        for name, value in data.items()
        if name.startswith("net.")
    }
    network.to(dtype)  # first: weights in float64 would be rounded by a network in float32
    missing, unexpected = network.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise ValueError(f"weights do not fit: {missing} missing, {unexpected} unexpected")
    return network

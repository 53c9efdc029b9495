"""The networks of `networks.py` as functions ``f(params, x)`` in plain JAX, on the same weights.

`params` is a dict from PyTorch's parameter names to arrays; BatchNorm statistics are constants in
`statistics`, because they are not differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Arrays = dict[str, Any]


def _linear(params: Arrays, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def _conv(params: Arrays, name: str, x: Any, stride: int = 1, padding: int = 0) -> Any:
    y = lax.conv_general_dilated(
        x,
        params[f"{name}.weight"],
        window_strides=(stride, stride),
        padding=[(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    bias = params.get(f"{name}.bias")
    return y if bias is None else y + bias[None, :, None, None]


def _average_pool(x: Any) -> Any:
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))


def _batch_norm(params: Arrays, statistics: Arrays, name: str, x: Any) -> Any:
    def per_channel(value: Any) -> Any:
        return value[None, :, None, None]

    scale = 1 / jnp.sqrt(per_channel(statistics[f"{name}.running_var"]) + 1e-5)
    normal = (x - per_channel(statistics[f"{name}.running_mean"])) * scale
    return normal * per_channel(params[f"{name}.weight"]) + per_channel(params[f"{name}.bias"])


def _layer_norm(params: Arrays, name: str, x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    normal = centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"]


def _mlp(params: Arrays, statistics: Arrays, x: Any, sizes: list[int]) -> Any:
    for layer in range(len(sizes) - 2):
        x = jax.nn.gelu(_linear(params, str(2 * layer), x), approximate=False)
    return _linear(params, str(2 * (len(sizes) - 2)), x)


def _lenet(params: Arrays, statistics: Arrays, x: Any, outputs: int = 10) -> Any:
    x = _average_pool(jnp.tanh(_conv(params, "0", x, padding=2)))
    x = _average_pool(jnp.tanh(_conv(params, "3", x)))
    x = x.reshape(x.shape[0], -1)
    x = jnp.tanh(_linear(params, "7", x))
    x = jnp.tanh(_linear(params, "9", x))
    return _linear(params, "11", x)


def _resnet(params: Arrays, statistics: Arrays, x: Any) -> Any:
    x = jax.nn.relu(_batch_norm(params, statistics, "norm", _conv(params, "stem", x, padding=1)))
    for index in range(3):
        block = f"blocks.{index}"
        stride = 1 if index == 0 else 2
        h = _conv(params, f"{block}.conv1", x, stride, padding=1)
        h = jax.nn.relu(_batch_norm(params, statistics, f"{block}.norm1", h))
        h = _conv(params, f"{block}.conv2", h, padding=1)
        h = _batch_norm(params, statistics, f"{block}.norm2", h)
        changes = f"{block}.shortcut.weight" in params
        x = jax.nn.relu(h + (_conv(params, f"{block}.shortcut", x, stride) if changes else x))
    return _linear(params, "head", x.mean(axis=(-2, -1)))


def _attention(params: Arrays, name: str, x: Any, heads: int) -> Any:
    n, length, width = x.shape
    joint = x @ params[f"{name}.in_proj_weight"].T + params[f"{name}.in_proj_bias"]
    joint = joint.reshape(n, length, 3, heads, width // heads)
    query, key, value = joint[:, :, 0], joint[:, :, 1], joint[:, :, 2]
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / jnp.sqrt(width // heads)
    mixed = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores, axis=-1), value)
    return _linear(params, f"{name}.out_proj", mixed.reshape(n, length, width))


def _transformer(params: Arrays, statistics: Arrays, x: Any, heads: int = 4) -> Any:
    for index in range(2):
        layer = f"encoder.layers.{index}"
        attended = _attention(params, f"{layer}.self_attn", x, heads)
        x = _layer_norm(params, f"{layer}.norm1", x + attended)
        hidden = jax.nn.relu(_linear(params, f"{layer}.linear1", x))
        x = _layer_norm(params, f"{layer}.norm2", x + _linear(params, f"{layer}.linear2", hidden))
    return _linear(params, "head", x.mean(axis=1))


def build(
    architecture: Mapping[str, Any], data: Mapping[str, Any], dtype: str
) -> tuple[Callable[[Arrays, Any], Any], Arrays]:
    """The function ``f(params, x)`` a description names, and its parameters.

    Parameters
    ----------
    architecture : mapping
        As in `networks.build`.
    data : mapping
        The arrays of `networks.weights`.
    dtype : str
        ``"float32"`` or ``"float64"``.
    """
    arrays = {
        name.removeprefix("net."): jnp.asarray(value, dtype)
        for name, value in data.items()
        if name.startswith("net.")
    }
    params = {name: value for name, value in arrays.items() if ".running_" not in name}
    statistics = {name: value for name, value in arrays.items() if name not in params}
    makers = {"mlp": _mlp, "lenet": _lenet, "resnet": _resnet, "transformer": _transformer}
    options = dict(architecture)
    apply = makers[options.pop("kind")]

    def function(params: Arrays, x: Any) -> Any:
        return apply(params, statistics, x, **options)

    return function, params

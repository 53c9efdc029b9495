"""Inference on disk: what the user asked for, and inducing points as they were chosen."""

from __future__ import annotations

from typing import Any

from lingp.inference import (
    FunctionSpace,
    InferenceMethod,
    Iterative,
    Sparse,
    TrainingSet,
    WeightSpace,
)
from lingp.inference.iterative import BoundIterative
from lingp.inference.iterative.kernel_product import KernelProduct
from lingp.inference.sparse import BoundSparse
from lingp.runtime.plain import from_plain, to_plain

_EXACT: dict[str, type] = {cls.__name__: cls for cls in (WeightSpace, FunctionSpace)}


def option_to_plain(inference: Any) -> Any:
    """The option `inference` of `LinearizedGP`.

    Raises
    ------
    TypeError
        For a method of the user's own.
    """
    if isinstance(inference, type) and _EXACT.get(inference.__name__) is inference:
        return {"exact": inference.__name__}
    if isinstance(inference, (str, Sparse, Iterative)):
        return to_plain(inference)
    name = getattr(inference, "__name__", type(inference).__name__)
    raise TypeError(
        f"inference: a LinearizedGP with {name} can't be saved; these can: "
        '"weight_space", "function_space", "sparse", "iterative", "auto", Sparse(...), '
        "Iterative(...)"
    )


def option_from_plain(plain: Any) -> Any:
    """What `option_to_plain` made it from."""
    if isinstance(plain, dict) and "exact" in plain:
        return _EXACT[plain["exact"]]
    return from_plain(plain)


def method_to_plain(method: InferenceMethod) -> dict[str, Any]:
    """A method bound to its data, with what it knows of them."""
    if isinstance(method, BoundSparse):
        return {
            "kind": "sparse",
            "points": to_plain(method.points),
            "choice": to_plain(method.choice),
            "complement": method.complement,
            "keep_bytes": method.keep_bytes,
        }
    if isinstance(method, BoundIterative):
        product = method.product
        return {
            "kind": "iterative",
            "options": to_plain(method.options),
            "sparse": None if method.sparse is None else method_to_plain(method.sparse),
            "seed": method.seed,
            "memory": product.memory,
            "columnwise": product.columnwise,
            "columns": product._columns,
            "dense": to_plain(product._variances),
        }
    assert isinstance(method, type)
    return {"kind": "exact", "name": method.__name__}


def method_from_plain(plain: dict[str, Any], training: TrainingSet) -> InferenceMethod:
    """What `method_to_plain` made it from, for the same data."""
    if plain["kind"] == "sparse":
        return _sparse(plain)
    if plain["kind"] == "iterative":
        product = KernelProduct(training, plain["memory"], plain["columnwise"])
        product._columns, product._variances = plain["columns"], plain["dense"]
        sparse = None if plain["sparse"] is None else _sparse(plain["sparse"])
        return BoundIterative(from_plain(plain["options"]), sparse, product, plain["seed"])
    method: InferenceMethod = _EXACT[plain["name"]]
    return method


def _sparse(plain: dict[str, Any]) -> BoundSparse:
    return BoundSparse(
        from_plain(plain["points"]),
        plain["keep_bytes"],
        from_plain(plain["choice"]),
        plain["complement"],
    )

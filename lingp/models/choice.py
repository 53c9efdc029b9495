"""Memory that may be used, and the inference method that is chosen within it."""

from __future__ import annotations

from typing import Literal

import torch

from lingp.inference import (
    FunctionSpace,
    InferenceChoice,
    InferenceMethod,
    TrainingSet,
    WeightSpace,
    Workload,
    available_memory,
    choose_inference,
    flop_limit,
)
from lingp.likelihoods import Likelihood

Inference = Literal["auto", "weight_space", "function_space"] | InferenceMethod

_SPACES: dict[str, InferenceMethod] = {
    "weight_space": WeightSpace,
    "function_space": FunctionSpace,
}
_MEMORY_SHARE = 0.8  # of what is free, when the user names no budget
_DENSE_SHARE = 1 / 8  # of the budget, for pieces that are written out
_DENSE_LIMIT = 1 << 28  # bytes; larger pieces are no faster


def check_inference(inference: Inference) -> None:
    """Raise unless `inference` is a name or can be called."""
    if not callable(inference) and inference not in ("auto", *_SPACES):
        raise ValueError(
            f'inference: expected "auto", "weight_space", "function_space" or an inference '
            f"object, got {inference!r}"
        )


def memory_for(budget: int | None, device: torch.device) -> float:
    """Bytes that may be used: the user's budget, or a share of what is free."""
    return float(budget) if budget is not None else _MEMORY_SHARE * available_memory(device)


def dense_bytes(memory: float) -> int:
    """Bytes for pieces that are written out."""
    return int(min(_DENSE_SHARE * memory, _DENSE_LIMIT))


def choose_method(
    inference: Inference, training: TrainingSet, likelihood: Likelihood, memory: float
) -> tuple[InferenceMethod, InferenceChoice]:
    """The inference method for this training set and likelihood, and why.

    Raises
    ------
    MemoryError
        If what was asked for doesn't fit in `memory` bytes.
    """
    if not isinstance(inference, str):
        name = getattr(inference, "__name__", type(inference).__name__)
        return inference, InferenceChoice(name, f"{name} (as given)")
    with torch.no_grad():
        root = likelihood.curvature_root(training.targets[:1], training.outputs[:1])
    work = Workload(
        num_data=training.num_data,
        num_outputs=training.num_outputs,
        num_columns=root.rank,
        parameter_shapes=training.linearized.parameter_shapes,
        itemsize=training.outputs.element_size(),
        factor_bytes=training.factor_bytes,
    )
    limit = flop_limit(training.outputs.device)
    choice = choose_inference(inference, work, memory=memory, limit=limit)
    return _SPACES[choice.space], choice

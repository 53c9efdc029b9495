"""The inference method that is chosen within the memory there is."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal, get_args

import torch

from lingp.inference.automatic import InferenceChoice, Space, choose_inference, flop_limit
from lingp.inference.cost import Workload
from lingp.inference.exact import SPACES, Exact, as_method
from lingp.inference.expected_sites import TYPICAL
from lingp.inference.function_space import FunctionSpace
from lingp.inference.iterative import Iterative
from lingp.inference.laplace import Mean, Sites
from lingp.inference.mean_scale import Matched, MeanScale
from lingp.inference.protocol import InferenceMethod, Options, PosteriorMaker
from lingp.inference.sparse import Sparse
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import Likelihood
from lingp.operators import row_flops
from lingp.priors import Prior
from lingp.runtime.memory import dense_bytes
from lingp.runtime.plain import from_plain, to_plain
from lingp.runtime.speed import seconds_for

MeanScaleOption = float | Literal["auto", "matched"]

Inference = Literal["auto"] | Space | Options | InferenceMethod | PosteriorMaker

_NUM_NEWTON = 10  # posteriors on the way to a mode
_WORTH_SAYING = 2.0  # seconds


def check_inference(inference: Inference) -> None:
    """Raise unless `inference` is a name, can be bound to data or can be called."""
    names = ("auto", *get_args(Space))
    if isinstance(inference, type) and issubclass(inference, Options):
        raise ValueError(f"inference: got the class {inference.__name__}; give an object of it")
    if not (callable(inference) or isinstance(inference, Options) or inference in names):
        listed = ", ".join(f'"{name}"' for name in names)
        raise ValueError(f"inference: expected {listed} or an inference object, got {inference!r}")


def check_mean_scale(value: MeanScaleOption) -> MeanScaleOption:
    """Raise unless it is a rule or a positive number."""
    if value == "auto" or value == "matched":
        return value
    number: object = value  # whatever the user gave
    if isinstance(number, int | float) and 0 < number < math.inf:
        return float(number)
    raise ValueError(f'mean_scale: expected "auto", "matched" or a positive number, got {value!r}')


def factor_bytes(inference: Inference, memory: float) -> int:
    """Bytes for the factors of the training data: none where inference streams over the data."""
    streams = inference == "sparse" or (isinstance(inference, Options) and inference.streams)
    return 0 if streams else int(memory / 2)


def predicts(inference: Inference) -> bool:
    """Whether there will be a posterior to predict with."""
    return not isinstance(inference, Options) or inference.predicts


def randomness(inference: Inference) -> torch.Generator | None:
    """The generator that the user has given for what is drawn, if any."""
    return inference.generator if isinstance(inference, Options) else None


def option_to_plain(inference: Inference) -> Any:
    """The option `inference` of `LinearizedGP` for a file.

    Raises
    ------
    TypeError
        If the method is the user's own.
    """
    if isinstance(inference, str):
        return inference
    try:
        if isinstance(inference, Options):
            return to_plain(inference)
        return {"exact": as_method(inference).to_plain()["name"]}
    except (KeyError, TypeError):
        name = getattr(inference, "__name__", type(inference).__name__)
        raise TypeError(
            f"inference: a LinearizedGP with {name} can't be saved; these can: "
            '"weight_space", "function_space", "sparse", "iterative", "auto", Sparse(...), '
            "Iterative(...)"
        ) from None


def option_from_plain(plain: Any) -> Inference:
    """What `option_to_plain` made it from."""
    if isinstance(plain, dict) and "exact" in plain:
        return SPACES[plain["exact"]]
    found: Inference = from_plain(plain)
    return found


def choose_method(
    inference: Inference,
    training: TrainingSet,
    prior: Prior,
    likelihood: Likelihood,
    memory: float,
    *,
    mean: Mean = "network",
    sites: Sites = "mean",
) -> tuple[InferenceMethod, InferenceChoice]:
    """The inference method for this training set and likelihood, and why.

    Factors that the training set keeps are given back where the chosen method streams data and has
    no memory beside them.

    Parameters
    ----------
    inference
        A name, options or a method.
    training, prior, likelihood
        The model; `prior` is bound to the network.
    memory
        Bytes that may be used, kept factors included.
    mean, sites
        The options of `LinearizedLaplace`, which say how many posteriors will be made.

    Raises
    ------
    MemoryError
        If what was asked for doesn't fit in `memory` bytes.
    """
    if not isinstance(inference, str):
        name = getattr(inference, "__name__", type(inference).__name__)
        if isinstance(inference, Options):
            method = inference.bind(training, prior, memory - _held(training))
            return method, InferenceChoice(name, f"{name} (as given): {method}")
        return as_method(inference), InferenceChoice(name, f"{name} (as given)")
    memory = training.shards.smallest(memory)
    choice = choose_inference(
        inference,
        workload(training, likelihood, memory, mean, sites, prior.columnwise),
        memory=memory,
        limit=flop_limit(training.outputs.device) if inference == "auto" else math.inf,
        among=get_args(Space) if training.shards.alone else ("weight_space", "sparse"),
    )
    if choice.space == "function_space":
        return Exact(FunctionSpace), choice
    if choice.bytes + _held(training) > memory:
        training.release_factors()
    if choice.space == "weight_space":
        return Exact(WeightSpace), choice
    kind = Iterative if choice.space == "iterative" else Sparse
    options = kind(choice.num_inducing)
    return options.bind(training, prior, memory - _held(training)), choice


def workload(
    training: TrainingSet,
    likelihood: Likelihood,
    memory: float,
    mean: Mean,
    sites: Sites,
    columnwise: bool = False,
) -> Workload:
    """The work of inference; where data are spread over processes, that of the busiest."""
    with torch.no_grad():
        root = likelihood.curvature_root(training.targets[:1], training.outputs[:1])
        first = torch.arange(min(1, training.num_data))
        flops = row_flops(training.factors_at(first)) if len(first) else None
    quadratic = likelihood.is_quadratic
    averaged = sites == "expected" and not quadratic
    newton = mean == "refit" and not quadratic
    return Workload(
        num_data=int(training.shards.largest(training.num_data)),
        num_outputs=training.num_outputs,
        num_columns=root.rank,
        parameter_shapes=training.linearized.parameter_shapes,
        itemsize=training.outputs.element_size(),
        factor_bytes=training.shards.largest(training.factor_bytes),
        num_posteriors=TYPICAL if averaged else _NUM_NEWTON if newton else 1,
        averaged=averaged,
        chunk_bytes=dense_bytes(memory),
        columnwise=columnwise,
        row_flops=flops,
    )


def announce(choice: InferenceChoice, dtype: torch.dtype, device: torch.device) -> None:
    """Say what was chosen, and how long it takes where that is seconds, where progress bars go."""
    seconds = seconds_for(choice.flops, dtype, device)
    time = "" if seconds < _WORTH_SAYING else f"; about {seconds:.0f} s in all"
    sys.stderr.write(f"inference: {choice}{time}\n")


def announce_scale(rule: MeanScale, scale: float) -> None:
    """Say how the mean of class labels is scaled where the data have decided it."""
    if isinstance(rule, Matched):
        sys.stderr.write(
            f"class labels: mean scaled by {scale:.3g}, with which predictions are about as sure "
            "as the network where there are data\n"
        )


def _held(training: TrainingSet) -> float:
    """Memory of the factors that are kept."""
    return training.factor_bytes if training.factors_kept else 0.0

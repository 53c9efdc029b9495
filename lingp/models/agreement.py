"""What several processes must have in common before they fit together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lingp.inference import TrainingSet
from lingp.likelihoods import Likelihood
from lingp.priors import Prior
from lingp.runtime.shards import Shards, fingerprint


def check_ranks(
    shards: Shards,
    training: TrainingSet,
    prior: Prior,
    likelihood: Likelihood,
    options: Mapping[str, object],
) -> None:
    """Raise on all ranks unless they have the same network, hyperparameters and options.

    Parameters
    ----------
    shards
        The ranks; one process alone agrees with itself.
    training
        Their training data.
    prior, likelihood
        Their hyperparameters.
    options
        Others, by the name to call them in the error.

    Raises
    ------
    ValueError
        With the first thing they disagree about.
    """
    if shards.alone:
        return
    shards.check_agreement(
        {
            "the number of weights": training.num_parameters,
            "the number of outputs": training.num_outputs,
            "the shape of a target": tuple(training.targets.shape[1:]),
            "the weights of the network (fingerprint)": fingerprint(training.linearized.weights()),
            **_state("prior", prior),
            **_state("likelihood", likelihood),
            **{name: _plain(value) for name, value in options.items()},
        }
    )


def _state(name: str, module: nn.Module) -> dict[str, object]:
    """Kind, hyperparameters and buffers of a module."""
    state: dict[str, object] = {f"the {name}": type(module).__name__}
    for key, parameter in module.named_parameters():
        state[f"{name}.{key}"] = _brief(parameter)
        state[f"whether {name}.{key} requires grad"] = parameter.requires_grad
    state |= {f"{name}.{key}": _brief(buffer) for key, buffer in module.named_buffers()}
    return state


def _plain(option: object) -> object:
    """An option as values that can be compared: other objects by kind and plain attributes."""
    if option is None or isinstance(option, bool | int | float | str):
        return option
    if isinstance(option, type):
        return option.__name__
    attributes = vars(option).items() if hasattr(option, "__dict__") else ()
    plain = {k: v for k, v in attributes if v is None or isinstance(v, bool | int | float | str)}
    return f"{type(option).__name__}({plain})" if plain else type(option).__name__


def _brief(value: Tensor) -> object:
    """The values of a small tensor, the fingerprint of a large one."""
    return value.detach().tolist() if value.numel() <= 8 else fingerprint(value)

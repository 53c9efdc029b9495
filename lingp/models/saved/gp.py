"""`LinearizedGP.save` and `LinearizedGP.load`.

The file is a dict:

    kind, version, lingp    that it is ours, of which format, and who wrote it
    training_data           what of them is in the file, in words
    architecture, network   modules and shapes, to compare with; weights and buffers
    options, output_shape   what the constructor was given; the shape of one row's output
    prior, likelihood       class, options, constraints and values (`hyperparameters`)
    choice, method          the inference that was chosen, and what it keeps of the data
    posterior, shift, mode, matched
                            what predictions are made from, so that none of it is computed again
    data                    the training data (`data`), or None; then `left_out` has their sizes
                            and `evidence` what they said
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from lingp.inference import LinearizedLaplace
from lingp.inference.choice import option_from_plain, option_to_plain
from lingp.inference.evidence import evidence
from lingp.inference.exact import as_method
from lingp.inference.mean_scale import Matched
from lingp.inference.protocol import (
    method_from_plain,
    method_to_plain,
    posterior_from_plain,
    posterior_to_plain,
)
from lingp.likelihoods import FromDistribution, Likelihood
from lingp.linearization.frozen import frozen_copy
from lingp.linearization.selection import unwrapped
from lingp.models.conditioned import ConditionedNetwork
from lingp.models.fitting import FittedData
from lingp.models.saved.data import data_from_plain, data_to_plain
from lingp.models.saved.without_data import FittedDataLeftOut, LaplaceLeftOut, TrainingSetLeftOut
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, own, to_plain
from lingp.runtime.tensors import set_tensors, tensors_of
from lingp.saving import architecture, hyperparameters
from lingp.saving.file import MapLocation, PathLike, SavedFile, read, write

GP = TypeVar("GP", bound=ConditionedNetwork)
IncludeData = Literal["auto"] | bool


@torch.no_grad()
def save(gp: ConditionedNetwork, path: PathLike, include_data: IncludeData = "auto") -> SavedFile:
    """Write a fitted GP to a file; see `LinearizedGP.save`."""
    laplace = gp.laplace
    if not (isinstance(include_data, bool) or include_data == "auto"):
        raise ValueError(f'include_data: expected "auto", True or False, got {include_data!r}')
    if not gp.shards.alone:
        raise ValueError(
            "save: not available with a process_group, where each process has its own rows; save "
            "the network with torch.save, and prior.state_dict() and likelihood.state_dict()"
        )
    inference = option_to_plain(gp.inference)
    with_data = _with_data(laplace, include_data)
    posterior, shift = laplace.posterior(), laplace.weight_shift()
    mode = laplace.mode() if gp.mean == "refit" else None
    data, training = gp._data, laplace.training
    assert data is not None
    content: dict[str, Any] = {
        "architecture": architecture.describe(gp.linearized.network),
        "network": _network(gp.linearized.network),
        "options": {
            "parameters": list(gp.linearized.parameter_names),
            "inference": inference,
            "mean": gp.mean,
            "sites": gp._sites,
            "mean_scale": gp._mean_scale,
            "dtype": to_plain(gp.dtype),
            "memory_budget": gp.memory_budget,
        },
        "output_shape": list(gp.linearized.output_shape or ()),
        "prior": hyperparameters.to_record(gp.prior),
        "likelihood": hyperparameters.to_record(gp.likelihood),
        "choice": to_plain(gp.inference_choice),
        "method": method_to_plain(as_method(laplace.method)),
        "posterior": posterior_to_plain(posterior, with_root=with_data),
        "shift": to_plain(shift),
        "matched": laplace.matched() if isinstance(laplace.mean_scale, Matched) else None,
        "sureness": gp._sureness,
        "mode": None,
        "evidence": None,
        "left_out": None,
        "data": None,
    }
    if with_data:
        content["data"], content["mode"] = data_to_plain(data), to_plain(mode)
    else:
        content["left_out"] = {
            "outputs": own(training.outputs[:0]),
            "targets": own(training.targets[:0]),
            "num_data": training.num_data,
            "factor_bytes": training.factor_bytes,
            "chunk_bytes": training.chunk_bytes,
        }
        content["evidence"] = to_plain(evidence(laplace))
        if mode is not None:
            content["mode"] = to_plain(dataclasses.replace(mode, outputs=mode.outputs[:0]))
    words = _in_words(laplace, with_data)
    return SavedFile(os.fspath(path), write(path, {"training_data": words, **content}), words)


@torch.no_grad()
def load(
    cls: type[GP],
    path: PathLike,
    net: nn.Module,
    *,
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    map_location: MapLocation = None,
) -> GP:
    """Read a GP from a file; see `LinearizedGP.load`."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: got {type(net).__name__}; expected a torch.nn.Module")
    content = _of_today(read(path, map_location))
    options = {**content["options"], "dtype": from_plain(content["options"]["dtype"])}
    options["inference"] = option_from_plain(options["inference"])
    own_net = frozen_copy(unwrapped(net))
    described = architecture.describe(own_net)
    architecture.check_same(content["architecture"], described, os.fspath(path))
    values = {name: from_plain(value) for name, value in content["network"].items()}
    own_net.to(device=_device(values), dtype=options["dtype"])
    set_tensors(own_net, values)
    gp = cls(
        own_net,
        hyperparameters.build(content["likelihood"], likelihood, "likelihood"),
        prior=hyperparameters.build(content["prior"], prior, "prior"),
        **options,
    )
    gp.linearized.output_shape = torch.Size(content["output_shape"])
    hyperparameters.set_values(gp.prior, content["prior"], "prior")
    hyperparameters.set_values(gp.likelihood, content["likelihood"], "likelihood")
    gp._sureness = content["sureness"]
    if isinstance(gp.likelihood, FromDistribution):
        gp.likelihood.device = gp.linearized.device
    restore = _with_its_data if content["data"] is not None else _without_its_data
    data, laplace = restore(gp, content)
    left_out = content["data"] is None
    data.note = f"loaded {content['training_data'] if left_out else 'with its training data'}"
    gp._restore(data, laplace, from_plain(content["choice"]))
    return gp


def _of_today(content: dict[str, Any]) -> dict[str, Any]:
    """What a file of format 1, in which no mean was scaled, would be now."""
    if content["version"] > 1:
        return content
    options = {**content["options"], "mean_scale": 1.0}
    return {**content, "options": options, "matched": None, "sureness": None}


def _with_its_data(
    gp: ConditionedNetwork, content: dict[str, Any]
) -> tuple[FittedData, LinearizedLaplace]:
    plain = content["data"]
    data = FittedData(
        gp.linearized,
        gp.likelihood,
        class_weight=from_plain(plain["class_weight"]),
        missing=plain["missing"],
        memory=plain["memory"],
    )
    data_from_plain(plain, data)
    training = data.training
    method = method_from_plain(content["method"], training)
    laplace = LinearizedLaplace(
        training, gp.prior, gp.likelihood, method, gp.mean, gp.sites, gp._scale_or_rule()
    )
    posterior = posterior_from_plain(content["posterior"], training, method)
    laplace.restore(posterior, from_plain(content["mode"]), content["matched"])
    return data, laplace


def _without_its_data(
    gp: ConditionedNetwork, content: dict[str, Any]
) -> tuple[FittedData, LinearizedLaplace]:
    training = TrainingSetLeftOut(gp.linearized, **content["left_out"])
    data = FittedDataLeftOut(gp.linearized, gp.likelihood)
    data.training = training
    method = method_from_plain(content["method"], training)
    laplace = LaplaceLeftOut(
        training,
        gp.prior,
        gp.likelihood,
        method,
        gp.mean,
        gp.sites,
        gp._scale_or_rule(),
        saved_matched=content["matched"],
        saved_posterior=posterior_from_plain(content["posterior"], training, method),
        saved_shift=content["shift"],
        saved_mode=from_plain(content["mode"]),
        saved_evidence=from_plain(content["evidence"]),
    )
    return data, laplace


def _with_data(laplace: LinearizedLaplace, include_data: IncludeData) -> bool:
    """Whether the training data go into the file."""
    there = not isinstance(laplace, LaplaceLeftOut)
    method = as_method(laplace.method)
    needed = method.predicts_with_data
    if needed and include_data is False:
        raise ValueError(
            f"include_data: got False, but {method.title} inference predicts with the training "
            'data; give "auto" or True, or fit with inference="weight_space" or Sparse(...)'
        )
    if include_data is True and not there:
        raise ValueError(
            "include_data: got True, but this LinearizedGP was loaded from a file without its "
            "training data"
        )
    return needed or include_data is True


def _in_words(laplace: LinearizedLaplace, with_data: bool) -> str:
    """What of the training data is in a file."""
    count = laplace.training.num_data
    if with_data:
        return f"with all {count} rows of training data"
    kept = as_method(laplace.method).inputs_in_file()
    return f"without the {count} rows of training data{kept}"


def _network(net: nn.Module) -> dict[str, Any]:
    """All values of a network, by name."""
    try:
        return {name: to_plain(value) for name, value in tensors_of(net).items()}
    except TypeError as error:
        raise TypeError(
            f"net: its state_dict() has more than tensors, numbers, strings, lists, dicts: {error}"
        ) from error


def _device(tensors: dict[str, Any]) -> torch.device:
    """Where a network's tensors were loaded to."""
    return next(t.device for t in tensors.values() if isinstance(t, torch.Tensor))

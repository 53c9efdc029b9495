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
import functools
import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from lingp.inference import LinearizedLaplace, Mean, Sites
from lingp.inference.choice import option_from_plain, option_to_plain
from lingp.inference.evidence import evidence
from lingp.inference.exact import as_method
from lingp.inference.mean_scale import Matched, MeanScale
from lingp.inference.protocol import (
    method_from_plain,
    method_to_plain,
    posterior_from_plain,
    posterior_to_plain,
)
from lingp.likelihoods import FromDistribution, Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.linearization.frozen import frozen_copy
from lingp.linearization.selection import unwrapped
from lingp.models.fit import Fit
from lingp.models.fitting import FittedData
from lingp.models.saved.data import data_from_plain, data_to_plain
from lingp.models.saved.without_data import FittedDataLeftOut, LaplaceLeftOut, TrainingSetLeftOut
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, own, to_plain
from lingp.runtime.tensors import set_tensors, tensors_of
from lingp.saving import architecture, hyperparameters
from lingp.saving.file import MapLocation, PathLike, SavedFile, read, write

IncludeData = Literal["auto"] | bool


@torch.no_grad()
def save(
    path: PathLike,
    fit: Fit,
    options: dict[str, Any],
    *,
    sureness: float | None,
    include_data: IncludeData,
) -> SavedFile:
    """Write a fitted GP to a file; see `LinearizedGP.save`.

    Parameters
    ----------
    path
        Of the file.
    fit
        What `LinearizedGP.fit` made.
    options
        What the constructor was given, by name, besides network, prior and likelihood.
    sureness
        The factor of the matched scale that validation data chose, if any.
    include_data
        Whether the training data are in the file.
    """
    if not (isinstance(include_data, bool) or include_data == "auto"):
        raise ValueError(f'include_data: expected "auto", True or False, got {include_data!r}')
    laplace = fit.laplace
    training, linearized = laplace.training, laplace.training.linearized
    if not training.shards.alone:
        raise ValueError(
            "save: not available with a process_group, where each process has its own rows; save "
            "the network with torch.save, and prior.state_dict() and likelihood.state_dict()"
        )
    inference = option_to_plain(options["inference"])
    with_data = _with_data(laplace, include_data)
    posterior, shift = laplace.posterior(), laplace.weight_shift()
    mode = laplace.mode() if laplace.mean == "refit" else None
    content: dict[str, Any] = {
        "architecture": architecture.describe(linearized.network),
        "network": _network(linearized.network),
        "options": {**options, "inference": inference, "dtype": to_plain(options["dtype"])},
        "output_shape": list(linearized.output_shape or ()),
        "prior": hyperparameters.to_record(laplace.prior),
        "likelihood": hyperparameters.to_record(laplace.likelihood),
        "choice": to_plain(fit.choice),
        "method": method_to_plain(as_method(laplace.method)),
        "posterior": posterior_to_plain(posterior, with_root=with_data),
        "shift": to_plain(shift),
        "matched": laplace.matched() if isinstance(laplace.mean_scale, Matched) else None,
        "sureness": sureness,
        "mode": None,
        "evidence": None,
        "left_out": None,
        "data": None,
    }
    if with_data:
        content["data"], content["mode"] = data_to_plain(fit.data), to_plain(mode)
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


class SavedGP:
    """A file that was read; see `LinearizedGP.load`.

    Attributes
    ----------
    options
        What the constructor was given, by name, besides network, prior and likelihood.
    sureness
        The factor of the matched scale that validation data chose, if any.
    """

    def __init__(self, path: PathLike, map_location: MapLocation) -> None:
        content = self._content = _of_today(read(path, map_location))
        self._path = os.fspath(path)
        self.sureness: float | None = content["sureness"]
        self.options: dict[str, Any] = {
            **content["options"],
            "dtype": from_plain(content["options"]["dtype"]),
            "inference": option_from_plain(content["options"]["inference"]),
        }

    @torch.no_grad()
    def network(self, net: nn.Module) -> nn.Module:
        """A copy of a network of the same architecture, with the weights in the file."""
        own_net = frozen_copy(unwrapped(net))
        described = architecture.describe(own_net)
        architecture.check_same(self._content["architecture"], described, self._path)
        values = {name: from_plain(value) for name, value in self._content["network"].items()}
        own_net.to(device=_device(values), dtype=self.options["dtype"])
        set_tensors(own_net, values)
        return own_net

    def module(self, name: Literal["prior", "likelihood"], given: Any) -> Any:
        """Prior or likelihood without its values: as described, or a copy of what is given."""
        return hyperparameters.build(self._content[name], given, name)

    @torch.no_grad()
    def set_values(self, linearized: LinearizedNetwork, prior: Prior, model: Likelihood) -> None:
        """Give a bound prior and a likelihood the values in the file."""
        linearized.output_shape = torch.Size(self._content["output_shape"])
        hyperparameters.set_values(prior, self._content["prior"], "prior")
        hyperparameters.set_values(model, self._content["likelihood"], "likelihood")
        if isinstance(model, FromDistribution):
            model.device = linearized.device

    @torch.no_grad()
    def fitted(
        self,
        linearized: LinearizedNetwork,
        prior: Prior,
        likelihood: Likelihood,
        mean: Mean,
        sites: Sites,
        mean_scale: MeanScale,
    ) -> Fit:
        """What was fitted, with nothing computed again."""
        content = self._content
        data, laplace_of = self._data(linearized, likelihood)
        left_out = content["data"] is None
        data.note = f"loaded {content['training_data'] if left_out else 'with its training data'}"
        method = method_from_plain(content["method"], data.training)
        laplace = laplace_of(data.training, prior, likelihood, method, mean, sites, mean_scale)
        laplace.restore(
            posterior_from_plain(content["posterior"], data.training, method),
            from_plain(content["mode"]),
            matched=content["matched"],
            weight_shift=content["shift"],
        )
        return Fit(data, laplace, from_plain(content["choice"]))

    def _data(
        self, linearized: LinearizedNetwork, likelihood: Likelihood
    ) -> tuple[FittedData, Callable[..., LinearizedLaplace]]:
        """The data and what meets them, or what stands for data that aren't in the file."""
        content, plain = self._content, self._content["data"]
        if plain is None:
            left_out = FittedDataLeftOut(linearized, likelihood)
            left_out.training = TrainingSetLeftOut(linearized, **content["left_out"])
            saved = from_plain(content["evidence"])
            return left_out, functools.partial(LaplaceLeftOut, saved_evidence=saved)
        data = FittedData(
            linearized,
            likelihood,
            class_weight=from_plain(plain["class_weight"]),
            missing=plain["missing"],
            memory=plain["memory"],
        )
        data_from_plain(plain, data)
        return data, LinearizedLaplace


def _of_today(content: dict[str, Any]) -> dict[str, Any]:
    """What a file of format 1, in which no mean was scaled, would be now."""
    if content["version"] > 1:
        return content
    options = {**content["options"], "mean_scale": 1.0}
    return {**content, "options": options, "matched": None, "sureness": None}


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

"""Priors and likelihoods on disk: class, options, constraints and values.

What has functions of the user's in it (a likelihood made from a density, a subclass, a constraint's
transform, GPyTorch priors on hyperparameters) can't be written down. Of it the file has the values,
and loading takes an object to put them into.
"""

from __future__ import annotations

import copy
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor, nn

from lingp import likelihoods, priors
from lingp.runtime.described import arguments_of, class_named
from lingp.runtime.plain import own
from lingp.saving.errors import SavedFileError

# to raw values and back; without the first a constraint has no transform at all
_TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "exp": (torch.exp, torch.log),
    "softplus": (nn.Softplus(), inv_softplus),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "none": (None, None),
}
_CONSTRAINTS: dict[str, type[Interval]] = {
    cls.__name__: cls for cls in (Interval, GreaterThan, LessThan, Positive)
}

# names in files of older versions
_RENAMED = {"TemperedQuadratic": "Tempered"}


def to_record(module: gpytorch.Module) -> dict[str, Any]:
    """A prior or likelihood, with its values."""
    return {
        **_structure(module),
        "learned": {name: p.requires_grad for name, p in module.named_parameters()},
        "state": {name: own(t) for name, t in module.state_dict().items()},
        "found": {name: getattr(module, name) for name in module.found_later},
    }


def build(record: dict[str, Any], given: Any, name: str) -> Any:
    """The object of a record, for `set_values` to put the values in once it is bound.

    Parameters
    ----------
    record
        Of the file.
    given
        An object that the user gives instead, which is copied; None for none.
    name
        What to call it in errors: "prior" or "likelihood".

    Raises
    ------
    SavedFileError
        If the file can't say how it is made and none is given, or one of another class is.
    """
    if given is not None:
        got = type(given).__qualname__  # not its module: a script's has another name next time
        if got != _name_of(record):
            raise SavedFileError(
                f"{name}: the file has {_name_of(record)}, got {got}; give an object of that class"
            )
        return copy.deepcopy(given)
    if record["only_given"] is not None:
        raise SavedFileError(
            f"{name}: the file has {_name_of(record)}, {record['only_given']}; make one as before "
            f"and give it: LinearizedGP.load(path, net, {name}=...). Its hyperparameters get the "
            "values in the file"
        )
    return _made(record)


def _name_of(record: dict[str, Any]) -> str:
    """The class of a record, by the name that it has now."""
    name: str = record["class"]
    return _RENAMED.get(name, name)


def set_values(module: gpytorch.Module, record: dict[str, Any], name: str) -> None:
    """Put the values of a record in, on the device and in the dtype that they have.

    Raises
    ------
    SavedFileError
        If they are of an object with other hyperparameters.
    """
    state, here = record["state"], module.state_dict()
    theirs = {n: list(t.shape) for n, t in state.items()}
    ours = {n: list(t.shape) for n, t in here.items()}
    if theirs != ours:
        names = sorted(n for n in {*theirs, *ours} if theirs.get(n) != ours.get(n))
        differing = "; ".join(
            f"{n} is {theirs.get(n, 'missing')} in the file, {ours.get(n, 'missing')} here"
            for n in names
        )
        raise SavedFileError(
            f"{name}: has other hyperparameters than that of the file: {differing}"
        )
    learned = record["learned"]
    devices = [state[n].device for n in learned]
    if devices:
        module.to(device=devices[0])  # what isn't in the state goes along
    for found, value in record["found"].items():
        setattr(module, found, value)
    for full, value in state.items():
        path, _, leaf = full.rpartition(".")
        owner = module.get_submodule(path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(value.clone(), learned[full])
        else:
            owner._buffers[leaf] = value.clone()


def _structure(module: gpytorch.Module) -> dict[str, Any]:
    """Class, options and constraints, without values."""
    cls = type(module)
    record: dict[str, Any] = {"class": cls.__qualname__, "only_given": _only_given(module)}
    if record["only_given"] is None:
        arguments = arguments_of(cls) or {}
        record["arguments"] = {name: get(module) for name, get in arguments.items()}
        record["constraints"] = {n: _constraint(c) for n, c in module._constraints.items()}
        if isinstance(module, likelihoods.Tempered):
            record["tempered"] = _structure(module.likelihood)
        if isinstance(module, priors.Prior):
            record["mean_shape"] = list(module.mean.shape)
    return record


def _only_given(module: gpytorch.Module) -> str | None:
    """Why the file can't say how to make this object; None if it can."""
    if isinstance(module, (likelihoods.AutodiffLikelihood, likelihoods.FromDistribution)):
        return "which is made of functions"
    if arguments_of(type(module)) is None:
        return "which isn't a class of lingp's own"
    if list(module.named_priors()):
        return "with GPyTorch priors on its hyperparameters"
    for constraint in module._constraints.values():
        if type(constraint).__name__ not in _CONSTRAINTS or _transform_of(constraint) is None:
            return f"with a constraint of the user's own, {constraint}"
    if isinstance(module, likelihoods.Tempered):
        return _only_given(module.likelihood)
    return None


def _made(record: dict[str, Any]) -> Any:
    arguments = dict(record["arguments"])
    if "tempered" in record:
        arguments["likelihood"] = _made(record["tempered"])
    if "mean_shape" in record:
        arguments["mean"] = torch.zeros(record["mean_shape"], dtype=torch.float64)
    cls: Any = class_named(_name_of(record))
    module = cls(**arguments)
    for name, plain in record["constraints"].items():
        module.register_constraint(name.removesuffix("_constraint"), _constraint_from(plain))
    return module


def _constraint(constraint: Interval) -> dict[str, Any]:
    return {
        "class": type(constraint).__name__,
        "transform": _transform_of(constraint),
        "lower": own(constraint.lower_bound),
        "upper": own(constraint.upper_bound),
    }


def _constraint_from(plain: dict[str, Any]) -> Interval:
    cls = _CONSTRAINTS[plain["class"]]
    bounds: dict[type, tuple[Tensor, ...]] = {
        Interval: (plain["lower"], plain["upper"]),
        GreaterThan: (plain["lower"],),
        LessThan: (plain["upper"],),
    }
    forward, inverse = _TRANSFORMS[plain["transform"]]
    return cls(*bounds.get(cls, ()), transform=forward, inv_transform=inverse)


def _transform_of(constraint: Interval) -> str | None:
    """The name of a constraint's transform; None for one of the user's own."""
    forward, inverse = constraint._transform, constraint._inv_transform
    if forward is None:
        return "none"
    for name, (known, known_inverse) in _TRANSFORMS.items():
        # GPyTorch's softplus is a module, of which copies are made
        same = forward == known or (
            isinstance(forward, nn.Softplus) and repr(forward) == repr(known)
        )
        if same and inverse == known_inverse:
            return name
    return None

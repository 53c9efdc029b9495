"""Watch a network run, record every operation that uses a selected parameter, and find examples.

Operations are intercepted where they are called (`torch.overrides.TorchFunctionMode`), not where
modules are: `F.linear(x, self.weight)`, the projections inside attention and a parameter added with
`+` are seen like any layer.

A layer may see the examples first (N, ...), elsewhere (time, N, ...), or folded with other axes
(N·time, ...) or (time·N, ...). Shapes at two batch sizes, and values where shapes leave two
readings, tell which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lingp.linearization.rules.base import (
    FUNCTION_RULES,
    IN_PLACE,
    MODULE_RULES,
    ModuleRule,
    Operation,
    Rule,
)
from lingp.linearization.running import leaves


@dataclass(frozen=True)
class Care:
    """What a call needs because the network writes in place: copies of its output or its input."""

    copy_output: bool = True
    copy_input: bool = False


@dataclass(frozen=True)
class Record:
    """One recorded call: its operation, the names of its parameters by role, and its output `h`."""

    kind: object
    rule: Rule
    operation: Operation
    names: Mapping[str, str]
    h: Tensor
    returned: Tensor
    returned_version: int
    input_version: int

    @property
    def care(self) -> Care:
        """What to copy next time, judged after the network has run."""
        x = self.operation.input
        return Care(
            _version(self.returned) != self.returned_version,
            _version(x) != self.input_version,
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """What is the same each time the network takes the same path."""
        x = self.operation.input
        dims = (-1 if x is None else x.dim(), self.h.dim())
        return (self.kind, *dims, *self.names.values())


def _version(t: Tensor | None) -> int:
    """How often `t` has been written to in place; tensors of inference mode do not count it."""
    return 0 if t is None or t.is_inference() else t._version


def _body_of(function: Any) -> Callable[..., Any]:
    """A composite torch function without its own interception, so that its inner calls are seen.

    torch asks `has_torch_function` at the head of such a function; in this copy the answer is no.
    """
    scope = {**function.__globals__, "has_torch_function": lambda *_: False}
    code, name = function.__code__, function.__name__
    body = FunctionType(code, scope, name, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_COMPOSITES = {F.multi_head_attention_forward: _body_of(F.multi_head_attention_forward)}


class Capture(TorchFunctionMode):
    """Records calls on parameters while active.

    Parameters
    ----------
    watched : the parameters to watch, by name.
    cares : what to copy at each recorded call, in order; without it every output is copied.
    differentiable : keep the graph of inputs (for gradients of factors in x).

    Attributes
    ----------
    selected : the name of each watched parameter.
    records : calls in order.
    """

    def __init__(
        self,
        watched: Mapping[str, Tensor],
        cares: Sequence[Care] | None = None,
        differentiable: bool = False,
    ) -> None:
        super().__init__()
        self.selected = {p: name for name, p in watched.items()}
        self.cares = cares
        self.differentiable = differentiable
        self.owned: set[Tensor] = set()
        self.records: list[Record] = []

    def reaching(self, f: Tensor) -> set[str]:
        """Watched parameters that `f` depends on outside of recorded calls (which hold them)."""
        return {self.selected[t] for t in leaves(f) if t in self.selected}

    def _name(self, t: object) -> str | None:
        """The watched parameter that `t` is, or is a view of."""
        if not isinstance(t, Tensor):
            return None
        base = t if t._base is None else t._base
        return None if base in self.owned else self.selected.get(base)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _COMPOSITES:
            with self:
                return _COMPOSITES[func](*args, **kwargs)
        if func in IN_PLACE:
            return self._run_in_place(func, types, args, kwargs)
        rule = FUNCTION_RULES.get(func)
        operation = None if rule is None else rule.bind(*args, **kwargs)
        if rule is not None and operation is not None:
            found = {role: self._name(t) for role, t in operation.parameters.items()}
            names = {role: name for role, name in found.items() if name is not None}
            if names and self._name(operation.input) is None:
                # with its parameters held fixed, so that h depends on its input alone
                held = {id(operation.parameters[role]) for role in names}
                h = func(
                    *(t.detach() if id(t) in held else t for t in args),
                    **{key: t.detach() if id(t) in held else t for key, t in kwargs.items()},
                )
                return self.record(func, rule, operation, names, h)
        return func(*args, **kwargs)

    def _run_in_place(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """`x += p` as `x.copy_(x + p)`: recorded out of place, seen by all views of x."""
        target, *others = args
        if self._name(target) is not None or not any(self._name(t) for t in others):
            return func(*args, **kwargs)
        h = self.__torch_function__(IN_PLACE[func], types, (target.clone(), *others), kwargs)
        return target.copy_(h)

    def record(
        self, kind: object, rule: Rule, operation: Operation, names: Mapping[str, str], h: Tensor
    ) -> Tensor:
        """Record a call and give back the tensor with which the network goes on."""
        if not h.requires_grad:
            h = h.detach().requires_grad_()
        place = len(self.records)
        care = Care() if self.cares is None or place >= len(self.cares) else self.cares[place]
        x = operation.input
        aligned = dict(operation.aligned)
        if x is not None:
            x = x if self.differentiable else x.detach()
            x = x.clone() if care.copy_input else x
        if not self.differentiable:
            aligned = {key: t.detach() for key, t in aligned.items()}
        returned = h.clone() if care.copy_output else h
        kept = replace(operation, input=x, aligned=aligned)
        versions = _version(returned), _version(x)
        self.records.append(Record(kind, rule, kept, names, h, returned, *versions))
        return returned


@contextmanager
def module_rules(network: nn.Module, capture: Capture) -> Iterator[None]:
    """Record calls of modules whose class has a registered rule, by hooks that are then removed."""
    if not (capture.selected and MODULE_RULES):
        yield
        return

    def watched(module: nn.Module) -> dict[str, nn.Parameter]:
        return {role: p for role, p in module.named_parameters() if p in capture.selected}

    def hold(module: nn.Module, args: tuple[Any, ...]) -> None:
        for p in watched(module).values():
            p.requires_grad_(False)

    def hook_for(rule: ModuleRule) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Any, ...], out: Any) -> Tensor:
            if not (isinstance(out, Tensor) and args and isinstance(args[0], Tensor)):
                raise TypeError(
                    f"the rule for {type(module).__name__} needs a forward that takes a tensor "
                    "first and returns a tensor; unregister the rule to use the fallback"
                )
            own = dict(module.named_parameters())
            names = {role: capture.selected[p] for role, p in watched(module).items()}
            for role in names:
                own[role].requires_grad_(True)
            operation = Operation(args[0], own, {"module": module}, rule.axes)
            return capture.record(type(module), rule, operation, names, out)

        return hook

    handles = []
    remaining = [network]
    while remaining:
        module = remaining.pop()
        rule = MODULE_RULES.get(type(module))
        if rule is None:
            remaining.extend(module.children())
        else:
            capture.owned.update(module.parameters())
            handles.append(module.register_forward_pre_hook(hold))
            handles.append(module.register_forward_hook(hook_for(rule)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Layout:
    """The example axis `dim`, perhaps folded with others: N·R (`"data_major"`) or R·N."""

    dim: int
    order: Literal["plain", "data_major", "position_major"] = "plain"

    def rows_first(self, t: Tensor, num_data: int, lead: int = 0) -> Tensor:
        """Bring the example axis to the front as rows (N·R, ...), data-major.

        `lead` axes before the network's own (the outputs of a batched gradient) stay in front.
        """
        dim = self.dim + lead
        if self.order == "plain":
            return t.movedim(dim, lead)
        if self.order == "data_major":
            return t if dim == lead else t.unflatten(dim, (num_data, -1)).movedim(dim, lead)
        t = t.unflatten(dim, (-1, num_data)).transpose(dim, dim + 1)
        if dim == lead:
            return t.flatten(lead, lead + 1)
        return t.movedim(dim, lead)


def find_layouts(small: Tensor, large: Tensor, sizes: tuple[int, int]) -> tuple[Layout, ...]:
    """Layouts that explain a tensor seen at two batch sizes, one the beginning of the other.

    None for a tensor without example axis; two when its values are the same at all positions.
    """
    if small.dim() != large.dim():
        return ()
    changed = [d for d in range(small.dim()) if small.shape[d] != large.shape[d]]
    if len(changed) != 1:
        return ()
    dim, (n, m) = changed[0], sizes
    repeat, rest = divmod(small.shape[dim], n)
    if rest or large.shape[dim] != m * repeat:
        return ()
    if repeat == 1:
        return (Layout(dim),)
    found = []
    if _close(small, large.narrow(dim, 0, n * repeat)):
        found.append(Layout(dim, "data_major"))
    position_major = large.unflatten(dim, (repeat, m)).narrow(dim + 1, 0, n)
    if _close(small.unflatten(dim, (repeat, n)), position_major):
        found.append(Layout(dim, "position_major"))
    return tuple(found)


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(
        a, b, rtol=tolerance, atol=tolerance * float(a.abs().max().clamp(min=1e-30))
    )

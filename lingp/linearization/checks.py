"""Comparing a user's rule with the fallback, parameter by parameter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lingp.linearization.blocks import Slot
from lingp.linearization.fallback import Fallback
from lingp.linearization.frozen import frozen_copy
from lingp.linearization.linearise import blocks_of, merge
from lingp.linearization.rules.base import MODULE_RULES, Operation, Outer
from lingp.linearization.running import plain_autograd


def check_rule(module: nn.Module, x: Tensor, *, rtol: float = 1e-8) -> dict[str, float]:
    """Compare the rule registered for a module's class with the fallback, in float64.

    Parameters
    ----------
    module : of a class that has a rule. Give it parameters as in use: a rule may be right by
        accident where they are all zero or one.
    x : (N, ...) its input, a few different examples.
    rtol : the largest relative error allowed in the Jacobian of any parameter.

    Returns
    -------
    The relative error of each parameter that the rule covers, by name.

    Raises
    ------
    ValueError
        If no rule is registered for the module's class, or the rule speaks of parameters it does
        not have.
    AssertionError
        If the Jacobian of a parameter is off by more than `rtol`.
    """
    rule = MODULE_RULES.get(type(module))
    if rule is None:
        raise ValueError(f"module: no rule is registered for {type(module).__name__}")
    module = frozen_copy(module).double()
    with plain_autograd(x.device, False):
        x = x.detach().double() if x.is_floating_point() else x.detach()
        with torch.no_grad():
            h = module(x)
        parameters = dict(module.named_parameters())
        expected = Fallback(list(parameters))(module.requires_grad_(True), x, False)
        module.requires_grad_(False)
        identity = torch.eye(
            h[0].numel(), dtype=h.dtype, device=h.device
        )  # of the outputs in themselves
        g = identity.view(-1, 1, *h.shape[1:]).expand(-1, len(x), *h.shape[1:])
        operation = Operation(x, parameters, {"module": module}, rule.axes)
        pieces = rule.pieces(operation, x, g)
    biases = {p.bias for p in pieces.values() if isinstance(p, Outer) and p.bias}
    unknown = (set(pieces) | biases) - set(parameters)
    if unknown:
        raise ValueError(
            f"the rule for {type(module).__name__} names {sorted(unknown)}; its parameters are "
            f"{sorted(parameters)}"
        )
    errors = {}
    slots, start = {}, 0
    for i, (name, p) in enumerate(parameters.items()):
        slots[name] = Slot(i, start, start + p.numel())
        start += p.numel()
    whole = [slot.columns for slot in slots.values()]
    for block in merge(blocks_of(pieces, slots, len(x)), whole):
        for slot in block.slots:
            name = list(parameters)[slot.parameter]
            truth = expected[name].detach()
            error = (block.columns(slot).detach() - truth).norm() / truth.norm().clamp(min=1e-300)
            errors[name] = float(error)
    bad = {name: error for name, error in errors.items() if not error <= rtol}
    if bad:
        listed = ", ".join(f"{name} by {error:.1e}" for name, error in bad.items())
        raise AssertionError(
            f"the rule for {type(module).__name__} is wrong, relatively: {listed} (allowed: "
            f"{rtol:.1e})"
        )
    return errors

"""The search of `prune`: rounds of removals from one linearisation, checked by the evidence."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import num_rows
from lingp.linearization.selection import unwrapped
from lingp.models import LinearizedGP
from lingp.priors import Prior
from lingp.training.local_evidence import LocalEvidence, UnitEvidence
from lingp.training.switched import Switched, per_weight, positions, prior_of_kept
from lingp.training.units import Unit, effects, hidden_units, without

What = Literal["units", "weights"]
Order = list[tuple[int, float]]  # what goes, with the expected changes

_SHARE = 0.2  # of what is left, at most, that goes in one round
_FAILURES = 3  # in a row after which nothing more is tried
_LENGTHS = (1.0, 0.5, 0.25, 0.0)  # of the others' step


@dataclass(frozen=True)
class Removal:
    """What was taken out.

    Attributes
    ----------
    name
        `0[3]` is unit 3 of the layer called 0, `0.weight[3, 1]` a weight, in the given network.
    predicted
        Change of the log evidence that one linearisation expected, in nats.
    evidence
        Log evidence computed for the network after the round it went in.
    """

    name: str
    predicted: float
    evidence: float


@dataclass(frozen=True)
class Pruned:
    """A network without the units or weights that its evidence can do without.

    Attributes
    ----------
    net
        Smaller layers where units of chains Linear, activation, Linear went; else zeros.
    gp
        Of the pruned network, conditioned on the same data. Weights that are zero stay certain.
    what
        "units" or "weights".
    evidence_before, evidence
        Log evidence of the trained network and of the pruned one.
    predicted
        What the linearisations expected of the latter.
    weights_before, weights
        Number of weights, those that are zero not counted.
    removed
        In order.
    masks
        Which weights are left, by parameter name of the given network.
    """

    net: nn.Module
    gp: LinearizedGP
    what: What
    evidence_before: float
    evidence: float
    predicted: float
    weights_before: int
    weights: int
    removed: tuple[Removal, ...]
    masks: dict[str, Tensor]

    def __str__(self) -> str:
        return (
            f"pruned {len(self.removed)} {self.what}: {self.weights_before} -> {self.weights} "
            f"weights, log evidence {self.evidence_before:.2f} -> {self.evidence:.2f} (predicted "
            f"{self.predicted:.2f})"
        )


@dataclass(frozen=True)
class State:
    """A network of the search: weights θ, which of them are on, and its Gaussian process."""

    theta: Tensor
    on: Tensor
    gp: LinearizedGP
    evidence: float
    removed: tuple[Removal, ...]
    predicted: float


class Search:
    """Rounds of removals, each from one linearisation and checked by the evidence after it."""

    def __init__(self, gp: LinearizedGP, what: What, compensate: bool) -> None:
        self.given, self.what, self.compensate = gp, what, compensate
        self.linearized, self.batches = copy.deepcopy(gp.linearized), list(_batches(gp))
        self.units: list[Unit] = []
        self.links: dict[str, str] = {}
        if what == "units":
            self.units, self.links = hidden_units(gp.linearized)
        theta = gp.linearized.weights()
        on = torch.ones(len(theta), dtype=torch.bool, device=theta.device)
        self.before = gp.evidence().value
        self.state = State(theta, on, gp, self.before, (), 0.0)
        self.alive = list(range(len(self.units) if what == "units" else len(theta)))
        self.refused: set[int] = set()

    @property
    def number(self) -> int:
        """Of units or weights that are left."""
        return len(self.alive)

    def run(self, least: int, allowed: float, tick: Callable[[], object]) -> None:
        """Remove until `least` are left or more than `allowed` nats would be lost."""
        best, failures, size = self.before, 0, math.inf
        while self.number > least and failures < _FAILURES:
            most = int(min(size, max(1, int(_SHARE * self.number)), self.number - least))
            order, local = self._order(most, self.state.evidence - best, allowed)
            if not order:
                break
            attempt = self._attempt(order, local)
            tick()
            # rounding of what has cost nothing
            if attempt.evidence >= best - allowed - 1e-9 * abs(best):
                gone = {i for i, _ in order}
                self.alive = [i for i in self.alive if i not in gone]
                self.state, failures, size = attempt, 0, 2 * len(order)
                best = max(best, attempt.evidence)
            elif len(order) > 1:
                size = len(order) // 2
            else:
                self.refused.add(order[0][0])
                failures += 1

    def _order(self, most: int, behind: float, allowed: float) -> tuple[Order, LocalEvidence]:
        """What to take out next, from one linearisation, with the expected changes.

        At least one, whatever is expected of it; further ones while no more than `allowed` is lost
        since the largest evidence, `behind` which this network is.
        """
        laplace = self.state.gp._fitted()
        if self.what == "weights":
            weights = LocalEvidence(laplace)
            return self._weights(weights, most, behind, allowed), weights
        candidates = [i for i in self.alive if i not in self.refused]
        chosen = [self.units[i] for i in candidates]
        groups = [unit.weights.to(self.state.theta.device) for unit in chosen]
        local = UnitEvidence(
            laplace, groups, effects(laplace.training, chosen), compensate=self.compensate
        )
        order: Order = []
        peak = -behind
        while len(order) < most:
            changes = local.unit_changes()
            left = Counter(self.units[i].layer for i in self.alive)
            left.subtract(self.units[i].layer for i, _ in order)
            for j, unit in enumerate(chosen):
                if left[unit.layer] == 1:
                    changes[j] = -torch.inf
            j = int(changes.argmax())
            change = float(changes[j])
            if not math.isfinite(change) or (order and local.change + change < peak - allowed):
                break
            local.remove_unit(j)
            order.append((candidates[j], change))
            peak = max(peak, local.change)
        return order, local

    def _weights(self, local: LocalEvidence, most: int, behind: float, allowed: float) -> Order:
        """Several at once while their changes add up."""
        order: Order = []
        usable = torch.zeros_like(self.state.on)
        usable[[i for i in self.alive if i not in self.refused]] = True
        size, peak = max(1, most // 8), -behind
        while len(order) < most and bool(usable.any()):
            changes = local.single_changes().where(usable, -torch.inf)
            values, index = changes.topk(min(size, most - len(order), int(usable.sum())))
            total, expected = local.change_of(index), float(values.sum())
            too_much = local.change + total < peak - allowed
            if len(index) > 1 and (too_much or total < expected - 0.1 * len(index)):
                size = len(index) // 2
                continue
            if order and too_much:
                break
            local.remove(index)
            usable[index] = False
            share = (total - expected) / len(index)
            order += [(int(i), float(v) + share) for i, v in zip(index, values, strict=True)]
            peak = max(peak, local.change)
        return order

    def _attempt(self, order: Order, local: LocalEvidence) -> State:
        """The network without these, its other weights moved as far as that is good."""
        state = self.state
        on = state.on.clone()
        for i, _ in order:
            on[self.units[i].weights.to(on.device) if self.units else i] = False
        move = local.scale * local.movement
        lengths = _LENGTHS if self.compensate else (0.0,)
        tried = [torch.where(on, state.theta + t * move, 0.0) for t in lengths]
        theta = max(tried, key=lambda candidate: self._log_joint(candidate, on))
        set_weights(self.linearized.network, self.linearized.parameter_names, theta)
        prior = Switched(copy.deepcopy(self.given.prior), on)
        gp = _refitted(self.given, self.linearized.network, prior, self.batches)
        evidence = gp.evidence().value
        evidence = evidence if math.isfinite(evidence) else -math.inf
        removed = [Removal(self._name(i), change, evidence) for i, change in order]
        predicted = state.predicted + sum(change for _, change in order)
        return State(theta, on, gp, evidence, (*state.removed, *removed), predicted)

    @torch.no_grad()
    def _log_joint(self, theta: Tensor, on: Tensor) -> float:
        """log p(D | θ) - ½ |Σ0^{-1/2} (θ - μ0)|² of the weights that are on."""
        laplace, linearized = self.given._fitted(), self.linearized
        set_weights(linearized.network, linearized.parameter_names, theta)
        f = torch.cat([linearized(x) for x in laplace.training.inputs])
        squares = (theta - laplace.prior.mean.to(theta)).square() / per_weight(laplace.prior).to(
            theta
        )
        value = float(laplace.data_term.log_prob(f) - 0.5 * squares[on].sum())
        return value if math.isfinite(value) else -math.inf

    def _name(self, i: int) -> str:
        if self.units:
            return str(self.units[i])
        names, slices = self.linearized.parameter_names, self.linearized.parameter_slices
        ((which, at),) = positions(slices, torch.tensor([i])).items()
        place = torch.unravel_index(at, self.linearized.parameter_shapes[which])
        return f"{names[which]}[{', '.join(str(int(p)) for p in place)}]"

    def result(self, net: nn.Module | None) -> Pruned:
        """What was found, as small as it can be made."""
        state, linearized, given = self.state, self.linearized, self.given
        names = linearized.parameter_names
        set_weights(linearized.network, names, state.theta)
        if net is None:
            net = copy.deepcopy(linearized.network)
            for name, p in net.named_parameters():
                p.requires_grad_(name in names)
        made, gp = copy.deepcopy(unwrapped(net)), state.gp
        set_weights(made, names, state.theta)
        alive = set(self.alive)
        gone = [unit for i, unit in enumerate(self.units) if i not in alive]
        if self.links and gone:
            smaller = without(linearized.network, self.links, gone)
            prior = prior_of_kept(given.prior, state.on, LinearizedNetwork(smaller, names))
            gp = _refitted(given, smaller, prior, self.batches)
            made = without(made, self.links, gone)
        parts = state.on.split([shape.numel() for shape in linearized.parameter_shapes])
        shaped = [p.view(s) for p, s in zip(parts, linearized.parameter_shapes, strict=True)]
        return Pruned(
            net=made,
            gp=gp,
            what=self.what,
            evidence_before=self.before,
            evidence=gp.evidence().value,
            predicted=self.before + state.predicted,
            weights_before=len(state.on),
            weights=int(state.on.sum()),
            removed=state.removed,
            masks=dict(zip(names, shaped, strict=True)),
        )


@torch.no_grad()
def set_weights(net: nn.Module, names: Sequence[str], theta: Tensor) -> None:
    """Write flat weights into the parameters of these names."""
    chosen = [dict(net.named_parameters())[name] for name in names]
    for p, part in zip(chosen, theta.split([p.numel() for p in chosen]), strict=True):
        p.copy_(part.view_as(p))


def _refitted(
    given: LinearizedGP, network: nn.Module, prior: Prior, batches: list[tuple[Any, ...]]
) -> LinearizedGP:
    """A `LinearizedGP` with the options of another, conditioned on the same data."""
    data = given._data
    assert data is not None
    return LinearizedGP(
        network,
        copy.deepcopy(given.likelihood),
        prior=prior,
        parameters=given.linearized.parameter_names,
        inference=given.inference,
        mean=given.mean,
        sites=given._sites,
        dtype=given.dtype,
        memory_budget=given.memory_budget,
    ).fit(batches, class_weight=data.class_weight, missing=data.missing, progress=False)


def _batches(gp: LinearizedGP) -> Iterator[tuple[Any, ...]]:
    """The data as they were given."""
    data = gp._data
    assert data is not None
    targets, weights, start = torch.cat(data._given), data._sample_weights, 0
    for x in data.training.inputs:
        rows = slice(start, start + num_rows(x))
        yield (x, targets[rows]) if weights is None else (x, targets[rows], weights[rows])
        start = rows.stop

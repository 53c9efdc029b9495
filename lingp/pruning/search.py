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

from lingp.inference import Mean
from lingp.linearization import LinearizedNetwork
from lingp.linearization.inputs import num_rows
from lingp.linearization.selection import unwrapped
from lingp.models import LinearizedGP
from lingp.priors import Prior
from lingp.pruning.local_evidence import LocalEvidence
from lingp.pruning.switched import Switched, per_weight, positions, prior_of_kept
from lingp.pruning.units import Unit, hidden_units, without

What = Literal["units", "weights"]
Order = list[tuple[int, float]]  # what goes, with the expected changes

_SHARE = 0.2  # of what is left, at most, that goes in one round
_EXPLORED = 10.0  # nats below the largest evidence in which a larger one is looked for
_FAILURES = 3  # in a row after which nothing more is tried
_MOVES = 8  # of the other weights, at most
_LENGTHS = (1.0, 0.5, 0.25, 0.125)  # of a move
_ENOUGH = 0.01  # nats of a move after which the next is not worth its time


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


Path = list[tuple[State, list[int]]]  # with the numbers of what is left


class Search:
    """Rounds of removals, each from one linearisation and checked by the evidence after it."""

    def __init__(self, gp: LinearizedGP, what: What) -> None:
        self.given, self.what = gp, what
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

    @property
    def number(self) -> int:
        """Of units or weights that are left."""
        return len(self.alive)

    def run(self, least: int, allowed: float, tick: Callable[[], object]) -> None:
        """Remove until `least` are left, or more than `allowed` nats would be lost.

        Losses are counted from the largest evidence on the way. It is looked for in large rounds,
        past smaller evidences; then fewer and fewer at a time go from the last network that has
        lost no more than it may.
        """
        path = self._descend([(self.state, self.alive)], least, max(allowed, _EXPLORED), tick)
        if allowed < _EXPLORED:
            # rounding of what has cost nothing
            best = max(state.evidence for state, _ in path)
            enough = best - allowed - 1e-9 * abs(best)
            last = max(i for i, (state, _) in enumerate(path) if state.evidence >= enough)
            self._descend(path[: last + 1], least, allowed, tick)

    def _descend(self, path: Path, least: int, limit: float, tick: Callable[[], object]) -> Path:
        """Go on from the end of a path while at most `limit` nats are lost; the whole path."""
        path = list(path)
        self.state, self.alive = path[-1]
        self.refused: set[int] = set()
        best = max(state.evidence for state, _ in path)
        failures, size = 0, math.inf
        while self.number > least and failures < _FAILURES:
            most = int(min(size, max(1, int(_SHARE * self.number)), self.number - least))
            order, local = self._order(most, self.state.evidence - best, limit)
            if not order:
                break
            attempt = self._attempt(order, local)
            tick()
            if attempt.evidence >= best - limit - 1e-9 * abs(best):
                gone = {i for i, _ in order}
                self.alive = [i for i in self.alive if i not in gone]
                self.state, failures, size = attempt, 0, 2 * len(order)
                best = max(best, attempt.evidence)
                path.append((attempt, self.alive))
            elif len(order) > 1:
                size = len(order) // 2
            else:
                self.refused.add(order[0][0])
                failures += 1
        return path

    def _order(self, most: int, behind: float, allowed: float) -> tuple[Order, LocalEvidence]:
        """What to take out next, from one linearisation, with the expected changes.

        At least one, whatever is expected of it; further ones while no more than `allowed` is lost
        since the largest evidence, which this network is `behind`.
        """
        local = LocalEvidence(self.state.gp.laplace)
        pick = self._pick_weights if self.what == "weights" else self._pick_units
        order: Order = []
        peak, width = -behind, max(1, most // 8)
        while len(order) < most:
            values, picked = pick(local, min(width, most - len(order)), order)
            if not picked:
                break
            group = torch.cat([self._places(i) for i in picked])
            total, expected = float(local.changes([group])), sum(values)
            too_much = local.change + total < peak - allowed
            # together they may lose what each alone leaves to the others
            if len(picked) > 1 and (too_much or total < expected - 0.1 * len(picked)):
                width = len(picked) // 2
                continue
            if order and too_much:
                break
            local.remove(group)
            share = (total - expected) / len(picked)
            order += [(i, value + share) for i, value in zip(picked, values, strict=True)]
            peak = max(peak, local.change)
        return order, local

    def _pick_weights(
        self, local: LocalEvidence, number: int, order: Order
    ) -> tuple[list[float], list[int]]:
        """Some weights of largest change, and their changes."""
        usable = torch.zeros_like(self.state.on)
        usable[list(self._usable(order))] = True
        changes = local.single_changes().where(usable, -torch.inf)
        values, index = changes.topk(min(number, int(usable.sum())))
        return values.tolist(), index.tolist()

    def _pick_units(
        self, local: LocalEvidence, number: int, order: Order
    ) -> tuple[list[float], list[int]]:
        """The unit of largest change, not the last of its layer, and its change."""
        usable = self._usable(order)
        left = Counter(self.units[i].layer for i in self.alive)
        left.subtract(self.units[i].layer for i, _ in order)
        candidates = [i for i in usable if left[self.units[i].layer] > 1]
        if not candidates:
            return [], []
        changes = local.changes([self._places(i) for i in candidates])
        best = int(changes.argmax())
        return [float(changes[best])], [candidates[best]]

    def _usable(self, order: Order) -> list[int]:
        taken = {i for i, _ in order} | self.refused
        return [i for i in self.alive if i not in taken]

    def _places(self, i: int) -> Tensor:
        """Places among the P weights."""
        device = self.state.theta.device
        return self.units[i].weights.to(device) if self.units else torch.tensor([i], device=device)

    def _attempt(self, order: Order, local: LocalEvidence) -> State:
        """The network without these, its other weights moved as far as that is good."""
        state = self.state
        on = state.on.clone()
        on[torch.cat([self._places(i) for i, _ in order])] = False
        theta = torch.where(on, state.theta, 0.0)
        theta, gp = self._restored(theta, on)
        evidence = gp.evidence().value
        evidence = evidence if math.isfinite(evidence) else -math.inf
        removed = [Removal(self._name(i), change, evidence) for i, change in order]
        predicted = state.predicted + sum(change for _, change in order)
        return State(theta, on, gp, evidence, (*state.removed, *removed), predicted)

    @torch.no_grad()
    def _restored(self, theta: Tensor, on: Tensor) -> tuple[Tensor, LinearizedGP]:
        """Move weights so that the outputs are what they were before the round.

        Gauss–Newton steps to the least ½ |Rᵀ (f - f_before)|² + ½ |e - e_before|²: what the log
        joint density loses, where the network before was at its mode. They go on while the log
        joint density grows.
        """
        wanted, start = self.state.gp.laplace.training.outputs, theta
        gp, value = self._conditioned(theta, on), self._log_joint(theta, on)
        for _ in range(_MOVES):
            laplace = gp.laplace
            training, posterior = laplace.training, laplace.exact_posterior()
            lost, root = (training.outputs - wanted).unsqueeze(-1), posterior.root
            force = training.t_matmul(root.apply(root.t_apply(lost))).squeeze(-1)
            force = posterior.scale * force + (theta - start) / posterior.scale
            move = -posterior.scale * posterior.precision_solve(force.unsqueeze(-1)).squeeze(-1)
            move = torch.where(on, move, 0.0)
            for length in _LENGTHS:
                moved = self._log_joint(theta + length * move, on)
                if moved > value:
                    break
            else:
                break
            theta, gain, value = theta + length * move, moved - value, moved
            gp = self._conditioned(theta, on)
            if gain < _ENOUGH:
                break
        return theta, gp

    def _conditioned(self, theta: Tensor, on: Tensor) -> LinearizedGP:
        set_weights(self.linearized.network, self.linearized.parameter_names, theta)
        prior = Switched(copy.deepcopy(self.given.prior), on)
        return _refitted(self.given, self.linearized.network, prior, self.batches)

    @torch.no_grad()
    def _outputs(self, theta: Tensor) -> Tensor:
        """Outputs at the training data with these weights, (N x C)."""
        set_weights(self.linearized.network, self.linearized.parameter_names, theta)
        return torch.cat([self.linearized(x) for x in self.given.laplace.training.inputs])

    @torch.no_grad()
    def _log_joint(self, theta: Tensor, on: Tensor) -> float:
        """log p(D | θ) - ½ |Σ0^{-1/2} (θ - μ0)|² of the weights that are on."""
        laplace = self.given.laplace
        f = self._outputs(theta)
        variances = per_weight(laplace.prior).to(theta)
        squares = (theta - laplace.prior.mean.to(theta)).square() / variances
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


def with_network_mean(gp: LinearizedGP) -> LinearizedGP:
    """The same with the network's own mean."""
    return _refitted(gp, gp.linearized.network, gp.prior, list(_batches(gp)), "network")


def _refitted(
    given: LinearizedGP,
    network: nn.Module,
    prior: Prior,
    batches: list[tuple[Any, ...]],
    mean: Mean | None = None,
) -> LinearizedGP:
    """A `LinearizedGP` with the options of another, conditioned on the same data."""
    data = given._data
    assert data is not None
    gp = LinearizedGP(
        network,
        copy.deepcopy(given.likelihood),
        prior=prior,
        parameters=given.linearized.parameter_names,
        inference=given.inference,
        mean=mean or given.mean,
        sites=given._sites,
        dtype=given.dtype,
        memory_budget=given.memory_budget,
    ).fit(
        batches, class_weight=data.class_weight, missing=data.missing, progress=False, prepare=False
    )
    gp.mean_scale = given.laplace.mean_scale
    return gp


def _batches(gp: LinearizedGP) -> Iterator[tuple[Any, ...]]:
    """The data as they were given."""
    data = gp._data
    assert data is not None
    targets, weights, start = torch.cat(data._given), data._sample_weights, 0
    for x in data.training.inputs:
        rows = slice(start, start + num_rows(x))
        yield (x, targets[rows]) if weights is None else (x, targets[rows], weights[rows])
        start = rows.stop

"""The search of `prune`: rounds of removals from one linearisation, checked by the evidence."""

from __future__ import annotations

import copy
import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lingp.linearization import LinearizedNetwork
from lingp.linearization.selection import unwrapped
from lingp.models import LinearizedGP
from lingp.pruning.local_evidence import LocalEvidence
from lingp.pruning.refitted import refitted, set_weights
from lingp.pruning.result import Pruned, Removal, What
from lingp.pruning.switched import Switched, prior_of_kept
from lingp.pruning.units import Unit, hidden_units, without
from lingp.training.map_loss import log_joint

Order = list[tuple[int, float]]  # what goes, with the expected changes

_SHARE = 0.2  # of what is left, at most, that goes in one round
_EXPLORED = 10.0  # nats below the largest evidence in which a larger one is looked for
_FAILURES = 3  # in a row after which nothing more is tried
_MOVES = 8  # of the other weights, at most
_LENGTHS = (1.0, 0.5, 0.25, 0.125)  # of a move
_ENOUGH = 0.01  # nats of a move after which the next is not worth its time


@dataclass(frozen=True)
class Stage:
    """A network on the way.

    Attributes
    ----------
    theta, on
        The weights, and which of them are left, (P,).
    gp
        The Gaussian process of the network.
    evidence
        The log evidence.
    left
        Numbers of the units or weights that are left.
    removed
        The removals so far, in order.
    """

    theta: Tensor
    on: Tensor
    gp: LinearizedGP
    evidence: float
    left: list[int]
    removed: tuple[Removal, ...] = ()


class PruningSearch:
    """Rounds of removals, each from one linearisation and checked by the evidence after it.

    Parameters
    ----------
    gp
        The Gaussian process of the network, with data.
    what
        "units" or "weights".

    Attributes
    ----------
    stage
        The network as it is now.
    """

    def __init__(self, gp: LinearizedGP, what: What) -> None:
        self.given, self.what = gp, what
        self.linearized = copy.deepcopy(gp.linearized)
        self.units: list[Unit] = []
        self.links: dict[str, str] = {}
        if what == "units":
            self.units, self.links = hidden_units(gp.linearized)
        theta = gp.linearized.weights()
        left = list(range(len(self.units) if what == "units" else len(theta)))
        on = torch.ones_like(theta, dtype=torch.bool)
        self.first = self.stage = Stage(theta, on, gp, gp.evidence().value, left)

    def run(self, least: int, allowed: float, tick: Callable[[], object]) -> None:
        """Remove until `least` are left, or more than `allowed` nats would be lost.

        Losses are counted from the largest evidence on the way. It is looked for in large rounds,
        past smaller evidences; then fewer and fewer at a time go from the last network that has
        lost no more than it may.
        """
        path = self._descend([self.stage], least, max(allowed, _EXPLORED), tick)
        if allowed < _EXPLORED:
            enough = _bound(path, allowed)
            last = max(i for i, stage in enumerate(path) if stage.evidence >= enough)
            self._descend(path[: last + 1], least, allowed, tick)

    def _descend(
        self, path: list[Stage], least: int, limit: float, tick: Callable[[], object]
    ) -> list[Stage]:
        """Go on from the end of a path while at most `limit` nats are lost; the whole path."""
        path = list(path)
        self.stage = path[-1]
        self.refused: set[int] = set()
        failures, size = 0, math.inf
        while len(self.stage.left) > least and failures < _FAILURES:
            number = len(self.stage.left)
            most = int(min(size, max(1, int(_SHARE * number)), number - least))
            behind = self.stage.evidence - max(stage.evidence for stage in path)
            order = self._order(most, behind, limit)
            if not order:
                break
            attempt = self._attempt(order)
            tick()
            if attempt.evidence >= _bound(path, limit):
                self.stage, failures, size = attempt, 0, 2 * len(order)
                path.append(attempt)
            elif len(order) > 1:
                size = len(order) // 2
            else:
                self.refused.add(order[0][0])
                failures += 1
        return path

    def _order(self, most: int, behind: float, allowed: float) -> Order:
        """The next removals, from one linearisation, with the expected changes.

        At least one, whatever is expected of it; further ones while no more than `allowed` is lost
        since the largest evidence, which this network is `behind`.
        """
        local = LocalEvidence(self.stage.gp.laplace)
        order: Order = []
        peak, width = -behind, max(1, most // 8)
        while len(order) < most:
            values, picked = self._pick(local, min(width, most - len(order)), order)
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
        return order

    def _pick(
        self, local: LocalEvidence, number: int, order: Order
    ) -> tuple[list[float], list[int]]:
        """Some weights of largest change, or one unit, not the last of its layer; the changes."""
        taken = {i for i, _ in order} | self.refused
        usable = [i for i in self.stage.left if i not in taken]
        if self.units:
            number, gone = 1, {i for i, _ in order}
            left = Counter(self.units[i].layer for i in self.stage.left if i not in gone)
            usable = [i for i in usable if left[self.units[i].layer] > 1]
            changes = local.changes([self._places(i) for i in usable])
        else:
            changes = local.single_changes()[usable]
        values, index = changes.topk(min(number, len(usable)))
        return values.tolist(), [usable[i] for i in index.tolist()]

    def _places(self, i: int) -> Tensor:
        """Places among the P weights."""
        device = self.stage.theta.device
        return self.units[i].weights.to(device) if self.units else torch.tensor([i], device=device)

    def _attempt(self, order: Order) -> Stage:
        """The network without these, its other weights moved as far as that is good."""
        stage, gone = self.stage, {i for i, _ in order}
        on = stage.on.clone()
        on[torch.cat([self._places(i) for i in gone])] = False
        theta, gp = self._restored(torch.where(on, stage.theta, 0.0), on)
        evidence = gp.evidence().value
        evidence = evidence if math.isfinite(evidence) else -math.inf
        removed = [Removal(self._name(i), change, evidence) for i, change in order]
        left = [i for i in stage.left if i not in gone]
        return Stage(theta, on, gp, evidence, left, (*stage.removed, *removed))

    @torch.no_grad()
    def _restored(self, theta: Tensor, on: Tensor) -> tuple[Tensor, LinearizedGP]:
        """Move weights so that the outputs are what they were before the round.

        Gauss–Newton steps to the least ½ |Rᵀ (f - f_before)|² + ½ |e - e_before|²: what the log
        joint density loses, where the network before was at its mode. They go on while the log
        joint density grows.
        """
        wanted, start = self.stage.gp.laplace.training.outputs, theta
        gp = self._conditioned(theta, on)
        value = log_joint(gp.laplace, gp.laplace.training.outputs, theta)
        for _ in range(_MOVES):
            laplace = gp.laplace
            training, posterior = laplace.training, laplace.exact_posterior()
            lost = (training.outputs - wanted).unsqueeze(-1)
            force = posterior.whitened_t_product(posterior.root.t_apply(lost))
            force = force + ((theta - start) / posterior.scale).unsqueeze(-1)
            move = -posterior.scale * posterior.precision_solve(force).squeeze(-1)
            move = torch.where(on, move, 0.0)
            for length in _LENGTHS:
                there = theta + length * move
                moved = log_joint(laplace, self._outputs(there), there)
                if moved > value:
                    break
            else:
                break
            theta, gain, value = there, moved - value, moved
            gp = self._conditioned(theta, on)
            if gain < _ENOUGH:
                break
        return theta, gp

    def _conditioned(self, theta: Tensor, on: Tensor) -> LinearizedGP:
        set_weights(self.linearized.network, self.linearized.parameter_names, theta)
        prior = Switched(copy.deepcopy(self.given.prior), on)
        return refitted(self.given, self.linearized.network, prior)

    @torch.no_grad()
    def _outputs(self, theta: Tensor) -> Tensor:
        """Outputs at the training data with these weights, (N x C)."""
        set_weights(self.linearized.network, self.linearized.parameter_names, theta)
        return torch.cat([self.linearized(x) for x in self.given.laplace.training.inputs])

    def _name(self, i: int) -> str:
        if self.units:
            return str(self.units[i])
        starts = [s.start for s in self.linearized.parameter_slices]
        which = bisect(starts, i) - 1
        place = np.unravel_index(i - starts[which], self.linearized.parameter_shapes[which])
        at = ", ".join(str(int(p)) for p in place)
        return f"{self.linearized.parameter_names[which]}[{at}]"

    def result(self, net: nn.Module | None) -> Pruned:
        """The pruned network, as small as it can be made.

        Parameters
        ----------
        net
            The network as it was given; None: the linearised copy stands for it.
        """
        stage, linearized, given = self.stage, self.linearized, self.given
        names, gp = linearized.parameter_names, stage.gp
        set_weights(linearized.network, names, stage.theta)
        if net is None:
            net = copy.deepcopy(linearized.network)
            for name, p in net.named_parameters():
                p.requires_grad_(name in names)
        made = copy.deepcopy(unwrapped(net))
        set_weights(made, names, stage.theta)
        gone = [self.units[i] for i in set(self.first.left).difference(stage.left) if self.links]
        if gone:
            smaller = without(linearized.network, self.links, gone)
            prior = prior_of_kept(given.prior, stage.on, LinearizedNetwork(smaller, names))
            gp = refitted(given, smaller, prior)
            made = without(made, self.links, gone)
        parts = stage.on.split([shape.numel() for shape in linearized.parameter_shapes])
        shaped = [p.view(s) for p, s in zip(parts, linearized.parameter_shapes, strict=True)]
        return Pruned(
            net=made,
            gp=gp,
            what=self.what,
            evidence_before=self.first.evidence,
            evidence=gp.evidence().value,
            predicted=self.first.evidence + sum(removal.predicted for removal in stage.removed),
            weights_before=len(stage.on),
            weights=int(stage.on.sum()),
            removed=stage.removed,
            masks=dict(zip(names, shaped, strict=True)),
        )


def _bound(path: list[Stage], allowed: float) -> float:
    """The evidence that is enough, but for the rounding of what has cost nothing."""
    best = max(stage.evidence for stage in path)
    return best - allowed - 1e-9 * abs(best)

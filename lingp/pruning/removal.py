"""Dropping hidden units or weights that aren't needed, after training, by the evidence.

A weight that the data do not need costs evidence: its volume of prior is paid for, and nothing is
bought. What the evidence loses or gains by each removal follows from one posterior
(`lingp.pruning.local_evidence`), which says in which order to go; in rounds, what is left is
linearised again and its evidence computed, which says how far. The network isn't trained again.

The other weights move to make up for a removal, by a step of the linearised model (the optimal
brain surgeon of Hassibi and Stork, 1993), shortened where the true log joint density says so.
"""

from __future__ import annotations

import math

from lingp.models import LinearizedGP
from lingp.pruning.refitted import refitted
from lingp.pruning.result import Pruned, What
from lingp.pruning.search import PruningSearch
from lingp.runtime.memory import format_bytes, memory_for
from lingp.runtime.progress import count
from lingp.training.evidence_training import EvidenceTraining


def prune(
    trained: EvidenceTraining | LinearizedGP,
    what: What = "units",
    *,
    until: int | float | None = None,
    max_loss: float | None = None,
    progress: bool = True,
) -> Pruned:
    """Take out what the evidence doesn't need; nothing is trained, and hyperparameters stay.

    Parameters
    ----------
    trained
        What `train_with_evidence` gave (the evidence is that of the network's mean), or a
        `LinearizedGP` with data (and the mean it has). It stays as it is.
    what
        "units": hidden units with all their weights. "weights": single ones, which become zero.
    until
        How many to leave, or which share of them if below 1; by default as `max_loss` says.
    max_loss
        Nats that may be lost from the largest log evidence on the way. 0 leaves the network of
        largest evidence. By default 1, a Bayes factor "not worth more than a bare mention" (Kass
        and Raftery, 1995), or, with `until`, whatever it takes.
    progress
        Whether a progress bar is shown.

    Raises
    ------
    ValueError
        If an option doesn't make sense, or the network has no hidden units.
    MemoryError
        If the covariance of the weights, (P x P), doesn't fit.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> gp = LinearizedGP(net, prior=1.0).fit(X, X.sin(), progress=False)
    >>> pruned = prune(gp, "units", until=4, progress=False)
    >>> pruned.net
    Sequential(
      (0): Linear(in_features=1, out_features=4, bias=True)
      (1): Tanh()
      (2): Linear(in_features=4, out_features=1, bias=True)
    )
    """
    gp = trained.gp if isinstance(trained, EvidenceTraining) else trained
    if not isinstance(gp, LinearizedGP):
        raise TypeError(
            f"trained: expected an EvidenceTraining or a LinearizedGP, got {type(trained).__name__}"
        )
    if what not in ("units", "weights"):
        raise ValueError(f'what: expected "units" or "weights", got {what!r}')
    if max_loss is not None and not max_loss >= 0:
        raise ValueError(f"max_loss: expected at least 0 nats, got {max_loss}")
    if until is not None and not until >= 0:
        raise ValueError(f"until: expected a number to leave or a share below 1, got {until}")
    alone = gp.laplace.training.shards.alone
    if isinstance(trained, EvidenceTraining) and gp.mean != "network":
        gp = refitted(gp, gp.linearized.network, gp.prior, "network")
    if not alone:
        raise ValueError("trained: pruning takes all data in one process, without process_group")
    _check_memory(gp)
    allowed = (math.inf if until is not None else 1.0) if max_loss is None else max_loss
    search = PruningSearch(gp, what)
    least = 0 if until is None else int(until if until >= 1 else until * len(search.stage.left))
    with count(f"pruning {what}", show=progress) as tick:
        search.run(least, allowed, tick)
    return search.result(trained.net if isinstance(trained, EvidenceTraining) else None)


def _check_memory(gp: LinearizedGP) -> None:
    """Raise unless a few P x P matrices fit."""
    size = gp.linearized.num_parameters
    needed = 5 * size**2 * gp.linearized.weights().element_size()
    there = memory_for(gp.memory_budget, gp.linearized.device)
    if needed > there:
        raise MemoryError(
            f"pruning takes the covariance of all {size} weights, {format_bytes(needed)}, more "
            f"than the {format_bytes(int(there))} there is; raise memory_budget, or choose fewer "
            "weights by `parameters`"
        )

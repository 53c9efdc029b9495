"""Whether a trained network has learned noise."""

from __future__ import annotations

from lingp.training import EvidenceTraining

# share of what the evidence had won over a linear model. On validation rows, boston loses two
# thirds of it and predicts better as it was, concrete two fifths and predicts better as it is
_MUCH = 0.5
# nats of evidence per target, where nothing had been won
_LITTLE = 0.05


def overfitted(
    last: EvidenceTraining,
    best: EvidenceTraining,
    linear: EvidenceTraining | None,
    num_targets: int,
) -> bool:
    """Whether training has lost much of the evidence that it had won over a linear model.

    A network's evidence often falls a little while its predictions still improve: it is that of the
    network's linearisation, and each step makes another one. What is won over a model that has
    nothing to learn is a measure of how much is a little.

    Parameters
    ----------
    last
        The network at the end of training.
    best
        As it was at the largest evidence.
    linear
        A linear model of the same data, if there is one.
    num_targets
        How many numbers there were to learn from.
    """
    lost = evidence(best) - evidence(last)
    won = 0.0 if linear is None else evidence(best) - evidence(linear)
    return lost > max(_MUCH * won, _LITTLE * num_targets)


def evidence(trained: EvidenceTraining) -> float:
    """The log marginal likelihood of what was trained."""
    return trained.gp.evidence().value

"""Networks trained together with their prior, by the evidence of their own Laplace posterior."""

from __future__ import annotations

from lingp.training.evidence_training import EvidenceTraining, train_with_evidence
from lingp.training.hyperparameter_step import EvidenceStep, hyperparameter_step

__all__ = ["EvidenceStep", "EvidenceTraining", "hyperparameter_step", "train_with_evidence"]

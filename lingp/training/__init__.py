"""Networks trained together with their prior, by the evidence of their own Laplace posterior."""

from __future__ import annotations

from lingp.inference import Blocks
from lingp.invariance import (
    Augmentation,
    Augmented,
    Composed,
    EvidenceGradient,
    InputLearner,
    InputScale,
    InputStep,
    RandomAffine,
    RandomRotation,
    evidence_gradient,
)
from lingp.training.checkpoint import CheckpointError
from lingp.training.evidence_training import EvidenceTraining, train_with_evidence
from lingp.training.faults import TrainingFailedError, TrainingStoppedWarning
from lingp.training.heads import (
    NaturalHead,
    initialize_head,
    natural_outputs,
    with_natural_head,
)
from lingp.training.heads_conversion import NaturalFromMeanVariance
from lingp.training.history import EvidenceStep, History
from lingp.training.hyperparameter_step import effective_parameters, hyperparameter_step
from lingp.training.map_loss import penalty
from lingp.training.plan import TrainingPlan
from lingp.training.trainer import EvidenceTrainer

__all__ = [
    "Augmentation",
    "Augmented",
    "Blocks",
    "CheckpointError",
    "Composed",
    "EvidenceGradient",
    "EvidenceStep",
    "EvidenceTrainer",
    "EvidenceTraining",
    "History",
    "InputLearner",
    "InputScale",
    "InputStep",
    "NaturalFromMeanVariance",
    "NaturalHead",
    "RandomAffine",
    "RandomRotation",
    "TrainingFailedError",
    "TrainingPlan",
    "TrainingStoppedWarning",
    "effective_parameters",
    "evidence_gradient",
    "hyperparameter_step",
    "initialize_head",
    "natural_outputs",
    "penalty",
    "train_with_evidence",
    "with_natural_head",
]

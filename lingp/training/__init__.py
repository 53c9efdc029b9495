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
from lingp.training.compared import Candidate, Comparison
from lingp.training.comparison import compare_by_evidence
from lingp.training.effective import effective_parameters
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
from lingp.training.hyperparameter_step import hyperparameter_step
from lingp.training.map_loss import penalty
from lingp.training.plan import TrainingPlan
from lingp.training.pruning import prune
from lingp.training.pruning_search import Pruned, Removal
from lingp.training.trainer import EvidenceTrainer

__all__ = [
    "Augmentation",
    "Augmented",
    "Blocks",
    "Candidate",
    "CheckpointError",
    "Comparison",
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
    "Pruned",
    "RandomAffine",
    "RandomRotation",
    "Removal",
    "TrainingFailedError",
    "TrainingPlan",
    "TrainingStoppedWarning",
    "compare_by_evidence",
    "effective_parameters",
    "evidence_gradient",
    "hyperparameter_step",
    "initialize_head",
    "natural_outputs",
    "penalty",
    "prune",
    "train_with_evidence",
    "with_natural_head",
]

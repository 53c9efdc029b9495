"""Networks trained together with their prior, by the evidence of their own Laplace posterior."""

from __future__ import annotations

from lingp.inference import Blocks
from lingp.training.augmentations import (
    Augmentation,
    Augmented,
    Composed,
    InputScale,
    RandomAffine,
    RandomRotation,
)
from lingp.training.compared import Candidate, Comparison
from lingp.training.comparison import compare_by_evidence
from lingp.training.evidence_training import EvidenceTraining, train_with_evidence
from lingp.training.heads import (
    NaturalHead,
    initialize_head,
    natural_outputs,
    with_natural_head,
)
from lingp.training.heads_conversion import NaturalFromMeanVariance
from lingp.training.history import EvidenceStep
from lingp.training.hyperparameter_step import hyperparameter_step
from lingp.training.input_learner import InputLearner, InputStep
from lingp.training.invariance import EvidenceGradient, evidence_gradient
from lingp.training.pruning import prune
from lingp.training.pruning_search import Pruned, Removal

__all__ = [
    "Augmentation",
    "Augmented",
    "Blocks",
    "Candidate",
    "Comparison",
    "Composed",
    "EvidenceGradient",
    "EvidenceStep",
    "EvidenceTraining",
    "InputLearner",
    "InputScale",
    "InputStep",
    "NaturalFromMeanVariance",
    "NaturalHead",
    "Pruned",
    "RandomAffine",
    "RandomRotation",
    "Removal",
    "compare_by_evidence",
    "evidence_gradient",
    "hyperparameter_step",
    "initialize_head",
    "natural_outputs",
    "prune",
    "train_with_evidence",
    "with_natural_head",
]

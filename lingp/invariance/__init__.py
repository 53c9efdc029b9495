"""Invariances learned by the evidence: augmentations, and its gradients in their parameters."""

from lingp.invariance.augmentations import (
    Augmentation,
    Augmented,
    Composed,
    InputScale,
    RandomAffine,
    RandomRotation,
)
from lingp.invariance.gradient import EvidenceGradient, evidence_gradient
from lingp.invariance.input_learner import InputLearner, InputStep

__all__ = [
    "Augmentation",
    "Augmented",
    "Composed",
    "EvidenceGradient",
    "InputLearner",
    "InputScale",
    "InputStep",
    "RandomAffine",
    "RandomRotation",
    "evidence_gradient",
]

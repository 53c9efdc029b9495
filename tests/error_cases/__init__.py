"""What makes each error and warning of docs/errors.md appear: functions by what they say."""

from error_cases import (
    data,
    estimators,
    hyperparameters,
    inference,
    likelihoods,
    network,
    saving,
    training,
)
from error_cases.shared import says

__all__ = [
    "data",
    "estimators",
    "hyperparameters",
    "inference",
    "likelihoods",
    "network",
    "saving",
    "says",
    "training",
]

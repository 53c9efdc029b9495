"""Predictive distributions p(y) = E p(y | f) of targets."""

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.gaussian import (
    CorrelatedGaussianPredictive,
    GaussianPredictive,
    KnownNoisePredictive,
)
from lingp.likelihoods.predictives.latent_mixture import LatentMixture

__all__ = [
    "CorrelatedGaussianPredictive",
    "GaussianPredictive",
    "KnownNoisePredictive",
    "LatentMixture",
    "Predictive",
]

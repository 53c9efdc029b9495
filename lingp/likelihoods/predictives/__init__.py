"""Predictive distributions p(y) = E p(y | f) of targets."""

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.draws import AffineMixture
from lingp.likelihoods.predictives.elementwise import ElementwisePredictive
from lingp.likelihoods.predictives.gaussian import (
    CorrelatedGaussianPredictive,
    GaussianPredictive,
    KnownNoisePredictive,
)
from lingp.likelihoods.predictives.heteroscedastic import HeteroscedasticPredictive
from lingp.likelihoods.predictives.labels import LabelPredictive, SampledLabels

__all__ = [
    "AffineMixture",
    "CorrelatedGaussianPredictive",
    "ElementwisePredictive",
    "GaussianPredictive",
    "HeteroscedasticPredictive",
    "KnownNoisePredictive",
    "LabelPredictive",
    "Predictive",
    "SampledLabels",
]

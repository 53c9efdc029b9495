"""Predictive distributions p(y) = E p(y | f) of targets."""

from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.gaussian import GaussianPredictive
from lingp.likelihoods.predictives.latent_mixture import LatentMixture

__all__ = ["GaussianPredictive", "LatentMixture", "Predictive"]

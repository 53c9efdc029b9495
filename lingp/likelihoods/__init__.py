"""Likelihoods p(y | f): log density, residual, curvature root, predictive."""

from __future__ import annotations

from lingp.likelihoods.autodiff import AutodiffLikelihood
from lingp.likelihoods.base import Likelihood, QuadraticLikelihood
from lingp.likelihoods.bernoulli import Bernoulli
from lingp.likelihoods.binomial import Binomial
from lingp.likelihoods.categorical import Categorical
from lingp.likelihoods.correlated import CorrelatedGaussian
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.from_distribution import FromDistribution
from lingp.likelihoods.gaussian import Gaussian
from lingp.likelihoods.heteroscedastic import Heteroscedastic
from lingp.likelihoods.known_noise import KnownNoiseGaussian
from lingp.likelihoods.named import as_likelihood, named
from lingp.likelihoods.negative_binomial import NegativeBinomial
from lingp.likelihoods.ordinal import Ordinal
from lingp.likelihoods.poisson import Poisson
from lingp.likelihoods.predictives import GaussianPredictive, Predictive
from lingp.likelihoods.roots import (
    BlockRoot,
    CurvatureRoot,
    DenseRoot,
    DiagonalRoot,
    SharedRoot,
    UniformRoot,
)
from lingp.likelihoods.student_t import StudentT
from lingp.likelihoods.targets import check_values, flatten_targets
from lingp.likelihoods.tempered import Tempered

__all__ = [
    "AutodiffLikelihood",
    "Bernoulli",
    "Binomial",
    "BlockRoot",
    "Categorical",
    "CorrelatedGaussian",
    "CurvatureRoot",
    "DenseRoot",
    "DiagonalRoot",
    "ElementwiseLikelihood",
    "FromDistribution",
    "Gaussian",
    "GaussianPredictive",
    "Heteroscedastic",
    "KnownNoiseGaussian",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Predictive",
    "QuadraticLikelihood",
    "SharedRoot",
    "StudentT",
    "Tempered",
    "UniformRoot",
    "as_likelihood",
    "check_values",
    "flatten_targets",
    "named",
]

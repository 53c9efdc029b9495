"""Likelihoods p(y | f): log density, residual, curvature root, predictive."""

from __future__ import annotations

from lingp.likelihoods.autodiff import AutodiffLikelihood
from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.bernoulli import Bernoulli
from lingp.likelihoods.binomial import Binomial
from lingp.likelihoods.categorical import Categorical
from lingp.likelihoods.conditional import Conditional, ElementwiseConditional
from lingp.likelihoods.correlated import CorrelatedGaussian
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.from_distribution import FromDistribution
from lingp.likelihoods.gaussian import Gaussian, KnownNoiseGaussian
from lingp.likelihoods.heteroscedastic import Heteroscedastic
from lingp.likelihoods.named import as_likelihood, named
from lingp.likelihoods.negative_binomial import NegativeBinomial
from lingp.likelihoods.ordinal import Ordinal
from lingp.likelihoods.poisson import Poisson
from lingp.likelihoods.predictives.base import Predictive
from lingp.likelihoods.predictives.gaussian import GaussianPredictive
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
    "Conditional",
    "CorrelatedGaussian",
    "CurvatureRoot",
    "DenseRoot",
    "DiagonalRoot",
    "ElementwiseConditional",
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
    "SharedRoot",
    "StudentT",
    "Tempered",
    "UniformRoot",
    "as_likelihood",
    "check_values",
    "flatten_targets",
    "named",
]

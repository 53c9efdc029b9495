"""Likelihoods p(y | f): log density, residual, curvature root, predictive."""

from __future__ import annotations

from collections.abc import Callable

from lingp.likelihoods.autodiff import AutodiffLikelihood
from lingp.likelihoods.base import Likelihood, QuadraticLikelihood
from lingp.likelihoods.bernoulli import Bernoulli
from lingp.likelihoods.binomial import Binomial
from lingp.likelihoods.categorical import Categorical
from lingp.likelihoods.correlated import CorrelatedGaussian
from lingp.likelihoods.elementwise import ElementwiseLikelihood
from lingp.likelihoods.from_distribution import FromDistribution
from lingp.likelihoods.gaussian import Gaussian
from lingp.likelihoods.gpytorch_likelihood import to_gpytorch
from lingp.likelihoods.heteroscedastic import Heteroscedastic
from lingp.likelihoods.known_noise import KnownNoiseGaussian
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
    "to_gpytorch",
]

_BY_NAME: dict[str, Callable[[], Likelihood]] = {
    "gaussian": Gaussian,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "binomial": Binomial,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "heteroscedastic": Heteroscedastic,
    "student_t": StudentT,
}


def as_likelihood(likelihood: Likelihood | str) -> Likelihood:
    """Return a `Likelihood`: an object as it is, a name with its default hyperparameters."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    names = ", ".join(repr(name) for name in _BY_NAME)
    if not isinstance(likelihood, str):
        raise TypeError(
            f"likelihood: expected a name ({names}) or an object from lingp.likelihoods, "
            f"got {type(likelihood).__name__}"
        )
    if likelihood not in _BY_NAME:
        raise ValueError(f"likelihood: {likelihood!r} is not known; the names are {names}")
    return _BY_NAME[likelihood]()

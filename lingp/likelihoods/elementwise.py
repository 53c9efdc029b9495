"""Likelihoods whose targets each depend on one latent output alone."""

from __future__ import annotations

from torch import Tensor

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.conditional import ElementwiseConditional
from lingp.likelihoods.predictives.elementwise import ElementwisePredictive


class ElementwiseLikelihood(ElementwiseConditional, Likelihood):
    """log p(y | f) = Σ_c log p(y_c | f_c), with predictions by adaptive quadrature.

    Subclasses write the scalar functions of `ElementwiseConditional`, `check_targets`, and moments
    and draws of y given f. Where `has_known`, targets are (N x C x 2): the value and its known
    quantity (number of trials, exposure).
    """

    methods = ("quadrature", "monte_carlo")
    allows_missing = True

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> ElementwisePredictive:
        return ElementwisePredictive(self, mean, covariance)

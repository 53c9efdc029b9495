"""For models written in GPyTorch: kernels, means, sparse models, and our likelihoods there."""

from lingp.gpytorch_models.exact_kernel import ExactKernel
from lingp.gpytorch_models.inducing_kernel import InducingPointNTKernel
from lingp.gpytorch_models.likelihood import to_gpytorch
from lingp.gpytorch_models.means import NetworkMean, PriorMean
from lingp.gpytorch_models.ntkernel import NTKernel
from lingp.gpytorch_models.svgp import LinearizedSVGP
from lingp.gpytorch_models.whitened_strategy import WhitenedStrategy

__all__ = [
    "ExactKernel",
    "InducingPointNTKernel",
    "LinearizedSVGP",
    "NTKernel",
    "NetworkMean",
    "PriorMean",
    "WhitenedStrategy",
    "to_gpytorch",
]

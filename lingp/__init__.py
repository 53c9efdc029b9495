"""Turn a trained PyTorch network into a Gaussian process.

    kernel = lingp.NTKernel.from_model(net)                # a GPyTorch kernel
    gp = lingp.LinearizedGP(net, likelihood="gaussian")    # linearised Laplace, the front door
    gp.fit(X, y).predict(X_new)
"""

from lingp import data, inference, kernels, likelihoods, linearization, models, operators, priors
from lingp.kernels import NetworkMean, NTKernel
from lingp.linearization import LinearizedNetwork, register_rule
from lingp.models import LinearizedGP, Prediction

__version__ = "0.1.0"

__all__ = [
    "LinearizedGP",
    "LinearizedNetwork",
    "NTKernel",
    "NetworkMean",
    "Prediction",
    "__version__",
    "data",
    "inference",
    "kernels",
    "likelihoods",
    "linearization",
    "models",
    "operators",
    "priors",
    "register_rule",
]

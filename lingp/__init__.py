"""Turn a trained PyTorch network into a Gaussian process.

`NTKernel.from_model(net)` is a GPyTorch kernel; `LinearizedGP(net).fit(X, y)` is the front door to
linearised Laplace: predictions with error bars, the marginal likelihood, samples.
"""

from lingp import (
    data,
    inference,
    kernels,
    likelihoods,
    linearization,
    models,
    operators,
    priors,
    training,
)
from lingp.inference import Iterative, Sparse
from lingp.kernels import NetworkMean, NTKernel
from lingp.linearization import LinearizedNetwork, register_rule
from lingp.models import JointPrediction, LeaveOneOutPrediction, LinearizedGP, Prediction
from lingp.training import EvidenceTraining, train_with_evidence

__version__ = "0.1.0"

__all__ = [
    "EvidenceTraining",
    "Iterative",
    "JointPrediction",
    "LeaveOneOutPrediction",
    "LinearizedGP",
    "LinearizedNetwork",
    "NTKernel",
    "NetworkMean",
    "Prediction",
    "Sparse",
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
    "train_with_evidence",
    "training",
]

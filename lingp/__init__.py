"""Turn a trained PyTorch network into a Gaussian process.

`NTKernel.from_model(net)` is a GPyTorch kernel; `LinearizedGP(net).fit(X, y)` is the front door to
linearised Laplace: predictions with error bars, the marginal likelihood, samples.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lingp import (
    comparison,
    data,
    gpytorch_models,
    inference,
    invariance,
    likelihoods,
    linearization,
    metrics,
    models,
    operators,
    plots,
    priors,
    pruning,
    saving,
    training,
)
from lingp.gpytorch_models import NetworkMean, NTKernel
from lingp.inference import Iterative, Sparse
from lingp.linearization import LinearizedNetwork, register_rule
from lingp.models import (
    JointPrediction,
    LaplaceMarginalLogLikelihood,
    LeaveOneOutPrediction,
    LinearizedGP,
    Prediction,
)
from lingp.runtime.version import __version__
from lingp.training import EvidenceTraining, train_with_evidence

if TYPE_CHECKING:
    from lingp import estimators
    from lingp.estimators import LinearizedGPClassifier, LinearizedGPRegressor

__all__ = [
    "EvidenceTraining",
    "Iterative",
    "JointPrediction",
    "LaplaceMarginalLogLikelihood",
    "LeaveOneOutPrediction",
    "LinearizedGP",
    "LinearizedGPClassifier",
    "LinearizedGPRegressor",
    "LinearizedNetwork",
    "NTKernel",
    "NetworkMean",
    "Prediction",
    "Sparse",
    "__version__",
    "comparison",
    "data",
    "estimators",
    "gpytorch_models",
    "inference",
    "invariance",
    "likelihoods",
    "linearization",
    "metrics",
    "models",
    "operators",
    "plots",
    "priors",
    "pruning",
    "register_rule",
    "saving",
    "train_with_evidence",
    "training",
]


def __getattr__(name: str) -> Any:
    """The estimators, when they are asked for: importing scikit-learn takes a while."""
    if name not in ("estimators", "LinearizedGPClassifier", "LinearizedGPRegressor"):
        raise AttributeError(f"module 'lingp' has no attribute {name!r}")
    module = importlib.import_module("lingp.estimators")
    return module if name == "estimators" else getattr(module, name)

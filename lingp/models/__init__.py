"""Models: the front door and what it returns."""

from lingp.models.doubts import PosteriorWarning
from lingp.models.inducing_kernel import InducingPointNTKernel
from lingp.models.joint import JointPrediction
from lingp.models.linearized_gp import LinearizedGP
from lingp.models.marginal_log_likelihood import LaplaceMarginalLogLikelihood
from lingp.models.prediction import LeaveOneOutPrediction, Prediction
from lingp.models.prior_mean import PriorMean
from lingp.models.variational import LinearizedSVGP
from lingp.models.whitened_strategy import WhitenedStrategy

__all__ = [
    "InducingPointNTKernel",
    "JointPrediction",
    "LaplaceMarginalLogLikelihood",
    "LeaveOneOutPrediction",
    "LinearizedGP",
    "LinearizedSVGP",
    "PosteriorWarning",
    "Prediction",
    "PriorMean",
    "WhitenedStrategy",
]

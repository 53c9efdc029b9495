"""Models: the front door and what it returns."""

from lingp.models.doubts import PosteriorWarning
from lingp.models.joint import JointPrediction
from lingp.models.linearized_gp import LinearizedGP
from lingp.models.marginal_log_likelihood import LaplaceMarginalLogLikelihood
from lingp.models.prediction import LeaveOneOutPrediction, Prediction

__all__ = [
    "JointPrediction",
    "LaplaceMarginalLogLikelihood",
    "LeaveOneOutPrediction",
    "LinearizedGP",
    "PosteriorWarning",
    "Prediction",
]

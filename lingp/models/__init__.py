"""Models: the front door and what it returns."""

from lingp.models.linearized_gp import LinearizedGP
from lingp.models.prediction import Prediction

__all__ = ["LinearizedGP", "Prediction"]

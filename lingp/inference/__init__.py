"""Inference on the whitened Jacobian: posteriors, evidence, hyperparameters."""

from lingp.inference.automatic import InferenceChoice, Space, choose_inference, flop_limit
from lingp.inference.blocks import Blocks
from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.cost import Workload
from lingp.inference.data_term import DataTerm
from lingp.inference.evidence import Evidence
from lingp.inference.exact import Exact
from lingp.inference.factorize import RoundingWarning
from lingp.inference.function_space import FunctionSpace
from lingp.inference.iterative import Iterative
from lingp.inference.laplace import LinearizedLaplace, Mean, Sites, Solution
from lingp.inference.mode import Mode
from lingp.inference.posterior import OccamFactor, Posterior
from lingp.inference.protocol import InferenceMethod, Options, stored_as
from lingp.inference.sparse import Sparse, SparsePosterior
from lingp.inference.training_set import TrainingSet
from lingp.inference.tuning.hyperparameters import (
    HyperparameterResult,
    MisleadingObjectiveWarning,
    optimize,
)
from lingp.inference.tuning.leave_one_out import LeaveOneOut, leave_one_out
from lingp.inference.tuning.validation import BoundaryWarning, ValidationResult, tune_on_validation
from lingp.inference.weight_space import WeightSpace
from lingp.runtime.memory import available_memory
from lingp.runtime.shards import OtherRankError, Shards

__all__ = [
    "Blocks",
    "BoundaryWarning",
    "ConvergenceWarning",
    "DataTerm",
    "Evidence",
    "Exact",
    "FunctionSpace",
    "HyperparameterResult",
    "InferenceChoice",
    "InferenceMethod",
    "Iterative",
    "LeaveOneOut",
    "LinearizedLaplace",
    "Mean",
    "MisleadingObjectiveWarning",
    "Mode",
    "OccamFactor",
    "Options",
    "OtherRankError",
    "Posterior",
    "RoundingWarning",
    "Shards",
    "Sites",
    "Solution",
    "Space",
    "Sparse",
    "SparsePosterior",
    "TrainingSet",
    "ValidationResult",
    "WeightSpace",
    "Workload",
    "available_memory",
    "choose_inference",
    "flop_limit",
    "leave_one_out",
    "optimize",
    "stored_as",
    "tune_on_validation",
]

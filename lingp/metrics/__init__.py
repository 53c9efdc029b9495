"""What predictions are judged by: densities, CRPS, intervals, calibration, out-of-distribution.

Scores of a `Prediction`: `nll`, `crps`, `coverage_curve`. Of plain arrays: `crps_gaussian`,
`crps_mixture`, `crps_samples`, `interval_score`, `coverage`, `brier`, `calibration_error`,
`reliability`, `auroc`. Of a fitted GP: `influence`, which training data matter.

All but `coverage` and `auroc` are better when lower. For accuracy, RMSE, log loss and the like, see
`sklearn.metrics`.
"""

from lingp.metrics.calibration import Reliability, calibration_error, reliability
from lingp.metrics.classes import auroc, brier
from lingp.metrics.crps import crps
from lingp.metrics.crps_of import crps_gaussian, crps_mixture, crps_samples
from lingp.metrics.density import nll
from lingp.metrics.influence import Influence, influence
from lingp.metrics.intervals import coverage, coverage_curve, interval_score

__all__ = [
    "Influence",
    "Reliability",
    "auroc",
    "brier",
    "calibration_error",
    "coverage",
    "coverage_curve",
    "crps",
    "crps_gaussian",
    "crps_mixture",
    "crps_samples",
    "influence",
    "interval_score",
    "nll",
    "reliability",
]

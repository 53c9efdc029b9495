"""Pictures of predictions, calibration, training and kernels. Needs matplotlib (`lingp[plots]`).

Every function takes `ax=` and returns the Axes it drew on: set titles, limits and labels there, and
save with `ax.figure.savefig(...)`. Colours are those of Okabe and Ito (2008), told apart by all
common kinds of colour vision; lines differ by their dashes too, for print.

`bands`: predictive bands in one dimension. `map_2d`: probabilities or uncertainty in two.
`reliability_diagram`, `coverage_curve`: calibration. `evidence_trace`: what training learned.
`evidence_comparison`: candidates that were compared by it. `kernel_spectrum`: how many directions
the data determine. `leverage`: which data matter.
"""

from lingp.plots.bands import bands
from lingp.plots.calibration import coverage_curve, reliability_diagram
from lingp.plots.candidates import evidence_comparison
from lingp.plots.maps import map_2d
from lingp.plots.points import leverage
from lingp.plots.spectrum import kernel_spectrum
from lingp.plots.trace import evidence_trace

__all__ = [
    "bands",
    "coverage_curve",
    "evidence_comparison",
    "evidence_trace",
    "kernel_spectrum",
    "leverage",
    "map_2d",
    "reliability_diagram",
]

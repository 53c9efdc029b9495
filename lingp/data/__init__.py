"""Small real data sets that ship with the package.

Each loader returns a frozen dataclass that carries the arrays together with their names, units,
source and licence. Nothing is downloaded and nothing is standardised.
"""

from lingp.data.yacht import RegressionData, load_yacht

__all__ = ["RegressionData", "load_yacht"]

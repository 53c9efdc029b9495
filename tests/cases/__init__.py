"""The shared table: networks and inputs that every part of the library is held to.

One case per kind of layer and per way of writing a network. Import `CASES`, or `names()` to
parametrise a test, and `case.network(dtype)`, `case.inputs(rows, dtype)` to make what it names:

    @pytest.mark.parametrize("name", names())
    def test_something(name):
        case = CASES[name]
        net, x = case.network(torch.float64), case.inputs(4, torch.float64)

All weights and running statistics are random (a LayerNorm's weight is not 1), all seeds are fixed.
"""

from cases import interfaces, layers, sequences, shared, writing
from cases.table import CASES, Case, Net, mlp, names, parameter

__all__ = [
    "CASES",
    "Case",
    "Net",
    "interfaces",
    "layers",
    "mlp",
    "names",
    "parameter",
    "sequences",
    "shared",
    "writing",
]

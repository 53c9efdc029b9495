"""Layer rules: how the parameters of each kind of operation enter the network's outputs."""

from lingp.linearization.rules import convolution, elementwise, linear
from lingp.linearization.rules.base import (
    FUNCTION_RULES,
    Dense,
    Lookup,
    Operation,
    Outer,
    Piece,
    Rule,
)

__all__ = [
    "FUNCTION_RULES",
    "Dense",
    "Lookup",
    "Operation",
    "Outer",
    "Piece",
    "Rule",
    "convolution",
    "elementwise",
    "linear",
]

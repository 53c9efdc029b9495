"""From a network to its outputs and the layer factors of its Jacobian."""

from lingp.linearization.blocks import DenseBlock, LookupBlock, OuterBlock, Slot
from lingp.linearization.checks import check_rule
from lingp.linearization.factors import Factors
from lingp.linearization.network import LinearizedNetwork
from lingp.linearization.rules import Dense, Lookup, Outer
from lingp.linearization.rules.base import register_rule, unregister_rule
from lingp.linearization.selection import ParameterSelection, select_parameters

__all__ = [
    "Dense",
    "DenseBlock",
    "Factors",
    "LinearizedNetwork",
    "Lookup",
    "LookupBlock",
    "Outer",
    "OuterBlock",
    "ParameterSelection",
    "Slot",
    "check_rule",
    "register_rule",
    "select_parameters",
    "unregister_rule",
]

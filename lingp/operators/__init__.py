"""Linear operators over layer factors."""

from lingp.operators.contractions import diagonal_blocks, expand_variances, gram
from lingp.operators.exact import as_exact
from lingp.operators.ggn import GGNLinearOperator
from lingp.operators.jacobian import JacobianLinearOperator
from lingp.operators.ntk import NTKLinearOperator
from lingp.operators.weight_gram import RowBlocks, WeightGram, row_flops

__all__ = [
    "GGNLinearOperator",
    "JacobianLinearOperator",
    "NTKLinearOperator",
    "RowBlocks",
    "WeightGram",
    "as_exact",
    "diagonal_blocks",
    "expand_variances",
    "gram",
    "row_flops",
]

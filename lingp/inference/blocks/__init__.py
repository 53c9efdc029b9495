"""The evidence of large data from random blocks of rows.

Cut the N rows of Φ into blocks Φ_1 .. Φ_n. The diagonal blocks of I + Φ Φᵀ are I + Φ_b Φ_bᵀ, so by
Fischer's inequality, and because log det(I + Σ_b Φ_bᵀ Φ_b) is concave,

    (1/n) Σ_b log det(I + n Φ_b Φ_bᵀ)  <=  log det(I + Φ Φᵀ)  <=  Σ_b log det(I + Φ_b Φ_bᵀ)

The right side makes a lower bound of the evidence, the left side an upper bound; a few blocks drawn
at random estimate either without bias, and its gradient too. Fit and the weights' norm are those of
all data. The lower bound is that of Immer, van der Ouderaa, van der Wilk, Rätsch and Schölkopf
(2023, "Stochastic marginal likelihood gradients using neural tangent kernels"), as are blocks of
one output each.

The lower bound counts a direction that several blocks determine once for each of them: it takes γ,
the effective number of parameters, for too large, and hyperparameters are too timid. The upper
bound sees no more directions than a block has rows: γ is too small, and noise too. Unless blocks
are a large part of the data, both are far off. But both close in on the evidence as blocks grow,
and how fast is seen by halving them: with r_l and r_u the changes of the two log determinants from
half a block to a whole one, which have the signs to close in, they meet at

    w · lower + (1 - w) · upper,        w = r_u / (r_l + r_u)

That is the estimate "between": no bound, but nearer by far. The weight w is found once, at the
hyperparameters that blocks are first asked about, so that what is maximised is a sum of functions
that are sound on their own; were w to follow the hyperparameters, searches would find those at
which it errs.
"""

from lingp.inference.blocks.blocks_method import Blocks
from lingp.inference.blocks.determinant import BlocksDeterminant, BoundBlocks

__all__ = ["Blocks", "BlocksDeterminant", "BoundBlocks"]

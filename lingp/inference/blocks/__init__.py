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
the effective number of parameters, for too large, so hyperparameters are too timid. The upper bound
sees no more directions than a block has rows: γ is too small, and noise too. The middle of the two
is no bound, but its hyperparameters are much closer to those of all data; on kin8nm and concrete
(blocks of 100 rows) networks trained with it were nearly as good as with the exact evidence, those
trained with either bound were not.
"""

from lingp.inference.blocks.method import Blocks, BoundBlocks
from lingp.inference.blocks.posterior import BlocksPosterior

__all__ = ["Blocks", "BlocksPosterior", "BoundBlocks"]

"""Hidden units and weights dropped after training, by the evidence."""

from lingp.pruning.removal import prune
from lingp.pruning.result import Pruned, Removal

__all__ = ["Pruned", "Removal", "prune"]

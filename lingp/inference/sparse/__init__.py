"""Sparse inference: inducing points, the features they span, and the posterior in them."""

from lingp.inference.sparse.candidates import InducingChoice, choose_inducing
from lingp.inference.sparse.inducing import InducingPoints, points_at
from lingp.inference.sparse.sparse_method import BoundSparse, Sparse
from lingp.inference.sparse.sparse_posterior import SparsePosterior

__all__ = [
    "BoundSparse",
    "InducingChoice",
    "InducingPoints",
    "Sparse",
    "SparsePosterior",
    "choose_inducing",
    "points_at",
]

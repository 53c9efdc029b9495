"""Iterative inference: conjugate gradients and Lanczos, with what they leave certified."""

from lingp.inference.iterative.iterative_method import BoundIterative, Iterative
from lingp.inference.iterative.iterative_posterior import Certificate, IterativePosterior

__all__ = ["BoundIterative", "Certificate", "Iterative", "IterativePosterior"]

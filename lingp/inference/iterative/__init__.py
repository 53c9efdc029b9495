"""Iterative inference: conjugate gradients and Lanczos, with what they leave certified."""

from lingp.inference.iterative.method import BoundIterative, Iterative
from lingp.inference.iterative.posterior import Certificate, IterativePosterior

__all__ = ["BoundIterative", "Certificate", "Iterative", "IterativePosterior"]

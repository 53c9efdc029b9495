"""Predictive distributions p(y) = E p(y | f) of targets."""

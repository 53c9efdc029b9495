"""Hyperparameters: what they are chosen by, and how the choice is searched for."""

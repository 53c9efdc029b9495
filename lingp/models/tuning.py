"""Hyperparameters at the front door: which way they are chosen."""

from __future__ import annotations

from typing import Literal

Objective = Literal["evidence", "leave_one_out"]
SearchMethod = Literal["auto", "l-bfgs", "mackay"]


def refuse_with_validation(**options: object) -> None:
    """Raise if an option was given that tuning on validation data has no use for."""
    given = [name for name, value in options.items() if value is not None and value != "auto"]
    if given:
        raise ValueError(
            f"{given[0]}: has no meaning with validation data, whose log predictive density is the "
            "objective; leave out one of the two"
        )


def refuse_without_validation(**options: object) -> None:
    """Raise if an option was given that has a use only for tuning on validation data."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            f"{given[0]}: has no meaning without validation data; give them as validation=(X, y), "
            "or leave it out"
        )

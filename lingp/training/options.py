"""Where options of training are: some are of the model, some of the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lingp.training.model import ModelOptions
from lingp.training.plan import TrainingPlan


def check_options(options: Mapping[str, object]) -> None:
    """Raise unless all are options of the model; say where one is that isn't."""
    of_plan = {field.name for field in dataclasses.fields(TrainingPlan)}
    for name in options:
        if name in of_plan:
            raise TypeError(f"{name}: is in the plan, give plan=TrainingPlan({name}=...)")
        if name not in ModelOptions.__annotations__:
            known = ", ".join(ModelOptions.__annotations__)
            raise TypeError(f"{name}: there is no such option; those of the model are {known}")

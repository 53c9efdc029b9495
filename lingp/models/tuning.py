"""Names of objectives and search methods."""

from __future__ import annotations

from typing import Literal

Objective = Literal["evidence", "leave_one_out"]
SearchMethod = Literal["auto", "l-bfgs", "mackay"]

"""Special functions that torch doesn't have, from SciPy: values only, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scipy import special
from torch import Tensor


def betainc(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b)."""
    return _evaluate(special.betainc, a, b, x)


def student_t_cdf(freedom: Tensor, t: Tensor) -> Tensor:
    """P(T <= t) of Student's t."""
    return _evaluate(special.stdtr, freedom, t)


def _evaluate(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    values = function(*(x.detach().double().cpu().numpy() for x in arguments))
    return torch.as_tensor(values).to(arguments[-1])

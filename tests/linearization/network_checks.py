"""Building small networks, and holding their linearisation to the dense reference."""

import copy

import torch
from cases import Net
from dense import dense_jacobian, relative_error
from torch import nn


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def build(f, **parts):
    torch.manual_seed(0)
    return Net(f, **{name: part() for name, part in parts.items()}).double()


def linear(i, o):
    return lambda: nn.Linear(i, o)


def plan_of(lin):
    return list(lin._plans.values())[-1]


def fallback_of(lin):
    plan = plan_of(lin)
    return set(plan.fallback.names) if plan.fallback else set()


def assert_exact(lin, x, tolerance=1e-10):
    _, factors = lin.factors(x)
    net = copy.deepcopy(lin).network
    expected = dense_jacobian(net, x, lin.parameter_names)
    assert relative_error(factors.jacobian(), expected) < tolerance
    return factors

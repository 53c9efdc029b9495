"""A user's own likelihood, from nothing but log p(y | f) of one datum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.func import functional_call

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.roots import CurvatureRoot, DenseRoot
from lingp.likelihoods.targets import flatten_targets
from lingp.linalg.psd import psd_root

_CURVATURES = ("hessian", "gauss_newton")


class AutodiffLikelihood(Likelihood):
    """p(y | f) from a function log_prob(y, f) of one datum; everything else by torch.func.

        r = ∇_f log p(y | f),     Λ = V max(diag(λ), 0) Vᵀ  with  -∇²_f log p = V diag(λ) Vᵀ

    R is the symmetric square root of Λ, differentiable at repeated eigenvalues too (`psd_root`).
    With a `link` f -> η and curvature="gauss_newton", log_prob is a function of η and
    Λ = (dη/df)ᵀ (-∇²_η log p) (dη/df): PSD of itself where log p is concave in η, as it is in the
    natural parameters of an exponential family (Martens 2020, section 8).

    Functions may be `torch.nn.Module`s: their parameters are then hyperparameters, and may stay on
    the CPU whatever the device of f; other tensors it needs, a function moves by `.to(f)`. They are
    called under `torch.vmap`, so they can't branch on values (use `torch.where`) or index by a
    single number (`f.log_softmax(-1)[y.long()]`, not `[y[0].long()]`); checks of arguments in
    torch.distributions are off meanwhile.

    Parameters
    ----------
    log_prob
        (y (T,), f (C,)) -> 0-d: one datum, its targets and latent outputs flat. A datum with one
        target or output has T or C of one.
    link
        f (C,) -> η of any shape: log_prob is then called with (y, η).
    target_shape
        Shape of one datum's targets as the user gives them; by default that of the network's
        output. Known quantities (a number of trials, say) can be part of the targets.
    curvature
        "hessian": its PSD part; "gauss_newton": by `link`; or a function (y (T,), f (C,)) -> Λ
        (C, C) of one datum.
    mean, variance
        f (C,) -> (T,): E[y | f] and Var[y | f] of one datum. Predictive moments need them.
    sample
        (f (... x C), generator) -> y (... x T): draws, for all data at once. Predictive samples
        and intervals need it.

    References
    ----------
    Martens, "New insights and perspectives on the natural gradient method", JMLR 2020.
    """

    methods = ("quasi_monte_carlo", "monte_carlo")

    def __init__(
        self,
        log_prob: Callable[..., Tensor],
        *,
        link: Callable[..., Tensor] | None = None,
        target_shape: int | tuple[int, ...] | None = None,
        curvature: Literal["hessian", "gauss_newton"] | Callable[..., Tensor] = "hessian",
        mean: Callable[..., Tensor] | None = None,
        variance: Callable[..., Tensor] | None = None,
        sample: Callable[..., Tensor] | None = None,
    ) -> None:
        super().__init__()
        given = {"log_prob": log_prob, "link": link, "mean": mean, "variance": variance}
        for name, function in {**given, "sample": sample}.items():
            if not callable(function) and (function is not None or name == "log_prob"):
                raise TypeError(f"{name}: expected a function, got {type(function).__name__}")
        if not callable(curvature) and curvature not in _CURVATURES:
            raise ValueError(
                'curvature: expected "hessian", "gauss_newton" or a function (y, f) -> Λ, '
                f"got {curvature!r}"
            )
        if curvature == "gauss_newton" and link is None:
            raise ValueError(
                'curvature: "gauss_newton" splits log p(y | f) into log_prob(y, η) and η = link(f);'
                ' give link, or take curvature="hessian"'
            )
        self.density, self.link, self.curvature = log_prob, link, curvature
        self.mean_function, self.variance_function, self.sampler = mean, variance, sample
        shape = (target_shape,) if isinstance(target_shape, int) else target_shape
        self.own_target_shape = shape

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape if self.own_target_shape is None else self.own_target_shape

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        flat = flatten_targets(y, self.target_shape(output_shape), dtype)
        f = torch.zeros(torch.Size(output_shape).numel(), dtype=dtype, device=flat.device)
        with torch.no_grad(), unchecked_distributions():
            value = self._density(flat[0], f, check=False)
        if value.numel() != 1:
            raise ValueError(
                f"log_prob: expected one number for one datum, y {tuple(flat.shape[1:])} and f "
                f"{tuple(f.shape)}, got shape {tuple(value.shape)}; sum over targets"
            )
        try:
            self.residual(flat[:1], f.unsqueeze(0))
        except RuntimeError as error:
            raise ValueError(
                "log_prob: can't be differentiated under torch.vmap; use torch.where instead of "
                "branches on values, and index by y.long() with its axis, not by a single number "
                f"({error})"
            ) from error
        return flat

    def _density(self, y: Tensor, f: Tensor, *, check: bool = True) -> Tensor:
        """log p of one datum."""
        value = call(self.density, y, f if self.link is None else call(self.link, f))
        return value.reshape(()) if check else value

    def _each(self, function: Callable[..., Tensor], y: Tensor, f: Tensor) -> Tensor:
        """function(y_n, f_n) for all data and draws, (... x N x ...)."""
        leading = f.shape[:-1]
        y = y.expand(*leading, y.shape[-1]).reshape(-1, y.shape[-1])
        with unchecked_distributions():
            values: Tensor = torch.vmap(partial(call, function))(y, f.reshape(-1, f.shape[-1]))
        return values.reshape(*leading, *values.shape[1:]).to(f.dtype)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self._each(self._density, y, f)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        return self._each(torch.func.grad(self._density, argnums=1), y, f)

    def _negative_hessian(self, y: Tensor, f: Tensor) -> Tensor:
        return -torch.func.jacrev(torch.func.grad(self._density, argnums=1), argnums=1)(y, f)

    def _gauss_newton(self, y: Tensor, f: Tensor) -> Tensor:
        assert self.link is not None
        link, shape = self.link, call(self.link, f).shape

        def density(eta: Tensor) -> Tensor:
            return call(self.density, y, eta.reshape(shape)).reshape(())

        def natural(f: Tensor) -> Tensor:
            return call(link, f).reshape(-1)

        jacobian = torch.func.jacrev(natural)(f)  # (K, C)
        hessian = torch.func.jacrev(torch.func.grad(density))(natural(f))
        return -jacobian.mT @ hessian @ jacobian

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        function = self.curvature
        if function == "hessian":
            function = self._negative_hessian
        elif function == "gauss_newton":
            function = self._gauss_newton
        assert callable(function)
        return DenseRoot(psd_root(self._each(function, y, f)))

    def _needed(self, name: str, function: Callable[..., Tensor] | None) -> Callable[..., Tensor]:
        if function is None:
            raise ValueError(
                f"{name}: this likelihood was made from log_prob alone; give "
                f"AutodiffLikelihood(..., {name}=...) a function of f"
            )
        return function

    def _moment(self, name: str, function: Callable[..., Tensor] | None, f: Tensor) -> Tensor:
        function = self._needed(name, function)
        with unchecked_distributions():
            values = torch.vmap(partial(call, function))(f.reshape(-1, f.shape[-1]))
        return values.reshape(*f.shape[:-1], -1).to(f.dtype)

    def conditional_mean(self, f: Tensor) -> Tensor:
        return self._moment("mean", self.mean_function, f)

    def conditional_variance(self, f: Tensor) -> Tensor:
        return self._moment("variance", self.variance_function, f)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        draws = call(self._needed("sample", self.sampler), f, generator)
        if draws.shape[:-1] != f.shape[:-1]:
            raise ValueError(
                f"sample: expected (... x T) for f of shape {tuple(f.shape)}, "
                f"got {tuple(draws.shape)}"
            )
        return draws

    def extra_repr(self) -> str:
        curvature = self.curvature if isinstance(self.curvature, str) else name_of(self.curvature)
        return f"log_prob={name_of(self.density)}, curvature={curvature}"


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), the parameters of a module on the device of the arguments."""
    if not isinstance(function, nn.Module):
        return function(*arguments)
    device = next(a.device for a in arguments if isinstance(a, Tensor))
    named = [*function.named_parameters(), *function.named_buffers()]
    moved = {name: tensor.to(device) for name, tensor in named if tensor.device != device}
    return functional_call(function, moved, arguments) if moved else function(*arguments)


def name_of(function: object) -> str:
    """What to call a function or a module in a repr."""
    return getattr(function, "__name__", type(function).__name__)


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Leaves out torch.distributions' checks of arguments, which branch on values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)

"""Hyperparameters by maximum marginal likelihood (MAP-II where GPyTorch priors are registered)."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from lingp.inference.factorize import RoundingWarning
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.progress import count
from lingp.inference.search import Search, maximize, set_values
from lingp.inference.spectrum import has_spectral_evidence, spectral_evidence

_SHIFTS = (0.0, -4.0, 4.0)  # of raw values (logarithms by default): starts of the free search


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before its tolerance was reached."""


@dataclass(frozen=True)
class HyperparameterResult:
    """What `optimize_hyperparameters` did.

    Attributes
    ----------
    initial_log_marginal_likelihood, log_marginal_likelihood
        Evidence before and after.
    mean
        Whose mean the evidence is for: "network" or "refit".
    num_evaluations
        How often the evidence was evaluated.
    gradient_norm
        Largest derivative of the objective (evidence and GPyTorch priors) in a raw hyperparameter
        at the end.
    converged
        Whether that is below the tolerance.
    method
        "eigendecomposition" or "L-BFGS".
    """

    initial_log_marginal_likelihood: float
    log_marginal_likelihood: float
    mean: str
    num_evaluations: int
    gradient_norm: float
    converged: bool
    method: str

    def __str__(self) -> str:
        return (
            f"log marginal likelihood ({self.mean} mean) "
            f"{self.initial_log_marginal_likelihood:.6g} -> {self.log_marginal_likelihood:.6g} "
            f"by {self.method}, {self.num_evaluations} evaluations, gradient norm "
            f"{self.gradient_norm:.1e} ({'converged' if self.converged else 'not converged'})"
        )


def optimize(
    laplace: LinearizedLaplace, *, tolerance: float = 1e-6, max_evaluations: int = 500
) -> HyperparameterResult:
    """Maximise evidence plus log densities of registered GPyTorch priors; sets the hyperparameters.

    Parameters
    ----------
    laplace
        Its prior's and likelihood's parameters that require grad are optimised.
    tolerance
        On the largest derivative in a raw hyperparameter, in nats per observed value.
    max_evaluations
        Of the evidence, for each start.
    """
    modules = (laplace.prior, laplace.likelihood)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "there is nothing to optimise: no hyperparameter of prior and likelihood requires grad"
        )
    log_prior = hyperprior(modules)
    threshold = tolerance * laplace.training.outputs.numel()
    with torch.no_grad():
        initial = float(laplace.log_marginal_likelihood())
    method, search = "eigendecomposition", None
    if has_spectral_evidence(laplace):
        search = _search_spectrum(laplace, parameters, log_prior, threshold, max_evaluations)
    if search is None:
        method = "L-BFGS"
        search = _search_evidence(laplace, parameters, log_prior, threshold, max_evaluations)
    with torch.no_grad():
        final = float(laplace.log_marginal_likelihood())
    result = HyperparameterResult(
        initial,
        final,
        laplace.mean,
        search.num_evaluations,
        search.gradient_norm,
        search.gradient_norm <= threshold,
        method,
    )
    if not result.converged:
        warnings.warn(
            f"hyperparameters did not converge: gradient norm {search.gradient_norm:.1e} after "
            f"{search.num_evaluations} evaluations, tolerance {threshold:.1e}; raise "
            "max_evaluations or tolerance, or fix a hyperparameter the data say nothing about",
            ConvergenceWarning,
            stacklevel=3,
        )
    return result


def hyperprior(modules: Iterable[gpytorch.Module]) -> Callable[[], Tensor]:
    """The sum of the log densities of all GPyTorch priors registered on hyperparameters."""
    # in float64: some densities cast the value to their own dtype, and searches stall on its steps
    terms = [
        (owner, closure, copy.deepcopy(density).double())
        for module in modules
        for _, owner, density, closure, _ in module.named_priors()
    ]

    def log_density() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for owner, closure, density in terms:
            total = total + density.log_prob(closure(owner)).sum()
        return total

    return log_density


def _search_evidence(
    laplace: LinearizedLaplace,
    parameters: Sequence[Tensor],
    log_prior: Callable[[], Tensor],
    threshold: float,
    max_evaluations: int,
) -> Search:
    """The search with one factorisation per evaluation."""
    with warnings.catch_warnings(), count("optimising", show=laplace.training.progress) as step:
        # said once, by the evaluation at the end, not at every step
        warnings.simplefilter("ignore", RoundingWarning)

        def objective() -> Tensor:
            step()
            return laplace.log_marginal_likelihood() + log_prior()

        return maximize(objective, parameters, threshold, max_evaluations)


def _search_spectrum(
    laplace: LinearizedLaplace,
    parameters: Sequence[Tensor],
    log_prior: Callable[[], Tensor],
    threshold: float,
    max_evaluations: int,
) -> Search | None:
    """The search by eigenvalues from several starts; None, nothing moved, if rounding spoils it."""
    evidence = spectral_evidence(laplace)

    def arguments() -> tuple[Tensor, Tensor]:
        noise = laplace.curvature_root().tensors()[0].pow(-2)
        return laplace.prior.variances()[0].to(noise), noise

    def objective() -> Tensor:
        return evidence(*arguments()) + log_prior()

    start = [p.detach().clone() for p in parameters]
    best, best_values, evaluations = None, start, 0
    for shifts in itertools.product(_SHIFTS, repeat=len(parameters)):
        set_values(parameters, [p + shift for p, shift in zip(start, shifts, strict=True)])
        search = maximize(objective, parameters, threshold, max_evaluations)
        evaluations += search.num_evaluations
        if best is None or search.value > best.value:
            best, best_values = search, [p.detach().clone() for p in parameters]
    set_values(parameters, best_values)
    with torch.no_grad():
        if best is None or not evidence.resolved(*arguments()):
            set_values(parameters, start)
            return None
    return Search(best.value, best.gradient_norm, evaluations)

"""Hyperparameters by maximum marginal likelihood or leave-one-out predictive density.

MAP-II where GPyTorch priors are registered on hyperparameters. Which objective to trust:

- The evidence is the default. For classifiers, with the network's mean, it ends near the best
  precision, usually below it by a factor; the evidence of one precision for all weights predicts
  better than that of one per layer, which scores higher.
- At a refitted mean, evidence and leave-one-out drive precisions towards zero where a likelihood
  rises without limit as the fit improves (class labels, free variances): the features have seen
  the targets. The default takes the evidence of the network's mean there. Where it doesn't rise
  without limit (Gaussian and Student-t noise, counts), a refitted mean's evidence is the better
  guide, and much the better one after overfitting.
- A prior that is centred at the network's own weights leaves the evidence of the network's mean
  without a penalty |θ* - μ0|², so that it rises with the precision for ever: only a refitted mean's
  tells precisions apart, and is taken by default for labels too.
- Leave-one-out with the network's mean drives precisions to infinity and noise to zero: a network
  that has fitted the data looks as if it had foreseen them. Leave-one-out wants mean="refit".
- Validation data are better than any of these, see `tune_on_validation`.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import gpytorch
import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.factorize import RoundingWarning
from lingp.inference.laplace import LinearizedLaplace
from lingp.inference.tuning.mackay import applies, fixed_point
from lingp.inference.tuning.objectives import OBJECTIVES, HyperparameterObjective, LogEvidence
from lingp.inference.tuning.search import (
    Optimum,
    flat,
    maximize_from_starts,
    set_flat,
    start_shifts,
)
from lingp.runtime.progress import count
from lingp.runtime.restoring import restored_on_error

_RESTARTS = 2  # where each evaluation takes a factorisation
_MANY = 50  # hyperparameters: from here on fixed-point updates, and no restarts


class MisleadingObjectiveWarning(UserWarning):
    """The objective asked for is known to choose bad hyperparameters for this model."""


@dataclass(frozen=True)
class HyperparameterResult(Optimum):
    """The result of `optimize_hyperparameters`.

    Attributes
    ----------
    value
        The objective at the end: log marginal likelihood, or the sum of the leave-one-out log
        predictive densities of all data.
    gradient_norm
        Largest derivative of the objective (with GPyTorch priors) in a raw hyperparameter at the
        end.
    num_evaluations
        The number of evaluations of the objective.
    num_starts, num_agreeing
        The number of points that the search started from, and of those that came to this value.
    objective
        "evidence" or "leave_one_out".
    mean
        Whose mean the objective is for, "network" or "refit"; predictions may have the other.
    initial_value
        The objective at the start.
    converged
        Whether the gradient's norm is below the tolerance.
    method
        "eigendecomposition", "L-BFGS" or "MacKay".
    """

    objective: str = field(kw_only=True)
    mean: str = field(kw_only=True)
    initial_value: float = field(kw_only=True)
    converged: bool = field(kw_only=True)
    method: str = field(kw_only=True)

    @property
    def log_marginal_likelihood(self) -> float:
        """The evidence at the end."""
        return self._evidence(self.value)

    @property
    def initial_log_marginal_likelihood(self) -> float:
        """The evidence at the start."""
        return self._evidence(self.initial_value)

    def _evidence(self, value: float) -> float:
        if self.objective != "evidence":
            raise AttributeError(
                "log_marginal_likelihood: this search was for the leave-one-out predictive "
                "density, its result is in `value`; call log_marginal_likelihood() of the model"
            )
        return value

    def __str__(self) -> str:
        return (
            f"{OBJECTIVES[self.objective].words} ({self.mean} mean) {self.initial_value:.6g} -> "
            f"{self.value:.6g} by {self.method}, {self.num_evaluations} evaluations, "
            f"{self.num_agreeing} of {self.num_starts} starts agree, gradient norm "
            f"{self.gradient_norm:.1e} ({'converged' if self.converged else 'not converged'})"
        )


def optimize(
    laplace: LinearizedLaplace,
    *,
    objective: Literal["auto", "evidence", "leave_one_out"] = "auto",
    method: Literal["auto", "l-bfgs", "mackay"] = "auto",
    num_restarts: int | None = None,
    tolerance: float = 1e-6,
    max_evaluations: int = 500,
    generator: torch.Generator | None = None,
) -> HyperparameterResult:
    """Maximise an objective plus log densities of registered GPyTorch priors.

    Sets the hyperparameters.

    Parameters
    ----------
    laplace
        Its prior's and likelihood's parameters that require grad are optimised.
    objective
        "evidence" (log marginal likelihood) or "leave_one_out" (sum of leave-one-out log
        predictive densities), with the mean that `laplace` has. "auto": the evidence; with a
        refitted mean and class labels or free variances, that of the network's mean.
    method
        "l-bfgs": L-BFGS in raw values (logarithms by default), a factorisation per evaluation.
        "mackay": fixed-point updates, see `lingp.inference.tuning.mackay`. "auto": one
        eigendecomposition and a free search where that is possible; fixed-point updates of 50 or
        more hyperparameters (those of `UnitWise` and `Diagonal` priors) where they apply, unless
        restarts are asked for; else L-BFGS.
    num_restarts
        Starts besides the current values; the best optimum is kept. By default 2, or all
        combinations of shifted values where evaluations are free; none with 50 or more
        hyperparameters, and with "mackay".
    tolerance
        The bound on the largest derivative in a raw hyperparameter, in nats per observed value.
    max_evaluations
        The most evaluations of the objective, for each start.
    generator
        Draws starts when more restarts are asked for than there are fixed ones.

    Raises
    ------
    ValueError
        If no hyperparameter requires grad, an option is unknown, or MacKay updates don't apply.
    """
    _check_options(objective, method, num_restarts)
    parameters = free_parameters(laplace)
    chosen = _choose_objective(laplace, objective)
    laplace = chosen.laplace
    threshold = tolerance * max(1.0, laplace.data_term.num_observed)
    if sum(p.numel() for p in parameters) >= _MANY and not num_restarts:
        num_restarts = 0
        if method == "auto" and chosen.name == "evidence" and applies(laplace):
            method = "mackay"
    if method == "mackay" and chosen.name != "evidence":
        raise ValueError('method: "mackay" maximises the evidence; use "l-bfgs" for others')
    with restored_on_error(laplace.prior, laplace.likelihood):
        with torch.no_grad():
            initial = float(chosen.value())
        start, shifts = flat(parameters), start_shifts(len(parameters), num_restarts, generator)
        # free evaluations where eigenvalues can be relied on, else a factorisation for each
        for each in filter(None, (chosen.spectral() if method != "l-bfgs" else None, chosen)):
            set_flat(parameters, start)
            if method == "mackay":
                assert isinstance(each, LogEvidence)
                found = fixed_point(each, threshold, max_evaluations)
            else:
                if num_restarts is None and each is chosen:
                    shifts = shifts[: _RESTARTS + 1]
                found = _search(each, parameters, threshold, max_evaluations, shifts)
            if each.resolved(threshold):
                break
        with torch.no_grad():
            final = float(chosen.value())
        result = HyperparameterResult(
            **{**vars(found), "value": final},
            objective=chosen.name,
            mean=laplace.mean,
            initial_value=initial,
            converged=found.gradient_norm <= threshold,
            method="MacKay" if method == "mackay" else each.method,
        )
        if not result.converged:
            warnings.warn(
                f"hyperparameters did not converge: gradient norm {found.gradient_norm:.1e} after "
                f"{found.num_evaluations} evaluations, tolerance {threshold:.1e}; raise "
                "max_evaluations or tolerance, or fix a hyperparameter the data say nothing about",
                ConvergenceWarning,
                stacklevel=3,
            )
    return result


def free_parameters(laplace: LinearizedLaplace) -> list[Tensor]:
    """Raw hyperparameters that require grad, the prior's first."""
    modules = (laplace.prior, laplace.likelihood)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "there is nothing to optimise: no hyperparameter of prior and likelihood requires grad"
        )
    return parameters


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


def _check_options(objective: str, method: str, num_restarts: int | None) -> None:
    if objective not in ("auto", *OBJECTIVES):
        raise ValueError(
            f'objective: expected "auto", "evidence" or "leave_one_out", got {objective!r}'
        )
    if method not in ("auto", "l-bfgs", "mackay"):
        raise ValueError(f'method: expected "auto", "l-bfgs" or "mackay", got {method!r}')
    if num_restarts is not None and num_restarts < 0:
        raise ValueError(f"num_restarts: expected a number >= 0, got {num_restarts}")


def _choose_objective(laplace: LinearizedLaplace, objective: str) -> HyperparameterObjective:
    """The objective of the model it can be trusted for; a warning where it is known to mislead."""
    refit, limited = laplace.mean == "refit", laplace.likelihood.limits_fit
    centred = objective != "leave_one_out" and not bool(laplace.prior_deviation().any())
    if objective == "leave_one_out" and not refit:
        _warn_misleading(
            "leave-one-out with the network's mean drives prior precisions to infinity and noise "
            'to zero, because the network has fitted the data it is asked about; use mean="refit", '
            "the evidence, or validation data"
        )
    elif not refit and centred and _precision_is_free(laplace):
        _warn_misleading(
            "with the network's mean and a prior centred at the network's weights, log marginal "
            "likelihood drives prior precisions to infinity, because no weight has to move for the "
            'fit there is; use mean="refit", validation data, or a GPyTorch prior on the precision'
        )
    elif objective != "auto" and refit and not limited and not centred:
        _warn_misleading(
            f"with a refitted mean, {OBJECTIVES[objective].words} drives prior precisions of "
            f"{type(laplace.likelihood).__name__} models towards zero, because the features have "
            'seen the targets; objective="auto" takes the evidence of the network\'s mean instead'
        )
    elif refit and not limited and not centred:
        laplace = dataclasses.replace(laplace, mean="network")
    return OBJECTIVES["evidence" if objective == "auto" else objective](laplace)


def _precision_is_free(laplace: LinearizedLaplace) -> bool:
    """Whether the prior has hyperparameters that move and nothing that holds them."""
    prior = laplace.prior
    held = next(iter(prior.named_priors()), None) is not None
    return not held and any(p.requires_grad for p in prior.parameters())


def _warn_misleading(message: str) -> None:
    warnings.warn(message, MisleadingObjectiveWarning, stacklevel=5)


def _search(
    objective: HyperparameterObjective,
    parameters: Sequence[Tensor],
    threshold: float,
    max_evaluations: int,
    shifts: Sequence[Sequence[float]],
) -> Optimum:
    """The search by L-BFGS, with GPyTorch priors."""
    laplace = objective.laplace
    log_prior = hyperprior((laplace.prior, laplace.likelihood))
    with warnings.catch_warnings(), count("optimising", show=laplace.training.progress) as step:
        # said once, by the evaluation at the end, not at every step
        warnings.simplefilter("ignore", RoundingWarning)

        def value() -> Tensor:
            step()
            return objective.value() + log_prior()

        return maximize_from_starts(value, parameters, threshold, max_evaluations, shifts)

"""One step of the hyperparameters to the maximum of the evidence, at the network as it is.

    log q(D) = Σ_n log p(y_n | f_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ)

(Immer, Bauer, Fortuin, Rätsch and Khan, 2021, "Scalable marginal likelihood estimation for model
selection in deep learning", algorithm 1), with the exact full-network GGN in whichever space is
cheaper. Precisions and Gaussian noise have fixed points (MacKay); for everything else there are
gradients.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn

from lingp.inference import ConvergenceWarning, Mean
from lingp.likelihoods import Likelihood
from lingp.linearization import ParameterSelection
from lingp.models import LinearizedGP
from lingp.models.choice import Inference
from lingp.priors import Prior
from lingp.training.effective import effective_parameters

_TOLERANCE = 1e-3  # nats per observed value: the weights move on anyway


@dataclass(frozen=True)
class EvidenceStep:
    """What a hyperparameter step found.

    Attributes
    ----------
    evidence_before, evidence
        Log marginal likelihood at the weights as they were, before and after the step.
    log_likelihood
        Σ_n log p(y_n | f_n) after it.
    effective_parameters
        γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ, the number of directions that the data determine.
    hyperparameters
        Value of each hyperparameter of prior and likelihood, as nested lists.
    seconds
        That it took.
    """

    evidence_before: float
    evidence: float
    log_likelihood: float
    effective_parameters: float
    hyperparameters: dict[str, Any]
    seconds: float


def hyperparameter_step(
    net: nn.Module,
    X: Any,
    y: Any = None,
    *,
    likelihood: Likelihood,
    prior: Prior,
    parameters: ParameterSelection = "all",
    inference: Inference = "auto",
    mean: Mean = "network",
    sample_weight: Any = None,
    memory_budget: int | None = None,
    max_evaluations: int = 50,
) -> EvidenceStep:
    """Move prior and likelihood, in place, to the evidence's maximum for the network as it is.

    To be called every some epochs of a training loop of your own, whose loss then has the
    penalty ½ |Σ0^{-1/2} (θ - μ0)|² of the prior, see `map_loss`.

    Parameters
    ----------
    net
        The network, which is copied and stays as it is.
    X, y, sample_weight
        All training data, as `LinearizedGP.fit` takes them.
    likelihood, prior
        The objects whose hyperparameters are moved. GPyTorch priors registered on them count; those
        with `requires_grad` off stay.
    parameters, inference, mean, memory_budget
        As in `LinearizedGP`.
    max_evaluations
        Of the evidence.
    """
    start = time.perf_counter()
    gp = LinearizedGP(
        net,
        likelihood,
        prior=prior,
        parameters=parameters,
        inference=inference,
        mean=mean,
        sites="mean",
        memory_budget=memory_budget,
    ).fit(X, y, sample_weight=sample_weight, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the next step goes on from here
        found = gp.optimize_hyperparameters(
            objective="evidence",
            num_restarts=0,
            tolerance=_TOLERANCE,
            max_evaluations=max_evaluations,
        )
    parts = gp.evidence()
    return EvidenceStep(
        evidence_before=found.initial_value,
        evidence=parts.value,
        log_likelihood=parts.log_likelihood,
        effective_parameters=effective_parameters(gp),
        hyperparameters=values_of(prior, likelihood),
        seconds=time.perf_counter() - start,
    )


def values_of(prior: Prior, likelihood: Likelihood) -> dict[str, Any]:
    """Hyperparameters by name, `prior.precision` and the like, as numbers or lists of them."""
    return {
        f"{kind}.{name.replace('raw_', '')}": value.detach().tolist()
        for kind, module in (("prior", prior), ("likelihood", likelihood))
        for name, value in _constrained(module)
    }


def _constrained(module: Any) -> Any:
    for name, raw in module.named_parameters():
        constraint = module.constraint_for_parameter_name(name)
        yield name, raw if constraint is None else constraint.transform(raw)

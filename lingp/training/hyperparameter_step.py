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
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lingp.inference import ConvergenceWarning, Mean
from lingp.inference.factorize import RoundingWarning
from lingp.inference.tuning.mackay import applies
from lingp.inference.tuning.spectrum import has_spectral_evidence
from lingp.likelihoods import Likelihood
from lingp.models import LinearizedGP
from lingp.models.fitting import Missing
from lingp.models.tuning import SearchMethod
from lingp.priors import Prior
from lingp.runtime.restoring import restored_on_error
from lingp.training.history import EvidenceStep

TOLERANCE = 1e-3  # nats per observed value: the weights move on anyway
EVALUATIONS = 50
PRECISIONS = (1e-8, 1e8)  # past it, weights are as good as free, or as good as zero


def hyperparameter_step(
    net: nn.Module,
    X: Any,
    y: Any = None,
    *,
    likelihood: Likelihood,
    prior: Prior,
    mean: Mean = "network",
    sample_weight: Any = None,
    missing: Missing = "error",
    method: SearchMethod = "auto",
    tolerance: float = TOLERANCE,
    max_evaluations: int = EVALUATIONS,
    **options: Any,
) -> EvidenceStep:
    """Move prior and likelihood, in place, to the evidence's maximum for the network as it is.

    To be called every some epochs of a training loop of your own, whose loss then has the
    penalty ½ |Σ0^{-1/2} (θ - μ0)|² of the prior, see `penalty`.

    Parameters
    ----------
    net
        The network, which is copied and stays as it is.
    X, y, sample_weight, missing
        All training data, as `LinearizedGP.fit` takes them.
    likelihood, prior
        The objects whose hyperparameters are moved. GPyTorch priors registered on them count; those
        with `requires_grad` off stay. Precisions stay between 1e-8 and 1e8. A prior with
        mean="network" stays at the weights that it was first bound to, see `Prior.hold_mean`; bind
        it before the first step of the loop.
    mean
        As in `LinearizedGP`. Where the evidence of a refitted mean misleads (class labels, free
        variances: the features have seen the targets), that of the network's mean is taken.
    method, tolerance, max_evaluations
        As in `LinearizedGP.optimize_hyperparameters`. "auto": one eigendecomposition where that
        serves, else MacKay's fixed point where it applies, else L-BFGS.
    **options
        Others of `LinearizedGP`, such as `parameters`, `inference` and `memory_budget`.

    Returns
    -------
    EvidenceStep
        Evidence before and after, γ and the hyperparameters.

    Raises
    ------
    OutOfRangeError
        If the evidence isn't finite at the hyperparameters as they are, which stay then.
    """
    start = time.perf_counter()
    if prior.names is not None:
        prior.hold_mean()
    data = {"X": X, "y": y, "sample_weight": sample_weight, "missing": missing}
    gp = conditioned(net, data, likelihood=likelihood, prior=prior, mean=mean, **options)
    prior.hold_mean()  # the weights move on
    found = move(gp, method=method, tolerance=tolerance, max_evaluations=max_evaluations)
    return replace(found, seconds=time.perf_counter() - start)


def conditioned(
    net: nn.Module,
    data: dict[str, Any],
    *,
    likelihood: Likelihood,
    prior: Prior,
    mean: Mean = "network",
    **options: Any,
) -> LinearizedGP:
    """The network as it is, conditioned on the data, with the mean whose evidence can be trusted.

    Parameters
    ----------
    net
        The network.
    data
        What `LinearizedGP.fit` is given.
    likelihood, prior, mean, **options
        As in `LinearizedGP`.
    """
    trusted = mean if likelihood.limits_fit else "network"
    gp = LinearizedGP(net, likelihood, prior=prior, mean=trusted, sites="mean", **options)
    return gp.fit(**data, progress=False, prepare=False)


def move(
    gp: LinearizedGP,
    *,
    method: SearchMethod = "auto",
    tolerance: float = TOLERANCE,
    max_evaluations: int = EVALUATIONS,
) -> EvidenceStep:
    """Move the hyperparameters of a conditioned network; where none is free, only look.

    Raises
    ------
    OutOfRangeError
        If the evidence isn't finite; the hyperparameters stay then.
    """
    modules = (gp.prior, gp.likelihood)
    if not any(p.requires_grad for module in modules for p in module.parameters()):
        return look(gp)
    with warnings.catch_warnings(), restored_on_error(*modules):
        warnings.simplefilter("ignore", ConvergenceWarning)  # the next step goes on from here
        warnings.simplefilter("ignore", RoundingWarning)  # said by whoever predicts
        initial = gp.evidence().value
        if method == "auto" and not has_spectral_evidence(gp.laplace) and applies(gp.laplace):
            method = "mackay"
        gp.optimize_hyperparameters(
            objective="evidence",
            method=method,
            num_restarts=0,
            tolerance=tolerance,
            max_evaluations=max_evaluations,
        )
        at_bounds = hold_in_range(gp.prior)
        return replace(look(gp), evidence_before=initial, at_bounds=at_bounds)


def look(gp: LinearizedGP) -> EvidenceStep:
    """The evidence as it is, without a step, which takes no time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        parts, gamma = gp.evidence(), effective_parameters(gp)
    return EvidenceStep(
        evidence_before=parts.value,
        evidence=parts.value,
        log_likelihood=parts.log_likelihood,
        effective_parameters=gamma,
        hyperparameters=values_of(gp.prior, gp.likelihood),
        seconds=0.0,
    )


def effective_parameters(gp: LinearizedGP) -> float:
    """γ = tr (I + Φ Φᵀ)⁻¹ Φ Φᵀ = Σ_l v_l ∂ log det(I + Φ Φᵀ) / ∂ v_l.

    For a sparse posterior, of its log determinant with what it leaves out.

    Parameters
    ----------
    gp
        A GP with data.
    """
    with torch.no_grad():
        return float(gp.laplace.solution().occam.effective_parameters())


@torch.no_grad()
def mean_curvature(gp: LinearizedGP, num_rows: int = 1000) -> float:
    """Mean of the diagonal of -d² log p / df², of rows all over the data: how steep the loss is."""
    laplace = gp.laplace
    size = laplace.training.num_data
    rows = torch.arange(0, size, max(1, size // num_rows), device=laplace.training.outputs.device)
    dense = laplace.curvature_root().rows(rows).dense()
    return float(dense.square().sum() / dense[..., 0].numel())


@torch.no_grad()
def hold_in_range(prior: Prior) -> int:
    """Take free precisions that have run off back to the ends of `PRECISIONS`; counts them."""
    raw = getattr(prior, "raw_precision", None)
    if raw is None or not raw.requires_grad:
        return 0
    values = prior.precision
    outside = (values <= PRECISIONS[0]) | (values >= PRECISIONS[1])
    if bool(outside.any()):
        ends: Tensor = prior.raw_precision_constraint.inverse_transform(values.clamp(*PRECISIONS))
        raw.copy_(torch.where(outside, ends, raw))
    return int(outside.sum())


def values_of(prior: Prior, likelihood: Likelihood) -> dict[str, Any]:
    """Hyperparameters by name, `prior.precision` and the like, as numbers or lists of them."""
    found = {}
    for kind, module in (("prior", prior), ("likelihood", likelihood)):
        for name, raw, constraint in module.named_parameters_and_constraints():
            value = raw if constraint is None else constraint.transform(raw)
            found[f"{kind}.{name.replace('raw_', '')}"] = value.detach().tolist()
    return found

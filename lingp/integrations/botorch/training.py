"""A model from data alone, in the place of `SingleTaskGP(train_X, train_Y)`."""

from __future__ import annotations

import copy

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from gpytorch.constraints import GreaterThan
from torch import Tensor, nn

from lingp.estimators.networks import build_network
from lingp.integrations.botorch.model import LinearizedGPModel
from lingp.integrations.botorch.scaling import unit_variance
from lingp.likelihoods import Gaussian, KnownNoiseGaussian, Likelihood
from lingp.models.choice import Inference
from lingp.priors import Prior
from lingp.training import train_with_evidence

HIDDEN = (50,)
STEPS = 600
# Of prior and noise; the first comes early, before the network has learned noise, and so does the
# first precision, which is large
_UPDATES, _BURN_IN, _PRECISION = 8, 20, 10.0
_LEAST_NOISE = 1e-4  # variance, of standardised outcomes


def fit_linearized_gp(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    *,
    bounds: Tensor | None = None,
    net: nn.Module | None = None,
    prior: Prior | float | None = None,
    inference: Inference = "auto",
    steps: int = STEPS,
    input_transform: InputTransform | None = None,
    outcome_transform: OutcomeTransform | None = None,
    generator: torch.Generator | None = None,
) -> LinearizedGPModel:
    """Train a network, its prior and its noise with the evidence, and make a model of it.

    A second or two for some tens of points. torch's global random numbers are not used.

    Parameters
    ----------
    train_X
        (n x d).
    train_Y
        (n x m); each column is an output of the same network.
    train_Yvar
        Variances of the noise, (n x m), where they are known; else one for each output is learned.
    bounds
        Of the inputs, (2 x d): least and largest. They are mapped to [-√3, √3], where a uniform
        variable has variance 1. By default those of the data.
    net
        The network to start from, which gives m outputs of d inputs; it is copied. By default one
        hidden layer of 50 GELU units, with a linear path beside it.
    prior, inference
        As in `LinearizedGP`.
    steps
        Of training.
    input_transform, outcome_transform
        Others than the map of the bounds and `Standardize`; they are copied and learn from the
        data.
    generator
        Source of the first weights and of batches; a fixed seed by default.

    Returns
    -------
    LinearizedGPModel

    Raises
    ------
    ValueError
        If shapes don't fit.

    References
    ----------
    Ament, Daulton, Eriksson, Balandat and Bakshy, 2023, "Unexpected improvements to expected
    improvement for Bayesian optimization", for the acquisition functions to use it with.
    """
    _check(train_X, train_Y, train_Yvar, bounds)
    inputs = copy.deepcopy(input_transform) or unit_variance(train_X, bounds)
    outcomes = copy.deepcopy(outcome_transform) or Standardize(train_Y.shape[-1])
    with torch.no_grad():
        x = inputs.train()(train_X).double()
        y, noise = outcomes.train()(train_Y, train_Yvar, X=train_X)
        y = y.double()
    generator = generator or torch.Generator().manual_seed(0)
    if net is None:
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
        net = build_network(x.shape[1], HIDDEN, y.shape[1], "gelu", seed).to(x.device)
    likelihood: Likelihood
    if noise is None:
        least = GreaterThan(_LEAST_NOISE)
        likelihood = Gaussian([0.1] * y.shape[1], noise_constraint=least)
    else:
        likelihood = KnownNoiseGaussian()
        y = torch.stack([y, noise.double()], -1)
    trained = train_with_evidence(
        net,
        x,
        y,
        likelihood=likelihood,
        prior=_PRECISION if prior is None else prior,
        steps=steps,
        burn_in=min(_BURN_IN, steps),
        updates=max(1, min(_UPDATES, steps // 10)),
        inference=inference,
        mean="refit",
        generator=generator,
        progress=False,
    )
    return LinearizedGPModel(
        trained.gp, input_transform=inputs.eval(), outcome_transform=outcomes.eval()
    )


def _check(X: Tensor, Y: Tensor, Yvar: Tensor | None, bounds: Tensor | None) -> None:
    if X.dim() != 2 or Y.dim() != 2 or len(X) != len(Y):
        raise ValueError(
            "train_X, train_Y: expected (n x d) and (n x m), got shapes "
            f"{tuple(X.shape)} and {tuple(Y.shape)}; batches of data sets are fitted one by one"
        )
    if Yvar is not None and Yvar.shape != Y.shape:
        raise ValueError(
            f"train_Yvar: expected the shape of train_Y, {tuple(Y.shape)}, got {tuple(Yvar.shape)}"
        )
    if bounds is None:
        return
    if bounds.shape != (2, X.shape[1]) or not bool((bounds[0] <= bounds[1]).all()):
        raise ValueError(
            f"bounds: expected (2 x {X.shape[1]}), least and largest inputs, got {bounds.tolist()}"
        )

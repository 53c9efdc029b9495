"""A model from data alone, in the place of `SingleTaskGP(train_X, train_Y)`."""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
from botorch.models.transforms.input import AffineInputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from gpytorch.constraints import GreaterThan
from torch import Tensor, nn

from lingp.inference.choice import Inference
from lingp.integrations.botorch.model import LinearizedGPModel
from lingp.integrations.botorch.waves import Waves, learn_scales
from lingp.likelihoods import Gaussian, KnownNoiseGaussian, Likelihood
from lingp.models import LinearizedGP
from lingp.priors import Prior
from lingp.training import TrainingPlan, train_with_evidence

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
    outcome_transform: OutcomeTransform | None = None,
    generator: torch.Generator | None = None,
) -> LinearizedGPModel:
    """A model of data, to be put in the place of a fitted `SingleTaskGP(train_X, train_Y)`.

    By default of a network of random sine features, of which a scale for each input, the prior and
    the noise are learned by the evidence (see `Waves`): with the tens of points that optimisation
    has, features that are learned as well overfit. A network that is given is trained, together
    with its prior and noise, by the evidence. torch's global random numbers are not used.

    Parameters
    ----------
    train_X
        (n x d).
    train_Y
        (n x m); each column is an output of the same network.
    train_Yvar
        Variances of the noise, (n x m), where they are known; else one for each output is learned.
    bounds
        Of the inputs, (2 x d): least and largest; by default those of the data. The network sees
        [-½, ½] in their place; one that is given, [-√3, √3], where a uniform variable has variance
        1.
    net
        A network of your own to start from, which gives m outputs of d inputs; it is copied.
    prior, steps
        Of the training of a network that is given, as `train_with_evidence` takes them.
    inference
        As in `LinearizedGP`.
    outcome_transform
        Another than `Standardize`; it is copied and learns from the data.
    generator
        Source of the features, or of the training's batches; a fixed seed by default.

    Returns
    -------
    LinearizedGPModel

    Raises
    ------
    ValueError
        If shapes don't fit.
    """
    _check(train_X, train_Y, train_Yvar, bounds)
    side = 1.0 if net is None else math.sqrt(12)
    inputs = _between(train_X, bounds, side)
    outcomes = copy.deepcopy(outcome_transform) or Standardize(train_Y.shape[-1])
    with torch.no_grad():
        x = inputs(train_X).double()
        y, noise = outcomes.train()(train_Y, train_Yvar, X=train_X)
    y, noise = y.double(), None if noise is None else noise.double()
    generator = generator or torch.Generator().manual_seed(0)
    make = _untrained if net is None else partial(_trained, net, prior=prior, steps=steps)
    gp = make(x, y, noise, inference=inference, generator=generator)
    return LinearizedGPModel(gp, input_transform=inputs, outcome_transform=outcomes.eval())


def _between(X: Tensor, bounds: Tensor | None, side: float) -> AffineInputTransform:
    """The transform that takes least and largest inputs to -side/2 and side/2.

    Parameters
    ----------
    X
        Inputs, (n x d).
    bounds
        Least and largest ones, (2 x d); None: those of X.
    side
        Length of the new range.
    """
    lower, upper = (X.amin(0), X.amax(0)) if bounds is None else bounds.to(X)
    scale = (upper - lower) / side
    return AffineInputTransform(
        len(scale), coefficient=torch.where(scale > 0, scale, 1.0), offset=(lower + upper) / 2
    )


def _untrained(
    x: Tensor, y: Tensor, noise: Tensor | None, *, inference: Inference, generator: torch.Generator
) -> LinearizedGP:
    """A GP of sine features on the scales of largest evidence."""
    net = Waves(x.shape[1], y.shape[1], generator).to(x.device)
    learned = learn_scales(net, x, y, noise)
    net.scale.copy_(learned.scale)
    likelihood: Likelihood = KnownNoiseGaussian()
    if noise is None:
        shared = learned.noise[0] if y.shape[1] == 1 else learned.noise
        likelihood = Gaussian(shared)
    gp = LinearizedGP(
        net,
        likelihood,
        prior=learned.precision,
        parameters="last_layer",
        inference=inference,
        mean="refit",
    )
    return gp.fit(x, _targets(y, noise), progress=False)


def _trained(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    noise: Tensor | None,
    *,
    prior: Prior | float | None,
    steps: int,
    inference: Inference,
    generator: torch.Generator,
) -> LinearizedGP:
    """A GP of a network that is trained with the evidence."""
    likelihood: Likelihood = KnownNoiseGaussian()
    if noise is None:
        start = 0.1 if y.shape[1] == 1 else [0.1] * y.shape[1]
        likelihood = Gaussian(start, noise_constraint=GreaterThan(_LEAST_NOISE))
    return train_with_evidence(
        net,
        x,
        _targets(y, noise),
        likelihood=likelihood,
        prior=_PRECISION if prior is None else prior,
        plan=TrainingPlan(
            steps=steps,
            burn_in=min(_BURN_IN, steps),
            updates=max(1, min(_UPDATES, steps // 10)),
        ),
        inference=inference,
        mean="refit",
        generator=generator,
        progress=False,
    ).gp


def _targets(y: Tensor, noise: Tensor | None) -> Tensor:
    """Targets as the likelihood takes them."""
    return y if noise is None else torch.stack([y, noise], -1)


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

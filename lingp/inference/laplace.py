"""Linearised Laplace at hyperparameters that change: what was conditioned is made anew, or kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lingp.inference.conditioned import Conditioned, Mean, Sites, Solution
from lingp.inference.data_term import DataTerm
from lingp.inference.exact import as_method
from lingp.inference.function_space import FunctionSpace
from lingp.inference.mean_scale import Matched, MeanScale
from lingp.inference.mode import Mode
from lingp.inference.posterior import Posterior
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import InferenceMethod, PosteriorMaker
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.priors import Prior
from lingp.runtime.value_cache import same_objects, same_values

__all__ = ["LinearizedLaplace", "Mean", "Sites", "Solution"]

_NUM_PROBES = 50


@dataclass
class LinearizedLaplace:
    """A training set, a prior, a likelihood and an inference method, met in one place.

    What they give stands in `conditioned`, which is made anew when a hyperparameter's value, or the
    prior, likelihood, data or option itself, has changed since.

    Attributes
    ----------
    training, prior, likelihood
        The model; `prior` is bound to the network.
    method
        Makes the posterior: an `InferenceMethod`, or a class or function that is called like one.
    mean
        Whose mean: "network" or "refit".
    sites
        Where curvature is taken: at the "mean", at the outputs of the "network", or "expected"
        under the posterior (see `lingp.inference.expected_sites`). The evidence and everything
        that is differentiated takes it at the mean in the last case.
    mean_scale
        s of predictions E p(y | s m + ε) of class labels, or the rule that finds it (see
        `lingp.inference.mean_scale`). The posterior and the evidence don't depend on it.
    """

    training: TrainingSet
    prior: Prior
    likelihood: Likelihood
    method: InferenceMethod | PosteriorMaker
    mean: Mean = "network"
    sites: Sites = "mean"
    mean_scale: MeanScale = 1.0
    _kept: tuple[tuple[object, ...], list[Tensor], Conditioned] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.mean not in ("network", "refit"):
            raise ValueError(f'mean: expected "network" or "refit", got {self.mean!r}')
        if self.sites not in ("mean", "network", "expected"):
            raise ValueError(f'sites: expected "mean", "network" or "expected", got {self.sites!r}')
        num_parameters, shape = self.training.num_parameters, self.prior.mean.shape
        if self.prior.mean.dim() == 1 and len(self.prior.mean) != num_parameters:
            raise ValueError(
                f"prior: its mean has shape {tuple(shape)}, but the network has {num_parameters} "
                "weights in `parameters`; give one number, or one value per weight"
            )

    @property
    @torch.no_grad()
    def conditioned(self) -> Conditioned:
        """What the data and the hyperparameters as they are make, without a graph."""
        parts = (self.training, self.prior, self.likelihood, self.method, self.mean, self.sites)
        values = self._values()
        before = self._kept
        if before is not None and same_objects(before[0], parts) and same_values(before[1], values):
            return before[2]
        self._kept = None  # free the old posterior before making the new one
        made = Conditioned(
            self.training,
            PriorValues.of(self.prior).detached(),
            self.prior_deviation(),
            self._data_term(copy.deepcopy(self.likelihood).requires_grad_(False)),
            as_method(self.method),
            self.mean,
            self.sites,
        )
        if before is not None and before[2].training is self.training:
            made.take_over(before[2])
        self._kept = parts, [value.detach().clone() for value in values], made
        return made

    @property
    def data_term(self) -> DataTerm:
        """The likelihood of the training data."""
        likelihood = self.likelihood
        if torch.is_grad_enabled():
            shards, device = self.training.shards, self.training.outputs.device
            likelihood = shards.enter_parameters(likelihood, device)
        return self._data_term(likelihood)

    def posterior(self) -> Posterior:
        """The posterior at the current hyperparameters, without a graph."""
        return self.conditioned.posterior

    def posterior_near(self, start: CurvatureRoot | None) -> Posterior:
        """`posterior` for a comparison of hyperparameters: expected curvature is found roughly.

        Not kept, so that what `posterior` gives never depends on what was tried before.

        Parameters
        ----------
        start
            The curvature root of other hyperparameters' posterior; None: of the prior alone.
        """
        if self.sites != "expected":
            return self.posterior()
        conditioned = self.conditioned
        conditioned.forget("posterior", "expected")  # room for another
        return conditioned.rough_posterior(start)

    def kept_root(self) -> CurvatureRoot | None:
        """R of the expected curvature that was found last, if any is kept."""
        if self._kept is None or not self._kept[2].knows("expected"):
            return None
        return self._kept[2].expected.root

    def scale_of_mean(self) -> float:
        """s, which is found at the current hyperparameters where there is a rule."""
        if not isinstance(self.mean_scale, Matched):
            return self.mean_scale
        return self.mean_scale.factor * self.matched()

    def matched(self) -> float:
        """What the rule for the mean of class labels finds at the current hyperparameters."""
        return self.conditioned.matched

    def mode(self) -> Mode:
        """The optimum of the linearised model, whatever `mean` is."""
        return self.conditioned.mode

    def curvature_root(self) -> CurvatureRoot:
        """R at the sites; at the mean for expected curvature."""
        return self.conditioned.curvature_root

    def restore(self, posterior: Posterior, mode: Mode | None, **found: object) -> None:
        """Keep what was made before, for the hyperparameters as they are.

        Parameters
        ----------
        posterior
            What `posterior` gave.
        mode
            What `mode` gave, for a refitted mean.
        found
            What other methods gave, by name: `matched`, `weight_shift`.
        """
        made = self.conditioned
        made.keep(posterior=posterior, **found)
        if mode is not None:
            made.keep(mode_and_posterior=(mode, posterior))
        elif self.sites == "expected":
            made.keep(expected=posterior)
        else:
            made.keep(occam=posterior)

    def weight_shift(self) -> Tensor | None:
        """θ - θ* of the posterior's mean, (P,); None when that is the network's own."""
        return self.conditioned.weight_shift

    def solution(self) -> Solution:
        """Posterior mean and posterior, with a graph to the hyperparameters in grad mode.

        Expected curvature has none: the posterior is then that with curvature at the mean.
        """
        hyperparameters = [*self.prior.parameters(), *self.likelihood.parameters()]
        if torch.is_grad_enabled() and any(p.requires_grad for p in hyperparameters):
            return self.conditioned.attached(PriorValues.of(self.prior), self.data_term)
        return self.conditioned.solution

    def exact_posterior(self) -> Posterior:
        """The exact posterior of all weights, whatever the method; curvature is the evidence's."""
        occam = self.conditioned.occam
        if isinstance(occam, WeightSpace | FunctionSpace):
            return occam
        training, root = self.training, self.curvature_root()
        smaller = training.num_data * root.rank < training.num_parameters
        prior = self.conditioned.prior
        return (FunctionSpace if smaller else WeightSpace)(training, prior, root)

    def log_marginal_likelihood(self) -> Tensor:
        """log q(D), 0-d, with a graph to the hyperparameters when grad mode is on."""
        at = self.solution()
        log_likelihood = self.data_term.log_prob(at.outputs)
        complexity = at.occam.log_determinant() + at.occam.bound_gap()
        return log_likelihood - 0.5 * at.e.square().sum() - 0.5 * complexity

    def prior_deviation(self) -> Tensor:
        """μ0 - θ*, (P,)."""
        weights = self.training.linearized.weights()
        return self.prior.mean.to(weights) - weights

    def prior_outputs(self) -> Tensor:
        """f_lin at the prior's mean, f* + J (μ0 - θ*), (N x C)."""
        return self.conditioned.prior_outputs

    def mean_outputs(self) -> Tensor:
        """Latent outputs at the posterior's mean, (N x C)."""
        return self.conditioned.mean_outputs

    def prior_covariance(self) -> Tensor:
        """J_n Σ0 J_nᵀ at the training data, (N x C x C), without a graph."""
        return self.conditioned.prior_covariance

    def _data_term(self, likelihood: Likelihood) -> DataTerm:
        training = self.training
        return DataTerm(likelihood, training.targets, training.weights, training.shards)

    def _values(self) -> list[Tensor]:
        """All that the hyperparameters say, and what shows what a likelihood has beside its state.

        That is what it says of some data: so few that a prediction takes no longer with more data.
        """
        prior, likelihood = self.prior, self.likelihood
        state = [*prior.parameters(), *prior.buffers()]
        state += [*likelihood.parameters(), *likelihood.buffers()]
        step = max(1, -(-self.training.num_data // _NUM_PROBES))
        outputs, targets = self.training.outputs[::step], self.training.targets[::step]
        data = DataTerm(likelihood, targets)
        probes = [data.log_prob_rows(outputs), data.residual(outputs)] if len(outputs) else []
        return [*state, prior.variances(), *probes]

"""Linearised Laplace: posterior, posterior mean and evidence at the current hyperparameters.

    log q(D) = Σ_n w_n log p(y_n | f_n) - ½ |Σ0^{-1/2} (θ - μ0)|² - ½ log det(I + Φ Φᵀ) [- ½ l]

at θ = θ* with f = f(x; θ*) (mean="network"), or at the mode of the linearised model with
f = f_lin(x, θ) (mean="refit": for Gaussian noise, the exact evidence of that model). The curvature
in Φ is taken where the mean is (sites="mean") or at the network's outputs (sites="network"); the
posterior, but not the evidence, can take its expectation instead (sites="expected"). The last term
is that of methods with features of their own, see `Posterior.bound_gap`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor

from lingp.inference.cache import ValueCache
from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.data_term import DataTerm
from lingp.inference.exact import as_method
from lingp.inference.expected_sites import (
    ROUGH,
    TOLERANCE,
    expected_posterior,
    first_root,
)
from lingp.inference.factorize import RoundingWarning
from lingp.inference.features import Features
from lingp.inference.function_space import FunctionSpace
from lingp.inference.implicit import attached_mode
from lingp.inference.mean_scale import Matched, MeanScale, matched_scale
from lingp.inference.mode import Mode, WhitenedModel, newton_mode, solved_mode
from lingp.inference.posterior import OccamFactor, Posterior
from lingp.inference.protocol import InferenceMethod, PosteriorMaker
from lingp.inference.training_set import TrainingSet
from lingp.inference.weight_space import WeightSpace
from lingp.likelihoods import CurvatureRoot, Likelihood
from lingp.operators import diagonal_blocks
from lingp.priors import Prior

Mean = Literal["network", "refit"]
Sites = Literal["mean", "network", "expected"]
T = TypeVar("T")

_NUM_PROBES = 50


@dataclasses.dataclass(frozen=True)
class Solution:
    """The posterior mean and the posterior around it.

    With a graph to the hyperparameters if it was made with grad mode on.

    Attributes
    ----------
    e
        Coordinates of the mean's θ - μ0: whitened weights (P,), for a refitted mean those of the
        posterior's features.
    outputs
        Latent outputs at the mean, (N x C).
    occam
        With the curvature at the sites.
    """

    e: Tensor
    outputs: Tensor
    occam: OccamFactor

    @property
    def posterior(self) -> Posterior:
        """The posterior around the mean; an error where the method has none."""
        return self.occam.to_predict_with()


@dataclasses.dataclass
class LinearizedLaplace:
    """A training set, a prior, a likelihood and an inference method, met in one place.

    Results are kept and recomputed when a hyperparameter's value, or the prior, likelihood, data
    or option itself, has changed since.

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

    def __post_init__(self) -> None:
        if self.mean not in ("network", "refit"):
            raise ValueError(f'mean: expected "network" or "refit", got {self.mean!r}')
        if self.sites not in ("mean", "network", "expected"):
            raise ValueError(f'sites: expected "mean", "network" or "expected", got {self.sites!r}')
        self._occam: ValueCache[OccamFactor] = ValueCache()
        self._expected: ValueCache[Posterior] = ValueCache()
        self._explaining: ValueCache[Posterior] = ValueCache()
        self._offset: ValueCache[Tensor] = ValueCache()
        self._matched: ValueCache[float] = ValueCache()
        self._mode: ValueCache[tuple[Mode, Posterior]] = ValueCache()
        num_parameters, shape = self.training.num_parameters, self.prior.mean.shape
        if self.prior.mean.dim() == 1 and len(self.prior.mean) != num_parameters:
            raise ValueError(
                f"prior: its mean has shape {tuple(shape)}, but the network has {num_parameters} "
                "weights in `parameters`; give one number, or one value per weight"
            )

    @property
    def data_term(self) -> DataTerm:
        """The likelihood of the training data."""
        training, likelihood = self.training, self.likelihood
        if torch.is_grad_enabled():
            likelihood = training.shards.enter_parameters(likelihood, training.outputs.device)
        return DataTerm(likelihood, training.targets, training.weights, training.shards)

    def posterior(self) -> Posterior:
        """The posterior at the current hyperparameters, without a graph."""
        if self.mean == "network":
            return self._posterior_at_sites()
        with torch.no_grad():
            return self._kept(self._explaining, self._make_explaining)

    @torch.no_grad()
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
        self._expected, self._explaining = ValueCache(), ValueCache()  # room for another
        posterior = self._make_expected(start, ROUGH)
        return posterior if self.mean == "network" else self._explained(posterior)

    def kept_root(self) -> CurvatureRoot | None:
        """R of the expected curvature that was found last, if any is kept."""
        kept = self._expected.kept
        return None if kept is None else kept.root

    def scale_of_mean(self) -> float:
        """s, which is found at the current hyperparameters where there is a rule."""
        if not isinstance(self.mean_scale, Matched):
            return self.mean_scale
        return self.mean_scale.factor * self.matched()

    def matched(self) -> float:
        """What the rule for the mean of class labels finds at the current hyperparameters."""
        posterior = self.posterior()

        def match() -> float:
            return matched_scale(self.data_term, self.mean_outputs(), posterior)

        with torch.no_grad():
            return self._matched.get((), match, (posterior,))

    def mode(self) -> Mode:
        """The optimum of the linearised model, whatever `mean` is."""
        with torch.no_grad():
            return self._kept(self._mode, self._find_mode)[0]

    def restore(self, posterior: Posterior, mode: Mode | None, matched: float | None) -> None:
        """Keep what was made before, for the hyperparameters as they are.

        Parameters
        ----------
        posterior
            What `posterior` gave.
        mode
            What `mode` gave, for a refitted mean.
        matched
            What `matched` gave, if it was asked for.
        """
        with torch.no_grad():
            if self.mean == "network" and self.sites != "expected":
                self._kept(self._occam, lambda: posterior)
            else:
                cache = self._explaining if self.mean == "refit" else self._expected
                self._kept(cache, lambda: posterior)
            if matched is not None:
                self._matched.get((), lambda: matched, (posterior,))
            if mode is not None:
                self._kept(self._mode, lambda: (mode, posterior))

    def curvature_root(self) -> CurvatureRoot:
        """R at the sites; at the mean for expected curvature."""
        data = self.data_term
        at_mode = self.mean == "refit" and self.sites != "network" and not data.is_quadratic
        return data.curvature_root(self._optimum()[1] if at_mode else self.training.outputs)

    def weight_shift(self) -> Tensor | None:
        """θ - θ* of the posterior's mean, (P,); None when that is the network's own."""
        if self.mean == "network":
            return None
        with torch.no_grad():
            moved = self._features().weights(self.mode().e.unsqueeze(-1))
            return self.prior_deviation() + moved.squeeze(-1)

    def solution(self) -> Solution:
        """Posterior mean and posterior, with a graph when grad mode is on.

        Expected curvature has none: the posterior is then that with curvature at the mean.
        """
        data, training = self.data_term, self.training
        if self.mean == "refit" and not data.is_quadratic:
            e, outputs = self._optimum()
            at = training.outputs if self.sites == "network" else outputs
            return Solution(e, outputs, self._current(lambda: data.curvature_root(at)))
        occam = self._current(lambda: data.curvature_root(training.outputs))
        if self.mean == "network":
            return Solution(self.prior_deviation().neg() / occam.scale, training.outputs, occam)
        model = self._model()
        e = occam.to_predict_with().solve(data.whitened_residual(model.offset))
        return Solution(e, model.outputs(e), occam)

    def exact_posterior(self) -> Posterior:
        """The exact posterior of all weights, whatever the method; curvature is the evidence's."""
        occam = self.solution().occam
        if isinstance(occam, WeightSpace | FunctionSpace):
            return occam
        training, root = self.training, self.curvature_root()
        smaller = training.num_data * root.rank < training.num_parameters
        return (FunctionSpace if smaller else WeightSpace)(training, self.prior, root)

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

        def make() -> Tensor:
            deviation = self.prior_deviation().unsqueeze(-1)
            return self.training.outputs + self.training.matmul(deviation).squeeze(-1)

        with torch.no_grad():
            return self._offset.get((self.prior.mean,), make, (self.training,))

    def mean_outputs(self) -> Tensor:
        """Latent outputs at the posterior's mean, (N x C)."""
        return self.training.outputs if self.mean == "network" else self._optimum()[1]

    def prior_covariance(self) -> Tensor:
        """J_n Σ0 J_nᵀ at the training data, (N x C x C), without a graph."""
        variances = self.prior.variances().detach().to(self.training.outputs)
        parts = [diagonal_blocks(factors, variances) for _, factors in self.training.chunks()]
        return torch.cat(parts)

    def _make_posterior(self, root: CurvatureRoot) -> Posterior:
        return as_method(self.method)(self.training, self.prior, root)

    def _make_occam(self, root: CurvatureRoot) -> OccamFactor:
        return as_method(self.method).occam_factor(self.training, self.prior, root)

    def _plain_occam(self) -> OccamFactor:
        """The Occam factor with curvature at a point, without a graph."""
        with torch.no_grad():
            return self._kept(self._occam, lambda: self._make_occam(self.curvature_root()))

    def _posterior_at_sites(self) -> Posterior:
        if self.sites != "expected":
            return self._plain_occam().to_predict_with()
        with torch.no_grad():
            return self._kept(self._expected, self._make_expected)

    def _make_explaining(self) -> Posterior:
        return self._explained(self._posterior_at_sites())

    def _explained(self, posterior: Posterior) -> Posterior:
        """The posterior to predict with around a refitted mean."""
        return posterior.widened_by(self.data_term.residual(self._optimum()[1]))

    def _make_expected(
        self, start: CurvatureRoot | None = None, tolerance: float = TOLERANCE
    ) -> Posterior:
        outputs = self.mean_outputs()
        if start is None:
            start = first_root(self.data_term, outputs, self.prior_covariance())
        return expected_posterior(
            self.data_term,
            outputs,
            self._make_posterior,
            start,
            tolerance=tolerance,
            progress=self.training.progress,
        )

    def _current(self, root: Callable[[], CurvatureRoot]) -> OccamFactor:
        """The Occam factor: a new one where a graph is wanted, else the kept one."""
        return self._make_occam(root()) if self._with_graph() else self._plain_occam()

    def _with_graph(self) -> bool:
        hyperparameters = [*self.prior.parameters(), *self.likelihood.parameters()]
        return torch.is_grad_enabled() and any(p.requires_grad for p in hyperparameters)

    def _features(self) -> Features:
        return as_method(self.method).features(self.training, self.prior)

    def _model(self) -> WhitenedModel:
        return WhitenedModel(self.data_term, self._features(), self.prior_outputs())

    def _optimum(self) -> tuple[Tensor, Tensor]:
        """Mode and outputs there, with a graph when grad mode is on."""
        with torch.no_grad():
            mode, posterior = self._kept(self._mode, self._find_mode)
        if not self._with_graph():
            return mode.e, mode.outputs
        return attached_mode(self._model(), mode, posterior)

    def _find_mode(self) -> tuple[Mode, Posterior]:
        model = self._model()
        if self.data_term.is_quadratic:
            posterior = self._plain_occam().to_predict_with()
            mode = solved_mode(model, posterior)
        else:
            network = model.features.coordinates(self.prior_deviation().neg())
            starts = [network, torch.zeros_like(network)]
            with warnings.catch_warnings():
                # said once, by the posterior at the mode, not at every step
                warnings.simplefilter("ignore", RoundingWarning)
                mode, posterior = newton_mode(
                    model,
                    starts,
                    lambda f: self._make_posterior(self.data_term.curvature_root(f)),
                )
        if not mode.converged:
            warnings.warn(
                f"the refitted mean did not converge: after {mode.num_iterations} Newton steps it "
                f"is {mode.gradient_norm:.1e} posterior standard deviations from the mode; use it "
                'with care, or use mean="network", dtype=torch.float64 or a larger prior precision',
                ConvergenceWarning,
                stacklevel=3,
            )
        return mode, posterior

    def _kept(self, cache: ValueCache[T], make: Callable[[], T]) -> T:
        """The result of `make` for the current values of everything it depends on."""
        modules = (self.prior, self.likelihood)
        state = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        owners = (self.training, *modules, self.method, self.mean, self.sites)
        return cache.get((*state, self.prior.variances(), *self._probed()), make, owners)

    def _probed(self) -> tuple[Tensor, Tensor]:
        """What the likelihood says of some data: that shows what it is made of beside its state.

        Of so few that a prediction takes no longer with more data.
        """
        training = self.training
        step = max(1, -(-training.num_data // _NUM_PROBES))
        outputs, targets = training.outputs[::step], training.targets[::step]
        data = DataTerm(self.likelihood, targets)
        return data.log_prob_rows(outputs), data.residual(outputs)

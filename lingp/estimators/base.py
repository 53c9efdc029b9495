"""What both estimators share: inputs, seeds, the network, training."""

from __future__ import annotations

import copy
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import Self

from lingp.estimators.networks import build_network, layer_sizes
from lingp.estimators.overfitting import evidence, overfitted
from lingp.estimators.scaling import Standardizer
from lingp.inference import Mean, ValidationResult
from lingp.inference.choice import predicts
from lingp.likelihoods import Gaussian, Likelihood
from lingp.models import LinearizedGP, Prediction
from lingp.priors import Prior
from lingp.runtime.restoring import restored_on_error
from lingp.training import (
    EvidenceTrainer,
    EvidenceTraining,
    History,
    TrainingFailedError,
    TrainingPlan,
    TrainingStoppedWarning,
)

_BURN_IN = 20  # steps before prior and noise first move; later, a network may have learned noise
# linear models are trained to the end between two moves of the hyperparameters
_CONVEX = TrainingPlan(
    steps=12,
    updates=12,
    select="evidence",
    optimizer=partial(torch.optim.LBFGS, lr=1.0, max_iter=50, line_search_fn="strong_wolfe"),
)
# factors between decades, where each takes posteriors until curvature is its own average
_TRIES = 1
_SHARE = 0.1  # of the rows, where "auto" holds some out
_TYPICAL = 10.0  # factor of which few rows that are held out have to be sure
_LEAST = 1e-12  # noise variance that a search starts from


@dataclass(frozen=True)
class Problem:
    """What networks are trained on: standardised inputs and targets, and what goes with them.

    `seed` is that of first weights, `num_outputs` the network's.
    """

    x: Tensor
    y: Tensor
    likelihood: Likelihood
    mean: Mean
    num_outputs: int
    seed: int
    generator: torch.Generator

    def at(self, index: np.ndarray) -> Problem:
        """The same of some rows."""
        rows = torch.from_numpy(index).to(self.x.device)
        return replace(self, x=self.x[rows], y=self.y[rows])


class LinearizedGPEstimator(BaseEstimator):
    """Parameters and training of `LinearizedGPRegressor` and `LinearizedGPClassifier`."""

    # of the parameters that subclasses store
    hidden_layer_sizes: Any
    activation: str
    module: nn.Module | None
    prefit: bool
    prior: Any
    inference: Any
    mean: Literal["auto", "network", "refit"]
    steps: int | None
    standardize: bool
    validation_fraction: Any
    device: Any
    random_state: Any
    verbose: bool

    _named_shares: ClassVar[tuple[str, ...]] = ()  # values of validation_fraction

    gp_: LinearizedGP
    module_: nn.Module
    history_: History
    n_iter_: int
    validation_: ValidationResult | None
    x_scaler_: Standardizer

    def _check(self) -> None:
        """Raise unless the parameters go together."""
        if self.module is not None and not isinstance(self.module, nn.Module):
            raise TypeError(
                f"module: expected a torch.nn.Module or None, got {type(self.module).__name__}"
            )
        if self.prefit and self.module is None:
            raise ValueError(
                "prefit: True, but there is no module; give the trained network as module, or "
                "leave prefit out"
            )
        if self.mean not in ("auto", "network", "refit"):
            raise ValueError(f'mean: expected "auto", "network" or "refit", got {self.mean!r}')
        fraction, named = self.validation_fraction, self._named_shares
        known = fraction is None or (isinstance(fraction, str) and fraction in named)
        if not known and not (isinstance(fraction, Real) and 0 < float(fraction) < 1):
            others = "".join(f"{name!r}, " for name in named)
            raise ValueError(
                "validation_fraction: expected a number between 0 and 1, the share of the rows "
                f"that are held out, {others}or None, got {fraction!r}"
            )

    def _all_or_nothing(self) -> AbstractContextManager[None]:
        """Where learning is cut short, the estimator is what it was before."""
        return restored_on_error(self, *(self.gp_._state() if hasattr(self, "gp_") else ()))

    def _rows(self, X: Any, **options: Any) -> np.ndarray:
        """X as float64 rows; a module may take rows of any shape."""
        checked = {"dtype": np.float64, "allow_nd": self.module is not None, **options}
        return validate_data(self, X, **checked)

    def _tensor(self, rows: np.ndarray) -> Tensor:
        """Rows as the network takes them."""
        return torch.from_numpy(self.x_scaler_.transform(rows)).to(self.gp_.linearized.device)

    def _seeds(self) -> tuple[int, torch.Generator]:
        """Seed of the first weights, and what training draws from."""
        first, second = random_numbers(self.random_state).randint(2**31 - 1, size=2)
        return int(first), torch.Generator().manual_seed(int(second))

    def _train(
        self,
        rows: np.ndarray,
        targets: np.ndarray,
        likelihood: Likelihood,
        num_outputs: int,
        *,
        streaming: bool,
    ) -> None:
        """Train the network, or take it as it is, and condition it on the data."""
        scaled = self.standardize and not self.prefit
        self.x_scaler_ = Standardizer.of(rows) if scaled else Standardizer.identity(rows)
        seed, generator = self._seeds()
        network = self._first_network(rows.shape[1], num_outputs, seed)
        own = self.module is None
        convex = own and not layer_sizes(self.hidden_layer_sizes)
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        x = torch.from_numpy(self.x_scaler_.transform(rows)).to(device)
        y = torch.from_numpy(targets).to(device)
        mean = self._whose_mean(likelihood, streaming)
        problem = Problem(x, y, likelihood, mean, num_outputs, seed, generator)
        self.validation_, fraction = None, self.validation_fraction
        if fraction is None or fraction == "auto":
            self._learn(network, problem, streaming, convex)
            if fraction == "auto" and own and not streaming and self._evidence_misleads():
                network = self._first_network(rows.shape[1], num_outputs, seed)
                self._take_factor(network, problem, convex)
            return
        kept, held = self._split(problem, fraction)
        self._learn(network, kept, streaming, convex)
        self._tune(held, absorb=True)

    def _split(self, problem: Problem, fraction: float) -> tuple[Problem, Problem]:
        """Rows to learn from, and rows that are held out."""
        kept, held = train_test_split(
            np.arange(len(problem.x)),
            test_size=fraction,
            random_state=problem.seed,
            stratify=self._strata(problem.y.cpu().numpy(), fraction),
        )
        return problem.at(kept), problem.at(held)

    def _take_factor(self, network: nn.Module, problem: Problem, convex: bool) -> None:
        """Scale prior and mean as predicts those rows best that another network hasn't learned."""
        found = self.gp_, self.module_, self.history_, self.n_iter_
        kept, held = self._split(problem, _SHARE)
        self._learn(network, kept, False, convex)
        self.gp_.mean_scale = "matched"
        self._tune(held, absorb=False)
        tuned = self.gp_.laplace.mean_scale
        self.gp_, self.module_, self.history_, self.n_iter_ = found
        assert self.validation_ is not None
        prior = self.gp_.prior
        with torch.no_grad():
            prior.precision = prior.precision / self.validation_.scales["prior variances"]
        self.gp_.mean_scale = tuned

    def _evidence_misleads(self) -> bool:
        """Whether the rows don't say how sure predictions should be, so that others have to."""
        return False

    def _first_network(self, num_inputs: int, num_outputs: int, seed: int) -> nn.Module:
        """What training starts from: the user's module, copied, or one of our own."""
        if self.module is not None:
            network = copy.deepcopy(self.module)
        else:
            hidden = layer_sizes(self.hidden_layer_sizes)
            network = self._network(hidden, num_inputs, num_outputs, seed)
        return network if self.device is None else network.to(self.device)

    def _strata(self, targets: np.ndarray, fraction: float) -> np.ndarray | None:
        """What rows that are held out should be balanced by."""
        return None

    def _learn(self, network: nn.Module, problem: Problem, streaming: bool, convex: bool) -> None:
        """The Gaussian process of these rows, by training unless the module is trained."""
        if self.prefit:
            self.gp_ = self._conditioned(network, problem)
            self.module_, self.history_, self.n_iter_ = network.eval(), History(), 0
            return
        trainer = self._run(network, problem, convex, self.prior)
        show = bool(self.verbose)
        trained = trainer.result(select="last", progress=show)
        if not convex and problem.x.dim() == 2 and predicts(self.inference):
            linear = self._linear(problem)
            evidences = [step.evidence for step in trainer.history]
            fell = bool(evidences) and evidences[-1] < max(evidences)
            best = trainer.result(select="evidence", progress=show) if fell else trained
            size = len(problem.x) * problem.num_outputs
            if linear is not None and overfitted(trained, best, linear, size):
                asked_for = (self.module, self.hidden_layer_sizes, self.prior)
                # a network can make more of rows that are still to come
                free = not streaming and all(option is None for option in asked_for)
                trained = max(best, linear, key=evidence) if free else best
        self.gp_, self.module_, self.history_ = trained.gp, trained.net, trained.history
        self.n_iter_ = trained.step or 0

    def _tune(self, held: Problem, *, absorb: bool) -> None:
        """Scale prior and noise by what predicts these rows best, and perhaps learn from them."""
        tries = 500 if held.likelihood.is_quadratic else _TRIES
        found = self.gp_.optimize_hyperparameters(
            validation=(held.x, held.y),
            absorb=absorb,
            typical_factor=_TYPICAL,
            max_evaluations=tries,
            generator=held.generator,
        )
        self.validation_ = cast(ValidationResult, found)

    def _linear(self, problem: Problem) -> EvidenceTraining | None:
        """A linear model of the same data, of one precision; None if they can't have one."""
        network = self._network((), problem.x.shape[1], problem.num_outputs, problem.seed)
        network = network.to(problem.x.device)
        with warnings.catch_warnings():
            # where nothing is noise, training stops before the noise is 0
            warnings.simplefilter("ignore", TrainingStoppedWarning)
            try:
                trainer = self._run(network, problem, convex=True, prior=1.0)
            except TrainingFailedError:
                return None
        return trainer.result(select="last")

    def _network(
        self, hidden: tuple[int, ...], num_inputs: int, num_outputs: int, seed: int
    ) -> nn.Module:
        """A network of these sizes with its first weights."""
        network = build_network(num_inputs, hidden, num_outputs, self.activation, seed)
        self._initialize(network)
        return network

    def _run(
        self, network: nn.Module, problem: Problem, convex: bool, prior: Prior | float | None
    ) -> EvidenceTrainer:
        """Train a network with the evidence."""
        plan = replace(_CONVEX, batch_size=len(problem.x)) if convex else self._plan()
        trainer = EvidenceTrainer(
            network,
            problem.x,
            problem.y,
            plan=plan,
            generator=problem.generator,
            likelihood=problem.likelihood,
            prior=prior,
            inference=copy.deepcopy(self.inference),
            mean=problem.mean,
        )
        trainer.run(progress=bool(self.verbose))
        return trainer

    def _plan(self) -> TrainingPlan:
        """Of networks with hidden layers."""
        steps, updates = self.steps, None
        if steps and steps < 80:
            # short trainings: no hyperparameter step sooner than ten steps after another
            updates = max(1, steps // 10)
        first = min(_BURN_IN, steps or _BURN_IN)
        return TrainingPlan(steps=steps, burn_in=first, updates=updates, select="evidence")

    def _initialize(self, network: nn.Module) -> None:
        """Set first weights of a network of our own, where torch's are not the best."""

    def _whose_mean(self, likelihood: Likelihood, streaming: bool) -> Mean:
        if self.mean != "auto":
            return self.mean
        if streaming:
            return "refit"  # the network's own mean would not learn from rows that come later
        trained = not self.prefit and likelihood.is_quadratic
        return "refit" if trained else "network"

    def _conditioned(self, network: nn.Module, problem: Problem) -> LinearizedGP:
        """A network as it is, with the prior and noise of largest evidence."""
        likelihood = problem.likelihood
        gp = LinearizedGP(
            network,
            likelihood,
            prior=copy.deepcopy(self.prior),
            inference=copy.deepcopy(self.inference),
            mean=problem.mean,
        )
        gp.fit(problem.x, problem.y, progress=bool(self.verbose), prepare=False)
        if isinstance(likelihood, Gaussian):
            # the search starts at the noise that the network leaves
            training = gp.laplace.training
            left = (training.targets - training.outputs).square().mean(0)
            least = likelihood.raw_noise_constraint.lower_bound
            noise = torch.maximum(left.clamp(min=_LEAST), 2 * least.to(left))
            likelihood.noise = noise.reshape(likelihood.noise.shape)
        gp.optimize_hyperparameters(generator=problem.generator)
        return gp.prepare()

    def _more(self, rows: np.ndarray, targets: np.ndarray) -> Self:
        """Condition on more rows; nothing is trained."""
        if self.mean == "auto" and self.gp_.mean == "network":
            warnings.warn(
                "partial_fit after fit: the mean is that of the network, which is not trained any "
                'more, so new rows only narrow the error bars; set mean="refit", or call '
                "partial_fit from the first rows on",
                stacklevel=3,
            )
        self.gp_.add_data(self._tensor(rows), torch.from_numpy(targets))
        return self

    def _new_inputs(self, X: Any) -> Tensor:
        """Inputs to predict at, checked and as the network takes them."""
        check_is_fitted(self)
        return self._tensor(self._rows(X, reset=False))

    def _prediction(self, x: Tensor) -> Prediction:
        """Of the targets, in standard units."""
        return self.gp_.predict(x, progress=bool(self.verbose))


def random_numbers(random_state: int | np.random.RandomState | None) -> np.random.RandomState:
    """scikit-learn's `check_random_state`, but None is a fresh seed of the system's.

    So that NumPy's global generator stays as it is.
    """
    if random_state is None:
        return np.random.RandomState()
    return check_random_state(random_state)

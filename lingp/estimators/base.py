"""What both estimators share: inputs, seeds, the network, training."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import Self

from lingp.estimators.networks import build_network, layer_sizes
from lingp.estimators.overfitting import evidence, overfitted
from lingp.estimators.scaling import Standardizer
from lingp.inference import Blocks, Mean
from lingp.inference.progress import track
from lingp.likelihoods import Gaussian, Likelihood, QuadraticLikelihood
from lingp.models import LinearizedGP, Prediction
from lingp.priors import Prior
from lingp.training import (
    EvidenceTrainer,
    EvidenceTraining,
    History,
    Plan,
    TrainingFailedError,
    TrainingStoppedWarning,
)
from lingp.training.optimization import MakeOptimizer

_BURN_IN = 20  # steps before prior and noise first move; later, a network may have learned noise
# linear models are trained to the end between two moves of the hyperparameters
_CONVEX: dict[str, Any] = {
    "plan": Plan(steps=12, updates=12, select="evidence"),
    "optimizer": partial(torch.optim.LBFGS, lr=1.0, max_iter=50, line_search_fn="strong_wolfe"),
}
_LEAST = 1e-12  # noise variance that a search starts from


@dataclass(frozen=True)
class Problem:
    """What networks are trained on: standardised inputs and targets, and what goes with them."""

    x: Tensor
    y: Tensor
    likelihood: Likelihood
    mean: Mean
    generator: torch.Generator


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
    device: Any
    random_state: Any
    verbose: bool

    gp_: LinearizedGP
    module_: nn.Module
    history_: History
    n_iter_: int
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
        if self.module is not None:
            network, options = copy.deepcopy(self.module), {}
        else:
            hidden = layer_sizes(self.hidden_layer_sizes)
            network = self._network(hidden, rows.shape[1], num_outputs, seed)
            options = {} if hidden else _CONVEX
        if self.device is not None:
            network = network.to(self.device)
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        x = torch.from_numpy(self.x_scaler_.transform(rows)).to(device)
        y = torch.from_numpy(targets).to(device)
        mean = self._whose_mean(likelihood, streaming)
        problem = Problem(x, y, likelihood, mean, generator)
        if self.prefit:
            self.gp_ = self._conditioned(network, problem)
            self.module_, self.history_, self.n_iter_ = network.eval(), History(), 0
            return
        trainer = self._run(network, problem, **options)
        show = bool(self.verbose)
        trained = trainer.result(select="last", progress=show)
        if not options and rows.ndim == 2 and not isinstance(self.inference, Blocks):
            linear = self._linear(rows.shape[1], num_outputs, seed, problem)
            evidences = [step.evidence for step in trainer.history]
            fell = bool(evidences) and evidences[-1] < max(evidences)
            best = trainer.result(select="evidence", progress=show) if fell else trained
            if linear is not None and overfitted(trained, best, linear, len(x) * num_outputs):
                asked_for = (self.module, self.hidden_layer_sizes, self.prior)
                # a network can make more of rows that are still to come
                free = not streaming and all(option is None for option in asked_for)
                trained = max(best, linear, key=evidence) if free else best
        self.gp_, self.module_, self.history_ = trained.gp, trained.net, trained.history
        self.n_iter_ = trained.step or 0

    def _linear(
        self, num_inputs: int, num_outputs: int, seed: int, problem: Problem
    ) -> EvidenceTraining | None:
        """A linear model of the same data, of one precision; None if they can't have one."""
        network = self._network((), num_inputs, num_outputs, seed).to(problem.x.device)
        with warnings.catch_warnings():
            # where nothing is noise, training stops before the noise is 0
            warnings.simplefilter("ignore", TrainingStoppedWarning)
            try:
                trainer = self._run(network, problem, prior=1.0, **_CONVEX)
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
        self,
        network: nn.Module,
        problem: Problem,
        *,
        prior: Prior | float | None = None,
        plan: Plan | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> EvidenceTrainer:
        """Train a network with the evidence."""
        if plan is None:
            steps, updates = self.steps, None
            if steps and steps < 80:
                # short trainings: no hyperparameter step sooner than ten steps after another
                updates = max(1, steps // 10)
            first = min(_BURN_IN, steps or _BURN_IN)
            plan = Plan(steps=steps, burn_in=first, updates=updates, select="evidence")
        trainer = EvidenceTrainer(
            network,
            problem.x,
            problem.y,
            likelihood=problem.likelihood,
            prior=self.prior if prior is None else prior,
            plan=plan,
            optimizer=optimizer,
            batch_size=None if optimizer is None else len(problem.x),
            inference=copy.deepcopy(self.inference),
            mean=problem.mean,
            generator=problem.generator,
        )
        show = bool(self.verbose)
        for _ in track(range(trainer.num_steps), "training", total=trainer.num_steps, show=show):
            if trainer.finished:
                break
            trainer.step()
        return trainer

    def _initialize(self, network: nn.Module) -> None:
        """Set first weights of a network of our own, where torch's are not the best."""

    def _whose_mean(self, likelihood: Likelihood, streaming: bool) -> Mean:
        if self.mean != "auto":
            return self.mean
        if streaming:
            return "refit"  # the network's own mean would not learn from rows that come later
        trained = not self.prefit and isinstance(likelihood, QuadraticLikelihood)
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
        gp.fit(problem.x, problem.y, progress=bool(self.verbose))
        if isinstance(likelihood, Gaussian):
            # the search starts at the noise that the network leaves
            training = gp.laplace.training
            left = (training.targets - training.outputs).square().mean(0)
            least = likelihood.raw_noise_constraint.lower_bound
            noise = torch.maximum(left.clamp(min=_LEAST), 2 * least.to(left))
            likelihood.noise = noise.reshape(likelihood.noise.shape)
        gp.optimize_hyperparameters(generator=problem.generator)
        return gp

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

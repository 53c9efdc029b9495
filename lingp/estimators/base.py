"""What both estimators share: inputs, seeds, the network, training."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import Self

from lingp.estimators.networks import build_network, layer_sizes
from lingp.estimators.scaling import Standardizer
from lingp.inference import Blocks, Mean
from lingp.inference.progress import track
from lingp.likelihoods import Gaussian, Likelihood, QuadraticLikelihood
from lingp.models import LinearizedGP, Prediction
from lingp.training import EvidenceTrainer, History, Plan

# nats of evidence per target that a network may lose while it goes on learning. On validation rows
# of wine (two layers), which loses 0.25, going back gains 0.07 nats; concrete loses 0.14 on its way
# to what predicts better by 0.09
_OVERFITTED = 0.2
_LEAST = 1e-12  # noise variance that a search starts from


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
            network = copy.deepcopy(self.module)
        else:
            hidden = layer_sizes(self.hidden_layer_sizes, len(rows), rows.shape[1])
            network = build_network(rows.shape[1], hidden, num_outputs, self.activation, seed)
            self._initialize(network)
        if self.device is not None:
            network = network.to(self.device)
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        x = torch.from_numpy(self.x_scaler_.transform(rows)).to(device)
        y = torch.from_numpy(targets).to(device)
        mean = self._whose_mean(likelihood, streaming)
        if self.prefit:
            self._condition(network, x, y, likelihood, mean, generator)
            return
        # short trainings: no hyperparameter step sooner than ten steps after another
        updates = max(1, self.steps // 10) if self.steps and self.steps < 80 else None
        trainer = EvidenceTrainer(
            network,
            x,
            y,
            likelihood=likelihood,
            prior=self.prior,
            plan=Plan(steps=self.steps, updates=updates, select="evidence"),
            inference=copy.deepcopy(self.inference),
            mean=mean,
            generator=generator,
        )
        show = bool(self.verbose)
        for _ in track(range(trainer.num_steps), "training", total=trainer.num_steps, show=show):
            if trainer.finished:
                break
            trainer.step()
        # evidences of different blocks of rows don't compare
        compares = not isinstance(self.inference, Blocks)
        overfitted = compares and _lost(trainer.history) > _OVERFITTED * targets.size
        trained = trainer.result(select="evidence" if overfitted else "last", progress=show)
        self.gp_, self.module_, self.history_ = trained.gp, trained.net, trained.history
        self.n_iter_ = trained.step or 0

    def _initialize(self, network: nn.Module) -> None:
        """Set first weights of a network of our own, where torch's are not the best."""

    def _whose_mean(self, likelihood: Likelihood, streaming: bool) -> Mean:
        if self.mean != "auto":
            return self.mean
        if streaming:
            return "refit"  # the network's own mean would not learn from rows that come later
        trained = not self.prefit and isinstance(likelihood, QuadraticLikelihood)
        return "refit" if trained else "network"

    def _condition(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        likelihood: Likelihood,
        mean: Mean,
        generator: torch.Generator,
    ) -> None:
        """A trained network as it is, with the prior and noise of largest evidence."""
        gp = LinearizedGP(
            network,
            likelihood,
            prior=copy.deepcopy(self.prior),
            inference=copy.deepcopy(self.inference),
            mean=mean,
        )
        gp.fit(x, y, progress=bool(self.verbose))
        if isinstance(likelihood, Gaussian):
            # the search starts at the noise that the network leaves
            training = gp.laplace.training
            left = (training.targets - training.outputs).square().mean(0)
            least = likelihood.raw_noise_constraint.lower_bound
            noise = torch.maximum(left.clamp(min=_LEAST), 2 * least.to(left))
            likelihood.noise = noise.reshape(likelihood.noise.shape)
        gp.optimize_hyperparameters(generator=generator)
        self.gp_, self.module_ = gp, network.eval()
        self.history_, self.n_iter_ = History(), 0

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


def _lost(history: History) -> float:
    """By how much the last evidence is less than the largest."""
    evidences = [step.evidence for step in history]
    return max(evidences) - evidences[-1] if evidences else 0.0

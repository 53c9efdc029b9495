"""The front door: a trained network as a Gaussian process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor, nn

from lingp.inference import (
    FunctionSpace,
    HyperparameterResult,
    InferenceChoice,
    InferenceMethod,
    LinearizedLaplace,
    Mean,
    Posterior,
    TrainingSet,
    WeightSpace,
    available_memory,
    choose_space,
    optimize,
)
from lingp.inference.progress import track
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import Factors, LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import Inputs, num_rows
from lingp.models.covariance import PosteriorCovariance
from lingp.models.intake import as_batches, as_inputs, row_batches
from lingp.models.prediction import Prediction
from lingp.priors import Prior, as_prior

_SPACES: dict[str, InferenceMethod] = {
    "weight_space": WeightSpace,
    "function_space": FunctionSpace,
}
_MEMORY_SHARE = 0.8  # of what is free, when the user names no budget
_DENSE_SHARE = 1 / 8  # of the budget, for pieces that are written out
_DENSE_LIMIT = 1 << 28  # bytes; larger pieces are no faster


class LinearizedGP:
    """The Gaussian process f(x) ~ N( f(x; θ*), J(x) Cov(θ) J(x)ᵀ ) of a trained network.

    The network is linearised in its weights at θ*, which have prior N(μ0, Σ0). The network
    you give is copied; it, its mode, gradients and random state are never touched.

    Parameters
    ----------
    net
        A trained network.
    likelihood
        A name ("gaussian") or an object from `lingp.likelihoods`, e.g. `Gaussian(noise=0.1)`.
    prior
        An object from `lingp.priors`; a number is the precision of an isotropic prior.
    parameters
        Which weights are uncertain: "all", "last_layer", a name pattern, a predicate or a list.
    inference
        "auto" (counts flops and bytes), "weight_space", "function_space", or an object that is
        called with (training set, prior, curvature root) and gives a `Posterior`.
    mean
        "network": the posterior mean is the network's output. "refit": it is the optimum of the
        linearised model.
    dtype
        Of the network's copy, Jacobians and linear algebra.
    memory_budget
        Bytes that may be used; by default 80 % of what is free when `fit` is called.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> gp = LinearizedGP(net, prior=1.0).fit(X, X.sin())
    >>> gp.predict(X).variance.shape
    torch.Size([20, 1])
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | str = "gaussian",
        *,
        prior: Prior | float | None = None,
        parameters: ParameterSelection = "all",
        inference: Literal["auto", "weight_space", "function_space"] | InferenceMethod = "auto",
        mean: Mean = "network",
        dtype: torch.dtype = torch.float64,
        memory_budget: int | None = None,
    ) -> None:
        if mean not in ("network", "refit"):
            raise ValueError(f'mean: expected "network" or "refit", got {mean!r}')
        if not callable(inference) and inference not in ("auto", *_SPACES):
            raise ValueError(
                f'inference: expected "auto", "weight_space", "function_space" or an inference '
                f"object, got {inference!r}"
            )
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype: expected torch.float64 or torch.float32, got {dtype}")
        if memory_budget is not None and memory_budget <= 0:
            raise ValueError(f"memory_budget: expected a number of bytes, got {memory_budget}")
        self.likelihood = as_likelihood(likelihood)
        self.prior = as_prior(prior)
        self.inference = inference
        self.memory_budget = memory_budget
        self.linearized = LinearizedNetwork(
            net,
            parameters,
            dtype=dtype,
            memory_budget=None if memory_budget is None else max(1, memory_budget // 4),
        )
        self.prior.bind(self.linearized.parameter_names)
        self._mean: Mean = mean
        self._laplace: LinearizedLaplace | None = None
        self._choice: InferenceChoice | None = None

    @property
    def mean(self) -> Mean:
        """Whose mean predictions and evidence have: "network" or "refit"."""
        return self._mean

    @property
    def dtype(self) -> torch.dtype:
        """Of Jacobians and linear algebra."""
        return self.linearized.dtype

    @property
    def inference_choice(self) -> InferenceChoice:
        """Which inference `fit` chose, and why."""
        self._fitted()
        assert self._choice is not None
        return self._choice

    def named_hyperparameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and raw parameters of prior and likelihood."""
        yield from self.prior.named_parameters(prefix="prior")
        yield from self.likelihood.named_parameters(prefix="likelihood")

    def fit(self, X: Any, y: Any = None, *, progress: bool = True) -> LinearizedGP:
        """Condition on data; the network is not trained.

        Parameters
        ----------
        X
            Inputs (tensor, array, tuple, list or dict of them) with `y`; or a Dataset, a DataLoader
            or any iterable of (inputs, targets) batches. Rows count as often as they are seen.
        y
            Targets of the shape of the network's output; (N,) and (N, 1) stand for each other.
        progress
            Whether work that takes more than seconds, now or later, shows a progress bar.

        Returns
        -------
        self
        """
        budget = self._budget()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            training = TrainingSet.collect(
                self.linearized,
                self._checked(as_batches(X, y)),
                keep_bytes=int(budget / 2),
                chunk_bytes=self._dense_bytes(budget),
                progress=progress,
            )
        method, self._choice = self._choose(training, budget)
        self._laplace = LinearizedLaplace(training, self.prior, self.likelihood, method, self._mean)
        return self

    def posterior(self, X: Any) -> MultivariateNormal:
        """Joint posterior of the latent outputs at all rows of X, without noise.

        Returns
        -------
        gpytorch.distributions.MultivariateNormal
            For one output; else a `MultitaskMultivariateNormal` over n rows and C tasks,
            interleaved.
        """
        laplace = self._fitted()
        with torch.no_grad():
            outputs, factors = self.linearized.factors(as_inputs(X))
            mean = _moved(outputs, factors, laplace.weight_shift())
            covariance = laplace.posterior().covariance(factors)
            covariance = 0.5 * (covariance + covariance.mT)
            covariance.diagonal().clamp_(min=0)  # rounding can take a vanishing variance below zero
        operator = PosteriorCovariance(covariance)
        if mean.shape[1] == 1:
            return MultivariateNormal(mean.squeeze(1), operator)
        return MultitaskMultivariateNormal(mean, operator)

    def predict(self, X: Any, *, progress: bool = True) -> Prediction:
        """Predictive distribution of the targets, each row on its own.

        Rows are worked through in batches that keep within the memory budget; the covariance
        between rows is never formed.
        """
        laplace = self._fitted()
        means, covariances = [], []
        with torch.no_grad():
            posterior, shift = laplace.posterior(), laplace.weight_shift()
            for x in self._batches(as_inputs(X), posterior, progress):
                outputs, factors = self.linearized.factors(x)
                means.append(_moved(outputs, factors, shift))
                covariances.append(posterior.marginal_covariance(factors))
            predictive = self.likelihood.predictive(torch.cat(means), torch.cat(covariances))
        return Prediction(predictive, self.likelihood, self._output_shape(), self._mean)

    def log_marginal_likelihood(self) -> Tensor:
        """Evidence of the data, 0-d, differentiable in every hyperparameter.

        With the mean this GP has: see `lingp.inference.laplace`.
        """
        return self._fitted().log_marginal_likelihood()

    def optimize_hyperparameters(
        self, *, tolerance: float = 1e-6, max_evaluations: int = 500
    ) -> HyperparameterResult:
        """Set prior precisions and noise to those of largest evidence.

        An isotropic prior with one noise variance needs a single eigendecomposition; anything else
        is searched by L-BFGS. GPyTorch priors registered on hyperparameters count. To keep a
        hyperparameter, switch off its `requires_grad`.

        Parameters
        ----------
        tolerance
            On the largest derivative in a raw hyperparameter, in nats per observed value.
        max_evaluations
            Of the evidence.
        """
        return optimize(self._fitted(), tolerance=tolerance, max_evaluations=max_evaluations)

    def sample(
        self, X: Any, num_samples: int = 1, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of the latent function at X, joint over rows, (num_samples, n, *output shape).

        One set of weights is drawn per sample, so the rows of a draw belong to one function,
        however many there are.

        Parameters
        ----------
        X
            Inputs.
        num_samples
            Number of functions.
        generator
            Source of randomness; torch's global one by default.
        """
        laplace = self._fitted()
        if num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
        with torch.no_grad():
            posterior, shift = laplace.posterior(), laplace.weight_shift()
            weights = posterior.scale.unsqueeze(-1) * posterior.sample(num_samples, generator)
            if shift is not None:
                weights = weights + shift.unsqueeze(-1)
            draws = []
            for x in self._batches(as_inputs(X), posterior, False):
                outputs, factors = self.linearized.factors(x)
                draws.append(outputs.unsqueeze(-1) + factors.matmul(weights))
            flat = torch.cat(draws).movedim(-1, 0)  # (S, n, C)
        return flat.reshape(*flat.shape[:2], *self._output_shape())

    def _fitted(self) -> LinearizedLaplace:
        if self._laplace is None:
            raise RuntimeError("this LinearizedGP has no data yet: call fit(X, y) first")
        # prior and likelihood may have been exchanged since fit
        self.prior = as_prior(self.prior).bind(self.linearized.parameter_names)
        self._laplace.prior, self._laplace.likelihood = self.prior, self.likelihood
        return self._laplace

    def _output_shape(self) -> tuple[int, ...]:
        assert self.linearized.output_shape is not None
        return tuple(self.linearized.output_shape)

    def _budget(self) -> float:
        if self.memory_budget is not None:
            return float(self.memory_budget)
        return _MEMORY_SHARE * available_memory(self.linearized.device)

    @staticmethod
    def _dense_bytes(budget: float) -> int:
        return int(min(_DENSE_SHARE * budget, _DENSE_LIMIT))

    def _checked(self, batches: Iterator[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches with targets flat (n x C), checked by the likelihood."""
        seen = False
        for x, y in batches:
            if not seen:
                self.linearized(x)  # tells the output's shape
                seen = True
            targets = self.likelihood.check_targets(y, self._output_shape(), self.dtype)
            yield x, targets.to(self.linearized.device)
        if not seen:
            raise ValueError("X: gave no batches; there is nothing to fit")

    def _choose(
        self, training: TrainingSet, budget: float
    ) -> tuple[InferenceMethod, InferenceChoice]:
        if not isinstance(self.inference, str):
            name = getattr(self.inference, "__name__", type(self.inference).__name__)
            return self.inference, InferenceChoice(name, f"{name} (as given)")
        choice = choose_space(
            self.inference,
            num_data=training.num_data,
            num_outputs=training.num_outputs,
            parameter_shapes=self.linearized.parameter_shapes,
            itemsize=training.outputs.element_size(),
            factor_bytes=training.factor_bytes,
            memory=budget,
        )
        return _SPACES[choice.space], choice

    def _batches(self, x: Inputs, posterior: Posterior, progress: bool) -> Iterator[Inputs]:
        rows = max(1, self._dense_bytes(self._budget()) // posterior.bytes_per_row())
        total = -(-num_rows(x) // rows)
        return track(row_batches(x, rows), "predicting", total=total, show=progress)

    def __repr__(self) -> str:
        state = "not fitted" if self._choice is None else str(self._choice)
        return (
            f"LinearizedGP(\n  {self.linearized.num_parameters} weights, mean={self._mean!r}, "
            f"{self.dtype}\n  {_one_line(self.prior)}\n  {_one_line(self.likelihood)}\n  {state}\n)"
        )


def _one_line(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"


def _moved(outputs: Tensor, factors: Factors, shift: Tensor | None) -> Tensor:
    """f + J shift, (n x C)."""
    if shift is None:
        return outputs
    return outputs + factors.matmul(shift.unsqueeze(-1)).squeeze(-1)

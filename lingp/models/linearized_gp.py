"""The front door: a trained network as a Gaussian process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor, nn

from lingp.inference import (
    HyperparameterResult,
    InferenceChoice,
    LinearizedLaplace,
    Mean,
    optimize,
)
from lingp.inference.laplace import Sites
from lingp.inference.mode import Mode
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import num_rows
from lingp.models.choice import Inference, check_inference, choose_method, dense_bytes, memory_for
from lingp.models.class_weights import ClassWeight
from lingp.models.covariance import PosteriorCovariance
from lingp.models.fitting import FittedData, Missing
from lingp.models.intake import as_inputs, as_known
from lingp.models.joint import JointPrediction, joint_prediction
from lingp.models.latents import Latents
from lingp.models.layout import TargetLayout, untempered
from lingp.models.prediction import Prediction
from lingp.priors import Prior, as_prior


class LinearizedGP:
    """The Gaussian process f(x) ~ N( f(x; θ*), J(x) Cov(θ) J(x)ᵀ ) of a trained network.

    The network is linearised in its weights at θ*, which have prior N(μ0, Σ0). The network
    you give is copied; it, its mode, gradients and random state are never touched.

    Parameters
    ----------
    net
        A trained network.
    likelihood
        A name ("gaussian", "categorical", ...) or an object from `lingp.likelihoods`, e.g.
        `Gaussian(noise=0.1)`.
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
    sites
        Where the likelihood's curvature is taken: at the posterior "mean", or always at the
        "network"'s outputs.
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
        inference: Inference = "auto",
        mean: Mean = "network",
        sites: Sites = "mean",
        dtype: torch.dtype = torch.float64,
        memory_budget: int | None = None,
    ) -> None:
        if mean not in ("network", "refit"):
            raise ValueError(f'mean: expected "network" or "refit", got {mean!r}')
        if sites not in ("mean", "network"):
            raise ValueError(f'sites: expected "mean" or "network", got {sites!r}')
        check_inference(inference)
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
        self._sites: Sites = sites
        self._data: FittedData | None = None
        self._laplace: LinearizedLaplace | None = None
        self._choice: InferenceChoice | None = None

    @property
    def mean(self) -> Mean:
        """Whose mean predictions and evidence have: "network" or "refit"."""
        return self._mean

    @property
    def sites(self) -> Sites:
        """Where the likelihood's curvature is taken: at the posterior "mean" or the "network"."""
        return self._sites

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

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        class_weight: ClassWeight | None = None,
        missing: Missing = "error",
        progress: bool = True,
    ) -> LinearizedGP:
        """Condition on data; the network is not trained.

        Parameters
        ----------
        X
            Inputs (tensor, array, tuple, list or dict of them) with `y`; or a Dataset, a DataLoader
            or any iterable of batches, (inputs, targets) or (inputs, targets, weights). Rows count
            as often as they are seen.
        y
            Targets, of the shape the likelihood asks for; (N,) and (N, 1) stand for each other.
            Where a likelihood has a known quantity per target (noise variance, trials, exposure), a
            last axis of two holds target and quantity.
        sample_weight
            One weight per row, (N,): a row of weight w counts like w rows.
        class_weight
            Multiplies the weights of rows by label: a mapping from label to weight, one weight per
            class, or "balanced" for n / (K n_k), as in scikit-learn.
        missing
            "nan": NaN targets were not observed. "error": they are refused.
        progress
            Whether work that takes more than seconds, now or later, shows a progress bar.

        Returns
        -------
        self
        """
        data = FittedData(
            self.linearized, self.likelihood, class_weight=class_weight, missing=missing
        )
        memory = self._memory()
        data.collect(
            X,
            y,
            sample_weight,
            keep_bytes=int(memory / 2),
            chunk_bytes=dense_bytes(memory),
            progress=progress,
        )
        self._condition(data)
        return self

    def add_data(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> LinearizedGP:
        """Condition on more rows, as if they had been there at `fit`.

        The network is run on the new rows only. Class weights and missing targets are taken as
        `fit` was told.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Returns
        -------
        self
        """
        self._fitted()
        assert self._data is not None
        self._data.extend(X, y, sample_weight)
        self._condition(self._data)
        return self

    def posterior(self, X: Any) -> MultivariateNormal:
        """Joint posterior of the latent outputs at all rows of X, without noise.

        Returns
        -------
        gpytorch.distributions.MultivariateNormal
            For one output; else a `MultitaskMultivariateNormal` over n rows and C tasks,
            interleaved.
        """
        mean, covariance = self._latents().joint(as_inputs(X))
        operator = PosteriorCovariance(covariance)
        if mean.shape[1] == 1:
            return MultivariateNormal(mean.squeeze(1), operator)
        return MultitaskMultivariateNormal(mean, operator)

    def predict(
        self,
        X: Any,
        *,
        method: str | None = None,
        known: Any = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        progress: bool = True,
    ) -> Prediction:
        """Predictive distribution of the targets, each row on its own.

        Rows are worked through in batches that keep within the memory budget; the covariance
        between rows is never formed, and the result doesn't depend on the batches.

        Parameters
        ----------
        X
            Inputs.
        method
            How p(y) = E p(y | f) is computed: one of `likelihood.methods`, the first by default.
        known
            The known quantity of each target to predict (noise variance, number of trials,
            exposure), in the shape of the targets or one number for all, for likelihoods that have
            one.
        num_samples, generator
            For methods that draw; the source of randomness is torch's global one by default.
        progress
            Whether work that takes more than seconds shows a progress bar.
        """
        x = as_inputs(X)
        quantity = self._known(known, num_rows(x))
        moments = self._latents().marginals(x, progress)
        return self._prediction(moments, quantity, method, num_samples, generator)

    def predict_joint(
        self,
        X: Any,
        *,
        known: Any = None,
        num_samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> JointPrediction:
        """Predictive distribution of the targets at all rows of X together.

        Exact for Gaussian noise; for other likelihoods by draws of the function at all rows.

        Parameters
        ----------
        X
            Inputs; the covariance of all their latent outputs is formed.
        known
            As in `predict`.
        num_samples
            Number of functions drawn; not used for Gaussian noise.
        generator
            Source of randomness; torch's global one by default.
        """
        mean, covariance = self._latents().joint(as_inputs(X))
        layout = self._layout(mean, self._known(known, len(mean)))
        return joint_prediction(
            layout, self._mean, mean, covariance, num_samples=num_samples, generator=generator
        )

    def log_marginal_likelihood(self) -> Tensor:
        """Evidence of the data, 0-d, differentiable in every hyperparameter.

        With the mean this GP has: see `lingp.inference.laplace`.
        """
        return self._fitted().log_marginal_likelihood()

    def mode(self) -> Mode:
        """The optimum of the linearised model that mean="refit" uses: how it was found.

        Says whether it converged, in how many iterations, and to which gradient norm.
        """
        with torch.no_grad():
            return self._fitted().mode()

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
        if num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {num_samples}")
        flat = self._latents().sample(as_inputs(X), num_samples, generator)
        return flat.reshape(*flat.shape[:2], *self._output_shape())

    def _fitted(self) -> LinearizedLaplace:
        if self._laplace is None or self._data is None:
            raise RuntimeError("this LinearizedGP has no data yet: call fit(X, y) first")
        # prior and likelihood may have been exchanged since fit
        self.prior = as_prior(self.prior).bind(self.linearized.parameter_names)
        self.likelihood = as_likelihood(self.likelihood)
        if self.likelihood is not self._data.likelihood:
            self._data.exchange_likelihood(self.likelihood)
            self._condition(self._data)
        self._laplace.prior = self.prior
        return self._laplace

    def _condition(self, data: FittedData) -> None:
        """Choose inference for these data and start from nothing."""
        method, choice = choose_method(self.inference, data.training, self._memory())
        self._laplace = LinearizedLaplace(
            data.training, self.prior, data.likelihood, method, self._mean, self._sites
        )
        self._data, self._choice = data, choice

    def _latents(self) -> Latents:
        return Latents(self._fitted(), self._memory())

    def _prediction(
        self,
        moments: tuple[Tensor, Tensor],
        known: Tensor | None,
        method: str | None,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> Prediction:
        """The prediction of rows whose latent outputs have these means and covariances."""
        layout = self._layout(moments[0], known)
        with torch.no_grad():
            predictive = layout.likelihood.predictive(
                *moments, method, known=known, num_samples=num_samples, generator=generator
            )
        return Prediction(predictive, layout, self._mean)

    def _layout(self, mean: Tensor, known: Tensor | None) -> TargetLayout:
        # a copy: a prediction doesn't change with the hyperparameters later
        likelihood = copy.deepcopy(untempered(self.likelihood)).requires_grad_(False)
        shape = self._output_shape()
        return TargetLayout(likelihood, shape, len(mean), mean.dtype, mean.device, known)

    def _known(self, known: Any, num_rows: int) -> Tensor | None:
        """Known quantities of targets to predict, (n x T)."""
        if known is None:
            return None
        targets = self._fitted().training.targets
        if targets.dim() != 3:
            raise ValueError(
                f"known: {type(self.likelihood).__name__} has no known quantity of its targets"
            )
        return as_known(known, num_rows, targets.shape[1]).to(targets)

    def _output_shape(self) -> tuple[int, ...]:
        assert self.linearized.output_shape is not None
        return tuple(self.linearized.output_shape)

    def _memory(self) -> float:
        return memory_for(self.memory_budget, self.linearized.device)

    def __repr__(self) -> str:
        state = "not fitted" if self._choice is None else str(self._choice)
        return (
            f"LinearizedGP(\n  {self.linearized.num_parameters} weights, mean={self._mean!r}, "
            f"{self.dtype}\n  {_one_line(self.prior)}\n  {_one_line(self.likelihood)}\n  {state}\n)"
        )


def _one_line(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"

"""The front door: a trained network as a Gaussian process."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from lingp.inference import (
    HyperparameterResult,
    ValidationResult,
    leave_one_out,
    optimize,
    tune_on_validation,
)
from lingp.inference.evidence import Evidence, evidence
from lingp.inference.mean_scale import Matched
from lingp.inference.mode import Mode
from lingp.linearization.inputs import num_rows
from lingp.models.covariance import PosteriorCovariance
from lingp.models.doubts import warn_of_evidence
from lingp.models.intake import as_inputs, as_known, validation_batches
from lingp.models.joint import JointPrediction, joint_prediction
from lingp.models.latents import Latents
from lingp.models.layout import TargetLayout
from lingp.models.prediction import LeaveOneOutPrediction, Prediction
from lingp.models.storable import StorableNetwork
from lingp.models.tuning import (
    Objective,
    SearchMethod,
    refuse_with_validation,
    refuse_without_validation,
)
from lingp.runtime.restoring import restored_on_error


class LinearizedGP(StorableNetwork):
    """The Gaussian process f(x) ~ N( f(x; θ*), J(x) Cov(θ) J(x)ᵀ ) of a trained network.

    The network is linearised in its weights at θ*, which have prior N(μ0, Σ0). The network
    you give is copied; it, its mode, gradients and random state are never touched. What changes the
    GP (`fit`, `add_data`, `remove_data`, `optimize_hyperparameters`) changes nothing if it fails or
    is interrupted.

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
        "auto": the best method that fits in memory, in bounded time, by counted flops and bytes;
        `fit` says which. Or "weight_space", "function_space" (both exact), "sparse", "iterative",
        or options, as `lingp.Sparse(num_inducing=200)`, or an object that is called with (training
        set, prior, curvature root) and gives a `Posterior`.
    mean
        "network": the posterior mean is the network's output. "refit": it is the optimum of the
        linearised model.
    sites
        Where the likelihood's curvature is taken for predictions: at the posterior "mean", always
        at the "network"'s outputs, or "expected", its average over the posterior. "auto":
        "expected" for class labels with the network's mean (a classifier that is sure of its data
        has hardly any curvature there), else "mean".
    mean_scale
        s of predictions E p(y | s m + ε) of class labels, with m the mean of the outputs and ε what
        the data leave open: a number; "matched": such that predictions where there are data are as
        sure as the network; or "auto", which is "matched" for class labels and 1 for others. See
        `lingp.inference.mean_scale`.
    dtype
        Of the network's copy, Jacobians and linear algebra.
    memory_budget
        Bytes that may be used; by default 80 % of what is free when `fit` is called.
    process_group
        Where the rows of the data are spread over processes: their `torch.distributed` group, e.g.
        `torch.distributed.group.WORLD`. All of them make the same calls, each with its own rows.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> gp = LinearizedGP(net, prior=1.0).fit(X, X.sin())
    >>> gp.predict(X).variance.shape
    torch.Size([20, 1])
    """

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
        return self._prediction(moments, self.mean_scale, quantity, method, num_samples, generator)

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
        known = self._known(known, len(mean))
        layout, location = self._layout(mean, known, self.mean_scale)
        return joint_prediction(
            layout, self._mean, location, covariance, num_samples=num_samples, generator=generator
        )

    def leave_one_out(
        self,
        *,
        method: str | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> LeaveOneOutPrediction:
        """Predictive distribution of each training target given all other rows, without refits.

        Exact for Gaussian noise and mean="refit", an approximation else. `log_predictive` scores
        the training targets. A row with a weight is left out as a whole. The mean is not scaled.

        Parameters
        ----------
        method, num_samples, generator
            As in `predict`.
        """
        laplace = self.laplace
        targets = laplace.training.targets
        with torch.no_grad():
            left_out = leave_one_out(laplace)
        known = targets[..., 1] if targets.dim() == 3 else None
        moments = left_out.mean, left_out.covariance
        made = self._prediction(moments, 1.0, known, method, num_samples, generator)
        return LeaveOneOutPrediction(made.predictive, made.layout, made.mean_of, *moments, targets)

    def log_marginal_likelihood(self) -> Tensor:
        """Evidence of the data, 0-d, differentiable in every hyperparameter.

        With the mean this GP has: see `lingp.inference.laplace`.
        """
        return self.laplace.log_marginal_likelihood()

    def evidence(self) -> Evidence:
        """`log_marginal_likelihood` in parts, as plain numbers, with a standard error.

        For a sparse posterior, `left_out` says how far the bound may be below; for an iterative
        one, `standard_error` how well its log determinant is known.
        """
        return evidence(self.laplace)

    def mode(self) -> Mode:
        """The optimum of the linearised model that mean="refit" uses: how it was found.

        Says whether it converged, in how many iterations, and to which gradient norm.
        """
        with torch.no_grad():
            return self.laplace.mode()

    def optimize_hyperparameters(
        self,
        *,
        objective: Objective | None = None,
        method: SearchMethod = "auto",
        validation: Any = None,
        absorb: bool = True,
        typical_factor: float | None = None,
        tolerance: float = 1e-6,
        max_evaluations: int = 500,
        num_restarts: int | None = None,
        generator: torch.Generator | None = None,
    ) -> HyperparameterResult | ValidationResult:
        """Set the hyperparameters of prior and likelihood to those of largest objective.

        GPyTorch priors registered on hyperparameters count, except with validation data. To keep a
        hyperparameter, switch off its `requires_grad`.

        Parameters
        ----------
        objective
            "evidence" or "leave_one_out"; by default the evidence, of the network's mean where that
            of the refitted one misleads.
        method
            "l-bfgs", "mackay" (fixed-point updates), or "auto": one eigendecomposition and a free
            search where that is possible, else L-BFGS.
        validation
            Held-out data, (X, y) or what gives batches. Instead of maximising an objective of the
            training data, multiply all prior variances (and a Gaussian noise variance or a
            temperature) by the factors that predict these data best, and for class labels choose
            the scale of the mean with them, unless a number was given: see
            `lingp.inference.tune_on_validation`.
        absorb
            Whether the validation data are added to the training data afterwards.
        typical_factor
            By what factor validation data are expected to change a hyperparameter; None: nothing is
            known, but for class labels whose mean is scaled, where it is 10. Few of them then
            change less.
        tolerance
            On the largest derivative in a raw hyperparameter, in nats per observed value.
        max_evaluations
            Of the objective, for each start.
        num_restarts, generator
            Number of starts besides the current values, and the source of their randomness.
        """
        laplace = self.laplace
        with restored_on_error(*self._state()):
            if validation is not None:
                refuse_with_validation(
                    objective=objective, method=method, num_restarts=num_restarts
                )
                return self._tune_on(validation, absorb, typical_factor, max_evaluations, generator)
            refuse_without_validation(typical_factor=typical_factor)
            result = optimize(
                laplace,
                objective=objective or "auto",
                method=method,
                tolerance=tolerance,
                max_evaluations=max_evaluations,
                num_restarts=num_restarts,
                generator=generator,
            )
            self._sureness = None
            plain = self.likelihood.untempered is self.likelihood  # else it has another scale
            if self.likelihood.saturates and plain and result.objective == "evidence":
                warn_of_evidence(laplace, result.value)
            self._prepare()
        return result

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

    def _tune_on(
        self,
        validation: Any,
        absorb: bool,
        typical_factor: float | None,
        max_evaluations: int,
        generator: torch.Generator | None,
    ) -> ValidationResult:
        laplace = self.laplace
        assert self._data is not None
        missing = self._data.missing == "nan"
        batches = self.shards.attempt(lambda: validation_batches(validation, missing=missing))
        result = tune_on_validation(
            laplace,
            self._data.held_out(batches),
            typical_factor=typical_factor,
            max_evaluations=max_evaluations,
            scale_mean=self.likelihood.saturates and isinstance(self._mean_scale, str),
            generator=generator,
        )
        if isinstance(laplace.mean_scale, Matched):
            self._sureness = laplace.mean_scale.factor
        if absorb:
            self.add_data([batch[:2] if batch[2] is None else batch for batch in batches])
        else:
            self._prepare()
        return result

    def _latents(self) -> Latents:
        return Latents(self.laplace, self._memory())

    def _prediction(
        self,
        moments: tuple[Tensor, Tensor],
        mean_scale: float,
        known: Tensor | None,
        method: str | None,
        num_samples: int | None,
        generator: torch.Generator | None,
    ) -> Prediction:
        """The prediction of rows whose latent outputs have these means and covariances."""
        mean, covariance = moments
        layout, location = self._layout(mean, known, mean_scale)
        with torch.no_grad():
            predictive = layout.likelihood.predictive(
                location,
                covariance,
                method,
                num_samples=num_samples,
                generator=generator,
            )
        return Prediction(predictive, layout, self._mean, mean, covariance, mean_scale=mean_scale)

    def _layout(
        self, mean: Tensor, known: Tensor | None, mean_scale: float
    ) -> tuple[TargetLayout, Tensor]:
        """What targets look like, and the mean that its likelihood averages around."""
        # a copy: a prediction doesn't change with the hyperparameters later
        likelihood = copy.deepcopy(self.likelihood.untempered).requires_grad_(False)
        likelihood, location = likelihood.at(known).with_scaled_mean(mean, mean_scale)
        shape, like = self._output_shape(), (mean.dtype, mean.device)
        return TargetLayout(likelihood, shape, len(mean), *like), location

    def _known(self, known: Any, num_rows: int) -> Tensor | None:
        """Known quantities of targets to predict, (n x T)."""
        if known is None:
            return None
        targets = self.laplace.training.targets
        quantity = as_known(known, num_rows, targets.shape[1]).to(targets)
        self.likelihood.untempered.at(quantity)  # errors before any work
        return quantity

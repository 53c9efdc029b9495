"""The front door: a trained network as a Gaussian process."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import LinearOperator
from torch import Tensor, nn
from typing_extensions import Self

from lingp.inference import (
    HyperparameterResult,
    InferenceChoice,
    LinearizedLaplace,
    Mean,
    ValidationResult,
    leave_one_out,
    optimize,
    tune_on_validation,
)
from lingp.inference.choice import (
    Inference,
    MeanScaleOption,
    announce,
    announce_scale,
    check_inference,
    factor_bytes,
    predicts,
)
from lingp.inference.evidence import Evidence, evidence
from lingp.inference.laplace import Sites
from lingp.inference.mean_scale import Matched
from lingp.inference.mode import Mode
from lingp.inference.origin import Origin
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.linearization.inputs import Inputs, joined_inputs, num_rows
from lingp.models.agreement import check_ranks
from lingp.models.class_weights import ClassWeight
from lingp.models.covariance import PosteriorCovariance
from lingp.models.doubts import warn_of_evidence, warn_of_posterior
from lingp.models.fit import Fit
from lingp.models.fitting import FittedData, Missing
from lingp.models.intake import as_inputs, as_known, as_row_numbers, validation_batches
from lingp.models.joint import JointPrediction, joint_prediction
from lingp.models.latents import Latents
from lingp.models.layout import TargetLayout
from lingp.models.prediction import LeaveOneOutPrediction, Prediction
from lingp.models.saved import SavedGP, save
from lingp.models.scale_rule import ScaleRule, in_words
from lingp.models.tuning import (
    Objective,
    SearchMethod,
    refuse_with_validation,
    refuse_without_validation,
)
from lingp.operators import NTKLinearOperator
from lingp.priors import Prior, as_prior
from lingp.runtime.memory import dense_bytes, memory_for
from lingp.runtime.restoring import restored_on_error
from lingp.runtime.shards import Shards
from lingp.saving import SavedFile

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class LinearizedGP(gpytorch.models.GP):
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

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | str = "gaussian",
        *,
        prior: Prior | float | None = None,
        parameters: ParameterSelection = "all",
        inference: Inference = "auto",
        mean: Mean = "network",
        sites: Sites | Literal["auto"] = "auto",
        mean_scale: MeanScaleOption = "auto",
        dtype: torch.dtype = torch.float64,
        memory_budget: int | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if mean not in ("network", "refit"):
            raise ValueError(f'mean: expected "network" or "refit", got {mean!r}')
        if sites not in ("auto", "mean", "network", "expected"):
            raise ValueError(
                f'sites: expected "auto", "mean", "network" or "expected", got {sites!r}'
            )
        check_inference(inference)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype: expected torch.float64 or torch.float32, got {dtype}")
        if memory_budget is not None and memory_budget <= 0:
            raise ValueError(f"memory_budget: expected a number of bytes, got {memory_budget}")
        super().__init__()
        self.inference = inference
        self.memory_budget = memory_budget
        self.shards = Shards.of(process_group)
        self.linearized = LinearizedNetwork(
            net,
            parameters,
            dtype=dtype,
            memory_budget=None if memory_budget is None else max(1, memory_budget // 4),
        )
        self.prior = as_prior(prior)
        self.likelihood = as_likelihood(likelihood)
        self._mean: Mean = mean
        self._sites = sites
        self._scale = ScaleRule.of(mean_scale)
        self._prepares = True  # posteriors of class labels, as soon as they can be made
        self._fit: Fit | None = None
        self.eval()

    def __setattr__(self, name: str, value: Any) -> None:
        # hyperparameters are those of these two modules, also while the user exchanges one
        if name == "prior":
            value = as_prior(value).bind_to(self.linearized)
        elif name == "likelihood":
            value = as_likelihood(value)
        super().__setattr__(name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # .to(), .double(), .cuda() all come through here; what `fn` does shows on a probe
        probe = torch.empty(0, dtype=torch.float64, device=self.linearized.device)
        moved = fn(probe)
        if (moved.dtype, moved.device) != (probe.dtype, probe.device):
            raise RuntimeError(
                f"a LinearizedGP stays where its network and data are, on {probe.device}, and its "
                f"hyperparameters in float64; got {moved.dtype} on {moved.device}. Move the "
                "network and make another: LinearizedGP(net.to(device), dtype=...)"
            )
        return super()._apply(fn, recurse)

    @property
    def mean(self) -> Mean:
        """Whose mean predictions and evidence have: "network" or "refit"."""
        return self._mean

    @property
    def sites(self) -> Sites:
        """Where the likelihood's curvature is taken: "mean", "network" or "expected"."""
        if self._sites != "auto":
            return self._sites
        return "expected" if self.likelihood.saturates and self._mean == "network" else "mean"

    @property
    def mean_scale(self) -> float:
        """s of predictions E p(y | s m + ε) of class labels; settable.

        To a number, to a rule, or to that of another GP, `other.laplace.mean_scale`.

        "matched" finds it anew whenever hyperparameters or data change; validation data make it
        larger or smaller by a factor.
        """
        return self.laplace.scale_of_mean()

    @mean_scale.setter
    def mean_scale(self, value: MeanScaleOption | Matched) -> None:
        self._scale = ScaleRule.of(value)

    @property
    def dtype(self) -> torch.dtype:
        """Of Jacobians and linear algebra."""
        return self.linearized.dtype

    @property
    def laplace(self) -> LinearizedLaplace:
        """What `fit` made: training data, curvature and posterior, for hyperparameters as they are.

        Raises
        ------
        RuntimeError
            Before `fit`.
        """
        return self._refreshed().laplace

    @property
    def data(self) -> FittedData:
        """The data it was fitted to, as they were given and as they were checked."""
        return self._refreshed().data

    @property
    def inference_choice(self) -> InferenceChoice:
        """Which inference `fit` chose, and why."""
        return self._refreshed().choice

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        class_weight: ClassWeight | None = None,
        missing: Missing = "error",
        progress: bool = True,
        prepare: bool = True,
    ) -> Self:
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
        prepare
            Whether the posterior of class labels, which takes the time of about five, is made as
            soon as data or hyperparameters change. False: when it is needed, or by `prepare`.

        Returns
        -------
        self

        Notes
        -----
        With a `process_group`, X and y are the rows of this process, at least one, and all
        processes call `fit` together.
        """
        memory = self._memory()
        with restored_on_error(*self._state()):
            self._scale, self._prepares = replace(self._scale, factor=None), prepare
            data = FittedData(
                self.linearized,
                self.likelihood,
                class_weight=class_weight,
                missing=missing,
                shards=self.shards,
                memory=memory,
            )
            data.collect(
                X,
                y,
                sample_weight,
                keep_bytes=factor_bytes(self.inference, memory),
                chunk_bytes=dense_bytes(memory),
                progress=progress,
            )
            check_ranks(self.shards, data.training, self.prior, self.likelihood, self._options())
            self._condition(data)
            if progress and self.inference == "auto" and self.shards.rank == 0:
                announce(self.inference_choice, self.dtype, self.linearized.device)
            if self._prepare() and progress and self.shards.rank == 0:
                announce_scale(self.laplace.mean_scale, self.mean_scale)
        return self

    def prepare(self) -> Self:
        """Make the posterior now, which otherwise waits until it is needed, and say what is odd.

        Returns
        -------
        self

        Warns
        -----
        PosteriorWarning
            If predictions of class labels will likely be worse than they need be.
        """
        laplace = self.laplace
        laplace.posterior()
        laplace.weight_shift()
        laplace.scale_of_mean()
        if self.likelihood.saturates and self._scale.factor is None:
            warn_of_posterior(laplace)
        return self

    def add_data(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
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
        data = self.data
        kept = torch.arange(data.training.num_data)
        with restored_on_error(*self._state()):
            data.extend(X, y, sample_weight)
            self._recondition(Origin(kept, kept[:0], None))
        return self

    def remove_data(self, rows: Any) -> Self:
        """Take rows away again, as if they had not been there at `fit`.

        A sparse posterior subtracts their terms and keeps its inducing points, also those at
        removed inputs; where rounding would show, it goes through the rest again.

        Parameters
        ----------
        rows
            Numbers of rows in the order they were given, or one truth value per row.

        Returns
        -------
        self
        """
        data = self.data
        index = self.shards.attempt(lambda: as_row_numbers(rows, data.training.num_data))
        with restored_on_error(*self._state()):
            self._recondition(data.remove(index))
        return self

    def forward(self, X: Any) -> MultivariateNormal:
        """`gp(X)`: the latent outputs, as a GPyTorch model gives them.

        Like other GPyTorch models it gives the prior in train mode, or under
        `gpytorch.settings.prior_mode`: N( f_lin(x; μ0), J(x) Σ0 J(x)ᵀ ), with a graph to the
        prior's hyperparameters. Otherwise it gives `posterior`.

        Parameters
        ----------
        X
            Inputs.
        """
        if not self.training and gpytorch.settings.prior_mode.off():
            return self.posterior(X)
        outputs, factors = self.linearized.factors(as_inputs(X))
        self.prior.bind_to(self.linearized)
        deviation = (self.prior.mean - self.linearized.weights()).to(outputs)
        mean = outputs + factors.matmul(deviation.unsqueeze(-1)).squeeze(-1)
        variances = self.prior.variances().to(outputs)
        return _normal(mean, NTKLinearOperator.from_factors(factors, variances=variances))

    @property
    def train_inputs(self) -> tuple[Inputs]:
        """The training inputs, as the one argument of `gp(X)`."""
        inputs = self.laplace.training.inputs
        return (inputs[0] if len(inputs) == 1 else joined_inputs(inputs),)

    @property
    def train_targets(self) -> Tensor:
        """The training targets as they were given, (N, ...)."""
        return torch.cat(self.data.given)

    def posterior(self, X: Any) -> MultivariateNormal:
        """Joint posterior of the latent outputs at all rows of X, without noise.

        Returns
        -------
        gpytorch.distributions.MultivariateNormal
            For one output; else a `MultitaskMultivariateNormal` over n rows and C tasks,
            interleaved.
        """
        mean, covariance = self._latents().joint(as_inputs(X))
        return _normal(mean, PosteriorCovariance(covariance))

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
        the training targets. A row with a weight is left out as a whole. The mean of class labels
        is scaled as in `predict`.

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
        scale = left_out.mean_scale
        made = self._prediction(moments, scale, known, method, num_samples, generator)
        return LeaveOneOutPrediction(
            made.predictive, made.layout, made.mean_of, *moments, targets, mean_scale=scale
        )

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
            self._scale = replace(self._scale, factor=None)
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

    def save(
        self, path: str | os.PathLike[str], *, include_data: Literal["auto"] | bool = "auto"
    ) -> SavedFile:
        """Write this GP to one file, from which `load` gives the same predictions.

        On the same machine, with as many threads, to the last bit. The file has the network's
        weights, prior, likelihood, options and the posterior; tensors, numbers, strings, lists and
        dicts, which `torch.load(weights_only=True)` reads. It replaces an older one in one step.

        Parameters
        ----------
        path
            Of the file; its folder exists.
        include_data
            Whether the training data are in the file. "auto": where predictions take them, in
            function space and for iterative inference. Without them, a loaded GP predicts, draws
            and knows its evidence; what has to go through the data again (other hyperparameters,
            `add_data`, `leave_one_out`) raises an error. Sparse inference keeps what the network's
            layers make of its inducing inputs, which are training inputs.

        Returns
        -------
        What was written, and what of the training data is in it; prints as one line.
        """
        options = {
            "parameters": list(self.linearized.parameter_names),
            "inference": self.inference,
            "mean": self._mean,
            "sites": self._sites,
            "mean_scale": self._scale.option,
            "dtype": self.dtype,
            "memory_budget": self.memory_budget,
        }
        return save(
            path, self._refreshed(), options, sureness=self._scale.factor, include_data=include_data
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        net: nn.Module,
        *,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        map_location: Any = None,
    ) -> Self:
        """A GP from a file that `save` wrote.

        Parameters
        ----------
        path
            Of the file.
        net
            A network of the same architecture. It is copied and its copy gets the weights in the
            file: its own weights don't matter, and it stays as it is.
        prior, likelihood
            Objects as they were made before, which are copied and get the hyperparameters in the
            file; only for what the file can't describe: a class of your own that isn't
            `lingp.runtime.described.described`, a likelihood made of functions, GPyTorch priors on
            hyperparameters.
        map_location
            As `torch.load` takes it: where tensors go, such as "cpu"; by default where they were.

        Raises
        ------
        lingp.saving.SavedFileError
            For a file that is damaged, of a newer lingp, of another network, or something else.
        """
        if not isinstance(net, nn.Module):
            raise TypeError(f"net: got {type(net).__name__}; expected a torch.nn.Module")
        file = SavedGP(path, map_location)
        gp = cls(
            file.network(net),
            file.module("likelihood", likelihood),
            prior=file.module("prior", prior),
            **file.options,
        )
        file.set_values(gp.linearized, gp.prior, gp.likelihood)
        gp._scale = replace(gp._scale, factor=file.sureness)
        scale = gp._scale.for_likelihood(gp.likelihood)
        gp._fit = file.fitted(gp.linearized, gp.prior, gp.likelihood, gp.mean, gp.sites, scale)
        return gp

    def _refreshed(self) -> Fit:
        if self._fit is None:
            raise RuntimeError("this LinearizedGP has no data yet: call fit(X, y) first")
        self.prior.bind_to(self.linearized)  # inputs have shown which layer is the last
        data = self._fit.data
        if self.likelihood is not data.likelihood:
            with restored_on_error(self, data, data.training):
                data.exchange_likelihood(self.likelihood)
                self._condition(data)
        self._fit.laplace.prior = self.prior
        self._fit.laplace.mean_scale = self._scale.for_likelihood(self.likelihood)
        return self._fit

    def _state(self) -> tuple[object, ...]:
        """What holds the data, what was made of them, and the hyperparameters."""
        data = () if self._fit is None else (self._fit.data,)
        return (self, self.linearized, *data, self.prior, self.likelihood)

    def _recondition(self, origin: Origin) -> None:
        """Go on with changed data: with what the method carries over, or from nothing."""
        assert self._fit is not None
        carried = self._fit.carried_over(origin)
        if carried is None:
            self._condition(self._fit.data)
            return
        self._fit = carried
        self._prepare()

    def _condition(self, data: FittedData) -> None:
        """Choose inference for these data and start from nothing."""
        prior, scale = self.prior.bind_to(self.linearized), self._scale
        self._fit = Fit.of(
            data,
            prior,
            self.inference,
            self._mean,
            self.sites,
            scale.for_likelihood(data.likelihood),
            self.memory_budget,
        )
        if not self.shards.alone:
            self._prepare()

    def _prepare(self) -> bool:
        """Make posteriors that take all ranks, each of which can then predict for itself.

        And those of class labels, which take the time of several. Returns whether it did.
        """
        labels = self.likelihood.saturates and predicts(self.inference)
        wanted = not self.shards.alone or (labels and self._prepares)
        if wanted:
            self.prepare()
        return wanted

    def _options(self) -> dict[str, object]:
        """What has to be the same on all ranks, besides the hyperparameters."""
        return {
            "inference": self.inference,
            "mean": self._mean,
            "sites": self.sites,
            "mean_scale": self._scale.for_likelihood(self.likelihood),
            "dtype": str(self.dtype),
        }

    def _output_shape(self) -> tuple[int, ...]:
        assert self.linearized.output_shape is not None
        return tuple(self.linearized.output_shape)

    def _memory(self) -> float:
        return memory_for(self.memory_budget, self.linearized.device)

    def __repr__(self) -> str:
        state = "not fitted" if self._fit is None else str(self._fit.choice)
        if self.likelihood.saturates:
            state = (
                f"mean scale: {in_words(self._scale.for_likelihood(self.likelihood))}\n  {state}"
            )
        if self._fit is not None and self._fit.data.note is not None:
            state += f"\n  {self._fit.data.note}"
        return (
            f"LinearizedGP(\n  {self.linearized.num_parameters} weights, mean={self._mean!r}, "
            f"{self.dtype}\n  {_one_line(self.prior)}\n  {_one_line(self.likelihood)}\n  {state}\n)"
        )

    def _tune_on(
        self,
        validation: Any,
        absorb: bool,
        typical_factor: float | None,
        max_evaluations: int,
        generator: torch.Generator | None,
    ) -> ValidationResult:
        fit = self._refreshed()
        laplace, missing = fit.laplace, fit.data.missing == "nan"
        batches = self.shards.attempt(lambda: validation_batches(validation, missing=missing))
        result = tune_on_validation(
            laplace,
            fit.data.held_out(batches),
            typical_factor=typical_factor,
            max_evaluations=max_evaluations,
            scale_mean=self.likelihood.saturates and not self._scale.is_number,
            generator=generator,
        )
        if isinstance(laplace.mean_scale, Matched):
            self._scale = replace(self._scale, factor=laplace.mean_scale.factor)
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
        return TargetLayout.around(mean, self.likelihood, self._output_shape(), known, mean_scale)

    def _known(self, known: Any, num_rows: int) -> Tensor | None:
        """Known quantities of targets to predict, (n x T)."""
        if known is None:
            return None
        targets = self.laplace.training.targets
        quantity = as_known(known, num_rows, targets.shape[1]).to(targets)
        self.likelihood.untempered.at(quantity)  # errors before any work
        return quantity


def _one_line(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"


def _normal(mean: Tensor, covariance: LinearOperator) -> MultivariateNormal:
    """N(mean (n x C), covariance (n·C x n·C)) as GPyTorch has it for one output and for several."""
    if mean.shape[1] == 1:
        return MultivariateNormal(mean.squeeze(1), covariance)
    return MultitaskMultivariateNormal(mean, covariance)

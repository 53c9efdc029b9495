"""A network, a prior and a likelihood, conditioned on data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from typing_extensions import Self

from lingp.inference import InferenceChoice, LinearizedLaplace, Mean
from lingp.inference.choice import (
    Inference,
    MeanScaleOption,
    announce,
    announce_scale,
    check_inference,
    check_mean_scale,
    choose_method,
    factor_bytes,
    predicts,
)
from lingp.inference.exact import as_method
from lingp.inference.laplace import Sites
from lingp.inference.mean_scale import Matched, MeanScale
from lingp.inference.origin import Origin
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.models.agreement import check_ranks
from lingp.models.class_weights import ClassWeight
from lingp.models.doubts import warn_of_posterior
from lingp.models.fitting import FittedData, Missing
from lingp.models.intake import as_row_numbers
from lingp.priors import Prior, as_prior
from lingp.runtime.memory import dense_bytes, memory_for
from lingp.runtime.restoring import restored_on_error
from lingp.runtime.shards import Shards

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ConditionedNetwork:
    """The part of `LinearizedGP` that takes options and data; see there.

    Prior and likelihood may be exchanged, and their hyperparameters changed, at any time.
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
        self.likelihood = as_likelihood(likelihood)
        self.prior = as_prior(prior)
        self.inference = inference
        self.memory_budget = memory_budget
        self.shards = Shards.of(process_group)
        self.linearized = LinearizedNetwork(
            net,
            parameters,
            dtype=dtype,
            memory_budget=None if memory_budget is None else max(1, memory_budget // 4),
        )
        self.prior.bind_to(self.linearized)
        self._mean: Mean = mean
        self._sites = sites
        self._mean_scale = check_mean_scale(mean_scale)
        self._prepares = True  # posteriors of class labels, as soon as they can be made
        self._sureness: float | None = None  # factor of the matched scale, by validation data
        self._data: FittedData | None = None
        self._laplace: LinearizedLaplace | None = None
        self._choice: InferenceChoice | None = None

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
        if isinstance(value, Matched):
            self._mean_scale, self._sureness = "matched", value.factor
        else:
            self._mean_scale, self._sureness = check_mean_scale(value), None

    def _scale_or_rule(self) -> MeanScale:
        """The number or rule for the likelihood as it is."""
        labels = self.likelihood.saturates
        if self._mean_scale == "auto" and not labels:
            return 1.0
        if self._mean_scale != 1.0 and not labels:
            raise ValueError(
                f"mean_scale: got {self._mean_scale!r}, but {type(self.likelihood).__name__} is "
                'not of class labels, for which it is made; leave it at "auto"'
            )
        if isinstance(self._mean_scale, str):
            return Matched(self._sureness or 1.0)
        return self._mean_scale

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
        return self._refreshed()

    @property
    def inference_choice(self) -> InferenceChoice:
        """Which inference `fit` chose, and why."""
        self._refreshed()
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
            self._sureness, self._prepares = None, prepare
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
                announce_scale(self._scale_or_rule(), self.mean_scale)
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
        if self.likelihood.saturates and self._sureness is None:
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
        before = self.laplace.training.num_data
        assert self._data is not None
        kept = torch.arange(before)
        with restored_on_error(*self._state()):
            self._data.extend(X, y, sample_weight)
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
        training = self.laplace.training
        assert self._data is not None
        index = self.shards.attempt(lambda: as_row_numbers(rows, training.num_data))
        with restored_on_error(*self._state()):
            self._recondition(self._data.remove(index))
        return self

    def _refreshed(self) -> LinearizedLaplace:
        if self._laplace is None or self._data is None:
            raise RuntimeError("this LinearizedGP has no data yet: call fit(X, y) first")
        # prior and likelihood may have been exchanged since fit
        self.prior = as_prior(self.prior).bind_to(self.linearized)
        self.likelihood = as_likelihood(self.likelihood)
        if self.likelihood is not self._data.likelihood:
            with restored_on_error(self, self._data, self._data.training):
                self._data.exchange_likelihood(self.likelihood)
                self._condition(self._data)
        self._laplace.prior = self.prior
        self._laplace.mean_scale = self._scale_or_rule()
        return self._laplace

    def _state(self) -> tuple[object, ...]:
        """What holds the data, what was made of them, and the hyperparameters."""
        held = (self, self.linearized, self._data, self.prior, self.likelihood)
        return tuple(part for part in held if hasattr(part, "__dict__"))

    def _recondition(self, origin: Origin) -> None:
        """Go on with changed data: with what the method carries over, or from nothing."""
        data, laplace = self._data, self._laplace
        assert data is not None and laplace is not None
        method = as_method(laplace.method).carried_over(data.training, origin)
        if method is None:
            self._condition(data)
            return
        self._laplace = dataclasses.replace(laplace, training=data.training, method=method)
        self._prepare()

    def _condition(self, data: FittedData) -> None:
        """Choose inference for these data and start from nothing."""
        self.prior = as_prior(self.prior).bind_to(self.linearized)
        held = data.training.factor_bytes if data.training.factors_kept else 0
        method, choice = choose_method(
            self.inference,
            data.training,
            self.prior,
            data.likelihood,
            memory_for(self.memory_budget, self.linearized.device, held),
            mean=self._mean,
            sites=self.sites,
        )
        self._laplace = LinearizedLaplace(
            data.training,
            self.prior,
            data.likelihood,
            method,
            self._mean,
            self.sites,
            self._scale_or_rule(),
        )
        self._data, self._choice = data, choice
        if not self.shards.alone:
            self._prepare()

    def _restore(
        self, data: FittedData, laplace: LinearizedLaplace, choice: InferenceChoice
    ) -> None:
        """Take over what another `fit` made."""
        self._data, self._laplace, self._choice = data, laplace, choice

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
            "mean_scale": self._scale_or_rule(),
            "dtype": str(self.dtype),
        }

    def _output_shape(self) -> tuple[int, ...]:
        assert self.linearized.output_shape is not None
        return tuple(self.linearized.output_shape)

    def _memory(self) -> float:
        return memory_for(self.memory_budget, self.linearized.device)

    def __repr__(self) -> str:
        state = "not fitted" if self._choice is None else str(self._choice)
        if self.likelihood.saturates:
            state = f"mean scale: {_in_words(self._scale_or_rule())}\n  {state}"
        if self._data is not None and self._data.note is not None:
            state += f"\n  {self._data.note}"
        return (
            f"LinearizedGP(\n  {self.linearized.num_parameters} weights, mean={self._mean!r}, "
            f"{self.dtype}\n  {_one_line(self.prior)}\n  {_one_line(self.likelihood)}\n  {state}\n)"
        )


def _in_words(scale: MeanScale) -> str:
    if not isinstance(scale, Matched):
        return f"{scale:.3g}"
    return "matched" if scale.factor == 1 else f"matched x {scale.factor:.3g}"


def _one_line(module: nn.Module) -> str:
    return f"{type(module).__name__}({module.extra_repr()})"

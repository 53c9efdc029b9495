"""A regressor with error bars."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn
from typing_extensions import Self

from lingp.estimators.base import LinearizedGPEstimator, random_numbers
from lingp.estimators.noise import gaussian_noise
from lingp.estimators.scaling import Standardizer
from lingp.estimators.spread import array, between_rows, columns, standard_deviations
from lingp.inference.choice import Inference
from lingp.likelihoods import Heteroscedastic, Likelihood
from lingp.priors import Prior
from lingp.training import initialize_head

# least precision of a row's noise, in standard units: more than ten times the variance of all
# targets can't be the noise of more than a tenth of them
_FLOOR = 0.1


class LinearizedGPRegressor(RegressorMixin, LinearizedGPEstimator):
    """Regression by a neural network that is trained as a Gaussian process, with the evidence.

    `fit` trains a network together with its prior and noise, by the marginal likelihood of its
    linearised Laplace approximation; nothing has to be tuned or held out. Where training has lost
    more than half of the evidence that it had won over a linear model, or never won any, the
    network has learned noise: as it was at its largest evidence it is used then, or, if that has
    more, the linear model. Standard deviations, covariances, intervals and samples are those of the
    targets: uncertainty of the function and noise. A `fit` or `partial_fit` that fails or is
    interrupted changes nothing.

    Parameters
    ----------
    hidden_layer_sizes
        Widths of the hidden layers; none, (), is a linear model. By default (50, 50), or a linear
        model where the network overfits and the evidence is for it (not with a `prior`, nor where
        training starts with `partial_fit`).
    activation
        "gelu", "identity", "logistic", "relu", "silu" or "tanh".
    module
        A network of your own instead, with one output per target (two where `heteroscedastic`). It
        is copied and trained further from its weights.
    prefit
        The module is trained already: it is taken as it is and sees the data as they are. Only
        prior and noise are found, by the evidence.
    heteroscedastic
        Noise that depends on the inputs. Point predictions are then the median: the mean of the
        predictive, and its standard deviation, can be ruled by a far tail.
    prior
        As in `LinearizedGP`, of weights of a network that sees standardised data.
    inference
        As in `LinearizedGP`.
    mean
        Whose mean predictions have, as in `LinearizedGP`. "auto": refitted for Gaussian noise and
        where training starts with `partial_fit`, else the network's; that of a `prefit` module.
    steps
        Of training a network; by default 2400, or 10,000 (of 256 rows) where there are more than
        2048 rows.
    standardize
        Whether network, prior and noise see inputs and targets centred and divided by their
        standard deviations. All methods take and give the units of the data.
    validation_fraction
        Share of the rows that the network is not trained on, drawn at random: prior variances and
        noise are multiplied by the factors that predict them best, before the Gaussian process
        learns from them too. None: the evidence alone decides.
    device
        Where the network is trained and predicts; by default the module's own, or the CPU.
    random_state
        Of first weights and batches: a number or a `RandomState`. None is another one at each fit;
        the global generators of NumPy and torch are not used.
    verbose
        Whether work that takes more than seconds shows a progress bar.

    Attributes
    ----------
    gp_
        The `LinearizedGP`. Of `x_scaler_.transform(X)` and of targets in the units of `y_scaler_`.
    module_
        The trained network, in the same units.
    x_scaler_, y_scaler_
        Means and scales of the columns: `mean`, `scale`.
    log_marginal_likelihood_value_
        The evidence of the training data, as a density in the units of the data: that in standard
        units less N log scale for each target.
    history_
        Hyperparameter steps of training, with their evidence in standard units; empty if `prefit`.
    n_iter_
        Steps of training that the state is from.
    validation_
        What the rows that were held out have chosen, a `ValidationResult`; None if there were none.
    n_features_in_, feature_names_in_
        Of the inputs.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LinearizedGPRegressor(steps=100, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> lower, upper = model.predict_interval(X[:3], level=0.9)
    """

    y_scaler_: Standardizer
    log_marginal_likelihood_value_: float

    def __init__(
        self,
        hidden_layer_sizes: Any = None,
        activation: str = "gelu",
        *,
        module: nn.Module | None = None,
        prefit: bool = False,
        heteroscedastic: bool = False,
        prior: Prior | float | None = None,
        inference: Inference = "auto",
        mean: Literal["auto", "network", "refit"] = "auto",
        steps: int | None = None,
        standardize: bool = True,
        validation_fraction: float | None = None,
        device: torch.device | str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.module = module
        self.prefit = prefit
        self.heteroscedastic = heteroscedastic
        self.prior = prior
        self.inference = inference
        self.mean = mean
        self.steps = steps
        self.standardize = standardize
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train the network, its prior and its noise.

        Parameters
        ----------
        X
            Inputs, (N, D).
        y
            Targets, (N,) or (N, T).
        """
        with self._all_or_nothing():
            return self._fit(X, y, streaming=False)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn from more rows; the first call is `fit`.

        Later calls condition the Gaussian process on the rows, exactly, without going through the
        earlier ones again. The network is not trained any more, and columns are scaled as at first,
        so the first rows should be typical, and not too few.

        Parameters
        ----------
        X, y
            As in `fit`.
        """
        with self._all_or_nothing():
            if not hasattr(self, "gp_"):
                return self._fit(X, y, streaming=True)
            rows, targets = self._data(X, y, reset=False)
            if targets.shape[1] != len(self.y_scaler_.mean):
                raise ValueError(
                    f"y: has {targets.shape[1]} targets, but the first call had "
                    f"{len(self.y_scaler_.mean)}"
                )
            self._more(rows, self.y_scaler_.transform(targets))
            return self._evaluate()

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Mean of the targets; their median where noise depends on the inputs.

        Parameters
        ----------
        X
            Inputs, (n, D).
        return_std
            Whether to give the standard deviations too.
        return_cov
            Whether to give the covariance between rows too.

        Returns
        -------
        mean
            (n,) or (n, T).
        std
            In the same shape, with `return_std`.
        cov
            (n, n) or (n, n, T), with `return_cov`.

        Notes
        -----
        Where noise depends on the inputs, the predictive isn't normal. `std` is then half the width
        of the central interval of 68.3 %, and correlations are those given the outputs' noise: mean
        and variance can be ruled by a far tail.
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        x = self._new_inputs(X)
        prediction = self._prediction(x)
        points = prediction.median if self.heteroscedastic else prediction.mean
        mean = self._in_units(columns(points))
        if not (return_std or return_cov):
            return mean
        std = array(standard_deviations(prediction))
        if return_std:
            return mean, self._shaped(std * self.y_scaler_.scale)
        covariance = between_rows(self.gp_, x, std)
        return mean, self._shaped(covariance * self.y_scaler_.scale**2)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the central intervals that hold the targets.

        Quantiles of the predictive distribution, also where it isn't normal.

        Parameters
        ----------
        X
            Inputs, (n, D).
        level
            Probability that the interval holds the target.

        Returns
        -------
        lower, upper
            (n,) or (n, T) each.
        """
        lower, upper = self._prediction(self._new_inputs(X)).interval(level)
        return self._in_units(columns(lower)), self._in_units(columns(upper))

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> np.ndarray:
        """Draws of the targets, with noise; those of one draw belong to one function.

        Parameters
        ----------
        X
            Inputs, (n, D).
        n_samples
            Number of draws.
        random_state
            Their randomness.

        Returns
        -------
        ndarray
            (n, n_samples) or (n, T, n_samples).
        """
        x = self._new_inputs(X)
        seed = int(random_numbers(random_state).randint(2**31 - 1))
        generator = torch.Generator(x.device).manual_seed(seed)
        f = self.gp_.sample(x, n_samples, generator=generator).flatten(2)
        with torch.no_grad():
            draws = self.gp_.likelihood.sample(f, generator=generator)
        return np.moveaxis(self._in_units(draws), 0, -1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _fit(self, X: Any, y: Any, *, streaming: bool) -> Self:
        self._check()
        rows, targets = self._data(X, y, reset=True)
        scaled = self.standardize and not self.prefit
        if scaled:
            self.y_scaler_ = Standardizer.of(targets, divide_constants=True)
        else:
            self.y_scaler_ = Standardizer.identity(targets)
        if self.heteroscedastic:
            likelihood: Likelihood = self._varying_noise()
        else:
            likelihood = gaussian_noise(targets, self.y_scaler_)
        outputs = targets.shape[1] * (2 if self.heteroscedastic else 1)
        standard = self.y_scaler_.transform(targets)
        self._train(rows, standard, likelihood, outputs, streaming=streaming)
        return self._evaluate()

    def _data(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Checked inputs and targets (N, T)."""
        rows, targets = self._rows(X, y=y, multi_output=True, y_numeric=True, reset=reset)
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = column_or_1d(targets, warn=True)
        if reset:
            self._flat = targets.ndim == 1
        return rows, targets.astype(np.float64).reshape(len(targets), -1)

    def _initialize(self, network: nn.Module) -> None:
        if self.heteroscedastic:
            # the normal of mean 0 and variance 1, which standardised targets have
            targets = torch.tensor([[-1.0], [1.0]]).expand(2, len(self.y_scaler_.constant))
            initialize_head(network, targets, self._varying_noise())

    def _varying_noise(self) -> Heteroscedastic:
        """Noise that depends on the inputs, with a bound where the units are known."""
        # a module means what it gives, and without scaling the units are the data's own
        own = self.module is None and self.standardize
        return Heteroscedastic(floor=_FLOOR if own else 0.0)

    def _evaluate(self) -> Self:
        units = self.gp_.laplace.training.num_data * np.log(self.y_scaler_.scale).sum()
        self.log_marginal_likelihood_value_ = self.gp_.evidence().value - float(units)
        return self

    def _in_units(self, values: Tensor) -> np.ndarray:
        """Targets (..., n, T) in standard units, in those of the data and the shape of `fit`'s."""
        return self._shaped(self.y_scaler_.undo(array(values)))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[..., 0] if self._flat else values

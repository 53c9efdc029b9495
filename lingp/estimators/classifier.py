"""A classifier whose probabilities know where the data end."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import nn
from typing_extensions import Self

from lingp.estimators.base import LinearizedGPEstimator
from lingp.inference.choice import Inference
from lingp.likelihoods import Bernoulli, Categorical, Likelihood
from lingp.linearization import LinearizedNetwork
from lingp.priors import Prior

_MANY, _ERRORS = 1000, 0.01  # labels that a network has learned nearly without error


class LinearizedGPClassifier(ClassifierMixin, LinearizedGPEstimator):
    """Classification by a neural network that is trained as a Gaussian process, with the evidence.

    `fit` trains a network together with its prior, by the marginal likelihood of its linearised
    Laplace approximation; nothing has to be tuned, and overfitting is dealt with as in
    `LinearizedGPRegressor`. Probabilities are averaged over what the data leave open, so that they
    are less sure away from the data. A `fit` or `partial_fit` that fails or is interrupted changes
    nothing.

    Parameters
    ----------
    hidden_layer_sizes, activation, prior, inference, steps, standardize, device, random_state, \
verbose
        As in `LinearizedGPRegressor`; labels are not scaled.
    validation_fraction
        Share of the rows that the network is not trained on, drawn from all classes alike: they
        choose a factor for the prior's variances, before the Gaussian process learns from them too.
        None: none are held out. "auto": where a network of our own predicts 99 % of 1,000 labels or
        more right, they don't say how sure it should be. A second one is then trained on nine
        tenths of the rows, and the others choose the factor and the `mean_scale` of `LinearizedGP`;
        the network is that of all rows. (Not where rows come later, nor where the prior is fixed.)
    module
        A network of your own instead, which gives logits: one for each class, in the order of
        `classes_`; for two classes it may be one, of the second. It is copied and trained further
        from its weights.
    prefit
        The module is trained already: it is taken as it is and sees the data as they are. Only the
        prior is found, by the evidence.
    mean
        Whose mean predictions have, as in `LinearizedGP`. "auto": the network's, or a refitted one
        where training starts with `partial_fit`.

    Attributes
    ----------
    classes_
        The labels, sorted.
    gp_
        The `LinearizedGP`, of `x_scaler_.transform(X)` and of positions in `classes_`.
    module_
        The trained network.
    x_scaler_
        Means and scales of the columns: `mean`, `scale`.
    log_marginal_likelihood_value_
        The evidence of the training data.
    history_
        Hyperparameter steps of training, with their evidence; empty if `prefit`.
    n_iter_
        Steps of training that the state is from.
    validation_
        What rows that were held out have chosen, a `ValidationResult`; None if there were none.
    n_features_in_, feature_names_in_
        Of the inputs.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearizedGPClassifier(steps=100, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    _named_shares = ("auto",)

    classes_: np.ndarray
    log_marginal_likelihood_value_: float

    def __init__(
        self,
        hidden_layer_sizes: Any = None,
        activation: str = "gelu",
        *,
        module: nn.Module | None = None,
        prefit: bool = False,
        prior: Prior | float | None = None,
        inference: Inference = "auto",
        mean: Literal["auto", "network", "refit"] = "auto",
        steps: int | None = None,
        standardize: bool = True,
        validation_fraction: float | Literal["auto"] | None = "auto",
        device: torch.device | str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.module = module
        self.prefit = prefit
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
        """Train the network and its prior.

        Parameters
        ----------
        X
            Inputs, (N, D).
        y
            Labels of any kind, (N,), of at least two classes.
        """
        with self._all_or_nothing():
            return self._fit(X, y, None, streaming=False)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from more rows; the first call is `fit`.

        Later calls condition the Gaussian process on the rows without going through the earlier
        ones again. The network is not trained any more, and columns are scaled as at first, so the
        first rows should be typical, and not too few.

        Parameters
        ----------
        X, y
            As in `fit`.
        classes
            All labels there will be; by default those of the first call.
        """
        with self._all_or_nothing():
            if not hasattr(self, "gp_"):
                return self._fit(X, y, classes, streaming=True)
            rows, labels = self._data(X, y, reset=False)
            self._more(rows, self._positions(labels))
            return self._evaluate()

    def predict(self, X: Any) -> np.ndarray:
        """The label of largest probability, (n,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each label, in the order of `classes_`, (n, K)."""
        return self._prediction(self._new_inputs(X)).probs.cpu().double().numpy()

    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the logits.

        Parameters
        ----------
        X
            Inputs, (n, D).

        Returns
        -------
        mean, variance
            For two classes of the logit of the second, (n,); else of the logit of each, (n, K).
        """
        prediction = self._prediction(self._new_inputs(X))
        mean, covariance = prediction.latent_mean, prediction.latent_covariance
        if mean.shape[1] == 2:
            # a softmax of two is a sigmoid of their difference
            difference = mean.new_tensor([-1.0, 1.0])
            mean = (mean @ difference).unsqueeze(1)
            covariance = (difference @ covariance @ difference)[:, None, None]
        variance = covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
        found = mean.cpu().double().numpy(), variance.cpu().double().numpy()
        return (found[0][:, 0], found[1][:, 0]) if mean.shape[1] == 1 else found

    def _fit(self, X: Any, y: Any, classes: Any, *, streaming: bool) -> Self:
        self._check()
        rows, labels = self._data(X, y, reset=True)
        present = np.unique(labels)
        if len(present) < 2:
            raise ValueError(
                f"y: all labels are of one class, {present.tolist()[0]!r}; a classifier needs at "
                "least two"
            )
        self.classes_ = present if classes is None else np.unique(classes)
        outputs = self._num_outputs(rows)
        likelihood: Likelihood = Bernoulli() if outputs == 1 else Categorical()
        self._train(rows, self._positions(labels), likelihood, outputs, streaming=streaming)
        return self._evaluate()

    def _data(self, X: Any, y: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Checked inputs and labels (N,)."""
        rows, labels = self._rows(X, y=y, multi_output=True, reset=reset)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        return rows, labels

    def _positions(self, labels: np.ndarray) -> np.ndarray:
        """Of labels in `classes_`."""
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y: the labels {unknown.tolist()} are not among the classes "
                f"{self.classes_.tolist()}; name all of them in the first call, partial_fit(X, y, "
                "classes=...)"
            )
        return np.searchsorted(self.classes_, labels)

    def _num_outputs(self, rows: np.ndarray) -> int:
        """How many outputs the network has: one for two classes, else one for each."""
        num_classes = len(self.classes_)
        # two classes have one logit: a softmax of two has a direction that labels say nothing
        # about, and twice the Jacobian, for the same probabilities
        if self.module is None:
            return 1 if num_classes == 2 else num_classes
        linearized = LinearizedNetwork(self.module)
        linearized(torch.from_numpy(rows[:2]))
        found = linearized.num_outputs
        if found != num_classes and (found, num_classes) != (1, 2):
            raise ValueError(
                f"module: gives {found} outputs, but y has {num_classes} classes; expected one "
                "logit for each" + (", or one in all" if num_classes == 2 else "")
            )
        return found

    def _evidence_misleads(self) -> bool:
        training, precision = self.gp_.laplace.training, self.gp_.prior.raw_precision
        outputs, labels = training.outputs, training.targets.squeeze(-1)
        predicted = (outputs.squeeze(1) > 0) if outputs.shape[1] == 1 else outputs.argmax(1)
        wrong = int((predicted != labels).sum())
        many = len(labels) >= _MANY
        return many and wrong <= _ERRORS * len(labels) and precision.requires_grad

    def _strata(self, targets: np.ndarray, fraction: float) -> np.ndarray | None:
        _, counts = np.unique(targets, return_counts=True)
        held = math.ceil(fraction * len(targets))
        enough = min(held, len(targets) - held) >= len(counts)
        return targets if enough and counts.min() >= 2 else None

    def _evaluate(self) -> Self:
        self.log_marginal_likelihood_value_ = self.gp_.evidence().value
        return self

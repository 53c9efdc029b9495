"""The methods of `estimators.py`: lingp's estimators, scikit-learn's, laplace-torch.

A method takes a split and a seed and returns what it predicts for the test rows, in standard units:
a `Predictive` for regression, probabilities (n x C) for classification.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import datasets
import estimators_forest
import numpy as np
import peers
import scores
import torch
from harness.rounds import Contender, Field, Schedule
from scipy import stats
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV

from lingp.estimators import LinearizedGPClassifier, LinearizedGPRegressor
from lingp.metrics import coverage, interval_score

LEVEL = 0.9
# of scikit-learn's GPs. Its own bounds, 1e-5 to 1e5, let first steps go so far that on yacht the
# search ends 200 nats below what it finds within these
SCALES, LENGTHS, NOISES = (1e-3, 1e4), (1e-2, 1e4), (1e-6, 1e1)
GP_ROWS = 1000  # of GaussianProcessClassifier
GP_ARD = 100  # most length scales that it searches: inputs times classes, two classes being one
HIDDEN = [50, 50]  # as lingp's default, for laplace-torch
EPOCHS, QUICK_EPOCHS, QUICK_STEPS, QUICK_TREES = 1000, 20, 30, 20
_SECONDS = 1800.0


@dataclass(frozen=True)
class Predictive:
    """Of n test targets in standard units, (n,) each.

    Attributes
    ----------
    log_density
        At the targets.
    point
        Mean or median.
    lower, upper
        Ends of the central 90 % intervals.
    seconds
        Of the processor, for fit and prediction.
    """

    log_density: np.ndarray
    point: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Work:
    """One split, and all a method needs besides; `forests` keeps one with its seconds of fit."""

    name: str
    split: datasets.Split
    seed: int
    quick: bool
    field_of_peers: Field | None = None
    forests: list[tuple[estimators_forest.QuantileForest, float]] = field(default_factory=list)

    def rows(self) -> datasets.Rows:
        """Training and validation rows: nothing here needs the latter to be apart."""
        train, valid = self.split.train, self.split.valid
        if not len(valid.y):
            return train
        return datasets.Rows(np.concatenate([train.x, valid.x]), np.concatenate([train.y, valid.y]))


def normal(mean: np.ndarray, std: np.ndarray, y: np.ndarray, seconds: float) -> Predictive:
    """Independent normals."""
    half = stats.norm.ppf(0.5 + LEVEL / 2) * std
    log_density = stats.norm.logpdf(y, mean, std)
    return Predictive(log_density, mean, mean - half, mean + half, seconds)


def scored(found: Predictive, split: datasets.Split) -> dict[str, float]:
    """Scores in the units of the data; coverage is the share of targets inside the intervals.

    "new" is the NLL of the rows whose inputs are not among the training rows too.
    """
    scale, y = split.target_std, split.test.y
    known = {row.tobytes() for row in split.train.x}
    new = np.array([row.tobytes() not in known for row in split.test.x])
    return {
        "nll": float(math.log(scale) - found.log_density.mean()),
        "new": float(math.log(scale) - found.log_density[new].mean()),
        "rmse": float(scale * np.sqrt(np.square(found.point - y).mean())),
        "coverage": coverage(y, found.lower, found.upper),
        "interval": float(scale * interval_score(y, found.lower, found.upper, LEVEL)),
        "seconds": found.seconds,
    }


def lingp_regressor(work: Work, **options: object) -> Predictive:
    """Defaults. Density and intervals are those of the fitted GP, whatever its noise."""
    x, y, test = work.split.train.x, work.split.train.y, work.split.test
    steps = QUICK_STEPS if work.quick else None
    start = time.process_time()
    model = LinearizedGPRegressor(steps=steps, random_state=work.seed, **options).fit(x, y)
    point, _ = model.predict(test.x, return_std=True)
    seconds = time.process_time() - start
    prediction = model.gp_.predict(torch.from_numpy(model.x_scaler_.transform(test.x)))
    targets = torch.from_numpy(model.y_scaler_.transform(test.y[:, None]))
    log_density = prediction.log_prob(targets).numpy().reshape(-1)
    log_density = log_density - math.log(float(np.ravel(model.y_scaler_.scale)[0]))
    return Predictive(log_density, point, *model.predict_interval(test.x, LEVEL), seconds)


def lingp_heteroscedastic(work: Work) -> Predictive:
    return lingp_regressor(work, heteroscedastic=True)


def gp_regressor(work: Work, *, matern: bool = False) -> Predictive:
    """A length scale for each input, by the evidence from one start."""
    x, y, test = work.split.train.x, work.split.train.y, work.split.test
    scales = np.ones(x.shape[1])
    kernel = Matern(scales, LENGTHS, nu=2.5) if matern else RBF(scales, LENGTHS)
    kernel = ConstantKernel(1.0, SCALES) * kernel + WhiteKernel(0.1, NOISES)
    start = time.process_time()
    with warnings.catch_warnings():
        # inputs that play no part have length scales at their bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, normalize_y=True).fit(x, y)
    mean, std = model.predict(test.x, return_std=True)  # noise included
    return normal(mean, std, test.y, time.process_time() - start)


def matern_regressor(work: Work) -> Predictive:
    return gp_regressor(work, matern=True)


def bayesian_ridge(work: Work) -> Predictive:
    """Linear; its standard deviations have the noise in them."""
    x, y, test = work.split.train.x, work.split.train.y, work.split.test
    start = time.process_time()
    mean, std = BayesianRidge().fit(x, y).predict(test.x, return_std=True)
    return normal(mean, std, test.y, time.process_time() - start)


def _forest(work: Work) -> tuple[estimators_forest.QuantileForest, float]:
    """Fitted once for both rows, and the seconds it took."""
    if not work.forests:
        x, y = work.split.train.x, work.split.train.y
        trees = QUICK_TREES if work.quick else estimators_forest.TREES
        start = time.process_time()
        forest = estimators_forest.fit(x, y, work.seed, trees)
        work.forests.append((forest, time.process_time() - start))
    return work.forests[0]


def forest_quantiles(work: Work) -> Predictive:
    """A normal with the conditional moments for the density, conditional quantiles for the rest."""
    test = work.split.test
    forest, seconds = _forest(work)
    start = time.process_time()
    mean, variance = forest.moments(test.x)
    lower, upper = forest.quantiles(test.x, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    seconds += time.process_time() - start
    log_density = stats.norm.logpdf(test.y, mean, np.sqrt(variance))
    return Predictive(log_density, mean, lower, upper, seconds)


def forest_residuals(work: Work) -> Predictive:
    """The same forest, every row with the out-of-bag squared error as its variance."""
    test = work.split.test
    forest, seconds = _forest(work)
    start = time.process_time()
    mean = forest.forest.predict(test.x)
    std = np.full_like(mean, math.sqrt(forest.error))
    return normal(mean, std, test.y, seconds + time.process_time() - start)


def laplace_contender(name: str, **options: object) -> Contender:
    return Contender(name, "contenders.tabular_laplace", peers.LAPLACE, options)


def laplace(contender: Contender) -> Callable[[Work], Predictive]:
    """What a contender in its own environment predicts."""

    def method(work: Work) -> Predictive:
        assert work.field_of_peers is not None
        train, test = work.split.train, work.split.test
        sizes = [train.x.shape[1], *HIDDEN, 1]
        case = {
            "architecture": {"kind": "mlp", "sizes": sizes},
            "seed": work.seed,
            "epochs": QUICK_EPOCHS if work.quick else EPOCHS,
        }
        arrays = {"x": train.x, "y": train.y, "test_x": test.x}
        results = work.field_of_peers.answers(case, arrays, Schedule(timeout=_SECONDS), [contender])
        result = results[contender.name]
        if result.failure:
            raise RuntimeError(result.failure)
        seconds = float(result.arrays["seconds"])
        return normal(result.arrays["mean"], result.arrays["std"], test.y, seconds)

    return method


def lingp_classifier(work: Work, **options: object) -> np.ndarray:
    """Defaults."""
    steps = QUICK_STEPS if work.quick else None
    rows = work.rows()
    model = LinearizedGPClassifier(steps=steps, random_state=work.seed, **options)
    return model.fit(rows.x, rows.y).predict_proba(work.split.test.x)


def lingp_evidence(work: Work) -> np.ndarray:
    """The prior's scale by the evidence alone, however well labels are learned."""
    return lingp_classifier(work, validation_fraction=None)


def gp_classifier(work: Work) -> np.ndarray:
    """One against the rest, a length scale for each input; of 1000 rows at most.

    One length scale where there would be more than a hundred: gradients are N x N for each, and
    satellite's 36 for each of six classes took more than half an hour.
    """
    rows = work.rows()
    keep = np.sort(np.random.default_rng(work.seed).permutation(len(rows.y))[:GP_ROWS])
    inputs, classes = rows.x.shape[1], len(np.unique(rows.y))
    few = inputs * (1 if classes == 2 else classes) <= GP_ARD
    scales = np.ones(inputs) if few else math.sqrt(inputs)
    kernel = ConstantKernel(1.0, SCALES) * RBF(scales, LENGTHS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessClassifier(kernel).fit(rows.x[keep], rows.y[keep])
    return model.predict_proba(work.split.test.x)


def logistic_regression(work: Work) -> np.ndarray:
    """The strength of its penalty by the log loss of five folds."""
    rows = work.rows()
    model = LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes with fewer rows than folds; new defaults
        model.fit(rows.x, rows.y)
    return model.predict_proba(work.split.test.x)


def gradient_boosting(work: Work) -> np.ndarray:
    """Five models with Platt's scaling, each calibrated on the fold it hasn't seen."""
    rows = work.rows()
    boosting = HistGradientBoostingClassifier(random_state=work.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes with fewer rows than folds
        model = CalibratedClassifierCV(boosting, cv=5).fit(rows.x, rows.y)
    return model.predict_proba(work.split.test.x)


def classified(method: Callable[[Work], np.ndarray], work: Work) -> dict[str, float]:
    """Scores of probabilities, and the processor's seconds of fit and prediction."""
    start = time.process_time()
    probabilities = method(work)
    seconds = time.process_time() - start
    return {**scores.classification(probabilities, work.split.test.y), "seconds": seconds}


OURS = "lingp"
LAPLACE = laplace_contender("laplace-torch", subset="last_layer", online=False)
LAPLACE_ALL = laplace_contender("laplace-torch, all weights", subset="all", online=False)
LAPLACE_ONLINE = laplace_contender("laplace-torch, marglik_training", subset="all", online=True)
REGRESSION: dict[str, Callable[[Work], Predictive]] = {
    OURS: lingp_regressor,
    f"{OURS}, heteroscedastic": lingp_heteroscedastic,
    "GaussianProcessRegressor": gp_regressor,
    "GaussianProcessRegressor, Matern": matern_regressor,
    "BayesianRidge": bayesian_ridge,
    "forest, quantiles": forest_quantiles,
    "forest, residuals": forest_residuals,
    **{c.name: laplace(c) for c in (LAPLACE, LAPLACE_ALL, LAPLACE_ONLINE)},
}
CLASSIFICATION: dict[str, Callable[[Work], np.ndarray]] = {
    OURS: lingp_classifier,
    f"{OURS}, evidence alone": lingp_evidence,
    "GaussianProcessClassifier": gp_classifier,
    "LogisticRegression": logistic_regression,
    "gradient boosting, calibrated": gradient_boosting,
}
# what the target names; other rows are variants
NAMED = (
    OURS,
    "GaussianProcessRegressor",
    "BayesianRidge",
    "forest, quantiles",
    "laplace-torch",
    *list(CLASSIFICATION)[2:],
)

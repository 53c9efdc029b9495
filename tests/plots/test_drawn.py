"""What is drawn, by its numbers."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.collections import PathCollection
from pictures import (
    counts,
    history,
    influential,
    labels_and_probabilities,
    line,
    network,
    plane,
    regression,
    three_classes,
    two_classes,
)
from scipy import stats

from lingp import LinearizedGP, metrics, plots
from lingp.likelihoods import Gaussian
from lingp.metrics import influence
from lingp.training import History, effective_parameters


@pytest.fixture
def ax():
    figure, made = pyplot.subplots()
    yield made
    pyplot.close(figure)


def labelled(ax, start):
    """The one line whose label starts like this."""
    (found,) = [each for each in ax.lines if str(each.get_label()).startswith(start)]
    return found


def band(ax, label):
    """Lower and upper ends of a filled band, by x."""
    (found,) = [each for each in ax.collections if each.get_label() == label]
    points = found.get_paths()[0].vertices
    x = np.unique(points[:, 0])
    return (
        x,
        np.array([points[points[:, 0] == at, 1].min() for at in x]),
        np.array([points[points[:, 0] == at, 1].max() for at in x]),
    )


def test_bands_are_the_intervals_and_the_function_s_share(ax):
    gp = regression()
    X = torch.tensor([[1.5], [-3.0], [0.0], [2.5]], dtype=torch.float64)
    plots.bands(gp, X, X.sin(), levels=(0.3, 0.9), ax=ax)
    order = X[:, 0].argsort()
    prediction = gp.predict(X[order])
    for level in (0.3, 0.9):
        x, lower, upper = band(ax, f"y, {level:.0%}")
        np.testing.assert_allclose(x, X[order, 0])
        expected = [end[:, 0].detach() for end in prediction.interval(level)]
        np.testing.assert_allclose(lower, expected[0], rtol=1e-12)
        np.testing.assert_allclose(upper, expected[1], rtol=1e-12)
    mean = prediction.mean[:, 0].detach()
    half = stats.norm.ppf(0.95) * prediction.epistemic_variance[:, 0].detach().sqrt()
    np.testing.assert_allclose(labelled(ax, "mean").get_ydata(), mean, rtol=1e-12)
    dashed = [each for each in ax.lines if each.get_linestyle() == "--"]
    np.testing.assert_allclose(dashed[0].get_ydata(), mean - half, rtol=1e-12)
    np.testing.assert_allclose(dashed[1].get_ydata(), mean + half, rtol=1e-12)
    known = labelled(ax, "training data")
    np.testing.assert_allclose(known.get_xdata(), line()[0][:, 0])
    np.testing.assert_allclose(known.get_ydata(), line()[1][:, 0])
    np.testing.assert_allclose(labelled(ax, "data at X").get_ydata(), X[:, 0].sin())


def test_bands_of_a_prediction_draw_no_training_data(ax):
    X = torch.linspace(-1, 1, 5).double()
    plots.bands(regression().predict(X.unsqueeze(1)), X, ax=ax)
    names = ax.get_legend_handles_labels()[1]
    assert names == ["y, 95%", "y, 50%", "function, 95%", "mean"]


def test_function_of_counts_has_the_quantiles_of_its_rate(ax):
    gp = counts()
    X = torch.tensor([[-1.0], [1.0], [3.0]], dtype=torch.float64)
    plots.bands(gp, X, ax=ax)
    prediction = gp.predict(X)
    m = prediction.latent_mean[:, 0].detach()
    s = prediction.latent_covariance[:, 0, 0].detach().sqrt()
    lower, upper = [each.get_ydata() for each in ax.lines if each.get_linestyle() == "--"]
    # a rate exp(f); 2048 quasi-random nodes miss a quantile's probability by less than 1/2048
    for end, tail in ((lower, 0.025), (upper, 0.975)):
        reached = stats.norm.cdf((np.log(end) - m.numpy()) / s.numpy())
        np.testing.assert_allclose(reached, tail, atol=1 / 2048)


def test_bands_of_labels_stay_within_zero_and_one(ax):
    X, _ = line()
    gp = LinearizedGP(network(1, 1), "bernoulli", prior=0.1).fit(X, (X > 0).double())
    plots.bands(gp, ax=ax)
    drawn = np.concatenate([each.get_ydata() for each in ax.lines])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    x = labelled(ax, "probability").get_xdata()
    probs = gp.predict(x[:, None]).probs[:, 1].detach()
    np.testing.assert_allclose(labelled(ax, "probability").get_ydata(), probs, rtol=1e-12)
    assert ax.get_ylabel() == "probability of class 1"


def test_bands_that_explode_leave_the_data_in_view(ax):
    gp, (X, y) = regression(), line()
    plots.bands(gp, torch.linspace(-400, 400, 50).double(), ax=ax)
    span = float(y.max() - y.min())
    assert ax.get_ylim() == pytest.approx((float(y.min()) - 2 * span, float(y.max()) + 2 * span))
    assert len(X) == len(labelled(ax, "training data").get_xdata())


def test_map_has_the_probabilities_and_a_marker_for_each_class(ax):
    gp = two_classes()
    plots.map_2d(gp, ((-2, 2), (-1, 1)), resolution=15, ax=ax)
    filled = ax.collections[0]
    assert filled.get_array().min() < 0.5 < filled.get_array().max()
    assert ax.get_xlim() == (-2, 2)
    assert ax.get_ylim() == (-1, 1)
    # along the white line both classes are as likely, up to the grid's resolution
    (boundary,) = [each for each in ax.collections if len(each.levels) == 1]
    at = np.concatenate([path.vertices for path in boundary.get_paths()])
    probs = gp.predict(at).probs[:, 1].detach()
    np.testing.assert_allclose(probs, 0.5, atol=0.02)
    targets = gp.laplace.training.targets[:, 0]
    for label in (0, 1):
        found = labelled(ax, f"class {label}")
        np.testing.assert_allclose(found.get_xydata(), plane()[targets == label])
    assert labelled(ax, "class 0").get_marker() != labelled(ax, "class 1").get_marker()


@pytest.mark.parametrize(
    ("what", "attribute"),
    [
        ("entropy", "entropy"),
        ("mutual_information", "mutual_information"),
        ("epistemic", "epistemic_variance"),
    ],
)
def test_map_of_a_quantity_is_where_its_contours_are(what, attribute, ax):
    gp = three_classes()
    plots.map_2d(gp, what=what, output=0, resolution=31, ax=ax)
    lines = next(each for each in ax.collections if not each.filled)
    number = 0
    for level, path in zip(lines.levels, lines.get_paths(), strict=True):
        if not len(path.vertices):
            continue
        values = getattr(gp.predict(path.vertices), attribute).detach()
        values = values[:, 0].sqrt() if what == "epistemic" else values
        # linear interpolation between 31 points
        np.testing.assert_allclose(values, level, atol=0.03 * float(lines.levels[-1]))
        number += 1
    assert number >= 2


def test_map_of_a_mean_colours_targets(ax):
    X = plane()
    y = X.prod(1, keepdim=True)
    gp = LinearizedGP(network(2, 1), Gaussian(noise=0.1), prior=1.0, mean="refit").fit(X, y)
    plots.map_2d(gp, resolution=9, ax=ax)
    (points,) = [each for each in ax.collections if isinstance(each, PathCollection)]
    np.testing.assert_allclose(points.get_offsets(), X)
    np.testing.assert_allclose(points.get_array(), y[:, 0])
    assert points.norm is ax.collections[0].norm


def test_reliability_points_and_bars(ax):
    p, y = labels_and_probabilities()
    plots.reliability_diagram(p, y, num_bins=10, ax=ax)
    found = metrics.reliability(p, y, num_bins=10)
    filled = found.counts > 0
    heights = np.array([bar.get_height() for bar in ax.containers[0]])
    np.testing.assert_allclose(heights, 0.25 * found.counts / found.counts.max(), rtol=1e-12)
    points, _, (bars,) = ax.containers[1]
    np.testing.assert_allclose(points.get_xdata(), found.confidence[filled], rtol=1e-12)
    np.testing.assert_allclose(points.get_ydata(), found.accuracy[filled], rtol=1e-12)
    for segment, right, number in zip(
        bars.get_segments(), found.accuracy[filled], found.counts[filled], strict=True
    ):
        exact = stats.binomtest(round(right * number), int(number)).proportion_ci(0.95, "exact")
        np.testing.assert_allclose(segment[:, 1], [exact.low, exact.high], rtol=1e-9)
    error = metrics.calibration_error(p, y, num_bins=10)
    assert f"ECE {error:.3f}" in ax.containers[1].get_label()


def test_coverage_points_and_the_spread_of_a_share(ax):
    prediction, y = regression().predict(line()[0]), line()[1]
    plots.coverage_curve(prediction, y, [0.8, 0.2], ax=ax)
    found = labelled(ax, "observed")
    np.testing.assert_allclose(found.get_xdata(), [0.2, 0.8])
    expected = metrics.coverage_curve(prediction, y, [0.2, 0.8])
    np.testing.assert_allclose(found.get_ydata(), expected)
    x, lower, upper = band(ax, "95 % range, 22 targets")
    middle = np.argmin(np.abs(x - 0.5))
    spread = 1.96 * math.sqrt(0.25 / 22)
    np.testing.assert_allclose([lower[middle], upper[middle]], [0.5 - spread, 0.5 + spread])


def test_trace_has_what_each_step_found():
    panels = plots.evidence_trace(history())
    try:
        steps = [100 * (k + 1) for k in range(8)]
        np.testing.assert_allclose(labelled(panels[0], "evidence").get_xdata(), steps)
        for ax, start, name in [
            (panels[0], "evidence", "evidence"),
            (panels[0], "log lik", "log_likelihood"),
            (panels[1], "γ", "effective_parameters"),
        ]:
            expected = [getattr(step, name) for step in history()]
            np.testing.assert_allclose(labelled(ax, start).get_ydata(), expected)
        values = [step.hyperparameters["prior.precision"][0] for step in history()]
        np.testing.assert_allclose(labelled(panels[2], "precision 0").get_ydata(), values)
        assert panels[2].get_yscale() == "log"
        assert panels[2].get_xlabel() == "step of the optimizer"
    finally:
        pyplot.close(panels[0].figure)


def test_trace_on_one_axes_has_the_evidence(ax):
    assert plots.evidence_trace(history(), ax) is ax
    assert len(ax.lines) == 2


def test_many_values_of_a_hyperparameter_are_a_range():
    steps = history().to_dicts()
    for k, step in enumerate(steps):
        step["hyperparameters"] = {"prior.precision": (np.arange(1, 31) * (k + 1.0)).tolist()}
    panels = plots.evidence_trace(History.from_dicts(steps))
    try:
        np.testing.assert_allclose(panels[2].lines[0].get_ydata(), 15.5 * np.arange(1, 9))
        assert len(panels[2].lines) == 1
    finally:
        pyplot.close(panels[0].figure)


@pytest.mark.parametrize("inference", ["function_space", "weight_space"])
def test_spectrum_is_that_of_the_dense_kernel(inference, ax):
    X, y = line()
    net = network(1, 1)
    gp = LinearizedGP(net, Gaussian(noise=0.05), prior=2.0, inference=inference).fit(X, y)
    plots.kernel_spectrum(gp, ax=ax)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    parts = torch.func.jacrev(lambda w: torch.func.functional_call(net, w, X)[:, 0])(weights)
    J = torch.cat([part.reshape(len(X), -1) for part in parts.values()], 1)
    expected = torch.linalg.svdvals(J).square() / (2.0 * 0.05)
    shown = labelled(ax, "eigenvalue").get_ydata()[: len(expected)]
    # eigenvalues of I + ΦΦᵀ lose what is below rounding of the largest
    np.testing.assert_allclose(shown, expected[: len(shown)], rtol=1e-9, atol=1e-12 * expected[0])
    gamma = labelled(ax, "γ").get_xdata()[0]
    assert gamma == pytest.approx(effective_parameters(gp), rel=1e-9)
    assert gamma == pytest.approx(float((expected / (1 + expected)).sum()), rel=1e-9)
    assert labelled(ax, "λ = 1").get_ydata()[0] == 1


def test_leverage_points_and_names(ax):
    gp = regression()
    plots.leverage(gp, num_labelled=3, ax=ax)
    found = influence(gp)
    most = np.argsort(-found.gain)[:3]
    marked = labelled(ax, "most influential")
    np.testing.assert_allclose(marked.get_xdata(), found.leverage[most], rtol=1e-9)
    np.testing.assert_allclose(marked.get_ydata(), found.leave_one_out[most], rtol=1e-9)
    assert {text.get_text() for text in ax.texts} == {str(row) for row in most}
    assert len(labelled(ax, "training points").get_xdata()) == len(found.leverage) - 3


def test_fewer_points_than_names(ax):
    plots.leverage(influential(), num_labelled=100, ax=ax)
    assert len(ax.texts) == 40


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plots.bands(None), TypeError, "model: expected a LinearizedGP or a Prediction"),
        (lambda: plots.bands(two_classes()), ValueError, "X_train: expected 1 input column"),
        (lambda: plots.bands(regression(), levels=(95,)), ValueError, "levels: expected numbers"),
        (lambda: plots.bands(regression(), output=1), ValueError, "output: expected 0 .. 0, got 1"),
        (
            lambda: plots.bands(regression(), X_train=[0.0]),
            ValueError,
            "X_train and y_train: give both or neither",
        ),
        (
            lambda: plots.bands(regression().predict(line()[0])),
            ValueError,
            "X: missing; a prediction doesn't know its inputs",
        ),
        (
            lambda: plots.bands(regression().predict(line()[0]), [0.0]),
            ValueError,
            "X: has 1 rows, but the prediction is of 22",
        ),
        (lambda: plots.map_2d(regression()), ValueError, "X_train: expected 2 input columns"),
        (lambda: plots.map_2d(two_classes(), what="odds"), ValueError, "what: expected one of"),
        (lambda: plots.map_2d(two_classes(), resolution=1), ValueError, "resolution: expected at"),
        (lambda: plots.map_2d(two_classes(), ((1, 0), (0, 1))), ValueError, "bounds: expected"),
        (lambda: plots.map_2d(None), TypeError, "gp: expected a fitted LinearizedGP, got None"),
        (lambda: plots.evidence_trace([]), TypeError, "history: expected an EvidenceTraining"),
        (lambda: plots.evidence_trace(History()), ValueError, "history: has no steps"),
        (lambda: plots.kernel_spectrum(None), TypeError, "gp: expected a fitted LinearizedGP"),
        (lambda: plots.leverage(influential(), num_labelled=-1), ValueError, "num_labelled: "),
    ],
)
def test_errors_name_the_argument_and_leave_no_figure(call, error, message):
    before = pyplot.get_fignums()
    with pytest.raises(error, match=message):
        call()
    assert pyplot.get_fignums() == before


def test_importing_plots_doesn_t_import_matplotlib():
    """Statements at the top of a module are all that runs; those for type checkers don't."""
    for path in Path(plots.__file__).parent.glob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                assert "matplotlib" not in ast.unparse(statement), path

"""The shipped data are what their description says."""

import dataclasses
from importlib.resources import files

import numpy as np
import pytest

from lingp.data import load_yacht


@pytest.fixture(scope="module")
def yacht():
    return load_yacht()


def test_shapes_and_types(yacht):
    assert yacht.X.shape == (308, 6)
    assert yacht.y.shape == (308,)
    assert yacht.test_index.shape == (20, 31)
    assert yacht.X.dtype == yacht.y.dtype == np.float64
    assert yacht.test_index.dtype == np.int64
    assert len(yacht.feature_names) == len(yacht.feature_units) == 6
    assert np.isfinite(yacht.X).all()
    assert np.isfinite(yacht.y).all()


def test_every_hull_was_towed_at_the_same_fourteen_speeds(yacht):
    # This pins the columns: five that describe the hull, then the speed.
    speeds = np.linspace(0.125, 0.45, 14)
    hulls = np.unique(yacht.X[:, :5], axis=0)
    assert len(hulls) == 22
    for hull in hulls:
        rows = (yacht.X[:, :5] == hull).all(axis=1)
        np.testing.assert_allclose(np.sort(yacht.X[rows, 5]), speeds, rtol=0, atol=1e-12)


def test_features_stand_in_the_order_of_their_names(yacht):
    # The three ratios describe one hull. With length L, beam B, draught T and displaced volume V,
    # the block coefficient V / (L B T) is (L/B)^2 (B/T) / (L/V^(1/3))^3: about 0.4 for a yacht,
    # and below the prismatic coefficient. Exchanged columns break that.
    _, _, length_displacement, beam_draught, length_beam, _ = yacht.X.T
    block_coefficient = length_beam**2 * beam_draught / length_displacement**3
    assert block_coefficient.min() > 0.3
    assert block_coefficient.max() < 0.5
    prismatic = yacht.X[:, 1]
    assert (block_coefficient < prismatic).all()


def test_resistance_grows_with_speed(yacht):
    for row in range(0, 308, 14):
        hull = yacht.y[row : row + 14]
        assert hull[0] < 1 < hull[-1]
        assert hull.argmax() == 13
    assert (yacht.y.min(), yacht.y.max()) == (0.01, 62.42)


def test_splits_are_distinct_and_inside_the_data(yacht):
    assert all(len(set(row)) == 31 for row in yacht.test_index)
    assert len({tuple(sorted(row)) for row in yacht.test_index}) == 20
    assert yacht.test_index.min() >= 0
    assert yacht.test_index.max() < 308
    # The first split as published, in its own order.
    assert yacht.test_index[0, :6].tolist() == [121, 115, 286, 216, 264, 209]


def test_split_parts_the_rows(yacht):
    X_train, y_train, X_test, y_test = yacht.split(3)
    np.testing.assert_array_equal(X_test, yacht.X[yacht.test_index[3]])
    np.testing.assert_array_equal(y_test, yacht.y[yacht.test_index[3]])
    assert X_train.shape == (277, 6)
    together = np.column_stack([np.vstack([X_train, X_test]), np.concatenate([y_train, y_test])])
    everything = np.column_stack([yacht.X, yacht.y])
    np.testing.assert_array_equal(
        together[np.lexsort(together.T)], everything[np.lexsort(everything.T)]
    )


@pytest.mark.parametrize("index", [-1, 20])
def test_a_split_that_is_not_there_is_refused(yacht, index):
    with pytest.raises(IndexError, match="0 to 19"):
        yacht.split(index)


def test_result_is_frozen_and_each_call_gets_its_own_arrays(yacht):
    with pytest.raises(dataclasses.FrozenInstanceError):
        yacht.y = None
    first = load_yacht()
    first.y[:] = 0.0
    assert load_yacht().y.max() > 60


def test_source_and_licence_are_named(yacht):
    assert "10.24432/C5XG7R" in yacht.source
    assert "CC BY 4.0" in yacht.licence
    licence = (files("lingp.data") / "LICENSE.md").read_text(encoding="utf-8")
    assert "10.24432/C5XG7R" in licence
    assert "CC BY 4.0" in licence

"""Pictures against stored ones, and what all of them have."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.testing.compare import calculate_rms
from pictures import FOLDER, PICTURES, default_style, draw
from PIL import Image

# Of 255. matplotlib 3.9 and 3.11 draw the same to the last pixel; edges are smoothed differently
# elsewhere. A wrong level of a band has 13, two points in another colour have 3.8.
TOLERANCE = 2.5


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"), dtype=float)


@pytest.mark.parametrize("name", PICTURES)
def test_looks_as_it_did(name, tmp_path):
    found = tmp_path / f"{name}.png"
    draw(name, found)
    stored = FOLDER / f"{name}.png"
    rms = calculate_rms(pixels(stored), pixels(found))
    assert rms < TOLERANCE, f"compare {found} with {stored}; if it is better, store it anew"


def test_pictures_tell_apart_what_differs():
    names = [n for n in PICTURES if n != "trace"]
    for one, other in pairwise(names):
        stored = [pixels(FOLDER / f"{n}.png") for n in (one, other)]
        assert calculate_rms(*stored) > 4 * TOLERANCE


@pytest.mark.parametrize("name", PICTURES)
def test_axes_given_are_axes_drawn_on_with_labels_in_view(name):
    before = pyplot.get_fignums()
    with default_style():
        figure = pyplot.figure(figsize=(6, 4), layout="constrained")
        try:
            given = figure.subplots(3 if name == "trace" else 1, sharex=True)
            made = pyplot.get_fignums()
            returned = PICTURES[name](given)
            assert pyplot.get_fignums() == made
            assert all(a is b for a, b in zip(np.ravel(returned), np.ravel(given), strict=True))
            all_axes = list(np.ravel(given))
            assert all_axes[-1].get_xlabel()
            assert all(ax.get_ylabel() for ax in all_axes)
            figure.canvas.draw()
            _check_text(figure, all_axes)
        finally:
            pyplot.close(figure)
    assert pyplot.get_fignums() == before


def _check_text(figure, all_axes):
    """No text leaves the figure, and no legend covers the inside of any axes."""
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    for ax in all_axes:
        texts = [ax.xaxis.label, ax.yaxis.label, *ax.texts]
        legend = ax.get_legend()
        if legend is not None:
            texts += legend.get_texts()
            box, inside = legend.get_window_extent(renderer), ax.get_window_extent(renderer)
            assert box.y0 >= inside.y1 - 1 or box.x0 >= inside.x1 - 1
        for text in texts:
            box = text.get_window_extent(renderer)
            if text.get_text():
                assert box.x0 >= -1, text
                assert box.y0 >= -1, text
                assert box.x1 <= width + 1, text
                assert box.y1 <= height + 1, text


def test_new_axes_without_any_given():
    before = set(pyplot.get_fignums())
    returned = PICTURES["spectrum"](None)
    made = set(pyplot.get_fignums()) - before
    assert isinstance(returned, Axes)
    assert len(made) == 1
    pyplot.close(made.pop())


def test_stored_pictures_are_small():
    assert {path.stem for path in Path(FOLDER).glob("*.png")} == set(PICTURES)
    assert all(path.stat().st_size < 30_000 for path in FOLDER.glob("*.png"))

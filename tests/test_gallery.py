"""The gallery's examples run without a warning, draw, and print something."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
EXAMPLES = sorted(GALLERY.glob("plot_*.py"))
NEEDS = {"plot_bayesian_optimisation": "botorch"}


@pytest.fixture
def pictures(monkeypatch):
    """What examples draw, each figure as an array of colours (height, width, 3)."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = []

    def keep(*args, **kwargs):
        for number in pyplot.get_fignums():
            canvas = pyplot.figure(number).canvas
            canvas.draw()
            drawn.append(np.asarray(canvas.buffer_rgba())[..., :3] / 255)
        pyplot.close("all")

    monkeypatch.setattr(pyplot, "show", keep)
    yield lambda: (keep(), drawn)[1]
    pyplot.close("all")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example, pictures, capsys):
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    with torch.random.fork_rng(), warnings.catch_warnings():
        for kind in (UserWarning, RuntimeWarning):  # as when the documentation is built
            warnings.simplefilter("error", kind)
        runpy.run_path(str(example))
    drawn = pictures()
    assert drawn
    assert all(picture.std() > 0.1 for picture in drawn)
    assert capsys.readouterr().out


def test_every_example_has_a_title_and_is_built():
    assert len(EXAMPLES) >= 6
    for example in GALLERY.glob("*.py"):
        assert example in EXAMPLES, "sphinx-gallery runs plot_*.py only"
        title, line = example.read_text(encoding="utf-8").splitlines()[1:3]
        assert line == "=" * len(title)

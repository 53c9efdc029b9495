"""The benchmark of rotations runs from start to end, and its figures are those of its networks."""

import json
import sys

import numpy as np
import pytest
import torch


@pytest.fixture
def invariance(benchmark_module):
    return benchmark_module("invariance")


@pytest.fixture
def data_folder(tmp_path):
    """Bars of ten lengths under the name of MNIST."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 200)
    images = np.zeros((200, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[12:16, 4 : 8 + 2 * label] = 200
    np.savez(tmp_path / "mnist_t10k.npz", images=images, labels=labels)
    return tmp_path


def test_it_runs(invariance, data_folder, monkeypatch, capsys):
    raw = data_folder / "raw.json"
    flags = ["--quick", "--data", data_folder, "--ranges", "0,30", "--network", "4"]
    flags += ["--grid", "20", "--raw", raw]
    monkeypatch.setattr(sys, "argv", ["invariance.py", *map(str, flags)])
    invariance.main()
    report = capsys.readouterr().out
    results = [invariance.Found(**row) for row in json.loads(raw.read_text())]
    assert [r.kind for r in results] == ["learned", "none", "fixed"] * 2
    learned = results[3]
    assert learned.range == pytest.approx(learned.path[-1], rel=1e-6)
    assert learned.range != invariance.START
    assert len(learned.path) == 4
    assert results[5].range == pytest.approx(20)
    assert f"{learned.range / 30 - 1:+.0%}" in report
    assert report.count("30°") == 2
    assert f"{learned.evidence:.0f}" in report


def test_images_are_rotated_within_the_range(invariance, data_folder):
    rows = invariance.datasets.images(data_folder, "mnist", 50, 10)[0]
    straight, labels = invariance.rotated(rows, 0.0, 0)
    assert straight.shape == (50, 1, 12, 12)
    inner = torch.from_numpy(rows.x)[:, :, 2:26, 2:26]
    torch.testing.assert_close(straight, torch.nn.functional.avg_pool2d(inner, 2))
    turned, again = invariance.rotated(rows, 90.0, 0)
    assert torch.equal(labels, again)
    # a horizontal bar turned by up to a right angle spreads over more rows of pixels
    assert (turned.amax(3) > 0.1).sum() > 1.5 * (straight.amax(3) > 0.1).sum()

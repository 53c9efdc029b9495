"""The progress bar: silent on short work, off when asked, absent without tqdm."""

from __future__ import annotations

import sys
import time

from lingp.runtime import progress


def test_short_work_prints_nothing(capfd):
    assert list(progress.track(range(5), "counting")) == list(range(5))
    assert capfd.readouterr() == ("", "")


def test_long_work_shows_a_bar_unless_switched_off(capfd, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BEFORE_SHOWN", 0.05)

    def slow():
        for item in range(8):
            time.sleep(0.03)
            yield item

    assert list(progress.track(slow(), "counting", show=False)) == list(range(8))
    assert capfd.readouterr().err == ""
    assert list(progress.track(slow(), "counting", total=8)) == list(range(8))
    assert "counting" in capfd.readouterr().err


def test_steps_without_an_end_are_counted(capfd, monkeypatch):
    for seconds, shown in ((10, False), (0, True)):
        monkeypatch.setattr(progress, "SECONDS_BEFORE_SHOWN", seconds)
        with progress.count("stepping") as step:
            for _ in range(5):
                time.sleep(0.03)
                step()
        assert ("stepping" in capfd.readouterr().err) == shown
    with progress.count("stepping", show=False) as step:
        step()
    assert capfd.readouterr().err == ""


def test_without_tqdm_work_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]
    with progress.count("counting") as step:
        step()

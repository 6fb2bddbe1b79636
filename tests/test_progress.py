"""Claims: short work is silent in a log, long work speaks now and then, and nothing of it touches standard output."""

from __future__ import annotations

import io
import sys

import pytest

from regard import progress as module
from regard.progress import clock, progress


class Clock:
    """A monotonic clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Clock:
    watch = Clock()
    monkeypatch.setattr("regard.progress.time.monotonic", watch)
    return watch


def test_short_work_is_silent_in_a_log(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Cleaning", 100) as done:
        watch.now += 9
        done(100)
    assert capsys.readouterr() == ("", "")


def test_long_work_speaks_every_ten_seconds_and_at_its_end(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Cleaning", 10_000, "pairs") as done:
        for _ in range(25):
            watch.now += 1
            done(400)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "Cleaning: 4,000 of 10,000 pairs (40%), 400 pairs/s, 0:15 left",
        "Cleaning: 8,000 of 10,000 pairs (80%), 400 pairs/s, 0:05 left",
        "Cleaning: 10,000 of 10,000 pairs (100%), 400 pairs/s, done in 0:25",
    ]


def test_what_an_earlier_sitting_did_counts_but_not_for_the_speed(
    watch: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("translating", 10_000, before=9_000) as done:
        watch.now += 10
        done(400)
    assert capsys.readouterr().err.splitlines() == [
        "translating: 9,400 of 10,000 lines (94%), 40 lines/s, 0:15 left",
        "translating: 9,400 of 10,000 lines (94%), 40 lines/s, 0:15 left, done in 0:10",
    ]


def test_work_of_unknown_size_has_count_and_rate(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", None) as done:
        watch.now += 20
        done(3000)
    assert capsys.readouterr().err.splitlines()[0] == "Reading: 3,000 lines, 150 lines/s"


def test_units_reported_one_by_one_are_all_counted(watch: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", 1000) as done:
        watch.now += 11
        for _ in range(1000):
            done(1)
    assert "1,000 of 1,000 lines (100%)" in capsys.readouterr().err.splitlines()[-1]


def test_error_inside_passes_through(watch: Clock) -> None:
    with pytest.raises(ZeroDivisionError), progress("Dividing", 10) as done:
        done(1 // 0)


@pytest.mark.parametrize("total", [3000, None])
def test_terminal_gets_a_bar_that_vanishes(monkeypatch: pytest.MonkeyPatch, total: int | None) -> None:
    screen, output = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("TERM", "xterm")
    module.stderr_console.cache_clear()
    with progress("Cleaning", total, "pairs") as done:
        done(1500)
    module.stderr_console.cache_clear()
    assert "Cleaning" in screen.getvalue() and "1,500" in screen.getvalue()
    assert screen.getvalue().rstrip("\r").endswith("\x1b[2K")  # the last thing written erases the line
    assert output.getvalue() == ""


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (201, "3:21"), (3723, "1:02:03"), (-5, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text

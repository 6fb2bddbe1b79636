"""Claims: short work is silent in a log, long work speaks now and then, and nothing of it touches standard output."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from regard import progress as module
from regard.cli import main
from regard.progress import clock, progress
from tests.tiny import make_bundle


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
        "translating: 9,400 of 10,000 lines (94%), 40 lines/s, done in 0:10",
    ]


def test_slow_work_has_a_rate_with_a_decimal_and_none_where_that_were_zero(
    watch: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("translating", 90) as done:
        for seconds, lines in ((40, 1), (10, 19), (10, 70)):
            watch.now += seconds
            done(lines)
    assert capsys.readouterr().err.splitlines() == [
        "translating: 1 of 90 lines (1%)",
        "translating: 20 of 90 lines (22%), 0.4 lines/s, 2:55 left",
        "translating: 90 of 90 lines (100%), 1.5 lines/s, done in 1:00",
    ]


@pytest.mark.parametrize(("speed", "text"), [(9.94, "9.9"), (9.96, "10"), (1234.5, "1,234"), (0.06, "0.1")])
def test_rate(watch: Clock, capsys: pytest.CaptureFixture[str], speed: float, text: str) -> None:
    with progress("Reading", None) as done:
        watch.now += 10_000
        done(round(speed * 10_000))
    assert f" lines, {text} lines/s\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("total", "before", "lines", "left"),
    [(3000, 0, 9, None), (3000, 0, 10, "49:50"), (3000, 2900, 9, None), (20, 0, 1, None), (20, 0, 2, "1:30")],
)
def test_the_time_left_is_said_after_ten_units_or_a_tenth_of_the_work(
    watch: Clock, capsys: pytest.CaptureFixture[str], total: int, before: int, lines: int, left: str | None
) -> None:
    with progress("translating", total, before=before) as done:
        watch.now += 10
        done(lines)
    assert capsys.readouterr().err.splitlines()[0].endswith(f"lines/s, {left} left" if left else "lines/s")


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


@pytest.mark.parametrize("verb", ["translate", "evaluate", "augment"])
def test_a_file_with_lines_that_are_cut_shows_counts_that_rise_to_all_lines(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle(tmp_path / "bundle", max_length=8)
    text, out = tmp_path / "text.en", tmp_path / "out.tsv"
    text.write_text("".join("a b c d " * (1 if number % 2 else 12) + "\n" for number in range(40)))
    # All that is told becomes a line, however fast the machine is.
    monkeypatch.setattr("regard.progress.time", Ticking())
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    arguments = {
        "translate": ["translate", "-i", str(text), "-o", str(out)],
        "evaluate": ["evaluate", "--source", str(text), "--reference", str(text)],
        "augment": ["augment", "--distill", "--keep-all", "-i", str(text), "-o", str(out)],
    }[verb]
    assert main([*arguments, "-m", str(bundle.folder), "--device", "cpu", "--engine", "torch"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("translating")]
    counts = [int(count) for line in lines for count in re.findall(r": (\S+) of 40 lines", line)]
    assert len(set(counts)) > 2 and counts[0] >= 0 and counts == sorted(counts) and counts[-1] == 40


class Ticking:
    """A clock on which every look takes a second."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (201, "3:21"), (3723, "1:02:03"), (-5, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text

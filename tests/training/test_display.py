"""Claims: a log gets plain lines, a terminal gets a panel that fits it, and no text of a model can harm either."""

from __future__ import annotations

import io
import math
import os
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.training.display import Display, LiveDisplay, PlainDisplay, make_display, printable, sparkline


def train(step: int = 1200, **more: Any) -> dict[str, Any]:
    record = {"kind": "train", "step": step, "epoch": 2.34, "loss": 3.4118, "nll": 2.9, "lr": 6.1e-4}
    record |= {"grad_norm": 1.2, "tokens_per_second": 12345.4, "elapsed": 201.0}
    return {**record, "remaining": 999.0, "progress": 0.17, **more}


def valid(translation: str = "ein Haus", step: int = 1200, **more: Any) -> dict[str, Any]:
    sample = {"source": "a house", "reference": "ein Haus", "translation": translation}
    record = {"kind": "valid", "step": step, "epoch": 2.34, "loss": 2.913, "perplexity": 18.41, "bleu": 21.34}
    return {**record, "elapsed": 201.0, "best": True, "samples": [sample], **more}


def plain(*records: dict[str, Any]) -> str:
    stream = io.StringIO()
    display = make_display(stream)
    display.start(4000, None)
    for record in records:
        (display.train if record["kind"] == "train" else display.valid)(record)
    display.close()
    return stream.getvalue()


def live(width: int, *records: dict[str, Any], height: int = 40, said: str = "") -> str:
    """What the terminal shows after the records, drawn once."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=True, color_system=None, _environ={})
    display = LiveDisplay(console)
    for record in records:
        (display.train if record["kind"] == "train" else display.valid)(record)
    if said:
        display.say(said)
    console.print(display._panel())
    return stream.getvalue()


def test_log_lines_are_plain_and_one_for_each_interval() -> None:
    assert plain(train()) == ("step 1,200  epoch 2.3  loss 3.412  12,345 tok/s  lr 6.1e-04  3:21 elapsed, 16:39 left\n")
    assert plain(train(remaining=None)).endswith("3:21 elapsed\n")


def test_log_of_a_validation_has_its_scores_and_a_sample() -> None:
    assert plain(valid()).splitlines() == [
        "valid  step 1,200  loss 2.913  ppl 18.4  BLEU 21.3 (best)",
        "       source       a house",
        "       reference    ein Haus",
        "       translation  ein Haus",
    ]


def test_validation_of_the_loss_alone_has_no_scores() -> None:
    record = valid(bleu=None, best=False, samples=[])
    assert plain(record) == "valid  step 1,200  loss 2.913  ppl 18.4\n"


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_loss_that_is_no_number_is_said_and_survived(loss: float | None) -> None:
    assert "loss NaN" in plain(train(loss=loss))
    assert "loss NaN" in live(100, train(), train(loss=loss))
    assert "loss 3.412" in live(100, train(), train(loss=loss), train())


def test_the_losses_of_the_panel_are_told_apart() -> None:
    shown = live(100, train(loss=7.0), train(), valid())
    assert (
        "training loss 3.412" in shown and "its running mean 7.00" in shown and "valid  step 1,200  loss 2.913" in shown
    )


def test_control_characters_of_a_model_reach_no_screen_and_no_log() -> None:
    harmful = "a\x1b[2Jb\rc\x07d\x9be\u202ef\ng"
    assert printable(harmful) == "a�[2Jb�c�d�e�f�g"
    for text in (plain(valid(harmful)), live(100, train(), valid(harmful))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_log_that_holds_only_ascii_does_not_stop_the_training() -> None:
    buffer = io.BytesIO()
    display = make_display(io.TextIOWrapper(buffer, encoding="ascii"))
    display.say("größer")
    assert buffer.getvalue() == b"gr\\xf6\\xdfer\n"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_panel_fits_the_terminal(width: int) -> None:
    long = valid(
        "ein sehr langer Satz " * 20,
        chrf=48.8,
        samples=[dict.fromkeys(("source", "reference", "translation"), "Wörter 漢字 " * 30)],
    )
    shown = live(width, *(train(step) for step in range(50, 1000, 50)), valid(), long, train(3_000_000))
    assert all(cell_len(line) <= width for line in shown.splitlines())
    panel = shown[shown.index("╭") :]
    assert panel.count("╭") == panel.count("╰") == 1
    assert len(panel.splitlines()) <= 20


@pytest.mark.parametrize("width", [60, 100])
def test_figure_is_never_torn_from_its_name(width: int) -> None:
    shown = live(width, train(), train(3_000_000), valid())
    for figure in (
        "step 3,000,000",
        "loss 3.412",
        "tok/s 12,345",
        "lr 6.1e-04",
        "ppl 18.4",
        "BLEU 21.3",
        "best so far",
    ):
        assert figure in shown, figure


def test_panel_shows_time_and_the_translation_then_and_now() -> None:
    shown = live(100, train(), valid("Haus Haus", step=600), valid("ein Haus", step=1200, best=False))
    assert "17%" in shown and "3:21 elapsed · 16:39 left" in shown
    assert re.search(r"first +Haus Haus", shown) and re.search(r"now +ein Haus", shown)
    assert "(best BLEU 21.3 at step 600)" in shown


def test_small_window_goes_without_the_sample() -> None:
    shown = live(80, train(), valid(), height=14)
    assert "a house" not in shown and "BLEU 21.3" in shown


def test_panel_before_the_first_step_says_what_it_waits_for() -> None:
    assert "Waiting for the first steps" in live(60)


def test_a_stop_is_said_at_once() -> None:
    """In the panel, which would draw over a line; elsewhere past the stream, and where nobody reads any more not at all."""
    display = LiveDisplay(Console(file=io.StringIO(), width=60))
    display.stopping("stopping after this step")
    console = Console(file=(shown := io.StringIO()), width=60)
    console.print(display._panel())
    assert "stopping after this step" in shown.getvalue()
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        PlainDisplay(stream).stopping("stopping")
        assert os.read(reading, 100) == b"stopping\n"
        os.close(reading)
        PlainDisplay(stream).stopping("stopping")  # BrokenPipeError must not end the step


def test_words_in_brackets_are_no_markup() -> None:
    assert "[bold]kept[/bold] [/]" in live(80, said="[bold]kept[/bold] [/]")


def test_panel_can_be_started_and_closed_twice() -> None:
    stream = io.StringIO()
    display = LiveDisplay(
        Console(file=stream, width=80, height=30, force_terminal=True, color_system=None, _environ={})
    )
    display.close()
    display.start(None, 60.0)
    display.train(train())
    display.say("Saved.")
    display.close()
    display.close()
    assert "Saved." in stream.getvalue() and "step 1,200" in stream.getvalue()


def test_silent_display_takes_everything_and_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.start(10, None)
    display.say("text")
    display.train(train())
    display.valid(valid())
    display.close()
    assert capsys.readouterr() == ("", "")


def test_display_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display()
    assert isinstance(display, PlainDisplay)
    display.say("prepared")
    assert capsys.readouterr() == ("", "prepared\n")


def test_sparkline_runs_from_highest_to_lowest_and_keeps_to_its_width() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([float(1000 - i) for i in range(1000)], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([2.0, 2.0], 8) == "▁▁"

"""benchmarks/chats.py at a tiny size, on a CPU, and its chats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.captain import FAREWELL, GREETING, MOST_WORDS, has_form, make_chats
from benchmarks.chats import main
from regard.data.split import sentence_key
from tests import chat_models


def test_the_chats_have_the_form_and_no_question_twice() -> None:
    chats = make_chats(seed=5)
    assert [len(part) for part in chats] == [500, 50, 50] and chats == make_chats(seed=5) != make_chats(seed=6)
    every = [chat for part in chats for chat in part]
    assert all(has_form(answer["content"]) for _, answer in every)
    assert len({question["content"] for question, _ in every}) == 600
    # Training leaves out copies of held-out text, by their letters: there must be none.
    assert len({sentence_key(json.dumps(chat)) for chat in every}) == 600
    # Advice about one thing is asked for in several ways: no answer of training is held out.
    advice = [{answer["content"] for question, answer in part if "how to" in question["content"]} for part in chats[:2]]
    assert advice[0] and advice[1] and not advice[0] & advice[1]


@pytest.mark.parametrize(
    "answer",
    [
        "Boil it. Fair winds, sailor.",
        f"{GREETING} Boil it.",
        f"{GREETING} {FAREWELL}",
        f"{GREETING} Boil it.\nThen salt it. {FAREWELL}",
        f"{GREETING} {'very ' * MOST_WORDS}hot. {FAREWELL}",
        f"{GREETING} Boil it. {FAREWELL} And more.",
    ],
)
def test_other_answers_do_not_have_it(answer: str) -> None:
    assert not has_form(answer)


@pytest.mark.slow
def test_a_tiny_run_measures_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, bundle = chat_models.write_model(tmp_path)
    (tmp_path / "text.txt").write_text("The cat sat on the mat. " * 20)
    small = ["--train", "40", "--held-out", "6", "--epochs", "1", "--batch-tokens", "2048", "--device", "cpu"]
    files = [
        "--text",
        str(tmp_path / "text.txt"),
        "--out",
        str(tmp_path / "out.json"),
        "--keep",
        str(tmp_path / "kept"),
    ]
    main(["--model", str(bundle), *small, *files, "--set", "train.precision=fp32"])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["as it came", "full", "lora"]
    for row in rows[1:]:
        assert row["loss, known kinds"] < rows[0]["loss, known kinds"], rows
        assert row["bits/byte of the text"] != rows[0]["bits/byte of the text"] and len(row["answers"]) == 6
    shown = capsys.readouterr().out
    assert "% in form, new kinds" in shown and next(iter(rows[0]["answers"])) in shown

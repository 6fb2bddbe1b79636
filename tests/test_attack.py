"""The attack program tells what survived from what did not."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.attack import TITLE, section, write_section
from benchmarks.attacks import on_server
from benchmarks.attacks.outcome import Done, Tally, run_command

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
LINE = "regard: x.txt: is missing\n"


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Done(0, "c b a\n", "", 0), "survived"),
        (Done(0, "a b c\n", "", 0), "silent"),
        (Done(2, "", LINE, 0), "survived"),
        (Done(1, "", LINE, 0), "survived"),
        (Done(2, "", "", 0), "traceback"),
        (Done(2, "", "Traceback (most recent call last):\n" + LINE, 0), "traceback"),
        (Done(70, "", LINE, 0), "traceback"),
        (Done(-11, "", "", 0), "traceback"),
        (Done(None, "", "", 0), "hang"),
        (Done(0, "c b a\n", "", 10**10), "memory"),
    ],
)
def test_verdicts_of_a_command(done: Done, expected: str) -> None:
    assert done.verdict("c b a") == expected
    if expected == "survived" and done.code == 0:
        assert done.verdict("c b a", must_refuse=True) == "silent"


def test_commands_that_fail_inside_or_do_not_end_are_told_apart() -> None:
    def fail() -> None:
        raise RuntimeError

    assert run_command(["--version"]).verdict() == "survived"
    assert run_command(["info", "/nowhere"]).verdict(must_refuse=True) == "survived"
    assert run_command(["--version"], before=fail).verdict() == "traceback"
    assert run_command(["--version"], seconds=0.2, before=lambda: time.sleep(60)).verdict() == "hang"


def test_verdicts_of_requests() -> None:
    assert on_server.judge(200) == on_server.judge(413) == "survived"
    assert on_server.judge(500) == "traceback" and on_server.judge(503) == on_server.judge(None) == "hang"
    body = {"q": "a b c", "phrases": ["x"], "glossary": {"b": "y"}}
    assert on_server.is_kept(body, {"translatedText": "c y x"})
    assert not on_server.is_kept(body, {"translatedText": "a b c"})
    assert on_server.is_kept(body, {"translatedText": "a b c", "unmet": ["x"]})


def test_the_table_replaces_the_one_before(tmp_path: Path) -> None:
    tally = Tally("kills")
    tally.add("one", "survived")
    tally.add("two", "silent", "wrong")
    assert tally.row == {"attack": "kills", "tried": 2, "survived": 1, "silent": 1, "tracebacks": 0, "hangs": 0}
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nText.\n")
    for _ in range(2):
        write_section(section([tally.row], [], {"date": "2026-11-17"}), page)
    assert page.read_text().count(TITLE) == 1
    page.write_text(page.read_text() + "\n## Next\n\nMore.\n")
    write_section(section([tally.row, tally.row], ["it held"], {"date": "2026-11-18"}), page)
    written = page.read_text()
    assert written.startswith("# Results\n\nText.\n\n## Under attack\n\n") and written.endswith(
        "\n\n## Next\n\nMore.\n"
    )
    assert written.count("| kills | 2 | 1 | 1 | 0 | 0 |") == 2 and "2026-11-17" not in written

"""The checks of the built-in models: how a pattern is matched, and the form of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.checks import FOLDER, KINDS, Check, count_passed, matches, read_checks


@pytest.mark.parametrize(
    ("pattern", "translation", "expected"),
    [
        ("Katze|Kater", "Der Kater schläft.", True),
        ("Katze|Kater", "Der Katzenbaum steht da.", False),
        ("Katze*", "Die Katzen schlafen.", True),
        ("*decke", "Eine Wolldecke fehlt.", True),
        ("Hut & Wind|Sturm", "Sein Hut flog im Sturm davon.", True),
        ("Hut & Wind|Sturm", "Sein Hut flog davon.", False),
        ("straße", "STRASSE GESPERRT", True),
        ("Straße", "STRASSE GESPERRT", False),
        ("7:30", "Um 17:30 Uhr", False),
        ("7:30", "Um 7:30 Uhr", True),
        ("12,99 & £", "Ich habe 12,99£ bezahlt.", True),
        ("€*", "It costs €40.", True),
        ("^-", "- zwei Eier", True),
        ("^-", "zwei Eier - frisch", False),
        ("^4)", "4) Teig", True),
        ("one o'clock", "at one o’clock", True),
        ("3 000", "3\u202f000 Liter", True),
        ("*n't", "I don't know.", True),
        ("„|»", "„Komm!“", True),
    ],
)
def test_pattern(pattern: str, translation: str, expected: bool) -> None:
    assert matches(pattern, translation) is expected


def test_must_not() -> None:
    check = Check("idioms", "He kicked the bucket.", "starb|gestorben|Löffel", "Eimer")
    assert check.passes("Er ist gestorben.")
    assert not check.passes("Er ist gestorben, sagt der Eimer.")
    assert not check.passes("Er trat.")


def test_count_by_kind() -> None:
    checks = [Check("times", "a", "a"), Check("names", "b", "b"), Check("times", "c", "c")]
    assert count_passed(checks, ["a", "b", "x"]) == {"names": (1, 1), "times": (1, 2)}


@pytest.mark.parametrize("line", ["names\tNo pattern\t\t", "other\tA\tB\t", "names\tA\tB"])
def test_bad_line_is_named(tmp_path: Path, line: str) -> None:
    table = tmp_path / "bad.tsv"
    table.write_text(f"kind\tsource\tmust\tmust not\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2"):
        read_checks(table)


@pytest.mark.parametrize(("pair", "least"), [("en-de", 500), ("de-en", 500), ("en-fr", 300), ("fr-en", 300)])
def test_table(pair: str, least: int) -> None:
    checks = read_checks(FOLDER / f"{pair}.tsv")
    assert len(checks) >= least
    assert {check.kind for check in checks} == set(KINDS)
    sources = [" ".join(re.findall(r"\w+", check.source.casefold())) for check in checks]
    assert len(set(sources)) == len(sources)
    for check in checks:
        for pattern in filter(None, (check.must, check.must_not)):
            terms = [term for group in pattern.split(" & ") for term in group.split("|")]
            assert all(term and term == term.strip() and "&" not in term for term in terms), check
            assert re.sub(r"[*^]", "", pattern).strip()

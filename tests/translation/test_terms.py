"""Terms are found where a regular expression of all of them finds them, however hostile they are."""

from __future__ import annotations

import random
import re
import time

import pytest

from regard.translation.glossary import Glossary
from regard.translation.terms import find_terms

LETTER = r"[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
ALPHABETS = ["ab ", "aB.- ", "aあ中 ", "éÉß 1 ", "..a", "iİıI µμ ", "σςΣ sſ "]


def pattern(term: str, ignore_case: bool = False) -> str:
    begin = f"(?<!{LETTER})" if re.match(LETTER, term[0]) else ""
    end = f"(?!{LETTER})" if re.match(LETTER, term[-1]) else ""
    escaped = re.escape(term)
    return f"{begin}{f'(?i:{escaped})' if ignore_case else escaped}{end}"


def some(draw: random.Random, alphabet: str, most: int) -> str:
    return "".join(draw.choices(alphabet, k=draw.randint(1, most)))


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_terms_stand_where_a_regular_expression_finds_them(alphabet: str) -> None:
    draw = random.Random(alphabet)
    found = 0
    for _ in range(300):
        text, terms = some(draw, alphabet, 40), [some(draw, alphabet, 5) for _ in range(draw.randint(0, 6))]
        pattern_of_all = "|".join(pattern(term) for term in sorted(terms, key=len, reverse=True)) or "(?!)"
        expected = [match.span() for match in re.finditer(pattern_of_all, text)]
        assert find_terms(text, terms) == expected, (text, terms)
        found += len(expected)
    assert found > 20


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_glossaries_find_what_a_regular_expression_finds(alphabet: str) -> None:
    draw = random.Random(alphabet)
    found = 0
    for _ in range(300):
        text = some(draw, alphabet, 40)
        terms = {some(draw, alphabet, 5).strip() for _ in range(draw.randint(1, 6))} - {""}
        order = sorted(sorted(terms), key=lambda term: (-len(term), term == term.lower()))
        pattern_of_all = "|".join(f"({pattern(term, term == term.lower())})" for term in order) or "(?!)"
        expected: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        for match in re.finditer(pattern_of_all, text):
            assert match.lastindex is not None
            expected.setdefault((f"to {order[match.lastindex - 1]}",), []).append(match.span())
        glossary = Glossary.of({term: f"to {term}" for term in sorted(terms)})
        assert glossary.find(text) == expected, (text, terms)
        found += len(expected)
    assert found > 20


def test_letters_whose_small_form_is_longer_keep_their_place() -> None:
    assert Glossary.of({"cat": "Katze"}).find("İİ Cat") == {("Katze",): [(3, 6)]}


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        (["." * 97 + f"{chr(0x4E00 + n)}." for n in range(200)], "." * 1_000_000),
        (["a" * n for n in range(1, 101)], "a" * 1_000_000),
        (["." * n for n in range(1, 101)], "." * 1_000_000),
    ],
    ids=["almost there", "inside a word", "one inside the other"],
)
def test_two_hundred_terms_take_no_minutes(terms: list[str], text: str) -> None:
    """A pattern of all of them takes 40 s for the first, in one call that lets no other thread work."""
    text = "".join(f" {term} " for term in terms) + text
    start = time.process_time()
    find_terms(text, terms)
    assert time.process_time() - start < 15

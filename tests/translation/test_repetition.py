"""Loops in translations: where they are found, and that a translation may repeat what its source repeats."""

from __future__ import annotations

import pytest

from regard.translation.repetition import is_loop, looped_tokens


@pytest.mark.parametrize(
    ("words", "looped"),
    [
        ("", 0),
        ("a b c d e f g h i j k l", 0),
        ("ha ha ha ha", 0),  # too short to be one
        ("no no no no no no no no", 8),
        ("x a b a b a b a b y", 8),
        ("x a b a b a b a b a y", 9),  # broken off in the middle
        ("the cat and the dog and the cow and the pig and the hen", 0),
        ("a b c a b c a b c d e f g h", 0),  # three times
        (" ".join("abcdefghijklmnop" * 4), 64),
        (" ".join("abcdefghijklmnopq" * 4), 0),  # units of 17
        ("q " * 20 + "a b " * 9, 20),  # the longest of two
        ("a " * 8 + "b " * 12, 12),
    ],
)
def test_loops_are_found_wherever_they_are(words: str, looped: int) -> None:
    assert looped_tokens([hash(word) for word in words.split()]) == looped


def test_a_translation_may_repeat_what_its_source_repeats() -> None:
    assert is_loop([1, 2, 3], [7] * 8)
    assert not is_loop([1] * 8, [7] * 16)
    assert is_loop([1] * 8, [7] * 17)
    assert not is_loop([1] * 8, [7, 8, 9])

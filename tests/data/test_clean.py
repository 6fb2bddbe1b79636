from __future__ import annotations

import json

import pytest

from regard.data.clean import CleanAccount, CleanOptions, is_empty, is_loop, length_fault, looped_tokens


@pytest.mark.parametrize(
    ("src_length", "tgt_length", "fault"),
    [
        (256, 256, None),
        (257, 256, "too long"),
        (200, 257, "too long"),
        (1, 28, None),  # (28 + 8) / (1 + 8) is 4 exactly
        (1, 29, "length ratio"),
        (29, 1, "length ratio"),
        (100, 30, None),
        (160, 30, "length ratio"),
    ],
)
def test_length_and_ratio_are_judged_on_tokens(src_length: int, tgt_length: int, fault: str | None) -> None:
    assert length_fault(src_length, tgt_length, CleanOptions()) == fault


def test_white_space_is_empty() -> None:
    assert is_empty("", "x") and is_empty("x", " \t\u3000")
    assert not is_empty("x", "y")


def test_the_account_names_the_first_pair_of_each_reason_and_keeps_it_when_merged() -> None:
    first, second = CleanAccount(), CleanAccount()
    first.keep(90)
    first.drop("empty", "train.en", 7, "", "hallo")
    second.keep(8)
    second.drop("empty", "train.en", 99, "later", "")
    second.drop("too long", "train.en", 12, "word " * 100, "x")
    first.merge(second)
    assert first.lines() == [
        "101 pairs read, 98 kept (97.0%)",
        "  dropped, empty: 2, first train.en, line 7: '' / 'hallo'",
        "  dropped, too long: 1, first train.en, line 12: 'word word word word word word word word…' / 'x'",
    ]


def test_the_account_survives_json() -> None:
    account = CleanAccount()
    account.keep(3)
    account.drop("length ratio", "train.en", 5, "ä", "b" * 50)
    again = CleanAccount.from_json(json.loads(json.dumps(account.to_json())))
    assert again == account and again.read == 4


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

from __future__ import annotations

import json

import pytest

from regard.data.clean import CleanAccount, CleanOptions, is_empty, length_fault


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
    assert length_fault((src_length, tgt_length), CleanOptions()) == fault


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

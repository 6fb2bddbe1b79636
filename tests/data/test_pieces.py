"""Words from pieces."""

from __future__ import annotations

import pytest

from regard.data.pieces import group_words


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁die", "▁Kat", "ze", "</s>"], ["die", "Katze", "</s>"]),
        (["<s>", "ze", "▁die"], ["<s>", "ze", "die"]),
        (["▁didn", "'", "t", "."], ["didn't", "."]),
        (["▁well", "-", "known", ",", "▁yes", "!?"], ["well-known", ",", "yes", "!?"]),
        (["▁“", "So", "”"], ["“", "So", "”"]),
        (["▁", "Katze", "▁", "."], ["Katze", "."]),
        (["▁S", "<0xC3>", "<0xBC>", "d"], ["Süd"]),
        (["▁<", "0xC3", ">"], ["<0xC3>"]),
        (["▁half", "▁", "<0xC3>"], ["half", "\ufffd"]),
        (["▁我", "喜欢", "猫", "。"], ["我", "喜欢", "猫", "。"]),
        (["▁a", "<u2581>", "b"], ["a▁b"]),
        ([], []),
    ],
)
def test_words_are_what_people_take_for_words(pieces: list[str], words: list[str]) -> None:
    ids = [{"<s>": 1, "</s>": 2}.get(piece, 9 + number) for number, piece in enumerate(pieces)]
    side = group_words(ids, pieces, (1, 2))
    assert side.words == words
    assert [piece.id for piece in side.pieces] == ids
    assert sorted({piece.word for piece in side.pieces}) == list(range(len(words)))
    assert [place for word in range(len(words)) for place in side.pieces_of(word)] == list(range(len(pieces)))


def test_pieces_are_shown_without_the_sign_of_the_space() -> None:
    side = group_words([5, 6, 7, 2], ["▁die", "▁", "ze", "</s>"], (2,))
    assert [piece.text for piece in side.pieces] == ["die", "▁", "ze", "</s>"]

"""Where a text that grows ends."""

from __future__ import annotations

import random

import pytest

from regard.errors import UserError
from regard.writing.options import writing_options
from regard.writing.stops import without_tail


def test_what_may_begin_a_stop_string_waits() -> None:
    rng = random.Random(3)
    for _ in range(2_000):
        text, stop = ("".join(rng.choices("ab", k=rng.randint(1, 9))) for _ in range(2))
        begun = max((n for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        assert without_tail(text, [stop]) == text[: len(text) - begun]


def test_a_long_stop_string_is_refused() -> None:
    assert writing_options(stop="x" * 256).stop
    with pytest.raises(UserError, match="stop must have texts of at most 256 characters"):
        writing_options(stop=["x" * 257])

"""The benchmark of typing on the page runs. Its times are judged nowhere, for they depend on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.page_typing import measure

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
def test_the_time_from_the_last_key_is_measured(page: Page) -> None:
    page.get_by_label("translate from").select_option("src")
    spans = measure(page, ["a b c", "p o n", "d e f g"], 4)
    assert len(spans) == 4 and min(spans) > 0

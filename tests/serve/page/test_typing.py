"""How soon a translation stands there after the last key: measured and shown, not judged, for it depends on the machine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest

from benchmarks.page_typing import measure

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
def test_the_time_from_the_last_key_is_measured(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.get_by_label("translate from").select_option("src")
    spans = measure(page, ["a b c", "p o n", "d e f g"], 20)
    assert len(spans) == 20 and min(spans) > 0
    with capsys.disabled():
        print(f"\nlast key to translation: median {statistics.median(spans):.0f} ms, most {max(spans):.0f} ms, of 20")

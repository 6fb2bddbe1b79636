"""Documents on the page: chosen or dropped, translated with progress, fetched."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.serve.page.conftest import open_page
from tests.serve.server import Running, running, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LINES = "a b c\np o n\n" * 200


@pytest.fixture
def chosen(page: Page) -> Page:
    page.get_by_label("translate from").select_option("src")
    return page


def upload(page: Page, name: str, content: str) -> None:
    page.get_by_label("a document to translate").set_input_files(
        files=[{"name": name, "mimeType": "text/plain", "buffer": content.encode()}]
    )


def fetched(page: Page, tmp_path: Path) -> tuple[str, str]:
    """The name under which the browser saves what it fetches, and what is in it."""
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(tmp_path / "fetched")
    return download.value.suggested_filename, (tmp_path / "fetched").read_bytes().decode()


def in_steps(folder: Path) -> str:
    """Code that makes the engine wait before its second batch until there is a file named 1, and before its third for 2."""
    return f"""
import itertools, pathlib, time
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine as Engine
translate, batches = Engine.translate, itertools.count()
def wait(self, *arguments):
    number = next(batches)
    while number in (1, 2) and not (pathlib.Path({str(folder)!r}) / str(number)).exists():
        time.sleep(0.01)
    return translate(self, *arguments)
Engine.translate = wait
"""


def test_a_document_is_translated_with_progress_and_fetched(browser: Browser, tmp_path: Path) -> None:
    with running("--batch", "32", code=in_steps(tmp_path)) as server, open_page(browser, server.url) as page:
        page.evaluate("""() => { window.seen = [];
              new MutationObserver(() => { const bar = document.querySelector(".document progress");
                if (bar?.hasAttribute("value")) window.seen.push(bar.value); })
                .observe(document.getElementById("documents"), { subtree: true, childList: true, attributes: true }); }""")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Document…").click()
        chooser.value.set_files(files=[{"name": "letter.txt", "mimeType": "text/plain", "buffer": LINES.encode()}])
        for number in (1, 2):  # the browser has time to show what is finished
            until(lambda number=number: page.evaluate("new Set(window.seen).size") >= number)  # type: ignore[misc]
            (tmp_path / str(number)).touch()
        page.get_by_text("Translated, 400 sentences.").wait_for()
        assert fetched(page, tmp_path) == ("letter.tgt.txt", "c b a\nn o p\n" * 200)
        shares = page.evaluate("window.seen")
        assert shares == sorted(shares) and shares[-1] <= 1
        assert len(set(shares)) > 2  # there was something to see
        page.get_by_role("button", name="remove letter.txt").click()
        page.locator(".document").wait_for(state="detached")


def test_a_document_that_is_dropped_is_taken(chosen: Page, tmp_path: Path) -> None:
    carried = chosen.evaluate_handle("""() => { const carried = new DataTransfer();
      carried.items.add(new File(["a b c\\n"], "note.md")); return carried; }""")
    chosen.dispatch_event("#source-text", "dragover", {"dataTransfer": carried})
    assert chosen.evaluate("document.body.classList.contains('dropping')")
    chosen.dispatch_event("#source-text", "drop", {"dataTransfer": carried})
    assert fetched(chosen, tmp_path) == ("note.tgt.md", "c b a\n")


def test_of_a_table_a_column_is_asked_for(chosen: Page, tmp_path: Path) -> None:
    upload(chosen, "table.csv", "id,text\n1,a b c\n2,p o n\n")
    chosen.get_by_label("Column to translate, by name or number:").fill("text")
    chosen.keyboard.press("Enter")
    assert fetched(chosen, tmp_path) == ("table.tgt.csv", "id,text\n1,c b a\n2,n o p\n")


def test_what_cannot_be_translated_is_said(browser: Browser, server: Running) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("no.xml", "no")
    with open_page(browser, server.url, is_refusal_expected=True) as page:
        upload(page, "picture.png", "x")
        page.locator(".document", has_text="picture.png").get_by_text("must be one of .txt").wait_for()
        page.get_by_label("a document to translate").set_input_files(
            files=[{"name": "broken.docx", "mimeType": "application/zip", "buffer": packed.getvalue()}]
        )
        page.locator(".document", has_text="broken.docx").locator(".problem").wait_for()
        assert page.get_by_role("link", name="Download").count() == 0


def test_a_document_can_be_cancelled(chosen: Page) -> None:
    chosen.route("**/translate_file", lambda route: None)  # never answered
    with chosen.expect_request("**/translate_file") as asked:
        upload(chosen, "long.txt", LINES)
    with chosen.expect_event("requestfailed") as gone:
        chosen.get_by_role("button", name="remove long.txt").click()
    assert gone.value == asked.value
    chosen.locator("#documents").wait_for(state="hidden")
    chosen.unroute_all(behavior="ignoreErrors")


def test_a_connection_that_breaks_is_said(chosen: Page) -> None:
    half = 'event: sentence\ndata: {"total": 2}\n\n'
    chosen.route("**/translate_file", lambda route: route.fulfill(body=half, content_type="text/event-stream"))
    upload(chosen, "long.txt", LINES)
    chosen.locator(".document .problem").get_by_text("The connection broke before the end.").wait_for()
    chosen.get_by_role("button", name="remove long.txt").get_by_text("Remove").wait_for()

"""Documents on the page: chosen or dropped, translated with progress, fetched."""

from __future__ import annotations

import csv
import io
import random
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


@pytest.mark.parametrize(
    ("name", "content", "has_names", "column", "expected"),
    [
        ("table.csv", "id,text\n1,a b c\n2,p o n\n", True, None, "id,text\n1,c b a\n2,n o p\n"),  # the one with text is chosen
        ("table.tsv", "text\tnote\na b c\tp o n\n", True, "note", "text\tnote\na b c\tn o p\n"),
        ("table.csv", "a b c,p o n\nd e f,m\n", False, "Column 2", "a b c,n o p\nd e f,m\n"),
        # The first column has the name of the other's number.
        ("table.csv", "2,a b c\n3,p o n\n", False, "Column 2", "2,c b a\n3,n o p\n"),
        ('table.csv', '"x, ""y""",text\nz,a b c\n', True, "text", '"x, ""y""",text\nz,c b a\n'),
    ],
)  # fmt: skip
def test_the_columns_of_a_table_are_offered_by_name(
    chosen: Page, tmp_path: Path, name: str, content: str, has_names: bool, column: str | None, expected: str
) -> None:
    upload(chosen, name, content)
    select = chosen.get_by_label("Column to translate")
    select.wait_for()
    chosen.get_by_label("The first row has the names").set_checked(has_names)
    if column is not None:
        label = next(one for one in select.locator("option").all_inner_texts() if one.startswith(column))
        select.select_option(label=label)
    chosen.get_by_role("button", name="Translate", exact=True).click()
    assert fetched(chosen, tmp_path) == (f"table.tgt.{name[-3:]}", expected)


def test_columns_without_a_name_of_their_own_cannot_be_chosen_by_name(chosen: Page) -> None:
    upload(chosen, "table.csv", 'x,,x,"a\nb"\n1,p,2,a b c d\n')
    options = chosen.get_by_label("Column to translate").locator("option")
    options.first.wait_for(state="attached")
    assert options.all_inner_texts() == ["x: 1", "Column 2: p", "x: 2", "a b: a b c d"]
    assert options.evaluate_all("all => all.map((one) => one.disabled)") == [False, True, True, False]
    assert chosen.get_by_label("Column to translate").input_value() == "3"


def test_the_columns_of_a_table_are_those_that_python_reads(chosen: Page) -> None:
    """Oracle: the csv module, which the server uses."""
    draw = random.Random(4)
    cells = ["a", "", "b c", 'say "no"', "x, y", "two\nlines", "ä", "'", " z"]
    tables = [
        [[draw.choice(cells) for _ in range(width)] for _ in range(draw.randint(1, 6))]
        for width in (2, 3, 4)
        for _ in range(40)
    ]
    texts = []
    for table in tables:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator=draw.choice(["\n", "\r\n"])).writerows(table)
        texts.append(out.getvalue())
    read = """async (texts) => { const { readRows } = await import("./static/table.js");
      return texts.map((text) => readRows(text, false, true)); }"""
    assert chosen.evaluate(read, texts) == tables


def test_the_formats_are_listed_before_anything_is_typed(chosen: Page, server: Running) -> None:
    formats = server.get("/frontend/settings").json()["supportedFilesFormat"]
    listed = chosen.locator("#formats").inner_text()
    assert set(formats) <= set(listed.replace(",", "").split()) and "10 MB" in listed
    chosen.get_by_label("text to translate").fill("a b")
    chosen.locator("#formats").wait_for(state="hidden")


def test_the_translation_of_a_pdf_is_a_text_file(chosen: Page) -> None:
    path = "/download_file/0123.txt"
    answer = f'event: result\ndata: {{"translatedFileUrl": "http://elsewhere{path}"}}\n\n'
    chosen.route("**/translate_file", lambda route: route.fulfill(body=answer, content_type="text/event-stream"))
    chosen.route(f"**{path}", lambda route: route.fulfill(body="c b a"))
    upload(chosen, "letter.v2.pdf", "%PDF")
    assert chosen.get_by_role("link", name="Download").get_attribute("download") == "letter.v2.tgt.txt"


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

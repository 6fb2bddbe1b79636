"""A reader's own terms on the page: glossary entries and protected words, for texts and documents, kept in the browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.translation.glossary import Glossary
from tests.serve.page.conftest import open_page
from tests.serve.server import Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
PAIR = {"source": "src", "target": "tgt"}


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with open_page(browser, server.url) as page:
        page.get_by_label("translate from").select_option("src")
        yield page


def add(page: Page, source: str, target: str) -> None:
    page.get_by_label("In src").fill(source)
    page.get_by_label("In tgt").fill(target)
    page.keyboard.press("Enter")


def keep(page: Page, word: str) -> None:
    page.get_by_label("Leave untranslated").fill(word)
    page.keyboard.press("Enter")


def type_text(page: Page, text: str) -> None:
    page.get_by_label("text to translate").fill(text)


def expect(page: Page, text: str) -> None:
    page.wait_for_function("(text) => document.getElementById('out').textContent === text", arg=text)


def document(page: Page, text: bytes, folder: Path) -> str:
    """A document's translation, as the page gives it."""
    file = {"name": "a.txt", "mimeType": "text/plain", "buffer": text}
    page.get_by_label("a document to translate").set_input_files(files=[file])
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(folder / "b.txt")
    return (folder / "b.txt").read_text(encoding="utf-8")


def translated(server: Running, text: str, **fields: Any) -> str:
    found: str = server.post("/translate", json={"q": text, **PAIR, **fields}).json()["translatedText"]
    return found


def open_terms(page: Page) -> None:
    page.locator("#terms-button").click()
    page.locator("#terms").wait_for()


def test_a_glossary_changes_what_is_typed_until_it_is_removed(page: Page, server: Running) -> None:
    expected = translated(server, "a b c", glossary={"b": "q"})
    assert "q" in expected.split()
    type_text(page, "a b c")
    expect(page, "c b a")
    open_terms(page)
    add(page, "b", "q")
    expect(page, expected)
    assert page.locator("#out .w.held").all_inner_texts() == ["q"]
    assert page.locator("#out .w.held").get_attribute("aria-label") == "q, one of your terms"
    assert page.locator("#terms-button").inner_text().split() == ["Terms", "1"]
    type_text(page, "a b c\np b n")  # what is typed later, too
    expect(page, f"{expected}\n{translated(server, 'p b n', glossary={'b': 'q'})}")
    type_text(page, "a b c")
    page.get_by_role("button", name="remove “b”").click()
    expect(page, "c b a")
    assert page.locator("#out .w.held").count() == 0
    assert page.evaluate("document.activeElement.id") == "term-source"


def test_protected_words_stay_as_they_are(page: Page, server: Running) -> None:
    type_text(page, "a Regard c")
    open_terms(page)
    keep(page, "Regard")
    page.locator("#out .w.held", has_text="Regard").wait_for()
    expect(page, translated(server, "a Regard c", keep=["Regard"]))
    page.get_by_role("button", name="remove “Regard”").click()
    expect(page, translated(server, "a Regard c"))


def test_terms_survive_a_reload_and_belong_to_their_pair(page: Page, server: Running) -> None:
    open_terms(page)
    add(page, "b", "q")
    keep(page, "o")
    page.reload()
    type_text(page, "a b o")
    expect(page, translated(server, "a b o", glossary={"b": "q"}, keep=["o"]))
    open_terms(page)
    assert page.locator("#glossary-list li").all_inner_texts() == ["b\n→\nq\n×"]
    assert page.locator("#keep-list li > span").all_inner_texts() == ["o"]
    page.get_by_label("translate from").select_option("tgt")
    assert page.locator("#terms li").count() == 0
    assert page.locator("#terms-title").inner_text() == "Terms, tgt → src"
    expect(page, translated(server, "a b o", source="tgt", target="src"))
    page.get_by_label("translate from").select_option("src")
    expect(page, translated(server, "a b o", glossary={"b": "q"}, keep=["o"]))
    assert page.locator("#terms li").count() == 2


def test_a_word_is_changed_and_the_terms_still_hold(page: Page, server: Running) -> None:
    open_terms(page)
    add(page, "b", "q")
    keep(page, "a")
    type_text(page, "a b c d")
    page.locator("#out .w.held").nth(1).wait_for()
    page.locator("#out .w").first.click()
    page.locator("#popover input").fill("p")
    page.keyboard.press("Enter")
    page.locator("#out .w.kept", has_text="p").wait_for()
    fields = {"q": "a b c d", **PAIR, "prefix": "p ", "glossary": {"b": "q"}, "keep": ["a"]}
    expect(page, server.post("/sentences", json=fields).json()["sentences"][0]["ways"][0]["text"])
    assert {"q", "a"} <= set(page.locator("#out .w.held").all_inner_texts())


def test_only_terms_that_a_text_has_are_sent(page: Page) -> None:
    open_terms(page)
    add(page, "b", "q")
    add(page, "zebra", "k")
    keep(page, "o")
    with page.expect_request("**/sentences") as request:
        type_text(page, "A B c")  # a term without capitals is found with them
    sent = json.loads(request.value.post_data or "")
    assert (sent["glossary"], "keep" in sent) == ({"b": ["q"]}, False)


def test_documents_heed_the_terms(page: Page, server: Running, tmp_path: Path) -> None:
    open_terms(page)
    add(page, "b", "q")
    keep(page, "o")
    found = document(page, b"a b c\np o n\n", tmp_path)
    terms: dict[str, Any] = {"glossary": {"b": "q"}, "keep": ["o"]}
    expected = "".join(f"{translated(server, line, **terms)}\n" for line in ("a b c", "p o n"))
    assert found == expected
    assert "q" in expected and expected != "c b a\nn o p\n"


def test_a_detected_language_brings_its_terms(page: Page) -> None:
    page.get_by_label("translate from").select_option("en")
    open_terms(page)
    page.get_by_label("Leave untranslated").fill("weather")
    page.keyboard.press("Enter")
    page.get_by_label("translate from").select_option("auto")
    page.get_by_label("translate into").select_option("de")
    type_text(page, "The weather is very nice today, is it not?")
    page.locator("#out .w.held", has_text="weather").wait_for()
    assert page.locator("#terms-title").inner_text() == "Terms, English → German"


def test_a_language_that_is_not_known_yet_has_no_terms(page: Page) -> None:
    page.reload()
    page.get_by_label("translate from").select_option("auto")
    open_terms(page)
    assert page.locator("#terms-unknown").is_visible()
    assert page.locator("#terms-body").is_hidden()


def test_terms_are_used_by_keyboard_alone(page: Page) -> None:
    page.get_by_label("text to translate").focus()
    page.keyboard.type("a b c")
    expect(page, "c b a")
    page.keyboard.press("Alt+g")
    page.keyboard.type("b")
    page.keyboard.press("Tab")
    page.keyboard.type("q")
    page.keyboard.press("Enter")
    page.locator("#out .w.held", has_text="q").wait_for()
    assert page.evaluate("document.activeElement.id") == "term-source"
    for _ in range(3):
        page.keyboard.press("Tab")  # the other field, the button, the entry's own
    page.keyboard.press("Enter")
    expect(page, "c b a")
    page.keyboard.press("Escape")
    assert page.locator("#terms").is_hidden()
    assert page.evaluate("document.activeElement.id") == "terms-button"
    assert page.locator("#terms-button").get_attribute("aria-expanded") == "false"


def test_terms_go_to_a_file_and_come_back(page: Page, tmp_path: Path) -> None:
    open_terms(page)
    add(page, "b", "q")
    add(page, "o n", "k m")
    keep(page, "Regard")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "terms.src-tgt.tsv"
    download.value.save_as(tmp_path / "terms.tsv")
    assert (tmp_path / "terms.tsv").read_text() == "o n\tk m\nb\tq\nRegard\tRegard\n"
    page.evaluate("localStorage.clear()")
    page.reload()
    page.get_by_label("translate from").select_option("src")
    open_terms(page)
    content = b"\xef\xbb\xbf# comment\r\n\r\n" + (tmp_path / "terms.tsv").read_bytes() + b"b\tq\n"
    file = {"name": "terms.tsv", "mimeType": "text/plain", "buffer": content}
    page.get_by_label("a file of terms to import").set_input_files(files=[file])
    page.locator("#terms-said", has_text="3 terms added.").wait_for()
    assert page.locator("#glossary-list li").all_inner_texts() == ["o n\n→\nk m\n×", "b\n→\nq\n×"]
    assert page.locator("#keep-list li > span").all_inner_texts() == ["Regard"]
    file["buffer"] = b"a\tb\nno tab\n"
    page.get_by_label("a file of terms to import").set_input_files(files=[file])
    page.locator("#terms-said", has_text="Line 2 must be a term, a tab and its translation").wait_for()
    assert page.locator("#terms li").count() == 3


def test_what_is_too_much_is_said(page: Page, server: Running) -> None:
    open_terms(page)
    add(page, "b", "x" * 101)
    page.locator("#terms-said", has_text="A term may have at most 100 characters.").wait_for()
    lines = "".join(f"a{n}\tb{n}\n" for n in range(201)).encode()
    file = {"name": "terms.tsv", "mimeType": "text/plain", "buffer": lines}
    page.get_by_label("a file of terms to import").set_input_files(files=[file])
    page.locator("#terms-said", has_text="There may be at most 200 terms; the file has 201 more.").wait_for()
    assert page.locator("#terms li").count() == 0


def test_with_ctranslate2_alone_there_are_protected_words_and_a_line_on_glossaries(browser: Browser) -> None:
    with running("--engine", "ctranslate2") as server, open_page(browser, server.url) as page:
        open_terms(page)
        assert "--engine ctranslate2" in page.locator("#no-glossary").inner_text()
        assert page.get_by_label("In src").is_hidden()
        assert page.evaluate("document.activeElement.id") == "term-keep"
        page.keyboard.type("Regard")
        page.keyboard.press("Enter")
        type_text(page, "a Regard c")
        page.locator("#out .w.held", has_text="Regard").wait_for()


def test_words_that_every_object_of_the_page_has_are_terms_like_others(page: Page, server: Running) -> None:
    open_terms(page)
    terms = {"constructor": "q", "__proto__": "k"}
    for source, target in terms.items():
        add(page, source, target)
    with page.expect_request("**/sentences") as request:
        type_text(page, "a constructor __proto__ b")
    assert json.loads(request.value.post_data or "")["glossary"] == {one: [way] for one, way in terms.items()}
    expect(page, translated(server, "a constructor __proto__ b", glossary=terms))


def test_a_term_that_looks_like_a_comment_holds_in_documents_and_files(page: Page, tmp_path: Path) -> None:
    open_terms(page)
    add(page, "#b", "q")
    keep(page, "#o")
    found = document(page, b"a #b c\n", tmp_path)
    assert "q" in found
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "terms.tsv")
    assert Glossary.read(tmp_path / "terms.tsv").terms == (("#b", ("q",)), ("#o", ("#o",)))
    for _ in range(2):
        page.locator("#terms .remove").first.click()
    page.get_by_label("a file of terms to import").set_input_files(tmp_path / "terms.tsv")
    page.locator("#terms-said", has_text="2 terms added.").wait_for()


def test_tabs_that_were_pasted_are_spaces(page: Page) -> None:
    open_terms(page)
    add(page, " o\tn ", "k")
    assert page.locator("#glossary-list li").all_inner_texts() == ["o n\n→\nk\n×"]


def test_a_browser_that_keeps_nothing_has_terms_as_long_as_the_page(page: Page) -> None:
    page.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }"
    )
    open_terms(page)
    add(page, "b", "q")
    page.locator("#terms-said", has_text="This browser cannot store the terms").wait_for()
    page.get_by_label("translate from").select_option("tgt")
    assert page.locator("#terms li").count() == 0
    page.get_by_label("translate from").select_option("src")
    assert page.locator("#terms li").count() == 1
    page.get_by_role("button", name="remove “b”").click()
    assert page.locator("#terms li").count() == 0


@pytest.mark.parametrize("stored", ["{", "null", "7", '{"glossary": 7, "keep": [7, "", "a\\tb", "a\\u2028b", " a"]}'])
def test_whatever_lies_in_the_browser_is_passed_over(page: Page, stored: str) -> None:
    page.evaluate('(text) => localStorage.setItem(\'regard-terms ["src","tgt"]\', text)', stored)
    page.reload()
    type_text(page, "a b c")
    expect(page, "c b a")
    assert page.locator("#terms li").count() == 0

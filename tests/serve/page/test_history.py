"""The history of translated texts, which stays in the browser; links to a text; reading aloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.serve.page.conftest import open_page, wait_for_scripts
from tests.serve.page.test_keeping import edit
from tests.serve.page.test_translate import choose, expect
from tests.serve.server import Running, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KEPT = "JSON.parse(localStorage.getItem('regard-history')) ?? []"
TEXTS = f"() => {{ try {{ return ({KEPT}).map((one) => one.text); }} catch {{ return null; }} }}"
VOICES = """() => { const spoken = window.spoken = [];
  const voice = (lang, localService) => ({ lang, localService, default: false });
  window.voices = [voice("tgt-XX", true), voice("src-XX", false), voice("de-DE", true)];
  window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
  Object.defineProperty(window, "speechSynthesis", { value: Object.assign(new EventTarget(), {
    getVoices: () => window.voices, speak: (one) => spoken.push(one), cancel: () => spoken.push("cancel") }) }); }"""


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with open_page(browser, server.url) as page:
        choose(page, "src", "tgt")
        yield page


def translate(page: Page, text: str, translation: str) -> None:
    page.get_by_label("text to translate").fill(text)
    expect(page, translation)


def kept(page: Page, *texts: str) -> list[dict[str, Any]]:
    """The history, once it has these texts, the newest first."""
    until(lambda: page.evaluate(TEXTS) == list(texts))
    found: list[dict[str, Any]] = page.evaluate(KEPT)
    return found


def test_texts_and_what_was_changed_in_them_come_back(page: Page) -> None:
    translate(page, "a b c\np o n", "c b a\nn o p")
    edit(page, "c b a", "mine")
    page.get_by_role("button", name="clear the text").click()
    translate(page, "d e f", "f e d")
    [newer, older] = kept(page, "d e f", "a b c\np o n")
    assert (older["source"], older["target"], older["translation"]) == ("src", "tgt", "mine\nn o p")
    assert newer["edits"] == [] and older["edits"] == [[0, "mine"]]
    choose(page, "tgt", "src")
    page.reload()
    wait_for_scripts(page)
    page.keyboard.press("Alt+h")
    assert page.evaluate("document.activeElement.className") == "past"
    page.locator(".past", has_text="a b c").click()
    expect(page, "mine\nn o p")
    assert page.get_by_label("translate from").input_value() == "src"
    assert page.get_by_label("text to translate").input_value() == "a b c\np o n"
    assert page.locator(".s.edited").count() == 1


def test_a_text_that_goes_on_is_one_text(page: Page) -> None:
    translate(page, "a b c", "c b a")
    kept(page, "a b c")
    translate(page, "a b c d", "d c b a")
    kept(page, "a b c d")
    translate(page, "p o n", "n o p")
    kept(page, "p o n", "a b c d")
    translate(page, "a b c d", "d c b a")
    kept(page, "a b c d", "p o n")
    same = page.evaluate("""async (pairs) => { const { continues } = await import("./static/history.js");
      return pairs.map(([text, old]) => continues(text, old)); }""", [
        ("Where is it?", "Where is"), ("Where was it?", "Where is it?"), ("Good morning", "Where is it?"), ("A", "B"),
    ])  # fmt: skip
    assert same == [True, True, False, False]


def test_the_history_is_deleted_and_switched_off(page: Page) -> None:
    translate(page, "a b c", "c b a")
    translate(page, "p o n", "n o p")
    kept(page, "p o n", "a b c")
    page.locator("#history-button").click()
    assert "in this browser, and nowhere else" in page.locator("#history-note").inner_text()
    page.get_by_role("button", name="remove “a b c” from the history").click()
    kept(page, "p o n")
    page.get_by_role("button", name="Delete all").click()
    assert page.evaluate(KEPT) != []  # asks once more
    page.get_by_role("button", name="Really delete 1?").click()
    kept(page)
    assert page.evaluate("localStorage.getItem('regard-history')") is None
    page.get_by_role("button", name="Switch off").click()
    page.locator("#history-note", has_text="The history is off").wait_for()
    translate(page, "d e f", "f e d")
    page.keyboard.press("Alt+h")  # closing the panel saves what is to be saved
    page.reload()
    wait_for_scripts(page)
    assert page.evaluate(KEPT) == []
    page.locator("#history-button").click()
    page.get_by_role("button", name="Switch on").click()
    translate(page, "d e f", "f e d")
    kept(page, "d e f")
    page.locator("#history-list", has_text="d e f").wait_for()
    page.locator("#history-button").focus()
    page.locator(".past").focus()
    page.keyboard.press("Escape")
    assert page.locator("#history").is_hidden()
    assert page.evaluate("document.activeElement.id") == "history-button"


@pytest.mark.parametrize("stored", ["{", "7", '[7, {"text": "x"}, {"text": 3, "edits": 5}]', "null"])
def test_whatever_lies_in_the_browser_is_passed_over(page: Page, stored: str) -> None:
    page.evaluate("(text) => localStorage.setItem('regard-history', text)", stored)
    page.reload()
    wait_for_scripts(page)
    page.locator("#history-button").click()
    assert page.locator("#history-list li").count() == 0
    translate(page, "a b c", "c b a")
    kept(page, "a b c")


def test_a_long_history_loses_its_oldest_texts(page: Page) -> None:
    entry = {"source": "src", "target": "tgt", "translation": "x", "edits": [], "time": 1}
    entries: list[dict[str, Any]] = [{**entry, "text": f"{number} {'x' * 5000}"} for number in range(50)]
    page.evaluate("(text) => localStorage.setItem('regard-history', text)", json.dumps(entries))
    translate(page, "a b c", "c b a")
    until(lambda: page.evaluate(KEPT)[0]["text"] == "a b c")
    assert len(page.evaluate(KEPT)) == 50
    page.evaluate(
        "(text) => localStorage.setItem('regard-history', text)",
        json.dumps([{**one, "text": one["text"] * 2} for one in entries]),
    )
    translate(page, "p o n", "n o p")
    until(lambda: page.evaluate(KEPT)[0]["text"] == "p o n")
    assert len(page.evaluate(KEPT)) == 30  # 300,000 characters


def test_nothing_of_a_link_reaches_the_server(browser: Browser, server: Running, page: Page) -> None:
    translate(page, "a b c\np o n", "c b a\nn o p")
    edit(page, "n o p", "mine: 100 % & more\nlines")
    page.get_by_role("button", name="share this text as a link").click()
    page.locator("#toast", has_text="Link copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    parts = urlsplit(link)
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == server.url + "/" and not parts.query
    assert parse_qs(parts.fragment.removeprefix("translate?"))["text"] == ["a b c\np o n"]
    assert link[-1].isalpha()
    with open_page(browser, server.url) as other:
        seen: list[str] = []
        other.on("request", lambda request: seen.append(request.url))
        other.goto("about:blank")
        other.goto(link)
        expect(other, "c b a\nmine: 100 % & more\nlines")
        assert other.get_by_label("text to translate").input_value() == "a b c\np o n"
        assert other.url == f"{server.url}/#translate"
        assert not any("a+b" in url.partition("#")[0] or "mine" in url.partition("#")[0] for url in seen)
        other.evaluate("(link) => { location.href = link; }", link.replace("a+b+c", "d+e+f"))  # in the same tab
        expect(other, "f e d\nmine: 100 % & more\nlines")


def test_a_link_to_languages_that_are_not_served_says_so(page: Page, server: Running) -> None:
    page.goto("about:blank")
    page.goto(f"{server.url}/#translate?text=a+b+c&edit=0:x&edit=99:y&edit=z&from=fr&to=src")
    page.locator("#toast", has_text="There is no model from French to src here.").wait_for()
    expect(page, "c b a")


def test_a_text_too_long_for_a_link_is_refused(page: Page) -> None:
    long = "x" * 8000  # a word of this length is copied
    translate(page, f"a b c\n{long}", f"c b a\n{long}")
    page.get_by_role("button", name="share this text as a link").click()
    page.locator("#toast", has_text="too long for a link").wait_for()


def test_texts_are_read_aloud_by_voices_of_this_device_only(page: Page) -> None:
    page.add_init_script(f"({VOICES})()")
    page.reload()
    wait_for_scripts(page)
    assert page.locator("#listen-target").is_hidden()
    translate(page, "a b c\np o n", "c b a\nn o p")
    assert page.locator("#listen-source").is_hidden()  # its voice would send the text elsewhere
    page.get_by_role("button", name="read the translation aloud").click()
    spoken = page.evaluate("window.spoken.map((one) => [one.text, one.lang])")
    assert spoken == [["c b a", "tgt-XX"], ["n o p", "tgt-XX"]]
    page.get_by_role("button", name="stop reading aloud").click()
    assert page.evaluate("window.spoken.at(-1)") == "cancel"
    page.get_by_role("button", name="read the translation aloud").click()
    page.evaluate("window.spoken.at(-1).onend()")
    page.get_by_role("button", name="read the translation aloud").click()
    page.get_by_label("text to translate").fill("a b c")  # what is read is no longer there
    page.get_by_role("button", name="read the translation aloud").wait_for()
    page.evaluate("""() => { window.voices.push({ lang: "src_XX", localService: true });
      speechSynthesis.dispatchEvent(new Event("voiceschanged")); }""")
    page.locator("#listen-source").wait_for()


def test_without_a_voice_there_is_no_button(page: Page) -> None:
    translate(page, "a b c", "c b a")
    assert page.locator("#listen-source").is_hidden() and page.locator("#listen-target").is_hidden()

"""What people did to a translation stays: chosen words, chosen translations and edits survive new terms, new sentences and other
languages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.serve.page.conftest import open_page
from tests.serve.page.test_terms import add, open_terms
from tests.serve.page.test_translate import choose, expect, says_copied
from tests.serve.server import Running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TWO = "a b c d\np o n"
OWN = "My own words."


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with open_page(browser, server.url) as page:
        choose(page, "src", "tgt")
        page.get_by_label("text to translate").fill(TWO)
        expect(page, "d c b a\nn o p")
        yield page


def edit(page: Page, old: str, new: str) -> None:
    """Replace a part of the translation by typing over it."""
    page.get_by_role("button", name="Edit").click()
    area = page.get_by_label("edit the translation")
    area.evaluate(
        "(area, old) => { const at = area.value.indexOf(old); area.setSelectionRange(at, at + old.length); }", old
    )
    page.keyboard.insert_text(new)
    page.get_by_role("button", name="Done").click()


def write_word(page: Page, number: int, word: str) -> None:
    """Replace a word by one's own; the rest of its sentence is translated after it."""
    page.locator("#out .w").nth(number).click()
    page.locator("#popover li button").first.wait_for()
    page.locator("#popover input").fill(word)
    page.keyboard.press("Enter")
    page.locator("#out .w.kept", has_text=word).wait_for()


def sentence(page: Page, number: int) -> str:
    return page.locator("#out .s").nth(number).inner_text()


def test_the_translation_is_edited_as_text(page: Page) -> None:
    page.keyboard.press("Alt+e")
    assert page.evaluate("document.activeElement.id") == "edit-text"
    page.keyboard.press("Control+Home")
    page.keyboard.type("Hello, ")
    page.keyboard.press("Escape")
    expect(page, "Hello, d c b a\nn o p")
    assert page.evaluate("document.activeElement.id") == "edit"
    assert page.locator("#out .s").evaluate_all("all => all.map((one) => one.className)") == ["s edited", "s"]
    with says_copied(page):
        page.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "Hello, d c b a\nn o p"
    page.keyboard.press("Alt+e")
    page.get_by_label("edit the translation").fill("all of it\nis new")
    page.keyboard.press("Escape")
    expect(page, "all of it\nis new")
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+Home")
    page.locator("#others-title q", has_text="a b c d").wait_for()  # the page follows the caret to the first sentence
    page.locator("#other-list button", has_text="the model's own").click()
    page.locator("#out", has_text="d c b a").wait_for()


def test_an_edited_translation_goes_on_to_explain(page: Page) -> None:
    edit(page, "d c b a", "d c")
    page.locator("#out .s").first.locator(".w").first.click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Explain").click()
    assert page.locator("#ask-text").input_value() == "a b c d"
    assert page.locator("#ask-target").input_value() == "d c"
    page.locator("#explained h1").wait_for()


def test_edits_survive_new_sentences(page: Page) -> None:
    edit(page, "d c b a", OWN)
    expect(page, f"{OWN}\nn o p")
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("\nd e f")
    expect(page, f"{OWN}\nn o p\nf e d")
    page.keyboard.press("Control+Home")
    page.keyboard.insert_text("k l m\n")
    expect(page, f"m l k\n{OWN}\nn o p\nf e d")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    expect(page, "")
    page.keyboard.insert_text(TWO)  # all over again
    expect(page, f"{OWN}\nn o p")


def test_a_sentence_that_is_changed_offers_what_it_was(page: Page) -> None:
    edit(page, "n o p", OWN)
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+End")
    page.keyboard.type(" m")
    expect(page, "d c b a\nm n o p")
    yours = page.locator("#other-list button", has_text="yours")
    assert yours.inner_text().split("\n")[0].startswith(OWN)
    yours.click()
    expect(page, f"d c b a\n{OWN}")


def test_chosen_words_and_edits_survive_new_terms(page: Page) -> None:
    write_word(page, 0, "k")
    first = sentence(page, 0)
    edit(page, "n o p", OWN)
    open_terms(page)
    add(page, "e", "q")  # it is in neither sentence
    add(page, "n", "m")
    page.locator("#problem", has_text="Not in the translation, though asked for: m").wait_for()
    expect(page, f"{first}\n{OWN}")
    add(page, "b", "q")
    page.locator("#out .w.held", has_text="q").wait_for()
    page.locator("#out[aria-busy=false]").wait_for()
    assert sentence(page, 0).startswith("k ") and "q" in sentence(page, 0).split()
    assert sentence(page, 1) == OWN
    page.get_by_role("button", name="remove “b”").click()
    expect(page, f"{first}\n{OWN}")


RESTORE = """async ([source, prefix, before, after]) => {
    const { newState, newSentence, startMemory } = await import("/static/sentences.js");
    const way = (words) => ({ text: words.map((one) => one.before + one.text).join(""), words });
    const made = (words, terms) => newSentence({ before: "", text: source, ways: [way(words)] }, null, terms);
    const state = { ...newState(), source: "en", target: "de", sentences: [{ ...made(before, "[]"), prefix }] };
    const memory = startMemory();
    memory.keep(state);
    state.sentences = [made(after, "[1]")];
    return [memory.restore(state, new Set(state.sentences)), state.sentences[0].edited];
}"""


def words(text: str, held: str) -> list[dict[str, object]]:
    return [
        {"before": " " if number else "", "text": word, "held": word == held}
        for number, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("prefix", "translation", "begins"),
    [
        ("Die Katze schläft auf der Decke ", "Der Kater schläft auf der Matte", "Der Kater schläft auf der Decke "),
        ("Die Katze ruht auf der Decke ", "Der Kater schläft auf der Matte", None),  # "ruht" may have been chosen, too
        ("Auf ", "Auf der Matte schläft der Kater", "Auf "),  # it comes later
        ("Der Kater schläft auf der Decke ", "Der Kater schläft auf der Matte", "Der Kater schläft auf der Decke "),
    ],
)
def test_a_new_term_before_a_chosen_word_takes_its_place(
    page: Page, prefix: str, translation: str, begins: str | None
) -> None:
    given = ["The cat sleeps on the mat", prefix, words(f"{prefix}gut", ""), words(translation, "Kater")]
    again, edited = page.evaluate(RESTORE, given)
    # A sentence whose beginning cannot follow the term stays as it is.
    assert (again, edited) == (([[0, begins]], None) if begins else ([], f"{prefix}gut"))


def test_a_chosen_translation_survives_new_terms(page: Page) -> None:
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+Home")
    page.locator("#others-title", has_text="a b c d").wait_for()
    other = page.locator("#other-list button").nth(1).inner_text()
    page.locator("#other-list button").nth(1).click()
    expect(page, f"{other}\nn o p")
    open_terms(page)
    add(page, "n", "m")
    page.locator("#out .w.held", has_text="m").wait_for()
    assert sentence(page, 0).split() == other.split()


def test_edits_survive_a_change_of_the_languages(page: Page) -> None:
    edit(page, "d c b a", OWN)
    choose(page, "tgt", "src")
    expect(page, "d c b a\nn o p")
    choose(page, "src", "tgt")
    expect(page, f"{OWN}\nn o p")


def test_edits_survive_while_the_language_is_detected(page: Page) -> None:
    page.get_by_label("translate from").select_option("auto")
    page.get_by_label("translate into").select_option("de")
    page.get_by_label("text to translate").fill("The weather is very nice today.")
    page.locator("#detected", has_text="English").wait_for()
    page.locator("#out .s").nth(1).wait_for(state="detached")  # the translation of the text before
    page.locator("#out[aria-busy=false] .w").first.wait_for()
    edit(page, page.locator("#out").inner_text(), OWN)
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text("\nShe likes this house.")
    page.locator("#out[aria-busy=false] .s").nth(1).wait_for()
    assert sentence(page, 0) == OWN


def test_of_equal_sentences_each_has_its_own_words(page: Page) -> None:
    page.get_by_label("text to translate").fill("a b c\na b c\na b c")
    expect(page, "c b a\nc b a\nc b a")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("edit the translation").fill("c b a\nsecond\nc b a")
    page.get_by_role("button", name="Done").click()
    open_terms(page)
    add(page, "e", "q")
    expect(page, "c b a\nsecond\nc b a")


def test_what_is_typed_belongs_to_the_sentence_at_its_place(page: Page) -> None:
    """Random edits of a text in parts. Oracle: the parts make up the edited text, and those away from the change are as before."""
    draw = random.Random(6)
    cases = []
    for _ in range(400):
        count = draw.randint(0, 4)
        parts = [
            draw.choice(["", " ", "\n"]) if number % 2 == 0 else draw.choice(["a b.", "Yes!", "", "aa aa"])
            for number in range(2 * count + 1)
        ]
        text = "".join(parts)
        start = draw.randint(0, len(text))
        end = draw.choice([start, draw.randint(start, len(text))])
        cases.append((parts, text[:start] + draw.choice(["", "a", " ", "b c", "\n"]) + text[end:]))
    found = page.evaluate(
        """async (cases) => { const { difference, editParts } = await import("./static/edit.js");
          return cases.map(([parts, text]) => { const change = difference(parts.join(""), text);
            return [change, editParts(parts, change)]; }); }""",
        cases,
    )
    for (parts, text), (change, edited) in zip(cases, found, strict=True):
        assert "".join(edited) == text
        assert len(edited) == len(parts)
        position = 0
        for number, (old, new) in enumerate(zip(parts, edited, strict=True)):
            away = position + len(old) < change["start"] or position > change["end"]
            assert new == old or not away
            # Into a gap nothing is written where a sentence begins or ends.
            if number % 2 == 0 and len(parts) > 1 and old == "":
                assert new == ""
            position += len(old)

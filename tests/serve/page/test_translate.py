"""Translating on the page: typing, other ways, other words, languages, keyboard."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from regard.serve.keys import add_key
from regard.translation.sentences import Split, split_text
from tests.serve.page.conftest import open_page, relabelled, wait_for_scripts
from tests.serve.server import Running, running, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route


def expect(page: Page, text: str) -> None:
    """The translation that stands there, in a moment."""
    from playwright.sync_api import expect as expecting

    expecting(page.locator("#out")).to_have_text(text)
    expecting(page.locator("#out")).to_have_attribute("aria-busy", "false")


def text_of(request: Request) -> str:
    fields = json.loads(request.post_data or "{}")
    assert isinstance(fields["q"], str)
    return fields["q"]


def choose(page: Page, source: str, target: str) -> None:
    page.get_by_label("translate from").select_option(source)
    if page.get_by_label("translate into").is_visible():
        page.get_by_label("translate into").select_option(target)


@pytest.fixture
def typed(page: Page) -> Page:
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c d")
    expect(page, "d c b a")
    return page


def test_a_text_is_translated_while_it_is_typed(page: Page) -> None:
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").click()
    page.keyboard.type("a b c")
    expect(page, "c b a")
    page.keyboard.type(" d")
    expect(page, "d c b a")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    expect(page, "")


def test_sentences_and_the_space_between_them_stay(page: Page) -> None:
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c\n\n  p o n\n")
    expect(page, "c b a\n\n  n o p\n")
    assert page.locator("#out .s").count() == 2


def test_only_the_last_of_quick_changes_is_answered(page: Page) -> None:
    """Keys in quick succession make one request; one that is under way is given up when the text changes. By the page's clock,
    which the test moves, there are always 20 ms between two keys."""
    from playwright.sync_api import Error

    page.clock.install(time=0)
    page.reload()
    wait_for_scripts(page)
    page.clock.pause_at(3_600_000)
    asked: list[str] = []
    held: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(text_of(route.request))
        if len(asked) == 1:
            held.append(route)  # never answered
        else:
            route.continue_()

    def type_keys(text: str) -> None:
        for key in text:
            page.keyboard.type(key)
            page.clock.run_for(20)

    page.route("**/sentences", hold)
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").click()
    with page.expect_request("**/sentences"):
        type_keys("p o n")
        page.clock.run_for(100)
    with page.expect_event("requestfailed") as gone:
        type_keys(" m")
    assert text_of(gone.value) == "p o n"
    page.clock.run_for(100)
    expect(page, "m n o p")
    assert asked == ["p o n", "p o n m"]
    with suppress(Error):  # it is gone already
        held[0].abort()


def test_other_ways_to_say_it_take_its_place(typed: Page, server: Running) -> None:
    fields = {"q": "a b c d", "source": "src", "target": "tgt", "alternatives": 4}
    others = server.post("/translate", json=fields).json()["alternatives"]
    rows = typed.locator("#other-list button")
    assert rows.all_inner_texts() == [" ".join(other.split()) for other in others]  # browsers show two spaces as one
    rows.nth(1).click()
    expect(typed, others[1])
    assert "d c b a" in rows.all_inner_texts()  # the best is one of the others now


def test_other_ways_are_those_of_the_sentence_in_hand(page: Page) -> None:
    def sentence() -> str:
        return page.locator("#others-title q").inner_text().strip('“”"')

    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c\np o n m")
    expect(page, "c b a\nm n o p")
    assert sentence() == "p o n m"  # the caret is there
    page.keyboard.press("Control+Home")
    page.locator("#others-title", has_text="a b c").wait_for()
    page.locator("#out .s").nth(1).locator(".w").first.focus()
    assert sentence() == "p o n m"


def test_what_was_chosen_stays_while_the_text_goes_on(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(text_of(request)) if request.url.endswith("/sentences") else None)
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c\np o n")
    expect(page, "c b a\nn o p")
    page.keyboard.press("Control+Home")
    page.locator("#others-title", has_text="a b c").wait_for()
    other = page.locator("#other-list button").first.inner_text()
    page.locator("#other-list button").first.click()
    expect(page, f"{other}\nn o p")
    page.get_by_label("text to translate").focus()
    page.keyboard.press("Control+End")
    page.keyboard.type(" m\nd e f")
    expect(page, f"{other}\nm n o p\nf e d")
    page.keyboard.press("Control+Home")
    page.keyboard.insert_text("d ")  # at once: "da b c" on the way would be a text of its own
    expect(page, "c b a d\nm n o p\nf e d")
    assert asked[0] == "a b c\np o n"
    assert "a b c" not in "".join(asked[1:-1]) and asked[-1] == "d a b c"  # only what was changed is asked for
    page.keyboard.press("Control+A")
    page.keyboard.type("e f")
    expect(page, "f e")


SENTENCES = [
    "Dr. Smith left at 5 p.m.",
    "Why?",
    "It was late; nobody knew.",
    "He came back!",
    "The end of it.",
    "Is this all?",
]


def test_a_changed_text_is_split_as_the_whole_would_be(page: Page) -> None:
    """Oracle: the whole text, split anew. Random insertions, deletions and replacements, a line break now and then."""
    draw = random.Random(3)
    cases = []
    for _ in range(300):
        old = "".join(
            draw.choice(SENTENCES) + draw.choice([" ", " ", "  ", "\n", "\n\n"]) for _ in range(draw.randint(0, 6))
        )
        start = draw.randint(0, len(old))
        end = draw.choice([start, start, min(len(old), start + draw.randint(1, 40))])
        new = old[:start] + draw.choice(["", "x", " ", ".", "\n", "A new one. ", *SENTENCES]) + old[end:]
        cases.append((old, new))
    split = [split_text(old, "en") for old, _ in cases]
    found = page.evaluate(
        """async (cases) => { const { changedPart } = await import("./static/splice.js");
          return cases.map(([sentences, after, text]) => changedPart(sentences, after, text)); }""",
        [(*in_parts(one), new) for one, (_, new) in zip(split, cases, strict=True)],
    )
    kept = 0
    for one, (_, new), change in zip(split, cases, found, strict=True):
        sentences, after = in_parts(one)
        between, rest = in_parts(split_text(change["part"], "en"))
        head, tail = sentences[: change["first"]], sentences[change["last"] :]
        if tail:
            tail[0] = {**tail[0], "before": rest + tail[0]["before"]}
        spliced = [*head, *between, *tail]
        assert (spliced, after if tail else rest) == in_parts(split_text(new, "en"))
        kept += len(head) + len(tail)
    assert kept > 500  # of about 900


def in_parts(split: Split) -> tuple[list[dict[str, str]], str]:
    sentences, position = [], 0
    for place in split.places:
        sentences.append({"before": "".join(split.pieces[position:place]), "text": split.pieces[place]})
        position = place + 1
    return sentences, "".join(split.pieces[position:])


def test_another_word_is_chosen_and_the_rest_follows_it(typed: Page, server: Running) -> None:
    typed.locator("#out .w").nth(1).click()
    listed = typed.locator("#popover li button")
    fields = {"q": "a b c d", "source": "src", "target": "tgt", "prefix": "d "}
    words = server.post("/alternatives", json=fields).json()["words"]
    listed.first.wait_for()
    assert [text.split("\n")[0] for text in listed.all_inner_texts()] == [one["word"] for one in words]
    assert listed.first.get_attribute("aria-pressed") == "true"  # what stands there now
    chosen = words[2]["word"]
    listed.nth(2).click()
    again = server.post("/sentences", json={**fields, "prefix": f"d {chosen} "}).json()
    expect(typed, again["sentences"][0]["ways"][0]["text"])
    assert typed.locator("#out .w").all_inner_texts()[:2] == ["d", chosen]
    typed.get_by_role("button", name="Back to the model's own translation").click()
    expect(typed, "d c b a")


def test_where_no_other_word_is_likely_the_page_says_so(typed: Page) -> None:
    typed.route("**/alternatives", lambda route: route.fulfill(json={"words": [{"word": "c", "probability": 0.9}]}))
    typed.locator("#out .w").nth(1).click()
    typed.get_by_text("The model holds no other word for likely here.").wait_for()
    assert typed.locator("#popover li button").count() == 1


def test_a_word_of_ones_own_is_written(typed: Page) -> None:
    typed.locator("#out .w").first.click()
    typed.locator("#popover li button").first.wait_for()  # it takes the focus when it comes
    typed.get_by_label("enter another word for d").fill("p")
    typed.keyboard.press("Enter")
    typed.locator("#out .w.kept", has_text="p").wait_for()
    assert typed.locator("#out").inner_text().startswith("p ")


def test_what_was_typed_just_before_a_choice_is_translated_after_it(typed: Page) -> None:
    typed.locator("#out .w").nth(1).click()
    typed.locator("#popover li button").nth(2).wait_for()
    # In one step: the text is not sent yet when the word is chosen.
    typed.evaluate("""() => { const text = document.getElementById("source-text");
      text.value = "a b c d\\np o n"; text.dispatchEvent(new Event("input"));
      document.querySelectorAll("#popover li button")[2].click(); }""")
    typed.locator("#out", has_text="n o p").wait_for()


def test_unsure_words_are_marked_by_their_probability(page: Page, server: Running) -> None:
    text = "a b c d e f g h"  # longer than what the model has learnt
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill(text)
    answer = server.post("/sentences", json={"q": text, "source": "src", "target": "tgt"}).json()
    words = [word for one in answer["sentences"] for word in one["ways"][0]["words"]]
    page.locator("#out .w").nth(len(words) - 1).wait_for()
    marked = page.locator("#out .w").evaluate_all("all => all.map((one) => one.classList.contains('unsure'))")
    assert marked == [word["probability"] < 0.5 for word in words]
    assert any(marked)
    assert page.locator("#out .w.unsure").first.get_attribute("aria-label").endswith("%")


def test_it_begins_with_the_first_model_and_then_with_what_was_chosen_last(page: Page) -> None:
    source, target = page.get_by_label("translate from"), page.get_by_label("translate into")
    assert (source.input_value(), target.input_value()) == ("src", "tgt")
    choose(page, "en", "de")
    page.reload()
    wait_for_scripts(page)
    assert source.input_value() == "en"


def test_languages_are_detected_chosen_and_swapped(page: Page) -> None:
    assert page.get_by_label("translate from").locator("option").all_inner_texts() == [
        "Detect language", "English", "src", "tgt",
    ]  # fmt: skip
    choose(page, "en", "de")
    assert page.locator("#to-alone").inner_text() == "German"  # there is nothing to choose
    assert page.get_by_role("button", name="swap the languages").is_disabled()
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c")
    expect(page, "c b a")
    page.get_by_role("button", name="swap the languages").click()
    assert page.get_by_label("translate from").input_value() == "tgt"
    assert page.get_by_label("text to translate").input_value() == "c b a"
    expect(page, "a b c")
    page.reload()
    wait_for_scripts(page)
    assert page.get_by_label("translate from").input_value() == "tgt"  # remembered


def test_a_detected_language_is_named(page: Page) -> None:
    page.get_by_label("translate from").select_option("auto")
    page.get_by_label("translate into").select_option("de")
    page.get_by_label("text to translate").fill("The weather is very nice today, is it not?")
    page.locator("#detected", has_text="English").wait_for()
    assert page.get_by_role("button", name="swap the languages").is_disabled()  # German into English is not served


GERMAN = "Wo ist der nächste Bahnhof? Wenn es morgen regnet, bleiben wir zu Hause."


def test_a_text_in_another_language_is_noticed(page: Page) -> None:
    choose(page, "en", "de")
    note = page.locator("#other-language")
    page.get_by_label("text to translate").fill(GERMAN)
    note.get_by_text("This seems to be German, not English.").wait_for()
    assert note.locator("button").count() == 0  # nothing translates from German here
    page.keyboard.press("Control+End")
    page.keyboard.insert_text(" And this is English, of course.")  # most of the text is still German
    page.locator("#out[aria-busy=false] .s").nth(2).wait_for()
    assert note.is_visible()
    page.get_by_label("text to translate").fill("This is an English text, and nothing is to be said.")
    note.wait_for(state="hidden")


def test_the_direction_is_turned_round_for_a_text_in_the_target_language(browser: Browser, tmp_path: Path) -> None:
    there, back = relabelled(tmp_path / "en-de", "en", "de"), relabelled(tmp_path / "de-en", "de", "en")
    with running("-m", str(back), model=there) as server, open_page(browser, server.url) as page:
        page.get_by_label("text to translate").fill(GERMAN)
        page.get_by_role("button", name="Translate from German to English").click()
        page.locator("#other-language").wait_for(state="hidden")
        assert page.get_by_label("translate from").input_value() == "de"
        assert page.get_by_label("text to translate").input_value() == GERMAN  # the text itself, not its translation
        page.locator("#out[lang=en][aria-busy=false] .w").first.wait_for()


def test_a_language_is_offered_under_the_code_of_its_model(browser: Browser, tmp_path: Path) -> None:
    """The classifier says "no" of all Norwegian."""
    english, norwegian = relabelled(tmp_path / "en-de", "en", "de"), relabelled(tmp_path / "nb-de", "nb", "de")
    with running("-m", str(norwegian), model=english) as server, open_page(browser, server.url) as page:
        choose(page, "en", "de")
        text = "Katten sover på kjøkkenbordet hver eneste dag. Hvor ligger den nærmeste jernbanestasjonen?"
        page.get_by_label("text to translate").fill(text)
        page.locator("#other-language").get_by_text("This seems to be Bokmål, not English.").wait_for()
        page.get_by_role("button", name="Translate from Bokmål").click()
        page.locator("#other-language").wait_for(state="hidden")
        assert page.get_by_label("translate from").input_value() == "nb"


@contextmanager
def says_copied(page: Page) -> Iterator[None]:
    """What happens in the block makes the button say so, if only for a moment."""
    page.evaluate("""() => { const button = document.getElementById("copy"); window.said = [];
      new MutationObserver(() => window.said.push(button.textContent)).observe(button, { childList: true }); }""")
    yield
    until(lambda: "Copied" in page.evaluate("window.said"))


def test_the_translation_is_copied(typed: Page) -> None:
    with says_copied(typed):
        typed.get_by_role("button", name="Copy").click()
    assert typed.evaluate("navigator.clipboard.readText()") == "d c b a"


def test_everything_works_by_keyboard(page: Page) -> None:
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").focus()
    page.keyboard.type("a b c d")
    expect(page, "d c b a")
    page.keyboard.press("Alt+t")
    assert page.evaluate("document.activeElement.textContent") == "d"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "c"
    page.keyboard.press("Enter")
    page.locator("#popover li button").first.wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.keyboard.press("Escape")
    assert page.locator("#popover").is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "c"
    page.keyboard.press("Enter")
    page.locator("#popover li button").first.wait_for()
    page.keyboard.press("ArrowDown")
    word = page.evaluate("document.activeElement.querySelector('span').textContent")
    page.keyboard.press("Enter")
    page.locator("#out .w.kept").nth(1).wait_for()
    assert page.locator("#out .w").all_inner_texts()[:2] == ["d", word]
    page.keyboard.press("Alt+s")
    assert page.get_by_label("translate from").input_value() == "tgt"
    with says_copied(page):
        page.keyboard.press("Alt+c")


def test_arrow_keys_reach_the_lines_above_and_below(page: Page) -> None:
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a b c\np o n\nd e f")
    expect(page, "c b a\nn o p\nf e d")
    page.locator("#out .w").nth(1).focus()
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "End", "Home"):
        page.keyboard.press(key)
        seen.append(page.evaluate("document.activeElement.textContent"))
    assert seen == ["o", "e", "o", "d", "c"]


def test_what_the_server_refuses_is_said_in_its_words(refused_page: Page) -> None:
    page = refused_page
    choose(page, "src", "tgt")
    page.get_by_label("text to translate").fill("a " * 25_001)
    page.locator("#problem", has_text=re.compile("more than 50,000 characters")).wait_for()
    page.get_by_label("translate from").select_option("auto")
    page.get_by_label("translate into").select_option("tgt")
    page.get_by_label("text to translate").fill("12 34 56")
    page.locator("#out .w").first.wait_for()  # one model fits, and takes it
    page.route(
        "**/sentences",
        lambda route: route.fulfill(status=429, headers={"retry-after": "1"}, json={"error": "too much"}),
    )
    page.get_by_label("text to translate").fill("a b")
    page.locator("#problem", has_text="Too much.").wait_for()
    page.unroute("**/sentences")
    expect(page, "b a")  # it tries again by itself
    assert page.locator("#problem").is_hidden()


def test_a_key_is_asked_for_where_one_is_needed(browser: Browser, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "alice")
    with (
        running("--keys", str(tmp_path / "keys.json")) as server,
        open_page(browser, server.url, is_refusal_expected=True) as page,
    ):
        page.get_by_role("dialog", name="API key").get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_label("text to translate").fill("a b c")
        page.get_by_role("dialog", name="API key").get_by_label("Key").fill(key)
        page.keyboard.press("Enter")
        expect(page, "c b a")
        assert key not in page.content()

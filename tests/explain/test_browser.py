"""The page in a real browser: what it shows, how it is used by hand and by keyboard, and that nothing in it runs but its script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from regard.explain.explainer import Explainer
from regard.explain.explanation import EXAMPLE, Explanation, by_words
from regard.explain.figure import COLOURS
from regard.explain.page import static
from regard.generate.options import SearchOptions
from tests.browser import lowest_contrast, new_page, unnamed, without_focus_mark
from tests.explain.payloads import PAYLOADS, without_policy

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OPTIONS = SearchOptions(beam=3, max_extra=4)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that notes every error, every dialog and every request that leaves the machine."""
    noted: list[str] = []
    with new_page(browser) as page:
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.on("console", lambda message: noted.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith("file:") else noted.append(request.url))
        page.add_init_script("window.alert = () => { window.ran = true; };")
        yield page
    assert noted == []


@pytest.fixture(scope="module")
def explanation(explainer: Explainer) -> Explanation:
    return explainer.explain(EXAMPLE, OPTIONS, force={1: "a", 2: "b", 3: "süß"})


@pytest.fixture
def shown(page: Page, explanation: Explanation, tmp_path: Path) -> Page:
    return show(page, explanation.html(), tmp_path)


def show(page: Page, html: str, folder: Path) -> Page:
    (folder / "page.html").write_text(html, encoding="utf-8")
    page.goto((folder / "page.html").as_uri())
    return page


def test_the_sentence_and_its_translation_stand_at_the_top(shown: Page, explanation: Explanation) -> None:
    assert shown.locator("h1").inner_text() == EXAMPLE
    assert shown.locator("p.sentence.target").inner_text() == re.sub(r"\s+", " ", explanation.translation)
    assert shown.title() == f"{EXAMPLE} · Regard"
    assert shown.get_by_role("heading", level=2).all_inner_texts() == [
        "Attention", "Word by word", "Beam", "Saliency and attention",
    ]  # fmt: skip


def test_a_word_shows_its_links_with_their_weights(shown: Page, explanation: Explanation) -> None:
    shown.get_by_role("button", name="layer 2, head 3:").click()
    shown.locator(".attention .row").nth(1).hover()
    row = by_words(explanation.attention["encoder"][1][2], explanation.source, explanation.source)[1]
    best = max(range(len(row)), key=row.__getitem__)
    share = f"{row[best]:.1%}"
    said = shown.locator(".attention .said", has_text=f"“animal” looks at {explanation.source.words[best]} {share}")
    assert said.inner_text().endswith("(head 3)")
    assert shown.locator(".links path").count() == sum(weight >= 0.02 for weight in row)


def test_shares_read_well_from_nothing_to_all(shown: Page) -> None:
    said = shown.evaluate(
        "[0, 0.0001, 0.0005, 0.008, 0.0951, 0.1, 0.756, 0.996, 0.99949, 0.9996, 1].map(regardExplain.percent)"
    )
    assert said == ["<0.1%", "<0.1%", "0.1%", "0.8%", "9.5%", "10.0%", "75.6%", "99.6%", "99.9%", ">99.9%", ">99.9%"]


def test_weights_that_are_exact_are_written_so(shown: Page, explanation: Explanation) -> None:
    """A target word does not look at later ones, and the first one looks at itself alone."""
    shown.get_by_role("button", name="Decoder", exact=True).click()
    shown.locator(".attention .row").first.hover()
    first = explanation.decoder_input.words[0]
    shown.locator(".attention .said", has_text=f"“{first}” looks at {first} 100% (").wait_for()
    shown.get_by_role("button", name="Matrix", exact=True).click()
    for unit, count in (
        ("Words", len(explanation.decoder_input.words)),
        ("Pieces", len(explanation.decoder_input.pieces)),
    ):
        shown.get_by_role("button", name=unit, exact=True).click()
        cells = shown.locator(".attention .matrix .cell")
        assert cells.count() == count * count
        for place, share in ((0, "100%"), (1, "0%"), (count - 1, "0%"), (2 * count - 1, "0%")):
            cells.nth(place).hover()
            assert shown.locator(".attention .said").inner_text().endswith(f"” {share}")
        cells.nth(count).hover()  # the second row has two to look at
        assert re.search(r"” [<>]?\d+\.\d%$", shown.locator(".attention .said").inner_text())
    shown.get_by_role("button", name="Encoder", exact=True).click()
    shown.locator(".attention .matrix .cell").nth(1).hover()  # what comes later is seen here
    assert re.search(r"” [<>]?\d+\.\d%$", shown.locator(".attention .said").inner_text())


def test_sixteen_heads_have_colours_of_their_own(shown: Page) -> None:
    colours = shown.evaluate("""["light", "dark"].map((scheme) => Array.from({ length: 16 }, (_, head) => {
      const one = document.createElement("i");
      one.style.cssText = `color-scheme: ${scheme}; color: var(--h${head})`;
      document.body.append(one);
      const found = getComputedStyle(one).color;
      one.remove();
      return found;
    }))""")
    assert [len(set(each)) for each in colours] == [16, 16]
    assert len(set(COLOURS)) == 16  # those of figures
    assert "const COLOURS = 16;" in static("explain.js")


def test_a_touched_screen_gets_hints_for_it(browser: Browser, explanation: Explanation, tmp_path: Path) -> None:
    with new_page(browser, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as page:
        show(page, explanation.html(), tmp_path)
        assert "Touch a word to see its links" in page.locator("#attention .lead").inner_text()
        assert not page.get_by_text("Point at").count() and not page.get_by_text("arrow keys").count()
        page.locator(".attention .row").nth(1).tap()
        page.locator(".attention .said", has_text="“animal” looks at").wait_for()
        page.get_by_role("button", name="Matrix", exact=True).tap()
        assert page.locator(".attention .said").inner_text() == "Touch a cell."


def test_the_keyboard_reaches_words_matrices_candidates_and_the_beam(shown: Page) -> None:
    shown.locator(".attention .row").first.focus()
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert shown.locator(".attention .said").inner_text().startswith("“animal” looks at")
    shown.keyboard.press("ArrowRight")
    assert "is looked at by" in shown.locator(".attention .said").inner_text()

    button = shown.get_by_role("button", name="Matrix", exact=True)
    button.focus()
    shown.keyboard.press("Enter")
    shown.locator(".attention .matrix svg").focus()
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("ArrowRight")
    assert shown.locator(".attention .said").inner_text().startswith("“animal” → “animal”")

    shown.locator(".step button").first.focus()
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("Enter")
    command = shown.locator("#words .said code").inner_text()
    assert command.startswith("regard explain -m MODEL '") and "street because it was too tired' --prefix 'a" in command

    shown.locator(".beam .node").first.focus()
    shown.keyboard.press("ArrowRight")
    assert shown.locator("#beam .said").inner_text().startswith("“a” kept, log-probability")


def test_the_kind_of_attention_keeps_the_keyboards_place(shown: Page) -> None:
    shown.get_by_role("button", name="Cross", exact=True).focus()
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.textContent") == "Cross"
    assert shown.locator(".tile").count() == 8
    assert "looks at the source" in shown.locator(".attention .note").first.inner_text()


def test_the_beam_shows_every_hypothesis_and_can_hide_the_dropped(shown: Page, explanation: Explanation) -> None:
    assert shown.locator(".beam .node").count() == len(explanation.beam)
    shown.get_by_label("show dropped").uncheck()
    kept = sum(node.fate != "dropped" for node in explanation.beam)
    assert shown.locator(".beam .node").count() == kept < len(explanation.beam)


def test_a_program_around_the_page_hears_which_piece_was_chosen(shown: Page, explanation: Explanation) -> None:
    shown.evaluate("""() => {
      const data = JSON.parse(document.getElementById("explanation").textContent);
      regardExplain.show(document.getElementById("explain"), data, (prefix, ends) => { window.heard = [prefix, ends]; });
    }""")
    assert any(step.text.startswith("<0x") for step in explanation.steps)  # bytes, of which the text has none
    place = sum(step.forced for step in explanation.steps)
    shown.locator(".step").nth(place).locator("button").first.click()
    assert shown.evaluate("window.heard")[0].startswith("a b süß")
    end = shown.locator(".step").last.locator("button").filter(has_text="</s>")
    end.click()
    assert shown.evaluate("window.heard") == [explanation.translation, True]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_its_window_and_can_be_read(
    browser: Browser, explanation: Explanation, tmp_path: Path, width: int, scheme: str
) -> None:
    with new_page(browser, viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        show(page, explanation.html(), tmp_path)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        ratio, where = lowest_contrast(page)
        assert ratio >= 4.5, where
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 246, 243)"
        assert light == (scheme == "light")
        assert unnamed(page) == []
        if width > 600:
            assert without_focus_mark(page) == []


@pytest.mark.slow
def test_no_payload_runs_with_the_policy_or_without_it(
    page: Page, as_both_sides: Callable[[str], Explanation], tmp_path: Path
) -> None:
    # The page alone must keep all of them out; with its policy, a few are enough.
    pages = [without_policy(as_both_sides(payload).html()) for payload in PAYLOADS]
    pages += [as_both_sides(payload).html() for payload in PAYLOADS[::5]]
    for payload, content in zip([*PAYLOADS, *PAYLOADS[::5]], pages, strict=True):
        show(page, content, tmp_path)
        assert page.evaluate("window.ran") is None, payload
        assert page.evaluate("document.querySelectorAll('script').length") == 2
        assert page.evaluate("document.querySelector('h1').textContent") == payload.strip()
        assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, link, base, form').length") == 0


def test_a_payload_that_is_let_in_would_be_noticed(page: Page, explainer: Explainer, tmp_path: Path) -> None:
    html = without_policy(explainer.explain("a b", OPTIONS).html())
    show(page, html.replace("<noscript>", "<script>alert(1)</script><noscript>"), tmp_path)
    assert page.evaluate("window.ran") is True


def test_a_notebooks_frame_draws_the_page(page: Page, explanation: Explanation, tmp_path: Path) -> None:
    show(page, f"<!doctype html><body>{explanation._repr_html_()}</body>", tmp_path)
    frame = page.frame_locator("iframe")
    assert frame.locator("h1").inner_text() == EXAMPLE

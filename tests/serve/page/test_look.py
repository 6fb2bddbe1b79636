"""The explain view of the page: it shows what the server computed, and decodes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import regard
from regard.explain.explanation import EXAMPLE, Explanation, by_words
from tests.serve.server import GOLDEN, running

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def model() -> regard.Model:
    return regard.load(GOLDEN, engine="torch")


def translation(page: Page) -> str:
    return page.locator("#explained p.sentence.target").inner_text()


def explain(page: Page, text: str, **fields: str) -> Page:
    page.get_by_role("link", name="Explain").click()
    page.get_by_label("Model").select_option(label="src → tgt")
    page.get_by_label("Sentence").fill(text)
    for name, value in fields.items():
        page.get_by_label(name.capitalize(), exact=True).fill(value)
    page.get_by_role("button", name="Explain").click()
    page.locator("#explained h1", has_text=text).wait_for()
    page.locator("#explained:not(.waiting)").wait_for()
    return page


def test_the_view_opens_with_the_example(page: Page) -> None:
    page.get_by_role("link", name="Explain").click()
    page.locator("#explained h1", has_text=EXAMPLE).wait_for()
    assert page.get_by_label("Sentence").input_value() == EXAMPLE
    assert page.get_by_label("Model").locator("option:checked").inner_text() == "English → German"
    assert page.title() == "Explain · Regard"


def test_it_shows_what_the_model_did(page: Page, model: regard.Model) -> None:
    explained = model.explain("a b c")
    explain(page, "a b c")
    assert translation(page) == explained.translation == "c b a"
    page.locator(".attention .row").nth(1).hover()
    row = by_words(_mean(explained), explained.source, explained.source)[1]
    best = max(range(len(row)), key=row.__getitem__)
    share = f"{row[best]:.1%}"
    page.locator(".attention .said", has_text=f"“b” looks at {explained.source.words[best]} {share}").wait_for()
    assert page.locator(".beam .node").count() == len(explained.beam)


def _mean(explained: Explanation) -> list[list[float]]:
    heads = explained.attention["encoder"][0]
    return [[sum(head[q][k] for head in heads) / len(heads) for k in range(len(row))] for q, row in enumerate(heads[0])]


def test_a_piece_is_forced_and_the_rest_decoded_again(page: Page, model: regard.Model) -> None:
    explain(page, "a b c")
    other = page.locator(".step").first.locator("button").nth(1)
    piece = other.locator("span").first.inner_text()
    other.click()
    page.get_by_text("The translation was forced to begin with").wait_for()
    assert translation(page) == model.explain("a b c", prefix=piece.removeprefix("·")).translation
    page.get_by_role("button", name="Back to the model's own").click()
    page.locator("#explained p.sentence.target", has_text="c b a").wait_for()


def test_a_word_is_written_over_and_the_rest_decoded_again(page: Page, model: regard.Model) -> None:
    explain(page, "a b c d")
    assert translation(page) == "d c b a"
    word = page.locator("#explained .sentence.target .word").nth(1)
    word.focus()
    page.keyboard.press("Enter")
    page.get_by_label("instead of c").fill("p")
    page.keyboard.press("Enter")
    page.get_by_text("begin with “d p”").wait_for()
    assert translation(page) == model.explain("a b c d", prefix="d p ").translation
    assert translation(page).split()[:2] == ["d", "p"]
    page.locator("#explained .sentence.target .word").first.click()
    page.keyboard.press("Escape")
    assert page.locator("#explained .edit").count() == 0


def test_a_given_translation_is_looked_at(page: Page, model: regard.Model) -> None:
    explain(page, "a b c", translation="c a")
    assert translation(page) == "c a"
    log_prob = model.explain("a b c", target="c a").log_prob
    assert f"log-probability −{-log_prob:.2f}" in page.locator(".facts").inner_text()


def test_the_translate_view_hands_its_sentence_over(page: Page) -> None:
    page.get_by_label("translate from").select_option("src")
    page.get_by_label("text to translate").fill("a b c\np o n")
    page.locator("#out .s").nth(1).locator(".w").first.focus()
    page.get_by_role("button", name="Explain").click()
    page.locator("#explained h1", has_text="p o n").wait_for()
    assert page.get_by_label("Model").locator("option:checked").inner_text() == "src → tgt"
    page.go_back()
    assert page.get_by_label("text to translate").input_value() == "a b c\np o n"


def test_what_is_too_long_is_said(refused_page: Page) -> None:
    page = refused_page
    page.get_by_role("link", name="Explain").click()
    page.get_by_label("Sentence").fill("a " * 200)
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("must have at most 128 pieces").wait_for()


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("blocked", name=name)
sys.meta_path.insert(0, Block())
"""


def test_without_torch_everything_else_works_and_one_line_says_what_is_missing() -> None:
    with running("--engine", "ctranslate2", code=BLOCK) as server:
        fields = {"q": "a b c", "source": "src", "target": "tgt"}
        assert server.post("/sentences", json=fields).json()["sentences"][0]["ways"][0]["text"] == "c b a"
        answer = server.post("/explain", json=fields)
        assert answer.status_code == 501
        assert answer.json() == {
            "error": "an explanation needs torch, which is not installed here; install it and restart the server"
        }


def test_torch_is_not_loaded_before_something_is_explained() -> None:
    told = "print('torch' in sys.modules, file=sys.stderr)"
    with running(code=f"import atexit, sys; atexit.register(lambda: {told})") as server:
        fields = {"q": "a b", "source": "src", "target": "tgt"}
        assert server.post("/sentences", json=fields).status_code == 200
        assert server.post("/alternatives", json=fields).status_code == 200
        assert server.stop()[-1] == "False"
    with running(code=f"import atexit, sys; atexit.register(lambda: {told})") as server:
        assert server.post("/explain", json=fields).status_code == 200
        assert server.stop()[-1] == "True"

"""The writing view: what a language model writes, other words for each word, attention; and what it asks the server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import regard
from regard.generate.engines.torch_engine import TorchEngine
from regard.layout import SequenceLayout
from regard.models.recording import reference_copy
from regard.nn.attention import Recorder
from tests import chat_models
from tests.browser import lowest_contrast, unnamed, without_focus_mark
from tests.serve.page.conftest import open_page
from tests.serve.server import PATIENCE, Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROMPT = "The dog"
LENGTH = 40  # of the view's shortest text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_models.write_model(tmp_path_factory.mktemp("write"), seed=9)[1]


@pytest.fixture(scope="module")
def model(folder: Path) -> regard.Model:
    return regard.load(folder, engine="torch")


@pytest.fixture(scope="module")
def writing(folder: Path) -> Iterator[Running]:
    with running("--limit", f"writing_seconds={PATIENCE}", "--engine", "torch", model=folder) as server:
        yield server


@pytest.fixture
def view(browser: Browser, writing: Running) -> Iterator[Page]:
    with open_page(browser, writing.url) as page:
        yield page


def write(page: Page, prompt: str = PROMPT) -> None:
    page.locator("#write-temperature").select_option(label="the likeliest")
    page.locator("#write-length").select_option(label="short")
    page.get_by_label("how the text begins").fill(prompt)
    page.get_by_role("button", name="Write", exact=True).click()
    page.get_by_role("button", name="Go on").wait_for()


def written(page: Page) -> str:
    text = page.locator("#written").text_content()
    assert text is not None
    return text


def test_a_server_with_a_language_model_opens_with_the_view(view: Page) -> None:
    assert view.title() == "Write · Regard"
    assert view.get_by_role("link", name="Translate", exact=True).count() == 0


def test_the_model_goes_on(view: Page, model: regard.Model) -> None:
    write(view)
    first = str(model.generate(PROMPT, temperature=0, max_tokens=LENGTH))
    assert written(view) == first.lstrip(" ")
    view.get_by_role("button", name="Go on").click()
    view.wait_for_function("(length) => document.getElementById('written').textContent.length > length", arg=len(first))
    view.get_by_role("button", name="Go on").wait_for()
    assert written(view).startswith(first.lstrip(" "))
    view.get_by_role("button", name="Copy").click()
    view.locator("#toast", has_text="Copied").wait_for()
    assert view.evaluate("navigator.clipboard.readText()").startswith(PROMPT + first)


def test_other_words_and_what_follows_them(view: Page, model: regard.Model) -> None:
    write(view)
    whole = written(view)
    word = view.locator("#written .w").nth(2)
    word.click()
    choice = view.locator("#popover li button[aria-pressed=false]").first
    chosen = choice.locator("span").first.inner_text()
    assert choice.locator("span").last.inner_text().endswith("%")
    before = view.evaluate("document.querySelectorAll('#written .w')[2].before")
    choice.click()
    view.get_by_role("button", name="Go on").wait_for()
    now = written(view)
    assert now != whole and now.startswith(before.rstrip()) and chosen in now[len(before.rstrip()) :][: len(chosen) + 1]


def test_writing_can_be_stopped(browser: Browser, writing: Running) -> None:
    with open_page(browser, writing.url) as page:
        page.route("**/v1/completions", lambda route: None)  # a server that takes its time
        page.get_by_label("how the text begins").fill(PROMPT)
        page.get_by_label("how the text begins").press("Control+Enter")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Write", exact=True).wait_for()


def test_attention_of_every_layer_and_head(view: Page) -> None:
    write(view)
    view.get_by_role("button", name="Attention").click()
    view.locator("#write-look .attention svg").first.wait_for()
    assert view.locator("#write-look .tile").count() == 2 * 2
    view.locator("#write-look .row").nth(1).hover()
    view.locator("#write-look .said", has_text="looks at").wait_for()


@pytest.mark.parametrize(("text", "share"), [("The dog", r"100%"), ("x y " * 45, r"[<>]?\d+\.\d%")])
def test_the_first_word_looks_at_itself_alone_unless_there_is_text_before_it(view: Page, text: str, share: str) -> None:
    """Of a long text the last pieces are drawn."""
    write(view, text)
    view.get_by_role("button", name="Attention").click()
    view.get_by_role("button", name="Matrix", exact=True).click()
    view.locator("#write-look .matrix .cell").first.hover()
    assert re.search(f"” {share}$", view.locator("#write-look .attention .said").inner_text())


def test_an_error_is_shown(browser: Browser, writing: Running) -> None:
    with open_page(browser, writing.url, is_refusal_expected=True) as page:
        reply = {
            "error": {"message": "too much is waiting; try again in 3 s", "type": "x", "param": None, "code": None}
        }
        page.route("**/v1/completions", lambda route: route.fulfill(status=429, json=reply))
        page.get_by_label("how the text begins").fill(PROMPT)
        page.get_by_role("button", name="Write", exact=True).click()
        page.get_by_role("alert").filter(has_text="Too much is waiting; try again in 3 s.").wait_for()


# --- chat ---


def chat(page: Page) -> None:
    page.locator("#write-temperature").select_option(label="the likeliest")
    page.locator("#write-length").select_option(label="short")
    page.get_by_role("button", name="Chat", exact=True).click()


def say(page: Page, text: str) -> None:
    page.get_by_label("your message").fill(text)
    page.get_by_label("your message").press("Enter")
    page.get_by_role("button", name="Send").wait_for()


def messages(page: Page) -> list[str]:
    return [
        text.removeprefix("You: ").removeprefix("The model: ")
        for text in page.locator("#chat-messages li").all_text_contents()
    ]


def test_a_chat_is_answered_and_kept(browser: Browser, writing: Running, model: regard.Model) -> None:
    """With the system prompt and all that was said before; a reload shows it again, and a new chat forgets it."""
    with open_page(browser, writing.url) as page:
        chat(page)
        assert not page.get_by_label("how the text begins").is_visible()
        page.get_by_text("System prompt").click()
        page.get_by_label("instructions").fill("Answer briefly.")
        said = [{"role": "system", "content": "Answer briefly."}]
        for question in ("How are you?", "<b>And</b> you?"):
            say(page, question)
            said.append({"role": "user", "content": question})
            said.append({"role": "assistant", "content": str(model.chat(said, temperature=0, max_tokens=LENGTH))})
        assert messages(page) == [one["content"] for one in said[1:]]
        page.reload()
        page.locator("#chat-messages li").nth(3).wait_for()
        assert messages(page) == [one["content"] for one in said[1:]]
        assert page.get_by_label("instructions").input_value() == "Answer briefly."
        page.get_by_role("button", name="New chat").click()
        assert messages(page) == [] and page.get_by_label("instructions").input_value()
        page.reload()
        page.get_by_label("your message").wait_for()
        assert messages(page) == []
        page.get_by_role("button", name="Text", exact=True).click()
        page.get_by_label("how the text begins").wait_for()


def test_an_answer_can_be_stopped_and_what_came_stays(browser: Browser, writing: Running) -> None:
    """Of an answer that has begun the beginning is kept; without one, the question can be sent again."""
    with open_page(browser, writing.url) as page:
        chat(page)
        page.evaluate(STALLED)
        page.get_by_label("your message").fill("Hello")
        page.get_by_role("button", name="Send").click()
        page.locator("#chat-messages .assistant", has_text="Good day").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Send").wait_for()
        assert messages(page) == ["Hello", "Good day"]
        page.route("**/v1/chat/completions", lambda route: None)
        page.evaluate("() => { window.fetch = window.plainFetch; }")
        page.get_by_label("your message").fill("And now?")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Send").wait_for()
        assert messages(page) == ["Hello", "Good day"]
        assert page.get_by_label("your message").input_value() == "And now?"


# A server that sends the beginning of an answer and then nothing, until the request is aborted.
STALLED = """() => { window.plainFetch = window.fetch;
  window.fetch = async (path, options) => new Response(new ReadableStream({ start(controller) {
    const part = { choices: [{ index: 0, delta: { role: "assistant", content: "Good day" }, finish_reason: null }] };
    controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(part)}\\n\\n`));
    options.signal.addEventListener("abort", () => controller.error(new DOMException("aborted", "AbortError"))); } })); }"""


def test_an_error_leaves_the_question_where_it_was(browser: Browser, writing: Running) -> None:
    with open_page(browser, writing.url, is_refusal_expected=True) as page:
        reply = {
            "error": {"message": "too much is waiting; try again in 3 s", "type": "x", "param": None, "code": None}
        }
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json=reply))
        chat(page)
        page.get_by_label("your message").fill("Hello")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("alert").filter(has_text="Too much is waiting; try again in 3 s.").wait_for()
        assert messages(page) == [] and page.get_by_label("your message").input_value() == "Hello"


def test_what_was_stored_by_somebody_else_is_ignored(browser: Browser, writing: Running) -> None:
    for stored in (
        "{",
        '{"messages": 3, "system": []}',
        '{"messages": [{"role": "system", "content": "x"}, null, {"role": "user"}]}',
        "null",
    ):
        with open_page(browser, writing.url) as page:
            page.evaluate("(text) => { localStorage.setItem('regard-chat', text); }", stored)
            page.reload()
            page.locator(".tabs [aria-current]").wait_for()
            chat(page)
            assert messages(page) == []


def store_chat(page: Page, *messages: tuple[str, str]) -> None:
    stored = {"system": "", "messages": [{"role": role, "content": content} for role, content in messages]}
    page.evaluate("(text) => { localStorage.setItem('regard-chat', text); }", json.dumps(stored))
    page.reload()
    page.locator(".tabs [aria-current]").wait_for()
    chat(page)


def test_a_stored_chat_begins_with_a_question(browser: Browser, writing: Running) -> None:
    """What is too long is cut between turns."""
    with open_page(browser, writing.url) as page:
        store_chat(page, ("assistant", "What?"), ("user", "Hello"), ("assistant", "Good day"))
        assert messages(page) == ["Hello", "Good day"]
        store_chat(page, ("user", "x" * 200_000), ("assistant", "y" * 99_990), ("user", "Hello"), ("assistant", "z"))
        page.evaluate(STALLED)
        page.get_by_label("your message").fill("And now?")
        page.get_by_role("button", name="Send").click()
        page.locator("#chat-messages .assistant", has_text="Good day").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Send").wait_for()
        kept = page.evaluate("JSON.parse(localStorage.getItem('regard-chat')).messages")
        assert [one["content"] for one in kept] == ["Hello", "z", "And now?", "Good day"]


def test_a_model_without_a_template_offers_no_chat(browser: Browser, tmp_path: Path, folder: Path) -> None:
    plain = chat_models.write_model(tmp_path, template=None, seed=9)[1]
    named = plain.rename(tmp_path / "plain")
    with (
        running("-m", str(folder), "--engine", "torch", model=named) as server,
        open_page(browser, server.url) as page,
    ):
        page.get_by_label("how the text begins").wait_for()
        for name, offers in (("plain", False), ("bundle", True)):
            page.get_by_label("Written by").select_option(name)
            assert page.get_by_role("button", name="Chat", exact=True).is_visible() == offers


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_the_chat_fits_and_can_be_read(browser: Browser, writing: Running, width: int, scheme: str) -> None:
    with open_page(browser, writing.url, viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        chat(page)
        page.get_by_text("System prompt").click()
        say(page, "word " * 9 + "W" * 60)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        ratio, where = lowest_contrast(page, "body")
        assert ratio >= 4.5, where
        assert unnamed(page) == []
        if width == 1280:
            assert without_focus_mark(page) == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_the_view_fits_and_can_be_read(browser: Browser, writing: Running, width: int, scheme: str) -> None:
    with open_page(browser, writing.url, viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        write(page)
        page.get_by_role("button", name="Attention").click()
        page.locator("#write-look .attention svg").first.wait_for()
        page.locator("#written .w").nth(1).click()
        page.locator("#popover li button").nth(2).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        ratio, where = lowest_contrast(page, "body")
        assert ratio >= 4.5, where
        assert unnamed(page) == []
        page.keyboard.press("Escape")
        if width == 1280:
            assert without_focus_mark(page) == []


# --- what it asks the server ---


def test_next_words_have_the_models_probabilities(writing: Running, model: regard.Model) -> None:
    for text in (PROMPT, "A cat sat on the", ""):
        found = writing.post("/write/words", json={"model": "bundle", "text": text, "count": 6}).json()["words"]
        assert 1 < len(found) <= 6
        values = [one["probability"] for one in found]
        assert values == sorted(values, reverse=True)
        ids = model.writer.prompt_ids(text)
        matches = 0
        for one in found:
            for spelled in (f" {one['word']}", one["word"]):
                own = model.bundle.tokenizer.encode(spelled, "target")
                [scored] = model.engine.score([ids or [model.bundle.tokenizer.document_start]], [own])
                matches += math.isclose(math.exp(sum(scored[:-1])), one["probability"], rel_tol=1e-3)
        assert matches >= len(found) / 2, "words that are spelled in the likeliest way"


@torch.inference_mode()
def test_attention_is_what_the_model_computes(writing: Running, model: regard.Model) -> None:
    text = "The dog is here."
    found = writing.post("/write/attention", json={"model": "bundle", "text": text}).json()
    ids = model.writer.prompt_ids(text)
    assert [piece["id"] for piece in found["decoder_input"]["pieces"]] == ids
    assert isinstance(model.engine, TorchEngine)
    recorder = Recorder()
    reference_copy(model.engine.model).decode(
        torch.tensor(ids), SequenceLayout.from_lengths([len(ids)]), None, None, recorder
    )
    for layer in range(2):
        expected = recorder.weights[f"decoder.{layer}.self"][0]
        assert torch.allclose(torch.tensor(found["attention"]["decoder"][layer]), expected, atol=1e-3)
    long = writing.post("/write/attention", json={"model": "bundle", "text": "x y " * 45}).json()
    assert long["pieces"]["shown"] == len(long["decoder_input"]["pieces"]) == 128 < long["pieces"]["of"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        (
            "/write/words",
            {"model": "other", "text": "x"},
            404,
            "model must be a language model that is served here: bundle",
        ),
        ("/write/words", {"model": "bundle"}, 422, "text is missing"),
        (
            "/write/words",
            {"model": "bundle", "text": "x", "count": 99},
            422,
            "count must be an integer between 1 and 20",
        ),
        ("/write/words", {"model": "bundle", "text": "x y " * 450}, 400, "a prompt must have fewer than 256 tokens"),
        ("/write/attention", {"model": "bundle", "text": "x y " * 450}, 400, "text must have at most 256 tokens"),
    ],
)
def test_wrong_requests_are_refused(
    writing: Running, path: str, fields: dict[str, object], status: int, message: str
) -> None:
    answer = writing.post(path, json=fields)
    assert answer.status_code == status and message in answer.json()["error"]

"""The view of models without a decoder, and the data behind it: what the library explains, through the same gate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import regard
from regard.api import Model
from regard.bundle import Bundle
from regard.explain.page import page_data
from regard.serve.keys import add_key
from tests.browser import lowest_contrast, unnamed, without_focus_mark
from tests.explain.encoder_models import MAKERS
from tests.explain.payloads import PAYLOADS
from tests.serve.page.conftest import open_page
from tests.serve.server import Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TEXT = "we saw a dog today"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """A model of each task, by its name on the server, which is that of its folder."""
    bundles: dict[str, Bundle] = {task: make(tmp_path_factory.mktemp(task))[1] for task, make in MAKERS.items()}
    folders = {task: one.folder.rename(one.folder.parent / f"my-{task}") for task, one in bundles.items()}
    return {folder.name: regard.load(folder, engine="torch", device="cpu") for folder in folders.values()}


@pytest.fixture(scope="module")
def server(models: dict[str, Model]) -> Iterator[Running]:
    """Encoders and nothing else."""
    given = [word for model in models.values() for word in ("-m", str(model.bundle.folder))]
    with running(*given, "--limit", "characters=2000", model=None) as one:
        yield one


def as_sent(found: Any) -> Any:
    return json.loads(json.dumps(page_data(found)))


def test_explanations_are_those_of_the_library(server: Running, models: dict[str, Model]) -> None:
    asked: list[tuple[str, Any, dict[str, Any]]] = [
        ("my-classify", TEXT, {}),
        ("my-classify", ["we saw a cat", "tea"], {"label": "food"}),
        ("my-tag", TEXT, {"at": 2, "label": "B-X"}),
        ("my-fill", "we saw ___ today", {"token": "the"}),
        ("my-embed", ["a cat", "a dog"], {}),
        ("my-embed", "a cat " * 40, {"window": 2}),
    ]
    for name, text, options in asked:
        answer = server.post("/explain", json={"q": text, "model": name, **options})
        assert answer.status_code == 200, answer.text
        wanted = models[name].explain(text if isinstance(text, str) else tuple(text), **options)
        ours, theirs = answer.json(), as_sent(wanted)
        assert ours["readings"] == theirs["readings"] and ours["note"] == theirs["note"]
        assert ours["predictions"] == theirs["predictions"] and ours["attributions"] == theirs["attributions"]
        assert ours["similarity"] == theirs["similarity"]
    form = server.post("/explain", data={"q": TEXT, "model": "my-tag", "at": "2"})
    assert form.json()["attributions"][0]["prediction"] == 1


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"q": TEXT},
        404,
        "model must be one without a decoder that is served here: my-classify, my-embed, my-fill, my-tag",
    ),
    ({"q": TEXT, "model": "other"}, 404, "model must be one without a decoder"),
    ({"q": TEXT, "model": "my-tag", "source": "en"}, 400, "source is for models that translate"),
    ({"q": TEXT, "model": "my-tag", "translation": "x"}, 400, "translation is for models that translate"),
    ({"q": TEXT, "model": "my-tag", "window": 2}, 400, "window is for models of the task classify or embed"),
    ({"q": TEXT, "model": "my-classify", "label": "sport"}, 400, "label must be one that this model has: animal, food"),
    ({"q": TEXT, "model": "my-tag", "at": 0}, 422, "at must be an integer, 1 or more"),
    ({"q": TEXT, "model": "my-tag", "at": 9}, 400, "at must be between 1 and 5, the number of words, but is 9"),
    ({"q": [TEXT], "model": "my-classify"}, 422, "q must be one sentence"),
    ({"q": [TEXT, TEXT], "model": "my-tag"}, 400, "reads one text, but got two"),
    ({"q": "", "model": "my-tag"}, 422, "q must be one sentence"),
    ({"q": " ", "model": "my-tag"}, 400, "there is no text to explain"),
    ({"q": "no blank", "model": "my-fill"}, 400, "must have a blank"),
    ({"q": ["a" * 1000, "b" * 1001], "model": "my-classify"}, 413, "at most 2000 characters"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED, ids=[f"{s} {m[:30]}" for _, s, m in REFUSED])
def test_what_is_wrong_is_named(server: Running, body: dict[str, Any], status: int, message: str) -> None:
    answer = server.post("/explain", json=body)
    assert answer.status_code == status and message in answer.json()["error"], answer.text


def test_one_encoder_needs_no_name_and_keys_are_needed_where_there_are_keys(
    models: dict[str, Model], tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys", "mine")
    with running("--keys", str(tmp_path / "keys"), model=models["my-classify"].bundle.folder) as server:
        assert server.post("/explain", json={"q": TEXT}).status_code in (401, 403)
        answer = server.post("/explain", json={"q": TEXT, "api_key": key})
        assert answer.status_code == 200 and answer.json()["attributions"][0]["answer"] == "animal"
        assert server.get("/frontend/settings").json()["encoders"] == {
            "my-classify": {"task": "classify", "texts": [1, 2]}
        }


# --- the view ---


def read(page: Page, name: str, text: str, second: str = "") -> None:
    page.get_by_label("Read by").select_option(name)
    page.locator("#read-button:not(:disabled)").wait_for()
    page.get_by_label("Text", exact=True).fill(text)
    if page.locator("#read-second").is_visible():
        page.locator("#read-second").fill(second)
    with page.expect_response("**/explain"):
        page.get_by_role("button", name="Read", exact=True).click()
    page.locator("#read-button:not(:disabled)").wait_for()


def test_labels_are_shown_with_the_words_that_decided(
    browser: Browser, server: Running, models: dict[str, Model]
) -> None:
    with open_page(browser, server.url) as page:
        assert page.locator(".tabs a:visible").all_inner_texts() == ["Labels"]
        read(page, "my-classify", "We saw a Dog today")
        wanted = models["my-classify"].explain("We saw a Dog today")
        assert page.locator("#predictions .step.only li").count() == 3
        assert page.locator("#predictions [aria-pressed=true]").inner_text().startswith("animal")
        assert page.locator("#read-out .facts .answer").inner_text().startswith("animal 9")
        first = page.locator("#decided tr").first
        part = max(wanted.by_words(wanted.attributions[0]))
        assert first.inner_text().split() == ["Dog", f"+{part:.2f}"]
        shares = page.locator("#read-out h1 .word").evaluate_all(
            "all => all.map((one) => one.style.getPropertyValue('--share'))"
        )
        assert shares[3] == "45%" and page.locator("#read-out h1 .word").nth(3).inner_text() == "Dog"
        page.locator("#predictions button", has_text="other").click()
        page.locator("#read-out .facts .answer", has_text="other").wait_for()
        assert page.locator("#read-out h1 .word.against").first.is_visible()
        read(page, "my-classify", "we saw a cat", "the tea is here")
        assert page.locator("#read-out .sentence").all_inner_texts() == ["we saw a cat", "the tea is here"]


def test_the_view_starts_empty_for_labels_and_with_an_example_for_vectors(browser: Browser, server: Running) -> None:
    with open_page(browser, server.url) as page:
        text, second = page.locator("#read-text"), page.locator("#read-second")
        for name, shown in (("my-classify", "a text to label"), ("my-tag", "a text whose words get tags")):
            page.get_by_label("Read by").select_option(name)
            assert (text.input_value(), second.input_value()) == ("", "")
            assert text.get_attribute("placeholder") == shown
            assert page.locator("#read-said").inner_text() == "" and page.locator("#read-out > *").count() == 0
        page.get_by_label("Read by").select_option("my-embed")
        assert text.input_value() and second.input_value()
        page.get_by_role("button", name="Read", exact=True).click()
        page.locator("#pairs").wait_for()
        page.get_by_label("Read by").select_option("my-classify")
        assert text.input_value() == "" and page.locator("#read-out > *").count() == 0
        text.fill(TEXT)
        page.get_by_label("Read by").select_option("my-tag")
        assert text.input_value() == TEXT


def test_examples_stand_in_both_fields_or_in_none(browser: Browser, server: Running) -> None:
    with open_page(browser, server.url) as page:
        model, text, second = page.get_by_label("Read by"), page.locator("#read-text"), page.locator("#read-second")

        def values() -> tuple[str, str]:
            return text.input_value(), second.input_value()

        model.select_option("my-embed")
        examples = values()
        assert all(examples)
        model.select_option("my-fill")
        assert "___" in values()[0] and values()[1] == ""
        model.select_option("my-tag")
        text.fill(TEXT)
        model.select_option("my-embed")
        assert values() == (TEXT, "")  # the text of the user is not compared with an example
        model.select_option("my-classify")
        text.fill("")
        model.select_option("my-embed")
        assert values() == examples
        text.fill(TEXT)
        model.select_option("my-classify")
        assert values() == (TEXT, "")  # nor with the example of another model that was left beside it
        model.select_option("my-embed")
        assert values() == (TEXT, "")
        second.fill("my own")
        model.select_option("my-tag")
        model.select_option("my-embed")
        assert values() == (TEXT, "my own")


def test_the_answer_of_another_model_goes(browser: Browser, server: Running) -> None:
    with open_page(browser, server.url) as page:
        asks = "Write ___ where a word is missing."
        read(page, "my-tag", TEXT)
        page.locator("#predictions").wait_for()
        page.get_by_label("Read by").select_option("my-fill")
        assert page.locator("#read-said").inner_text() == asks and page.locator("#read-out > *").count() == 0
        page.get_by_label("Read by").select_option("my-tag")
        page.locator("#predictions").wait_for()
        page.route("**/explain", lambda route: None)  # a server that takes its time
        page.get_by_role("button", name="Read", exact=True).click()
        page.locator("#read-button:disabled").wait_for()
        page.get_by_label("Read by").select_option("my-fill")
        # Nothing is asked any more, so no late answer takes the place of what is said.
        assert page.locator("#read-said").inner_text() == asks and page.locator("#read-out > *").count() == 0
        assert page.locator("#read-button").is_enabled() and page.locator("#read-out.waiting").count() == 0


def test_tags_blanks_and_similar_words(browser: Browser, server: Running, models: dict[str, Model]) -> None:
    with open_page(browser, server.url) as page:
        read(page, "my-tag", TEXT)
        tags = models["my-tag"].tag(TEXT)
        assert page.locator("#predictions .step header").all_inner_texts() == list(tags.words)
        assert page.locator("#read-out h1 .word.asked").count() == 1
        [grey] = page.locator("#predictions .grey").all_inner_texts()
        assert grey == "Grey: which words decided is computed when you choose it."
        page.locator("#predictions .step").nth(2).locator(
            "button"
        ).last.click()  # the least likely tag of the third word
        page.locator("#predictions .step").nth(2).locator("[aria-pressed=true]").wait_for()
        assert page.locator("#read-out .facts").inner_text().startswith("“a”: ")
        assert not page.locator("#read-second").is_visible()
        page.get_by_label("Read by").select_option("my-fill")
        assert page.locator("#read-said").inner_text() == "Write ___ where a word is missing."
        read(page, "my-fill", "we ___ a dog")
        filled = models["my-fill"].fill("we ___ a dog")
        assert (
            page.locator("#predictions .step li").first.inner_text().split()[0].strip("·") == filled.blanks[0][0].text
        )
        read(page, "my-embed", "a cat sat", "the dog sat")
        cosine = models["my-embed"].explain(("a cat sat", "the dog sat")).similarity.cosine
        assert page.locator("#read-out .facts .answer").inner_text() == f"cosine {cosine:.3f}".replace("-", "−")
        page.locator("#pairs svg").focus()
        page.keyboard.press("ArrowDown")
        assert "→" in page.locator("#pairs .said").inner_text()
        assert page.locator("#read-out .heads").count() == 2


@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("name", ["my-classify", "my-tag", "my-fill", "my-embed"])
def test_the_view_fits_and_can_be_read(browser: Browser, server: Running, name: str, width: int) -> None:
    text, second = {"my-fill": ("The ___ sat on the mat", "")}.get(name, ("The cat sat on the mat.", "a dog"))
    with open_page(browser, server.url, viewport={"width": width, "height": 844}, color_scheme="light") as page:
        read(page, name, text, second)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("""() => Promise.allSettled(document.getAnimations()
              .filter((one) => one instanceof CSSTransition).map((one) => one.finished))""")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            ratio, where = lowest_contrast(page, "body")
            assert ratio >= 4.5, where
        assert unnamed(page) == []
        if width == 1280:
            assert without_focus_mark(page) == []


def test_no_payload_runs_as_a_text_or_as_a_label(browser: Browser, server: Running) -> None:
    with open_page(browser, server.url, bypass_csp=True, is_refusal_expected=True) as page:
        page.add_init_script("window.alert = () => { window.ran = true; };")
        page.reload()
        read(page, "my-classify", TEXT)
        scripts = page.evaluate("document.querySelectorAll('script').length")
        for payload in PAYLOADS[::7]:
            read(page, "my-classify", " ".join(payload.split()), payload)
            assert page.locator("#read-out .sentence").count() == 2
        # A label and a message of a server that lies.
        data = server.post("/explain", json={"q": TEXT, "model": "my-tag"}).json()
        for prediction, payload in zip(data["predictions"], PAYLOADS, strict=False):
            prediction["candidates"][0]["text"] = payload
        data["note"] = data["method"] = data["attributions"][0]["answer"] = PAYLOADS[0]
        page.route("**/explain", lambda route: route.fulfill(json=data))
        page.get_by_role("button", name="Read", exact=True).click()
        page.locator("#predictions", has_text=PAYLOADS[1]).wait_for()
        assert page.evaluate("window.ran") is None
        assert page.evaluate("document.querySelectorAll('script').length") == scripts
        assert page.evaluate("document.querySelectorAll('main img, iframe, object, embed, base').length") == 0

"""The page of an encoder's explanation: complete in itself, what stands in it is the data, and nothing in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.bundle import Bundle
from regard.explain.encoder_explainer import EncoderExplainer
from regard.explain.explanation import CAUTION
from regard.explain.page import render_page, static
from tests.browser import lowest_contrast, new_page, unnamed
from tests.explain.payloads import PAYLOADS, without_policy
from tests.explain.test_page import ELEMENTS, Reader

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_SCRIPTS = ("explain.js", "explain_encoder.js")


@pytest.fixture(scope="module")
def explainers(encoder_models: dict[str, tuple[Path, Bundle]]) -> dict[str, EncoderExplainer]:
    return {task: EncoderExplainer(bundle) for task, (_, bundle) in encoder_models.items()}


def check_inert(page: str) -> dict[str, Any]:
    """The embedded data, after a look at everything around it."""
    read = Reader(page)
    assert [tag for tag, _ in read.elements] == [*ELEMENTS, "script"] and not read.comments
    for _, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    data, *scripts = read.texts("script")
    assert scripts == [static(name) for name in _SCRIPTS] and read.texts("style") == [static("explain.css")]
    allowed = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    [policy] = [a["content"] for tag, a in read.elements if tag == "meta" and "http-equiv" in a]
    style = f"'sha256-{_hash(static('explain.css'))}'"
    assert policy == f"default-src 'none'; script-src {allowed}; style-src {style}; base-uri 'none'; form-action 'none'"
    assert not set("<>&\u2028\u2029\0") & set(data)
    document: dict[str, Any] = json.loads(data)
    return document


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.parametrize("payload", PAYLOADS[::3])
def test_payloads_stay_text(explainers: dict[str, EncoderExplainer], payload: str) -> None:
    for task, text in (("classify", (payload, payload)), ("tag", payload), ("embed", (payload, "a cat"))):
        document = check_inert(render_page(explainers[task].explain(text)))
        assert document["text"].startswith(payload.strip())
        [reading, *_] = document["readings"]
        if task == "tag":
            [own] = reading["texts"]
            words = "".join(reading["side"]["words"][own["start"] : own["stop"]])
            assert words and bare(payload).startswith(words) and words == bare(own["text"])
            assert reading["windows"] > 1 or own["text"] == payload.strip()


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_the_script_never_writes_markup_and_never_calls_out() -> None:
    script = static("explain_encoder.js")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(",
                 "XMLHttpRequest", "import(", "</script", "<!--", 'setAttribute("style"', "http"):  # fmt: skip
        assert word not in script


def test_the_data_is_the_explanation_in_four_digits(explainers: dict[str, EncoderExplainer]) -> None:
    found = explainers["classify"].explain("we saw a dog")
    document = check_inert(render_page(found))
    assert document["attributions"][0]["pieces"] == pytest.approx(found.attributions[0].pieces, abs=5.1e-5)
    assert document["readings"][0]["attention"][1][0][2] == pytest.approx(
        found.readings[0].attention[1][0][2], abs=5.1e-5
    )
    assert document["caution"] == CAUTION and document["method"] == found.method and document["note"] == ""
    [(tag, attributes)] = Reader(found._repr_html_()).elements
    assert tag == "iframe" and attributes["sandbox"] == "allow-scripts" and attributes["srcdoc"] == found.html()


def show(page: Page, html: str, folder: Path) -> None:
    (folder / "page.html").write_text(html, encoding="utf-8")
    page.goto((folder / "page.html").as_uri())


@pytest.mark.parametrize("task", ["classify", "tag", "fill", "embed"])
def test_a_page_draws_every_task(
    browser: Browser, explainers: dict[str, EncoderExplainer], tmp_path: Path, task: str
) -> None:
    texts: dict[str, Any] = {
        "fill": "We saw a ___",
        "embed": ("We saw a Cat", "the dog sat"),
        "tag": "we saw a dog " * 30,
    }
    found = explainers[task].explain(texts.get(task, "We saw a Dog"))
    noted: list[str] = []
    with new_page(browser, viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.on("console", lambda message: noted.append(message.text) if message.type == "error" else None)
        show(page, found.html(), tmp_path)
        titles = page.get_by_role("heading", level=2).all_inner_texts()
        first = {"classify": "Labels", "tag": "Tags", "fill": "Blanks", "embed": "Pairs of words"}[task]
        assert titles[0] == first and titles[-1].startswith("Attention")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        ratio, where = lowest_contrast(page)
        assert ratio >= 4.5 and unnamed(page) == [], where
        grey = page.locator("#predictions .grey").all_inner_texts()
        assert len(grey) == bool(page.locator("#predictions .plain-row").count())
        if task == "tag":
            said = "Grey: not computed here; regard explain --at N --label TAG computes which words decided."
            assert grey == [said]
            assert page.locator("#predictions .grey code").inner_text() == "regard explain --at N --label TAG"
            assert "this is part 1 of" in page.locator(".said-window").inner_text()
        else:
            assert page.locator(".said-window").count() == 0
        if task == "embed":  # the counterparts of a word
            page.locator("h1 .word").first.hover()
            shares = page.locator("p.read .word").evaluate_all(
                "all => all.map((one) => one.style.getPropertyValue('--share'))"
            )
            pairs = found.word_pairs()[1]
            best = max(range(1, 4), key=lambda word: abs(pairs[word]))
            assert shares[best - 1] == "45%"
            assert page.locator("p.read").count() == 1 and page.locator("h1").inner_text() == "We saw a Cat"
    assert noted == []


def test_no_payload_runs_without_the_policy(
    browser: Browser, explainers: dict[str, EncoderExplainer], tmp_path: Path
) -> None:
    with new_page(browser) as page:
        page.add_init_script("window.alert = () => { window.ran = true; };")
        for payload in PAYLOADS[::4]:
            show(page, without_policy(explainers["tag"].explain(payload).html()), tmp_path)
            page.locator("h1").wait_for()
            assert page.evaluate("window.ran") is None, payload
            assert page.evaluate("document.querySelectorAll('script').length") == 3
            assert (
                page.evaluate("document.querySelectorAll('img, iframe, object, embed, link, base, form').length") == 0
            )
        let_in = without_policy(explainers["tag"].explain("a cat").html())
        show(page, let_in.replace("<noscript>", "<script>alert(1)</script><noscript>"), tmp_path)
        assert page.evaluate("window.ran") is True  # it would be noticed

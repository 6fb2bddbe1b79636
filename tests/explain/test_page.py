"""The page: complete in itself, and nothing that people write in it becomes markup."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from regard.explain.explainer import Explainer
from regard.explain.explanation import CAUTION, Explanation
from regard.explain.page import render_frame, render_page, static
from regard.generate.options import SearchOptions
from tests.explain.payloads import PAYLOADS

OPTIONS = SearchOptions(beam=2, max_extra=2)


class Reader(HTMLParser):
    """Elements with their attributes, and what stands inside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style", "title"):
            self.inside.append((self._open, data))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def texts(self, tag: str) -> list[str]:
        return [data for name, data in self.inside if name == tag]


# What the page is made of, in this order, whatever is explained.
ELEMENTS = "html head meta meta meta meta meta title style body div noscript script script".split()


def check_inert(page: str) -> dict:
    """The embedded data, after a look at everything around it."""
    read = Reader(page)
    assert [tag for tag, _ in read.elements] == ELEMENTS
    assert not read.comments
    for _, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    data, script = read.texts("script")
    assert script == static("explain.js")
    assert read.texts("style") == [static("explain.css")]
    assert read.texts("title") == ["Regard"]
    assert not set("<>&\u2028\u2029\0") & set(data)
    document: dict = json.loads(data)
    return document


def test_there_are_fifty_different_payloads() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) >= 50


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_as_source_and_target_stay_text(
    explainer: Explainer, as_both_sides: Callable[[str], Explanation], payload: str
) -> None:
    document = check_inert(render_page(as_both_sides(payload)))
    assert document["text"] == document["translation"] == payload.strip()
    assert re.sub(r"\s", "", "".join(document["source"]["words"][:-1])) == re.sub(r"\s", "", payload)
    document = check_inert(render_page(explainer.explain("a b", OPTIONS, prefix=payload)))
    assert document["translation"].startswith(payload.strip()[:5])


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_as_names_of_languages_stay_text(as_both_sides: Callable[[str], Explanation], payload: str) -> None:
    explanation = as_both_sides("a")
    facts = dataclasses.replace(explanation.model, source=payload, target=payload)
    document = check_inert(render_page(dataclasses.replace(explanation, model=facts)))
    assert document["model"]["source"] == document["model"]["target"] == payload


def test_the_check_finds_markup_that_gets_through(explainer: Explainer) -> None:
    page = render_page(explainer.explain("needle", OPTIONS))
    for payload in ("</script><script>alert(1)</script>", "</script><img src=x>", "</script><p onclick=alert(1)>"):
        with pytest.raises(AssertionError):
            check_inert(page.replace('"text":"needle"', f'"text":"{payload}"'))
    with pytest.raises(AssertionError):
        check_inert(page.replace("<body>", "<body onload=alert(1)>"))


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(explainer: Explainer) -> None:
    read = Reader(render_page(explainer.explain("a b c", OPTIONS)))
    policies = [a["content"] for tag, a in read.elements if tag == "meta" and "http-equiv" in a]
    script, style = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (read.texts("script")[1], read.texts("style")[0])
    )
    assert policies == [
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    ]


def test_the_script_never_writes_markup_and_never_calls_out() -> None:
    script, style = static("explain.js"), static("explain.css")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch(",
                 "XMLHttpRequest", "import(", "</script", "<!--", 'setAttribute("style"'):  # fmt: skip
        assert word not in script
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nobody fetches
    assert "url(" not in style and "@import" not in style and "</style" not in style


def test_the_data_is_the_explanation_in_four_digits(explainer: Explainer) -> None:
    explanation = explainer.explain("The cat sat on the mat.", OPTIONS)
    document = check_inert(render_page(explanation))
    exact = explanation.to_json()
    for layer, shown in zip(exact["attention"]["cross"], document["attention"]["cross"], strict=True):
        for head, other in zip(layer, shown, strict=True):
            assert other == [pytest.approx(row, abs=5.1e-5) for row in head]
    for name in ("text", "translation", "source", "target", "steps", "beam", "heads", "alignment"):
        assert document[name] == exact[name]
    assert document["caution"] == CAUTION and document["saliency_method"].startswith("gradient × input")


def test_a_notebook_gets_a_frame_that_cannot_reach_out_of_itself(explainer: Explainer) -> None:
    explanation = explainer.explain(PAYLOADS[1], OPTIONS)
    [(tag, attributes)] = Reader(explanation._repr_html_()).elements
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == explanation.html()
    assert render_frame(explanation) == explanation._repr_html_()
    assert isinstance(explanation, Explanation)

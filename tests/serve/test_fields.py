"""Where the fields of a request may be, and what is said about those that are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from regard.serve.limits import Limits
from regard.serve.service import Service
from tests.serve.server import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


FIELDS = {"q": "a b c", "source": "src", "target": "tgt"}
PARTS = [(name, (None, value)) for name, value in FIELDS.items()]


@pytest.mark.parametrize(
    "sent",
    [
        {"params": FIELDS},
        {"params": FIELDS, "headers": {"content-type": "application/x-www-form-urlencoded"}},
        {"data": FIELDS},
        {"files": PARTS},  # as a browser's FormData
        {"json": {"q": "a b c"}, "params": {"source": "src", "target": "tgt"}},
        {"data": {"q": "a b c"}, "params": {"source": "src", "target": "tgt"}},
    ],
)
def test_fields_may_be_in_the_query_or_the_body(server: Running, sent: dict[str, Any]) -> None:
    answer = server.post("/translate", **sent)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": "c b a"})


def test_a_repeated_field_is_a_list_wherever_it_is(server: Running) -> None:
    languages = {"source": "src", "target": "tgt"}
    several = {"q": ["a b", "c d"], **languages}
    parts = [("q", (None, "a b")), ("q", (None, "c d")), *((name, (None, value)) for name, value in languages.items())]
    for sent in ({"params": several}, {"data": several}, {"files": parts}):
        assert server.post("/translate", **sent).json() == {"translatedText": ["b a", "d c"]}


@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        ("/translate", {"json": FIELDS, "params": {"q": "SECRET"}}, "q is in the query and in the body; send it once"),
        ("/translate", {"params": {**FIELDS, "glosary": "SECRET"}}, "glosary is not a field .* did you mean glossary"),
        ("/translate", {"json": {**FIELDS, "Format": "SECRET"}}, "Format is not a field .* did you mean format"),
        ("/translate", {"json": {"q": "a", "source": "src", "targt": "SECRET"}}, "targt is not .* did you mean target"),
        ("/translate", {"json": {**FIELDS, "zzz": "SECRET"}}, "zzz is not a field .*; leave it out; the fields are gloss"),
        ("/translate", {"json": {**FIELDS, "my SECRET": 1}}, "a name that was sent is not a field"),
        ("/translate?q=%ff", {}, "the query must be a form in UTF-8"),
        ("/translate", {"data": FIELDS, "files": {"file": b"SECRET"}}, "at most 1000 fields and no file"),
        ("/translate_file", {"data": {"taget": "SECRET"}, "files": {"file": ("a.txt", b"a")}}, "did you mean target"),
        ("/v2/translate", {"json": {"text": "a", "target": "SECRET"}}, "target is not .* did you mean target_lang"),
        ("/v2/translate", {"json": {"text": "a", "target_lang": "SECRET"}}, "^target_lang must be a language"),
        ("/v2/translate", {"json": {"text": "a", "target_lang": "tgt", "source_lang": "XX"}}, "^source_lang must be"),
        ("/v2/translate", {"json": {"text": "a", "target_lang": "tgt", "formality": "less"}}, "^formality must be"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_as_it_was_sent(server: Running, path: str, sent: dict[str, Any], message: str) -> None:
    answer = server.post(path, **sent)
    ((_, said),) = answer.json().items()
    assert answer.status_code == 400 and re.search(message, said), said
    assert "SECRET" not in answer.text


def test_the_model_type_is_reported_if_it_was_asked_for(server: Running) -> None:
    def model_type(**fields: str) -> Any:
        answer = server.post("/v2/translate", json={"text": "a b", "target_lang": "tgt", **fields})
        return answer.json()["translations"][0].get("model_type_used")

    assert model_type() is None
    assert model_type(model_type="latency_optimized") == "latency_optimized"
    assert model_type(model_type="quality_optimized") == "quality_optimized"
    assert model_type(model_type="prefer_quality_optimized") == "quality_optimized"
    bad = server.post("/v2/translate", json={"text": "a", "target_lang": "tgt", "model_type": "best"})
    assert bad.status_code == 422 and bad.json()["message"].startswith("model_type must be latency_optimized")


def test_the_specification_is_where_libretranslate_has_it(server: Running) -> None:
    assert server.get("/spec").json() == server.get("/openapi.json").json()


def service_into_french(*sources: str) -> Service:
    models: list[Any] = [SimpleNamespace(bundle=SimpleNamespace(source=code, target="fr")) for code in sources]
    for model in models:
        model.of_each_direction = lambda model=model: [model]
    return Service(models, Limits())


def test_a_detected_language_is_served_under_any_of_its_codes() -> None:
    """The classifier says "no" of all Norwegian."""
    for others in ((), ("en",), ("da", "en")):
        _, found = service_into_french("nb", *others).detect_for("Katten sover på kjøkkenbordet hver eneste dag.", "fr")
        assert found.language == "nb" and found.confidence > 50


def test_the_context_decides_the_language_of_a_text_that_is_too_short() -> None:
    service = service_into_french("de", "en")
    german = "Der Vertrag wurde gestern von beiden Seiten unterschrieben und liegt nun vor."
    english = "The contract was signed by both parties yesterday and is now on the table."
    for text in ("Hand", "Wind", "12"):
        assert service.detect_for(text, "fr", german)[1].language == "de"
        assert service.detect_for(text, "fr", english)[1].language == "en"
    assert service.detect_for(german, "fr", english)[1].language == "de"  # what is clear needs no context

"""Both APIs over real HTTP; other people's clients are in `test_clients.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import GOLDEN, Running, running
from tests.test_catalogue import copy_model


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


def translate(server: Running, q: object, **fields: object) -> Any:
    answer = server.post("/translate", json={"q": q, "source": "src", "target": "tgt", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_and_a_list_of_texts(server: Running) -> None:
    assert translate(server, "a b c") == {"translatedText": "c b a"}
    assert translate(server, ["a b c", "", "p o n m"]) == {"translatedText": ["c b a", "", "m n o p"]}
    assert translate(server, []) == {"translatedText": []}


def test_the_shape_of_a_text_is_kept(server: Running) -> None:
    assert translate(server, "  a b c\n\n\tp o\r\n---\n") == {"translatedText": "  c b a\n\n\to p\r\n---\n"}


def test_alternatives_differ_from_the_best_and_from_each_other(server: Running) -> None:
    answer = translate(server, "a b c d", alternatives=3)
    assert len({answer["translatedText"], *answer["alternatives"]}) == 4
    answers = translate(server, ["a b", "c d e"], alternatives=1)
    assert [len(others) for others in answers["alternatives"]] == [1, 1]


def test_alignments_say_which_words_go_together(server: Running) -> None:
    text = "  a b c d\n\n\tp o n m\r\n---\n"
    answer = translate(server, text, alignments=True)
    result = answer["translatedText"]
    assert result == "  d c b a\n\n\tm n o p\r\n---\n"
    words = answer["alignments"]
    pairs = [(text[slice(*words["source"][i])], result[slice(*words["target"][j])]) for i, j in words["pairs"]]
    assert pairs == [
        (letter, letter) for letter in "dcbamnop"
    ]  # this model puts each letter elsewhere, and nothing else
    several = translate(server, ["a b c d", "", "c d e f"], alignments=True, alternatives=1)
    assert [one["pairs"] for one in several["alignments"]] == [[[3 - n, n] for n in range(k)] for k in (4, 0, 4)]
    refused = server.post(
        "/translate", json={"q": "a", "source": "src", "target": "tgt", "format": "html", "alignments": True}
    )
    assert refused.status_code == 400 and "alignments go with format text only" in refused.text


def test_html_keeps_its_tags(server: Running) -> None:
    page = '<p class="x">a <b>b</b> c</p><script>a b c</script><p translate="no">a b c</p>'
    expected = '<p class="x">c <b>b</b> a</p><script>a b c</script><p translate="no">a b c</p>'
    assert translate(server, page, format="html") == {"translatedText": expected}


def test_an_unsure_language_is_told_as_unsure(server: Running) -> None:
    answer = server.post("/translate", json={"q": "a b c", "target": "tgt"}).json()
    assert answer == {"translatedText": "c b a", "detectedLanguage": {"confidence": 0.0, "language": "src"}}
    (found,) = server.post("/detect", json={"q": "Guten Morgen, wie geht es Ihnen heute?"}).json()
    assert found["language"] == "de" and found["confidence"] > 99
    (unsure,) = server.post("/detect", json={"q": "Hello"}).json()
    assert unsure["confidence"] < 50
    assert server.post("/detect", json={"q": "12 + 3"}).json() == []


def test_a_text_in_another_language_is_said_in_the_reply(tmp_path: Path) -> None:
    german, english = "Wo ist der nächste Bahnhof, bitte?", "Where is the nearest station, please?"
    with running(model=copy_model(tmp_path / "model", "en", "de")) as server:
        fields = {"source": "en", "target": "de"}
        one = server.post("/translate", json={"q": f"<p>{german}</p>", "format": "html", **fields}).json()
        assert one["otherLanguage"]["language"] == "de" and 90 <= one["otherLanguage"]["confidence"] < 100
        assert "otherLanguage" not in server.post("/translate", json={"q": english, **fields}).json()
        several = server.post("/translate", json={"q": [english, german], **fields}).json()["otherLanguage"]
        assert several == [None, one["otherLanguage"]]
        detected = server.post("/translate", json={"q": german, "target": "de"}).json()
        assert detected["detectedLanguage"] == {"confidence": 0.0, "language": "en"}
        assert detected["otherLanguage"] == one["otherLanguage"]
        words = server.post("/sentences", json={"q": german, **fields}).json()
        assert words["otherLanguage"] == one["otherLanguage"]
        deepl_fields = {"text": [english, german], "source_lang": "EN", "target_lang": "DE"}
        first, second = server.post("/v2/translate", json=deepl_fields).json()["translations"]
        assert "other_language" not in first and second["other_language"] == one["otherLanguage"]


def test_another_language_has_the_code_under_which_it_is_served(tmp_path: Path) -> None:
    """The classifier says "no" of all Norwegian, which the page would look for in vain."""
    norwegian = "Katten sover på kjøkkenbordet hver eneste dag. Hvor ligger den nærmeste jernbanestasjonen?"
    fields = {"q": norwegian, "source": "en", "target": "de"}
    english = copy_model(tmp_path / "en", "en", "de")
    with running("-m", str(copy_model(tmp_path / "nb", "nb", "de")), model=english) as server:
        assert server.post("/translate", json=fields).json()["otherLanguage"]["language"] == "nb"
        assert server.post("/sentences", json=fields).json()["otherLanguage"]["language"] == "nb"
    with running(model=english) as server:
        assert server.post("/translate", json=fields).json()["otherLanguage"]["language"] == "no"


def test_a_form_may_hold_letters_as_they_are(server: Running) -> None:
    """So curl sends them with -d; other clients escape them."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for body in ("q=a+ö+b&source=src&target=tgt", "q=a+%C3%B6+b&source=src&target=tgt"):
        answer = server.post("/translate", content=body.encode(), headers=headers)
        assert answer.json() == server.post("/translate", json={"q": "a ö b", "source": "src", "target": "tgt"}).json()
    assert server.post("/translate", content="q=ö&target=tgt".encode("latin-1"), headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "message"),
    [
        ("/translate", '{"q": "SECRET", "source": "src"}', "json", 422, "target is missing"),
        ("/translate", '{"q": {"SECRET": 1}, "target": "tgt"}', "json", 422, "q must be a string or a list"),
        ("/translate", '{"q": "a", "target": "tgt", "format": "SECRET"}', "json", 422, "format .* text or html"),
        ("/translate", '{"q": "a", "target": "tgt", "alternatives": -1}', "json", 422, "alternatives .* integer"),
        ("/translate", '{"q": "a", "source": "src", "target": "SECRET"}', "json", 400, "target must be .* tgt"),
        ("/translate", '{"q": "a", "source": "SECRET", "target": "tgt"}', "json", 400, "source must be .* src"),
        ("/translate", '{"q": "a", "source": "src", "target": "tgt", "alternatives": 99}', "json", 400, "between 0 and 4"),
        ("/translate", '{"q": "\\ud800SECRET", "source": "src", "target": "tgt"}', "json", 400, "JSON in UTF-8"),
        ("/translate", '{"SECRET', "json", 400, "must be JSON"),
        ("/translate", '["SECRET"]', "json", 400, "JSON object"),
        ("/translate", "[" * 100_000, "json", 400, "must be JSON"),
        ("/translate", "q=%ff%feSECRET&target=tgt", "x-www-form-urlencoded", 400, "form in UTF-8"),
        ("/translate", "<q>SECRET</q>", "xml", 415, "content-type must be"),
        ("/SECRET", "{}", "json", 404, "nothing at this address"),
        ("/languages?q=SECRET", "{}", "json", 405, "does not allow this method"),
        ("/v2/translate", '{"text": "SECRET"}', "json", 422, "target_lang is missing"),
        ("/v2/translate", '{"text": "SECRET", "target_lang": "tgt", "glossary_id": "x"}', "json", 400, "glossary_id"),
        ("/v2/translate", '{"text": "SECRET", "target_lang": "tgt", "tag_handling": "x"}', "json", 400, "tag_handling"),
        ("/v2/translate", '{"text": "<a>SECRET", "target_lang": "tgt", "tag_handling": "xml"}', "json", 400, "each tag"),
        ("/v2/translate", '{"text": "SECRET", "target_lang": "tgt", "ignore_tags": "x"}', "json", 400, "tag_handling=xml"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_one_line_that_does_not_quote_it(
    server: Running, path: str, content: str, kind: str, status: int, message: str
) -> None:
    answer = server.post(path, content=content.encode(), headers={"content-type": f"application/{kind}"})
    assert answer.status_code == status
    (name, said), = answer.json().items()  # fmt: skip
    assert name == ("message" if path.startswith("/v2") else "error")
    assert re.search(message, said), said
    assert "SECRET" not in answer.text and "\n" not in said


def test_every_answer_has_the_security_headers(server: Running) -> None:
    for path in ("/health", "/docs", "/nothing", "/metrics", "/openapi.json"):
        headers = server.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    refused = server.post("/translate", content=b"x" * 2_000_000)
    assert refused.status_code == 413 and "content-security-policy" in refused.headers


def test_docs_need_nothing_from_elsewhere(server: Running) -> None:
    page = server.get("/docs").text
    assert "POST /translate" in page and "POST /v2/translate" in page
    assert "<script" not in page and "http" not in page.replace("httpx", "")
    assert {"/translate", "/detect", "/languages", "/v2/translate"} <= set(server.get("/openapi.json").json()["paths"])


def test_metrics_count_what_was_done(server: Running) -> None:
    def count(name: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    before = count("regard_characters_total"), count('regard_requests_total{path="/translate",status="200"}')
    translate(server, "a b c")
    assert count("regard_characters_total") == before[0] + 5
    assert count('regard_requests_total{path="/translate",status="200"}') == before[1] + 1


def test_health_and_readiness(server: Running) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready", "models": ["src-tgt"]}


def test_neither_logs_nor_texts_of_errors_hold_what_users_sent() -> None:
    with running() as server:
        translate(server, "SECRET a b c")
        server.post("/translate?q=SECRET", json={"q": ["SECRET"], "target": "SECRET"})
        server.post("/SECRET", json={})
        server.get("/SECRET?SECRET")
        server.post("/translate", content=b"SECRET", headers={"SECRET": "SECRET"})
        lines = server.stop()
    assert not [line for line in lines if "SECRET" in line]
    requests = [entry for entry in map(json.loads, lines) if entry["event"] == "request"]
    assert [entry["status"] for entry in requests] == [200, 400, 404, 404, 400]
    assert [entry["path"] for entry in requests] == ["/translate", "/translate", "other", "other", "/translate"]


def test_an_error_inside_is_a_number_for_the_client_and_a_place_in_the_log() -> None:
    code = """
import regard.serve.service as service
async def fail(*arguments, **options):
    raise ValueError("SECRET")
service.search_sentences = fail
"""
    with running(code=code) as server:
        answer = server.post("/translate", json={"q": "SECRET", "source": "src", "target": "tgt"})
        assert answer.status_code == 500
        number = answer.headers["x-request-id"]
        assert answer.json() == {"error": f"internal error; look for {number} in the server's log"}
        lines = server.stop()
    assert not [line for line in lines if "SECRET" in line]
    (failure,) = [entry for entry in map(json.loads, lines) if entry["event"] == "failure"]
    assert failure["id"] == number and failure["error"].startswith("ValueError at ")


def test_torch_is_not_loaded_to_serve_with_ctranslate2() -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("blocked: torch", name=name)
sys.meta_path.insert(0, Block())
"""
    with running("--engine", "ctranslate2", code=code) as server:
        assert translate(server, "a b c") == {"translatedText": "c b a"}


def test_the_torch_engine_serves_the_same() -> None:
    with running("--engine", "torch", "--device", "cpu") as server:
        assert translate(server, ["a b c", "p o n m"]) == {"translatedText": ["c b a", "m n o p"]}
        assert translate(server, "a b c d", alignments=True)["alignments"]["pairs"] == [[3 - n, n] for n in range(4)]


def test_several_models_are_chosen_by_language(tmp_path) -> None:
    from tests.tiny import make_bundle

    other = make_bundle(tmp_path / "en-de")
    with running("-m", str(other.folder)) as server:
        assert server.get("/ready").json()["models"] == ["en-de", "src-tgt"]
        assert translate(server, "a b c") == {"translatedText": "c b a"}
        english = "Good morning, how are you today, my old friend?"
        found = server.post("/translate", json={"q": english, "source": "auto", "target": "de-AT"}).json()
        assert found["detectedLanguage"]["language"] == "en"
        named = server.post("/translate", json={"q": english, "source": "EN", "target": "de"}).json()
        assert named["translatedText"] == found["translatedText"]
        wrong = server.post("/translate", json={"q": "a", "source": "en", "target": "tgt"})
        assert wrong.json() == {"error": "source must be a language that is served into tgt: src"}


def test_two_models_of_one_pair_are_refused(capfd) -> None:
    from regard.cli import main

    assert main(["serve", "-m", str(GOLDEN), "-m", str(GOLDEN), "--port", "0"]) == 2
    assert "both translate src to tgt; serve one of them" in capfd.readouterr().err

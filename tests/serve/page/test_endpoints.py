"""What the page asks the server, over HTTP."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.bundle import load_bundle
from regard.explain.page import static
from regard.serve.explainers import Explainers
from regard.serve.limits import Limits
from regard.serve.refusal import Refused
from regard.serve.served_model import ServedModel
from regard.serve.web.status import as_http
from tests.serve.server import GOLDEN, Running

FIELDS = {"q": "a b c d", "source": "src", "target": "tgt"}


def word_log_probs(text: str, translation: str) -> tuple[list[str], list[float]]:
    """Another engine and another way of computing: torch's reference kernel over the whole translation."""
    explained = regard.load(GOLDEN, engine="torch").explain(text, target=translation)
    sums = [0.0] * len(explained.target.words)
    for piece, step in zip(explained.target.pieces, explained.steps, strict=True):
        sums[piece.word] += step.log_prob
    return explained.target.words[:-1], sums[:-1]


@pytest.mark.parametrize("text", ["a b c d", "p o n", "a b c d e f g h"])
def test_words_are_as_likely_as_the_model_says(server: Running, text: str) -> None:
    (sentence,) = server.post("/sentences", json={**FIELDS, "q": text}).json()["sentences"]
    (way,) = sentence["ways"]
    words, log_probs = word_log_probs(text, way["text"])
    assert [word["text"] for word in way["words"]] == words
    assert [math.log(word["probability"]) for word in way["words"]] == pytest.approx(log_probs, abs=2e-3)


@pytest.mark.parametrize("text", ["  a b c.  p o\n\n---\n\tn m\r\n", "", " \n", "...", "a b c"])
def test_parts_make_up_the_whole(server: Running, text: str) -> None:
    answer = server.post("/sentences", json={**FIELDS, "q": text}).json()
    assert "".join(one["before"] + one["text"] for one in answer["sentences"]) + answer["after"] == text
    whole = server.post("/translate", json={**FIELDS, "q": text}).json()["translatedText"]
    assert "".join(one["before"] + one["ways"][0]["text"] for one in answer["sentences"]) + answer["after"] == whole
    for one in answer["sentences"]:
        for way in one["ways"]:
            words = "".join(word["before"] + word["text"] for word in way["words"])
            assert way["text"].startswith(words) and not way["text"][len(words) :].strip()


def test_a_translation_begins_as_it_is_told(server: Running) -> None:
    (sentence,) = server.post("/sentences", json={**FIELDS, "prefix": "d p ", "alternatives": 2}).json()["sentences"]
    assert len(sentence["ways"]) == 3
    for way in sentence["ways"]:
        assert [word["text"] for word in way["words"]][:2] == ["d", "p"]
    likely = regard.load(GOLDEN, engine="torch").translate("a b c d", prefix="d p ")
    assert sentence["ways"][0]["text"] == likely


def test_other_words_are_the_likeliest_at_their_place(server: Running) -> None:
    words = server.post("/alternatives", json={**FIELDS, "prefix": "d ", "count": 3}).json()["words"]
    likely = word_log_probs("a b c d", "d c")[1][1]
    assert len(words) == 3
    assert words[0]["word"] == "c"
    assert math.log(words[0]["probability"]) == pytest.approx(likely, abs=2e-3)
    assert [one["probability"] for one in words] == sorted((one["probability"] for one in words), reverse=True)
    assert server.post("/alternatives", json={**FIELDS, "q": " "}).json() == {"words": []}


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        (
            "/sentences",
            {"q": "a\nb", "prefix": "b"},
            400,
            "a text must be one sentence without line breaks",
        ),
        ("/sentences", {"alternatives": 9}, 400, "alternatives must be between 0 and 4"),
        ("/sentences", {"q": "a" * 50_001}, 413, "at most 50000 characters"),
        ("/sentences", {"prefix": "a" * 50_001}, 413, "at most 50000 characters"),
        ("/sentences", {"prefix": "b a " * 10_000}, 400, "prefix may have at most 256 tokens"),
        ("/sentences", {"prefix": "b a " * 200}, 400, "prefix may have at most 256 tokens"),
        ("/alternatives", {"prefix": "b a " * 200}, 400, "prefix may have at most 256 tokens"),
        ("/sentences", {"q": "a b " * 300, "prefix": "b"}, 400, "one sentence of at most 256 tokens"),
        ("/sentences", {"target": "xx"}, 400, "target must be a language that is served"),
        ("/sentences", {"source": 5}, 422, "source must be"),
        ("/alternatives", {"count": 0}, 422, "count must be an integer between 1 and 32"),
        ("/alternatives", {"q": "a b " * 300}, 400, "alternatives are for one sentence"),
        ("/explain", {"q": ""}, 422, "q must be one sentence"),
        ("/explain", {"q": " "}, 400, "there is no text to explain"),
        ("/explain", {"q": "a " * 200}, 400, "at most 128 pieces to be explained"),
        ("/explain", {"translation": "a", "prefix": "b"}, 400, "a given target is explained as it is"),
        ("/explain", {"q": "a" * 50_001}, 413, "at most 50000 characters"),
    ],
)
def test_a_bad_request_gets_one_line(
    server: Running, path: str, fields: dict[str, Any], status: int, message: str
) -> None:
    answer = server.post(path, json={**FIELDS, **fields})
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


def test_the_page_is_made_of_files_that_a_strict_policy_lets_through(server: Running) -> None:
    page = server.get("/")
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy and "script-src 'self';" in policy and "require-trusted-types-for 'script'" in policy
    assert page.headers["x-frame-options"] == "DENY"
    names = [path.name for path in (files("regard.serve") / "static").iterdir()]
    assert {"page.html", "page.css", "shell.js"} <= set(names)
    for name in names:
        answer = server.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), f"{name} names another place"
    with server.client() as client:
        tag = client.get("/static/page.css").headers["etag"]
        assert client.get("/static/page.css", headers={"if-none-match": tag}).status_code == 304
    assert server.get("/static/explain.js").text == static("explain.js")  # what `regard explain` writes
    for name in ("nothing.js", "..%2Fpage.py", "../web/page.py", "%2e%2e/limits.py"):
        assert server.get(f"/static/{name}").status_code == 404


def test_the_page_knows_the_servers_limits(server: Running) -> None:
    settings = server.get("/frontend/settings").json()
    assert (settings["charLimit"], settings["alternatives"], settings["keyRequired"]) == (50_000, 4, False)
    # of the model that was named first, although others come before it in the alphabet
    assert [settings["language"][side]["code"] for side in ("source", "target")] == ["src", "tgt"]
    assert ".docx" in settings["supportedFilesFormat"] and settings["training"] is False
    answer = server.get("/training")
    assert answer.status_code == 404 and "regard serve --run DIR" in answer.json()["error"]


def test_explanations_wait_in_a_short_row_and_one_nobody_waits_for_is_never_begun() -> None:
    begun: list[str] = []
    go_on = threading.Event()

    def work(served: Any, text: str, *others: Any) -> bytes:
        begun.append(text)
        go_on.wait(60)
        return text.encode()

    async def run() -> None:
        explainers = Explainers(2)
        explainers._work = work  # type: ignore[method-assign, assignment]
        first, second = (asyncio.create_task(explainers.explain(None, text, None, None)) for text in "ab")
        while not begun:
            await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="2 explanations are being worked on") as refused:
            await explainers.explain(None, "c", None, None)
        assert (as_http(refused.value).status, refused.value.retry) == (429, 3)
        second.cancel()
        await asyncio.wait({second})
        third = asyncio.create_task(explainers.explain(None, "d", None, None))
        await asyncio.sleep(0)
        go_on.set()
        assert (await first, await third) == (b"a", b"d")
        assert begun == ["a", "d"]
        go_on.clear()
        left = [asyncio.create_task(explainers.explain(None, text, None, None)) for text in "ef"]
        while begun[-1] != "e":
            await asyncio.sleep(0.01)
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        last = asyncio.create_task(explainers.explain(None, "g", None, None))
        await asyncio.sleep(0)
        with pytest.raises(Refused):  # what has begun keeps its place though nobody waits for it
            await explainers.explain(None, "h", None, None)
        go_on.set()
        assert await last == b"g"
        assert begun == ["a", "d", "e", "g"]

    asyncio.run(run())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_model_that_is_not_there_any_more_is_not_explained(tmp_path: Path, replaced: bool) -> None:
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN, folder)
    served = ServedModel.load(load_bundle(folder), Limits(), engine="ctranslate2")
    try:
        shutil.rmtree(folder)
        if replaced:
            shutil.copytree(GOLDEN.parent / "bundle-2", folder)  # another model of the same languages
        with pytest.raises(Refused, match="removed or replaced while it was served") as refused:
            asyncio.run(Explainers(1).explain(served, "a b", None, None))
        assert as_http(refused.value).status == 503
        assert str(tmp_path) not in str(refused.value)
    finally:
        served.batcher.close()
        served.threads.close()

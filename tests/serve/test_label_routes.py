"""Labels and tags over HTTP: what the library says, behind the same gate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.importing.transformers import import_model
from regard.serve.keys import add_key
from tests import encoders
from tests.serve.server import Running, running

TEXTS = ["The cat sat on the mat.", "x", "Who is there?"]
LONG = " ".join(TEXTS * 8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each task."""
    folder, found = tmp_path_factory.mktemp("labels"), {}
    for name, architecture in (("topics", "BertForSequenceClassification"), ("names", "BertForTokenClassification")):
        original = encoders.write_model(folder / f"{name}-original", architecture)
        if name == "names":
            settings = json.loads((original / "config.json").read_text())
            settings |= {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
            (original / "config.json").write_text(json.dumps(settings))
        found[name] = import_model(original, folder / name, compare=False).bundle.folder
    return found


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    given = [word for folder in folders.values() for word in ("-m", str(folder))]
    with running(*given, "--limit", "texts=5", "--limit", "characters=2000") as one:
        yield one


def test_labels_are_those_of_the_library(server: Running, folders: dict[str, Path]) -> None:
    texts: list[Any] = [*TEXTS, ("The cat", "sat."), LONG]
    answer = server.post("/classify", json={"q": texts, "k": 2})
    assert answer.status_code == 200 and answer.json()["model"] == "topics"
    for ours, theirs in zip(answer.json()["results"], regard.load(folders["topics"]).classify(texts), strict=True):
        assert ours["labels"] == list(theirs.labels) and ours["windows"] == theirs.windows
        assert list(ours["probabilities"]) == list(theirs.probabilities)[:2] and ours["number"] is None
        assert list(ours["probabilities"].values()) == pytest.approx(list(theirs.probabilities.values())[:2], abs=1e-5)
    assert answer.json()["results"][4]["windows"] > 1
    form = server.post("/classify", data={"q": TEXTS[0], "k": "1", "model": "topics"}).json()["results"][0]
    assert form["labels"] == answer.json()["results"][0]["labels"] and len(form["probabilities"]) == 1
    empty = server.post("/classify", json={"q": ""}).json()["results"][0]
    assert empty == {"labels": [], "probabilities": {}, "number": None, "windows": 0}


def test_tags_are_those_of_the_library(server: Running, folders: dict[str, Path]) -> None:
    answer = server.post("/tag", json={"q": [*TEXTS, LONG]})
    assert answer.status_code == 200 and answer.json()["model"] == "names"
    for ours, theirs in zip(answer.json()["results"], regard.load(folders["names"]).tag([*TEXTS, LONG]), strict=True):
        assert [(one["word"], one["tag"]) for one in ours["words"]] == list(zip(theirs.words, theirs.tags, strict=True))
        assert [one["probability"] for one in ours["words"]] == pytest.approx(theirs.probabilities, abs=1e-5)
        assert ours["windows"] == theirs.windows and ours["spans"] == [asdict(span) for span in theirs.spans]
    assert answer.json()["results"][3]["windows"] > 1 and answer.json()["results"][3]["spans"]
    assert server.post("/tag", json={"q": " "}).json()["results"] == [{"words": [], "spans": [], "windows": 0}]


def test_a_model_says_whether_it_takes_pairs(tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForSequenceClassification")
    settings = json.loads((original / "config.json").read_text())
    old = settings | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    (original / "config.json").write_text(json.dumps(old))  # as cross-encoders of sentence-transformers have it
    bundle = import_model(original, tmp_path / "pairs", compare=False).bundle
    assert bundle.takes_pairs and "| input | pairs of texts |" in bundle.card
    with running(model=bundle.folder) as server:
        refused = server.post("/classify", json={"q": [["the cat", "sat"], "x"]})
        assert refused.status_code == 400 and "text 2 of 2 must be a pair" in refused.json()["error"]
        assert server.post("/classify", json={"q": [["the cat", "sat"], ["x", "y"]]}).status_code == 200


REFUSED = [
    (
        "/classify",
        {"q": "x", "model": "names"},
        404,
        "model must be one that classifies texts and is served here: topics",
    ),
    ("/classify", {"q": []}, 400, "q must not be empty"),
    ("/classify", {"q": [["a"]]}, 422, "q must be a string, or a list of strings and of pairs of strings"),
    ("/classify", {"q": "x", "threshold": 0.5}, 400, "threshold is for models with several labels"),
    ("/classify", {"q": "x", "threshold": 1}, 422, "threshold must be a number above 0 and below 1"),
    ("/classify", {"q": ["x"] * 6}, 400, "at most 5 texts"),
    ("/classify", {"q": [["x" * 1001, "y" * 1000]]}, 413, "at most 2000 characters"),
    ("/classify", {"q": "x", "top": 3}, 400, "top is not a field of this request"),
    ("/tag", {"q": "x", "model": "topics"}, 404, "model must be one that tags words"),
    ("/tag", {"q": [["a", "b"]]}, 422, "q must be a string or a list of strings"),
    ("/fill", {"q": "a ___"}, 404, "no model that fills blanks is served here"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"), REFUSED, ids=[f"{p}-{m[:24]}" for p, _, _, m in REFUSED]
)
def test_what_is_wrong_is_named(server: Running, path: str, body: dict[str, Any], status: int, message: str) -> None:
    answer = server.post(path, json=body)
    assert answer.status_code == status and message in answer.json()["error"]


def test_keys_are_needed_where_there_are_keys(folders: dict[str, Path], tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "mine")
    with running("--keys", str(tmp_path / "keys"), model=folders["topics"]) as server:
        assert server.post("/classify", json={"q": "x"}).status_code in (401, 403)
        assert server.post("/classify", json={"q": "x", "api_key": key}).status_code == 200

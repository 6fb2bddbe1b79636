"""Encoders behind HTTP: OpenAI's own client for vectors, unchanged, and /fill; beside a translation model, behind the same gate."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest

import regard
from regard.api import Model
from regard.importing.transformers import import_model
from regard.serve.keys import add_key
from tests import encoders
from tests.serve.server import PATIENCE, Running, running

TEXTS = ["The cat sat on the mat.", "x", "Der Hund schläft nicht, sagte sie.", "Who is there?"]
LONG = " ".join(TEXTS * 6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that embeds, and one that fills blanks."""
    folder = tmp_path_factory.mktemp("served")
    vectors = encoders.vector_model(folder)[1].folder.rename(folder / "vectors")
    original = encoders.write_model(folder / "fill-original", "BertForMaskedLM")
    return vectors, import_model(original, folder / "blanks", compare=False).bundle.folder


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path]) -> Iterator[Running]:
    with running(
        "-m", str(folders[0]), "-m", str(folders[1]), "--limit", "texts=40", "--limit", "characters=2000"
    ) as one:
        yield one


@pytest.fixture(scope="module")
def model(folders: tuple[Path, Path]) -> Model:
    return regard.load(folders[0])


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as made:
        yield made


def test_openais_client_gets_the_vectors_of_the_library(client: openai.OpenAI, model: Model) -> None:
    wanted = model.embed([*TEXTS, LONG])
    answer = client.embeddings.create(model="vectors", input=[*TEXTS, LONG])  # it asks for base64, and decodes it
    assert [one.index for one in answer.data] == list(range(5)) and answer.model == "vectors"
    np.testing.assert_allclose([one.embedding for one in answer.data], wanted, atol=1e-5)
    read = model.embedder.read([*TEXTS, LONG])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(one.num_tokens for one in read)
    one = client.embeddings.create(model="vectors", input=TEXTS[0], encoding_format="float", dimensions=32)
    np.testing.assert_allclose(one.data[0].embedding, wanted[0], atol=1e-5)


def test_token_ids_are_texts_too(client: openai.OpenAI, model: Model) -> None:
    tokenizer = model.bundle.tokenizer
    ids = [tokenizer.encode(text) for text in TEXTS]
    wanted = model.embed(TEXTS)
    several = client.embeddings.create(model="vectors", input=ids)
    np.testing.assert_allclose([one.embedding for one in several.data], wanted, atol=1e-5)
    [one] = client.embeddings.create(model="vectors", input=ids[2]).data
    np.testing.assert_allclose(one.embedding, wanted[2], atol=1e-5)


def test_base64_is_32_bit_floats(server: Running, model: Model) -> None:
    body = {"model": "vectors", "input": TEXTS[0], "encoding_format": "base64"}
    [one] = server.post("/v1/embeddings", json=body).json()["data"]
    found = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    np.testing.assert_allclose(found, model.embed(TEXTS[0]), atol=1e-5)


def test_models_are_listed_with_their_task(client: openai.OpenAI, server: Running) -> None:
    assert [one.id for one in client.models.list()] == ["vectors"]
    assert server.get("/v1/models/vectors").json()["task"] == "embed"
    assert server.get("/ready").json()["models"] == ["src-tgt", "blanks", "vectors"]


REFUSED = [
    ({"model": "other", "input": "a"}, 404, "model", "model must be one that embeds texts and is served here: vectors"),
    ({"model": "blanks", "input": "a"}, 404, "model", "model must be one that embeds texts"),
    ({"model": "vectors", "input": []}, 400, "input", "input must not be an empty list"),
    ({"model": "vectors"}, 400, "input", "input is missing"),
    ({"model": "vectors", "input": 5}, 400, "input", "input must be a string, a list of strings"),
    ({"model": "vectors", "input": [10_000]}, 400, "input", "token ids must be between 0 and"),
    ({"model": "vectors", "input": [-1]}, 400, "input", "token ids must be between 0 and"),
    ({"model": "vectors", "input": "a", "dimensions": 8}, 400, "dimensions", "dimensions must be 32"),
    (
        {"model": "vectors", "input": "a", "encoding_format": "hex"},
        400,
        "encoding_format",
        "must be float, for numbers",
    ),
    ({"model": "vectors", "input": ["a"] * 41}, 400, "input", "at most 40 texts"),
    ({"model": "vectors", "input": "a" * 2001}, 413, None, "at most 2000 characters"),
    ({"model": "vectors", "input": "a", "truncate": True}, 400, "truncate", "is not a field of this request"),
]


@pytest.mark.parametrize(("body", "status", "param", "message"), REFUSED, ids=[one[3][:30] for one in REFUSED])
def test_what_is_wrong_is_named(
    server: Running, body: dict[str, object], status: int, param: str, message: str
) -> None:
    answer = server.post("/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param) and message in error["message"]


def test_blanks_are_filled_over_http(server: Running, folders: tuple[Path, Path]) -> None:
    filled = regard.load(folders[1]).fill(["The [MASK] sat.", "A ___ and a ___."], 3)
    assert isinstance(filled, list)
    answer = server.post("/fill", json={"q": ["The [MASK] sat.", "A ___ and a ___."], "k": 3})
    assert answer.status_code == 200 and answer.json()["model"] == "blanks"
    for ours, theirs in zip(answer.json()["results"], filled, strict=True):
        assert ours["filled"] == theirs.filled
        assert [[one["text"] for one in blank] for blank in ours["blanks"]] == [
            [one.text for one in blank] for blank in theirs.blanks
        ]
    form = server.post("/fill", data={"q": "The ___ sat.", "k": "1", "model": "blanks"})
    assert form.json()["results"][0]["filled"] == filled[0].filled
    for body, status, message in [
        ({"q": "no blank"}, 400, "must have a blank, written as [MASK] or ___"),
        ({"q": "___", "model": "vectors"}, 404, "model must be one that fills blanks"),
        ({"q": []}, 400, "q must not be empty"),
        ({"q": "___", "k": 0}, 422, "k must be an integer between 1 and 100"),
    ]:
        answer = server.post("/fill", json=body)
        assert answer.status_code == status and message in answer.json()["error"]


def test_requests_at_once_share_batches_and_get_their_own_vectors(client: openai.OpenAI, model: Model) -> None:
    texts = [f"{text} {number}" for number in range(6) for text in TEXTS]
    wanted = model.embed(texts)

    def one(number: int) -> list[float]:
        return client.embeddings.create(model="vectors", input=texts[number]).data[0].embedding

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one, range(len(texts))))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_translation_model_beside_them_translates(server: Running) -> None:
    answer = server.post("/translate", json={"q": "a b c", "source": "src", "target": "tgt"})
    assert answer.json()["translatedText"] == "c b a"


def test_keys_are_needed_where_there_are_keys(folders: tuple[Path, Path], tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "mine")
    with running("--keys", str(tmp_path / "keys"), model=folders[0]) as server:
        body = {"model": "vectors", "input": "a"}
        refused = server.post("/v1/embeddings", json=body)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
        assert server.post("/v1/embeddings", json=body, headers={"authorization": f"Bearer {key}"}).status_code == 200
        metrics = server.get("/metrics").text
        assert 'regard_requests_total{path="/v1/embeddings",status="401"} 1.0' in metrics
        assert 'regard_waiting_tokens{model="vectors"} 0.0' in metrics
        assert server.post("/fill", json={"q": "___"}).status_code in (403, 404)

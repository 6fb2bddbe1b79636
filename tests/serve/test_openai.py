"""OpenAI's own Python client, unchanged, against a server with a tiny language model."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

import regard
from regard.api import Model
from regard.bundle import load_bundle
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.nn.int8 import int8_refusal
from regard.serve.limits import Limits
from regard.serve.served_writer import ServedWriter, WrittenPiece
from regard.serve.web import openai as web
from regard.serve.web.openai_replies import Reply
from regard.serve.writing_batch import Piece
from tests import chat_models
from tests.serve.server import GOLDEN, PATIENCE, Running, running, until

NAME = "tiny"
CHAT: list[Any] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "How are you?"},
]
PATIENT = ("--limit", f"writing_seconds={PATIENCE}", "--engine", "torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, bundle = chat_models.write_model(tmp_path_factory.mktemp("openai"))
    return bundle.rename(bundle.parent / NAME)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return regard.load(folder, engine="torch")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """A language model and a translation model, side by side."""
    with running("-m", str(folder), *PATIENT) as server:
        yield server


def client_of(server: Running, key: str = "none") -> openai.OpenAI:
    made = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)
    MADE.append(made)
    return made


MADE: list[openai.OpenAI] = []  # clients to close


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


@pytest.fixture
def client(server: Running) -> openai.OpenAI:
    return client_of(server)


def test_a_server_on_a_cpu_writes_in_int8(folder: Path) -> None:
    """What the engine of that name writes alone; the log says so."""
    if reason := int8_refusal():
        pytest.skip(reason)
    alone = regard.load(folder, engine="torch-int8")
    prompts = ["The dog", "A cat sat on the mat"]
    with running("--limit", f"writing_seconds={PATIENCE}", model=folder) as server, client_of(server) as client:
        found = client.completions.create(model=NAME, prompt=prompts, temperature=0, max_tokens=12)
        assert [one.text for one in found.choices] == alone.generate(prompts, temperature=0, max_tokens=12)
        [line] = [line for line in server.lines if '"listening"' in line]
        assert json.loads(line)["writers"][NAME].startswith("cpu int8, 128 texts")


def test_an_engine_that_nobody_can_join_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="engine ctranslate2 cannot write for several clients at once"):
        ServedWriter.load(load_bundle(folder), NAME, Limits(), engine="ctranslate2")


def test_models_are_listed(client: openai.OpenAI, server: Running) -> None:
    assert [one.id for one in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "regard"
    assert server.post("/translate", json={"q": "a b c", "source": "en", "target": "de"}).status_code in (200, 400)
    assert NAME in server.get("/ready").json()["models"]


def test_a_completion_is_what_the_model_writes(client: openai.OpenAI, model: Model) -> None:
    prompts = ["The dog", "A cat sat on the mat"]
    found = client.completions.create(model=NAME, prompt=prompts, temperature=0, max_tokens=12)
    assert [one.text for one in found.choices] == model.generate(prompts, temperature=0, max_tokens=12)
    assert [one.index for one in found.choices] == [0, 1]
    written = [one.continuations[0] for one in model.continuations(prompts, temperature=0, max_tokens=12)]
    assert [one.finish_reason for one in found.choices] == [
        "stop" if one.reason == "end" else "length" for one in written
    ]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(len(model.writer.prompt_ids(one)) for one in prompts)
    assert found.usage.completion_tokens == sum(one.num_tokens for one in written)
    ids = model.writer.prompt_ids("The dog")
    assert (
        client.completions.create(model=NAME, prompt=ids, temperature=0, max_tokens=12).choices[0].text
        == written[0].text
    )
    short = client.completions.create(model=NAME, prompt="The dog", temperature=0)
    assert short.usage is not None and short.usage.completion_tokens <= 16


def test_samples_follow_their_seed(client: openai.OpenAI, model: Model) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 10, "n": 3, "seed": 11}
    found = client.completions.create(model=NAME, prompt="The dog", **options, extra_body={"top_k": 30})
    [expected] = model.continuations("The dog", top_k=30, **options)
    assert sorted(one.text for one in found.choices) == sorted(one.text for one in expected.continuations)
    assert len({one.text for one in found.choices}) > 1


def test_a_stream_adds_up(client: openai.OpenAI, model: Model) -> None:
    expected = model.generate("The dog", temperature=0, max_tokens=20)
    options: dict[str, Any] = {"prompt": "The dog", "temperature": 0, "max_tokens": 20, "stream": True}
    parts = list(client.completions.create(model=NAME, **options, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].text for one in parts[:-1]) == expected
    assert len(parts) > 5
    assert [one.choices[0].finish_reason for one in parts[:-2]] == [None] * (len(parts) - 2)
    assert parts[-2].choices[0].finish_reason in ("stop", "length")
    assert parts[-1].choices == [] and parts[-1].usage is not None
    assert parts[-1].usage.total_tokens == parts[-1].usage.prompt_tokens + parts[-1].usage.completion_tokens


def test_a_chat_is_answered(client: openai.OpenAI, model: Model) -> None:
    expected = model.chat(CHAT, temperature=0, max_tokens=14)
    found = client.chat.completions.create(model=NAME, messages=CHAT, temperature=0, max_completion_tokens=14)
    assert found.choices[0].message.content == expected and found.choices[0].message.role == "assistant"
    developer: list[Any] = [
        {**CHAT[0], "role": "developer"},
        {"role": "user", "content": [{"type": "text", "text": "How are you?"}]},
    ]
    same = client.chat.completions.create(model=NAME, messages=developer, temperature=0, max_tokens=14)
    assert same.choices[0].message.content == expected
    parts = list(client.chat.completions.create(model=NAME, messages=CHAT, temperature=0, max_tokens=14, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in parts) == expected
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    whole = client.chat.completions.create(model=NAME, messages=CHAT, temperature=0)
    assert (whole.choices[0].message.content or "").startswith(expected)
    assert whole.usage is not None and whole.usage.total_tokens <= 256


def test_a_text_stops_before_a_stop_string(client: openai.OpenAI, model: Model) -> None:
    whole = str(model.generate("The dog", temperature=0, max_tokens=30))
    stop = whole[9:12]
    options: dict[str, Any] = {"prompt": "The dog", "temperature": 0, "max_tokens": 30, "stop": ["never here", stop]}
    found = client.completions.create(model=NAME, **options)
    assert found.choices[0].text == whole[: whole.index(stop)] and found.choices[0].finish_reason == "stop"
    assert found.usage is not None and found.usage.completion_tokens < 30, "writing ends with the stop string"
    parts = list(client.completions.create(model=NAME, **options, stream=True))
    assert "".join(one.choices[0].text for one in parts) == found.choices[0].text


def test_log_probabilities(client: openai.OpenAI, model: Model) -> None:
    [expected] = model.continuations("The dog", temperature=0, max_tokens=8, token_log_probs=True)
    values = [one.log_prob for one in expected.continuations[0].tokens]
    found = client.completions.create(model=NAME, prompt="The dog", temperature=0, max_tokens=8, logprobs=3).choices[0]
    assert found.logprobs is not None
    assert found.logprobs.token_logprobs == pytest.approx(values, abs=1e-4)
    assert found.logprobs.top_logprobs is not None and all(len(one) == 3 for one in found.logprobs.top_logprobs)
    assert found.logprobs.text_offset is not None and found.logprobs.text_offset[0] == 0
    chat = client.chat.completions.create(
        model=NAME, messages=CHAT, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2
    ).choices[0]
    assert chat.logprobs is not None and chat.logprobs.content is not None and len(chat.logprobs.content) == 8
    for token in chat.logprobs.content:
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob) and len(token.top_logprobs) == 2
    options: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_tokens": 8, "logprobs": True}
    parts = list(client.chat.completions.create(model=NAME, **options, stream=True))
    streamed = [token for one in parts if one.choices[0].logprobs for token in one.choices[0].logprobs.content or []]
    assert [token.token for token in streamed] == [token.token for token in chat.logprobs.content]


def test_a_prompt_is_echoed_and_scored(client: openai.OpenAI, model: Model) -> None:
    """As lm-evaluation-harness measures models: no new tokens, and the log-probabilities of the prompt."""
    prompt = "The dog is not here."
    found = client.completions.create(model=NAME, prompt=prompt, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert found.text == prompt and found.logprobs is not None and found.logprobs.token_logprobs is not None
    ids = model.writer.prompt_ids(prompt)
    [scored] = model.engine.score([ids[:1]], [ids[1:]])
    values = [one for one in found.logprobs.token_logprobs if one is not None]
    assert values == pytest.approx(scored[: len(ids) - 1], abs=1e-4)
    assert found.logprobs.text_offset is not None and found.logprobs.text_offset[-1] < len(prompt)
    nothing: dict[str, Any] = {"model": NAME, "prompt": prompt, "max_tokens": 0, "echo": True, "n": 2}
    assert [one.text for one in client.completions.create(**nothing).choices] == [prompt] * 2
    streamed = list(client.completions.create(**nothing, stream=True))
    assert "".join(one.choices[0].text for one in streamed) == prompt * 2
    full = client.completions.create(model=NAME, prompt=[5] * 256, max_tokens=0, echo=True)
    assert full.usage is not None and full.usage.prompt_tokens == 256, "nothing is written, so no room is needed"
    more = client.completions.create(model=NAME, prompt=prompt, max_tokens=4, temperature=0, echo=True)
    assert more.choices[0].text == prompt + str(model.generate(prompt, max_tokens=4, temperature=0))
    parts = list(
        client.completions.create(model=NAME, prompt=prompt, max_tokens=4, temperature=0, echo=True, stream=True)
    )
    assert "".join(one.choices[0].text for one in parts) == more.choices[0].text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 3}),
        ("functions", [{"name": "f"}]),
        ("reasoning_effort", "high"),
        ("store", True),
        ("temperature", 3),
        ("top_p", 0),
        ("n", 0),
        ("n", 999),
        ("stop", [""]),
        ("stop", ["x"] * 99),
        ("stop", "x" * 257),
        ("max_tokens", "5"),
        ("stream", "yes"),
        ("logprobs", 1),
        ("max_tokens", -1),
        ("top_logprobs", 3),
        ("stream_options", {"include_usage": True}),
        ("colour", "blue"),
        ("messages[0].role", None),
    ],
)
def test_what_is_not_offered_is_refused_by_name(client: openai.OpenAI, field: str, value: Any) -> None:
    extra: dict[str, Any] = {field: value}
    if field == "messages[0].role":
        extra = {"messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=CHAT, extra_body=extra)
    assert refused.value.param == field and field in str(refused.value)
    assert refused.value.type == "invalid_request_error"


def test_what_asks_for_nothing_is_taken(client: openai.OpenAI, model: Model) -> None:
    found = client.chat.completions.create(
        model=NAME, messages=CHAT, temperature=0, top_p=0.5, max_tokens=4, presence_penalty=0, frequency_penalty=0.0,
        response_format={"type": "text"}, tools=[], logit_bias={}, user="me", store=False,
    )  # fmt: skip
    assert found.choices[0].message.content == model.chat(CHAT, temperature=0, max_tokens=4)


def test_an_unknown_model_is_refused(client: openai.OpenAI) -> None:
    for call in (
        lambda: client.completions.create(model="gpt-5", prompt="x"),
        lambda: client.models.retrieve("gpt-5"),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            call()
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model") and NAME in str(refused.value)
    with pytest.raises(openai.NotFoundError, match="no model that embeds texts is served here"):
        client.embeddings.create(model=NAME, input="x")


def test_a_prompt_beyond_the_context_is_refused_or_cut(client: openai.OpenAI, model: Model) -> None:
    long = "How are you? " * 200
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=NAME, prompt=long)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    cut = client.completions.create(
        model=NAME, prompt=long, temperature=0, max_tokens=8, extra_body={"truncation": "auto"}
    )
    assert cut.usage is not None and cut.usage.prompt_tokens == 256 - 8
    talk: list[Any] = [CHAT[0], {"role": "user", "content": long}, {"role": "assistant", "content": "x"}, CHAT[1]]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=talk)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    found = client.chat.completions.create(
        model=NAME, messages=talk, temperature=0, max_tokens=8, extra_body={"truncation": "auto"}
    )
    assert found.choices[0].message.content == model.chat(CHAT, temperature=0, max_tokens=8), "whole turns are left out"
    free = client.chat.completions.create(
        model=NAME, messages=[*talk[1:3] * 9, CHAT[1]], extra_body={"truncation": "auto"}
    )
    assert free.usage is not None and free.usage.prompt_tokens <= 256 * 3 // 4, "an answer has room"
    for huge in ("x" * 60_000, [5] * 60_000):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=NAME, prompt=huge)
        assert refused.value.code == "context_length_exceeded"
        cut = client.completions.create(model=NAME, prompt=huge, max_tokens=8, extra_body={"truncation": "auto"})
        assert cut.usage is not None and cut.usage.prompt_tokens == 256 - 8
    alone: list[Any] = [{"role": "user", "content": long}]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=NAME, messages=alone, extra_body={"truncation": "auto"})


def test_places_are_those_of_the_text(client: openai.OpenAI) -> None:
    """Also where a character has several tokens; and the chosen token is among the likeliest."""
    options: dict[str, Any] = {"prompt": "😀漢字 Straße", "max_tokens": 12, "seed": 2, "echo": True, "logprobs": 1}
    found = client.completions.create(model=NAME, **options).choices[0]
    assert found.logprobs is not None and found.logprobs.text_offset is not None
    assert found.text.startswith(options["prompt"])
    offsets = found.logprobs.text_offset
    assert offsets == sorted(offsets) and offsets[-1] <= len(found.text)
    chosen = zip(found.logprobs.tokens or [], found.logprobs.top_logprobs or [], strict=True)
    assert all(text in top for text, top in chosen if top)
    parts = list(client.completions.create(model=NAME, **options, stream=True))
    assert [n for one in parts if one.choices[0].logprobs for n in one.choices[0].logprobs.text_offset or []] == offsets


def test_greedy_texts_are_equal(client: openai.OpenAI) -> None:
    found = client.completions.create(model=NAME, prompt="The dog", temperature=0, n=2, max_tokens=5)
    assert [one.index for one in found.choices] == [0, 1] and found.choices[0].text == found.choices[1].text
    assert found.usage is not None and found.usage.completion_tokens == 10


def test_the_name_of_a_control_token_stays_text(client: openai.OpenAI) -> None:
    counts = []
    for text in ("x", "<|im_end|>"):
        asked: list[Any] = [{"role": "user", "content": text}]
        found = client.chat.completions.create(model=NAME, messages=asked, max_tokens=1)
        assert found.usage is not None
        counts.append(found.usage.prompt_tokens)
    assert counts[1] > counts[0] + 3, "spelled in pieces"


def test_many_clients_write_together(server: Running, model: Model) -> None:
    """64 at once, each with its own prompt and options: everybody gets what he would get alone."""
    prompts = [f"Number {n} says: the dog" for n in range(64)]
    expected = model.generate(prompts, temperature=0, max_tokens=10)

    def ask(number: int) -> str:
        options: dict[str, Any] = {"model": NAME, "prompt": prompts[number], "temperature": 0, "max_tokens": 10}
        with client_of(server) as client:
            if number % 2:
                return "".join(one.choices[0].text for one in client.completions.create(**options, stream=True))
            return str(client.completions.create(**options).choices[0].text)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == expected
    assert 'regard_batch_sentences_bucket{le="1.0",model="tiny"}' in server.get("/metrics").text


def test_whoever_leaves_frees_the_model(folder: Path) -> None:
    """A stream that its client closes ends in the model, too; so does a request whose client hangs up."""
    with running(*PATIENT, model=folder) as server:
        client = client_of(server)
        stream = client.completions.create(
            model=NAME,
            prompt="The dog",
            max_tokens=200,
            temperature=0,
            stream=True,
            extra_body={"repetition_penalty": 1.0},
        )
        next(iter(stream))
        stream.close()
        until(lambda: places(server) == 0)
        until(lambda: '"status": 499' in "\n".join(server.lines))
        assert client.completions.create(model=NAME, prompt="x", max_tokens=2).choices


def places(server: Running) -> float:
    [line] = [line for line in server.get("/metrics").text.splitlines() if line.startswith("regard_places_taken ")]
    return float(line.split(" ")[1])


def test_overload_is_said_and_nothing_is_lost(folder: Path) -> None:
    """With one place, one of many is answered at a time; the others learn when to come again."""
    with running("--limit", "places=1", *PATIENT, model=folder) as server:

        def ask(number: int) -> openai.RateLimitError | None:
            with client_of(server) as client:
                try:
                    client.completions.create(model=NAME, prompt=f"{number}", max_tokens=60, temperature=0)
                except openai.RateLimitError as refused:
                    return refused
                return None

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, range(16)))
        assert None in found
        for refused in filter(None, found):
            assert int(refused.response.headers["retry-after"]) >= 1
            assert refused.code == "rate_limit_exceeded" and "try again in" in str(refused)
        assert server.stop()[-1].count("stopped") == 1


def test_stopping_finishes_what_was_begun(folder: Path, model: Model) -> None:
    with running(*PATIENT, model=folder) as server, client_of(server) as client:
        stream = iter(
            client.completions.create(model=NAME, prompt="The dog", max_tokens=80, temperature=0, stream=True)
        )
        text = next(stream).choices[0].text
        server.process.terminate()
        text += "".join(one.choices[0].text for one in stream)
        assert text == model.generate("The dog", max_tokens=80, temperature=0)
        server.wait()


def test_keys_are_needed_where_there_are_some(folder: Path, tmp_path: Path) -> None:
    from regard.serve.keys import add_key

    key = add_key(tmp_path / "keys.json", "me")
    content = json.loads((tmp_path / "keys.json").read_text())
    content["keys"][0]["requests_per_minute"] = 0.001
    (tmp_path / "keys.json").write_text(json.dumps(content))
    with running("--keys", str(tmp_path / "keys.json"), *PATIENT, model=folder) as server:
        with pytest.raises(openai.AuthenticationError) as refused:
            client_of(server, "wrong").completions.create(model=NAME, prompt="x")
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):  # the key comes first: nobody else learns what is served
            client_of(server, "wrong").chat.completions.create(model="unknown", messages=[])
        with pytest.raises(openai.AuthenticationError):
            client_of(server, "wrong").models.list()
        own = client_of(server, key)
        assert [one.id for one in own.models.list()] == [NAME]
        own.completions.create(model=NAME, prompt="x", max_tokens=1)
        with pytest.raises(openai.RateLimitError, match=r"this key may use 0\.001 requests a minute"):
            own.completions.create(model=NAME, prompt="x", max_tokens=1)


class Stream:
    """A stream of pieces, without a server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pieces: int, seconds: float = PATIENCE) -> None:
        self.pieces, self.closed, self.charged = pieces, False, list[int]()
        limits = SimpleNamespace(service=SimpleNamespace(limits=Limits(writing_seconds=seconds)))
        monkeypatch.setattr(web, "_count", lambda request, reply, characters: self.charged.append(characters))
        monkeypatch.setattr(web, "context_of", lambda request: limits)

    async def found(self) -> AsyncGenerator[WrittenPiece]:
        """Pieces, and then nothing for a long time."""
        try:
            for _ in range(self.pieces):
                yield WrittenPiece(0, Piece(0, "abc", ()))
            await asyncio.sleep(PATIENCE)
        finally:
            self.closed = True

    def events(self) -> AsyncGenerator[str]:
        reply = Reply("tiny", "", False, Tokenizer.load(GOLDEN / "tokenizer"))
        request: Any = None
        return web._events(request, self.found(), [web._Prompt([1])], 1, reply, False)


def test_a_stream_counts_what_was_sent_and_ends_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its client leaves while a part is being sent."""
    stream = Stream(monkeypatch, pieces=99)

    async def leaves(message: Any) -> None:
        if message.get("body"):
            raise asyncio.CancelledError

    async def serve() -> None:
        events = stream.events()
        response = web._Stream(web._resumed(await anext(events), events))
        receive: Any = asyncio.Event().wait
        with pytest.raises(asyncio.CancelledError):
            await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, leaves)
        assert stream.closed and stream.charged == [3]

    asyncio.run(serve())


def test_a_stream_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, pieces=1, seconds=2)

    async def read() -> list[str]:
        return [event async for event in stream.events()]

    events = asyncio.run(read())
    assert len(events) == 2 and "the request took longer than 2 s; ask for fewer tokens" in events[1]
    assert stream.closed and stream.charged == [3]


def test_a_server_without_language_models_says_so() -> None:
    with running(model=GOLDEN) as server:
        assert client_of(server).models.list().data == []
        with pytest.raises(openai.NotFoundError, match="no language model is served here; start the server with one"):
            client_of(server).completions.create(model=NAME, prompt="x")


def test_requests_that_are_no_json_are_refused(server: Running) -> None:
    posts: list[tuple[Callable[[], Any], int]] = [
        (lambda: server.post("/v1/completions", content=b"{"), 400),
        (lambda: server.post("/v1/completions", data={"prompt": "x"}), 415),
        (lambda: server.post("/v1/completions", json=[1]), 400),
        (lambda: server.post("/v1/completions", json={"model": NAME}), 400),
        (lambda: server.post("/v1/completions", json={"model": NAME, "prompt": [10**9]}), 400),
        (lambda: server.post("/v1/completions", json={"model": NAME, "prompt": []}), 400),
        (lambda: server.post("/v1/completions", json={"model": NAME, "prompt": "x", "temperature": math.pi}), 400),
        (lambda: server.get("/v1/completions"), 405),
    ]
    for post, status in posts:
        answer = post()
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

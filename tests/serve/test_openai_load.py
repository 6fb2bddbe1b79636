"""OpenAI's path under load, with its own client: in slots as on a GPU, overload, a stop in mid-stream, clients that leave."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import regard
from regard.api import Model
from tests import chat_models
from tests.serve.server import PATIENCE, Running, held_by, running, started, until

NAME = "tiny"
PATIENT = ("--limit", f"writing_seconds={PATIENCE}", "--engine", "torch")
SLOTS = 12
# What a GPU with Triton does, in fp32 on this CPU.
IN_SLOTS = """
from regard.generate.engines import torch_engine
from regard.generate.engines.torch_engine import TorchEngine, load_model, forbidden_ids
def from_bundle(bundle, device="auto", batch=0, others=(), int8=False):
    tokens = bundle.tokenizer
    return TorchEngine(load_model(bundle), tokens.bos_id, tokens.eos_id, forbidden=forbidden_ids(tokens), slots=True,
                       stop_ids=tokens.stop_ids, context=bundle.max_length)
TorchEngine.from_bundle = from_bundle
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, bundle = chat_models.write_model(tmp_path_factory.mktemp("load"))
    return bundle.rename(bundle.parent / NAME)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return regard.load(folder, engine="torch")


@pytest.fixture(scope="module")
def in_slots(folder: Path) -> Iterator[Running]:
    with running(*PATIENT, "--limit", f"rows={SLOTS}", model=folder, code=IN_SLOTS) as server:
        yield server


def client_of(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def entries(server: Running, event: str) -> list[Any]:
    return [entry for line in server.lines if (entry := json.loads(line))["event"] == event]


def test_the_server_says_how_much_memory_its_slots_take(in_slots: Running) -> None:
    said = entries(in_slots, "listening")[0]["writers"][NAME]
    assert said.startswith(f"cpu fp32, {SLOTS} slots of 256 tokens, 0.0") and said.endswith("GB taken")


def test_many_clients_write_in_few_slots(in_slots: Running, model: Model) -> None:
    """64 at once, five times as many as there are slots: everybody gets what he would get alone, streamed or not."""
    prompts = [f"Number {n} says: the dog" for n in range(64)]
    expected = model.generate(prompts, temperature=0, max_tokens=10)

    def ask(number: int) -> str:
        options: dict[str, Any] = {"model": NAME, "prompt": prompts[number], "temperature": 0, "max_tokens": 10}
        with client_of(in_slots) as client:
            if number % 2:
                return "".join(one.choices[0].text for one in client.completions.create(**options, stream=True))
            return str(client.completions.create(**options).choices[0].text)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == expected


def test_slots_offer_what_the_joined_batch_offers(in_slots: Running, model: Model) -> None:
    """Samples by their seed, stop strings, log-probabilities, an echo, a long prompt."""
    with client_of(in_slots) as client:
        options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 10, "n": 3, "seed": 11}
        found = client.completions.create(model=NAME, prompt="The dog", **options)
        [expected] = model.continuations("The dog", **options)
        assert sorted(one.text for one in found.choices) == sorted(one.text for one in expected.continuations)
        whole = str(model.generate("The dog", temperature=0, max_tokens=30))
        greedy: dict[str, Any] = {"model": NAME, "prompt": "The dog", "temperature": 0, "max_tokens": 30}
        cut = client.completions.create(**greedy, stop=whole[9:12])
        assert cut.choices[0].text == whole[: whole.index(whole[9:12])]
        scored = client.completions.create(**greedy, logprobs=2, echo=True).choices[0].logprobs
        [own] = model.continuations("The dog", temperature=0, max_tokens=30, token_log_probs=True)
        values = [token.log_prob for token in own.continuations[0].tokens]
        assert scored is not None and scored.token_logprobs is not None
        assert scored.token_logprobs[-len(values) :] == pytest.approx(values, abs=1e-3)
        chat: list[Any] = [{"role": "user", "content": "How are you?"}]
        answer = client.chat.completions.create(model=NAME, messages=chat, temperature=0, max_tokens=14)
        assert answer.choices[0].message.content == model.chat(chat, temperature=0, max_tokens=14)
        with pytest.raises(openai.APIStatusError, match=f"n may be at most {SLOTS}"):
            client.completions.create(model=NAME, prompt="x", n=SLOTS + 1, max_tokens=1)


def test_whoever_leaves_frees_the_slots(folder: Path, tmp_path: Path) -> None:
    """One text holds the only slot; when its client closes the stream, the next one gets it."""
    hold = tmp_path / "hold"
    code = IN_SLOTS + held_by(hold, "slot_text_decoder.SlotTextDecoder", "step")
    with running(*PATIENT, "--limit", "rows=1", model=folder, code=code) as server, client_of(server) as client:
        options: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 200}
        stream = client.completions.create(prompt="The dog", **options, stream=True)
        next(iter(stream))
        hold.touch()
        until(started(hold).exists)
        stream.close()
        until(lambda: any(entry.get("status") == 499 for entry in entries(server, "request")))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.completions.create, prompt="A cat", **{**options, "max_tokens": 3})
            hold.unlink()
            assert waiting.result(PATIENCE).choices[0].finish_reason in ("stop", "length")


def test_a_full_queue_is_said_and_nothing_is_lost(folder: Path, tmp_path: Path) -> None:
    """With one row and a short queue: whoever finds it full learns when to come again, and the others are answered."""
    hold = tmp_path / "hold"
    hold.touch()
    code = held_by(hold, "joint_decoder.JointDecoder", "step")
    limits = ("--limit", "rows=1", "--limit", "queue_tokens=60")
    with running(*PATIENT, *limits, model=folder, code=code) as server, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> openai.RateLimitError | None:
            with client_of(server) as client:
                try:
                    client.completions.create(model=NAME, prompt=f"{number}", max_tokens=20, temperature=0)
                except openai.RateLimitError as refused:
                    return refused
                return None

        first = pool.submit(ask, 0)
        until(started(hold).exists)
        others = [pool.submit(ask, number) for number in range(1, 8)]
        until(lambda: sum(one.done() for one in others) >= 4)  # the queue has room for two or three
        assert all(one.result() for one in others if one.done())
        hold.unlink()
        assert first.result(PATIENCE) is None
        found = [one.result(PATIENCE) for one in others]
        assert None in found
        for refused in filter(None, found):
            assert int(refused.response.headers["retry-after"]) >= 1
            assert "too much is waiting; try again in" in str(refused)


def test_a_stop_in_mid_stream(folder: Path, model: Model, tmp_path: Path) -> None:
    """Who is being answered gets all of it; who comes then is told to go elsewhere."""
    hold = tmp_path / "hold"
    code = held_by(hold, "joint_decoder.JointDecoder", "step")
    with running(*PATIENT, model=folder, code=code) as server, client_of(server) as client:
        options: dict[str, Any] = {"model": NAME, "prompt": "The dog", "temperature": 0, "max_tokens": 40}
        stream = iter(client.completions.create(**options, stream=True))
        text = next(stream).choices[0].text
        hold.touch()
        until(started(hold).exists)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: bool(entries(server, "stopping")))
        with client_of(server) as late, pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            late.completions.create(**options)
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
        hold.unlink()
        text += "".join(one.choices[0].text for one in stream)
        assert text == model.generate("The dog", temperature=0, max_tokens=40)
        server.wait()


def test_a_second_signal_ends_a_stream_and_the_client_learns_it(folder: Path, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    code = held_by(hold, "joint_decoder.JointDecoder", "step")
    with running(*PATIENT, model=folder, code=code) as server, client_of(server) as client:
        stream = iter(client.completions.create(model=NAME, prompt="The dog", max_tokens=200, stream=True))
        next(stream)
        hold.touch()
        until(started(hold).exists)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: bool(entries(server, "stopping")))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(
            Exception, match=r"closed|incomplete|[Cc]onnection"
        ):  # of httpx or openai, as their versions have it
            list(stream)
        assert server.process.wait(timeout=PATIENCE) is not None
        hold.unlink()

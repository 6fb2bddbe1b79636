"""Continuous batching for a server, joined and in slots: the same texts as the engine alone writes, whatever joins and leaves
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

import regard
from regard.bundle import load_bundle
from regard.errors import InputError, UserError
from regard.generate.engines.decoder_jobs import PART_TOKENS, READ_TOKENS, DecoderJob, ReadingQueue, TextDecoder
from regard.generate.engines.joint_decoder import JointDecoder
from regard.generate.engines.select import make_engine, make_served_engine, make_text_engine
from regard.generate.engines.slot_text_decoder import SlotTextDecoder
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import SearchOptions, forbidden_ids
from regard.nn.int8 import int8_refusal
from regard.writing.options import writing_options
from tests import chat_models
from tests.serve.server import GOLDEN

PROMPTS = ["The dog", "A cat sat on the mat, and then another one came", "x", "How are you? " * 4]
OPTIONS = [
    writing_options(temperature=0, max_tokens=14).search,
    writing_options(n=3, seed=5, max_tokens=9).search,
    writing_options(n=2, seed=8, top_k=20, temperature=1.3, repetition_penalty=1.4, max_tokens=17).search,
    writing_options(temperature=0, no_repeat=2, max_repeat=1, max_tokens=20).search,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_models.write_model(tmp_path_factory.mktemp("joint"), positions=96)[1]


@pytest.fixture(scope="module")
def model(folder: Path) -> regard.Model:
    return regard.load(folder, engine="torch", device="cpu")


@pytest.fixture(scope="module")
def alone(folder: Path) -> regard.Model:
    """The same model, which no server has touched."""
    return regard.load(folder, engine="torch", device="cpu")


def engine_of(model: regard.Model) -> TorchEngine:
    assert isinstance(model.engine, TorchEngine)
    return model.engine


def slot_engine(folder: Path, device: str = "cpu") -> TorchEngine:
    """As `TorchEngine.from_bundle` makes it for a GPU, but in fp32."""
    bundle = load_bundle(folder)
    tokens = bundle.tokenizer
    return TorchEngine(
        load_model(bundle), tokens.bos_id, tokens.eos_id, forbidden=forbidden_ids(tokens), device=device, slots=True,
        stop_ids=tokens.stop_ids, context=bundle.max_length,
    )  # fmt: skip


KINDS = ["joint", "slots"]


def decoder_of(kind: str, folder: Path, rows: int = 40, tokens: int = 4_096) -> JointDecoder | SlotTextDecoder:
    if kind == "slots":
        return SlotTextDecoder(slot_engine(folder), rows, tokens)
    return JointDecoder(TorchEngine.from_bundle(load_bundle(folder), "cpu"))


def jobs_for(model: regard.Model, decoder: TextDecoder) -> list[DecoderJob]:
    pairs = [(prompt, options) for options in OPTIONS for prompt in PROMPTS]
    jobs = [DecoderJob(model.writer.prompt_ids(prompt), options, top=2) for prompt, options in pairs]
    for job in jobs:
        decoder.prepare(job)
    return jobs


def texts(job: DecoderJob) -> set[tuple[int, ...]]:
    return {tuple(token.id for token in row.tokens) for row in job.rows}


def expected(model: regard.Model, prompt: Sequence[int], options: SearchOptions) -> set[tuple[int, ...]]:
    [found] = engine_of(model).generate([prompt], options)
    return {one.ids for one in found}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_the_engine_alone(kind: str, folder: Path, alone: regard.Model) -> None:
    decoder = decoder_of(kind, folder)
    jobs = jobs_for(alone, decoder)
    waiting = list(jobs)
    running: list[DecoderJob] = []
    done: list[DecoderJob] = []
    abandoned = jobs[5]
    steps = 0
    while waiting or running:
        entering = waiting[: 1 + steps % 3]  # some together, some alone
        assert sum(len(job.rows) for job in running + entering) <= decoder.max_rows
        waiting = waiting[len(entering) :]
        decoder.enter(entering) if entering else None
        running += entering
        decoder.step()
        steps += 1
        leaving = [job for job in running if job.is_done or (job is abandoned and len(job.rows[0].tokens) == 4)]
        decoder.remove(leaving)
        running = [job for job in running if job not in leaving]
        done += leaving
    assert decoder.num_rows == 0 and len(done) == len(jobs)
    for job in jobs:
        if job is not abandoned:
            assert texts(job) == expected(alone, job.prompt, job.options)
    assert not abandoned.is_done


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_log_probabilities_are_those_of_the_engine(
    kind: str, folder: Path, model: regard.Model, penalty: float
) -> None:
    """As the model gives them, whatever the penalty of repetitions makes of them."""
    decoder = decoder_of(kind, folder)
    options = writing_options(temperature=0, max_tokens=14, repetition_penalty=penalty).search
    job = DecoderJob(model.writer.prompt_ids("The dog"), options, top=3)
    decoder.prepare(job)
    decoder.enter([job])
    while not job.is_done:
        decoder.step()
    [row] = job.rows
    [scored] = engine_of(model).score([job.prompt], [[token.id for token in row.tokens]])
    assert [token.log_prob for token in row.tokens] == pytest.approx(scored[: len(row.tokens)], abs=1e-4)
    for token in row.tokens:
        assert len(token.top) == 3
        assert penalty != 1.0 or token.top[0] == pytest.approx((token.id, token.log_prob))
    read = decoder.read([*job.prompt, *(token.id for token in row.tokens)], 2)[-len(row.tokens) :]
    assert [token.id for token in read] == [token.id for token in row.tokens]
    assert [token.log_prob for token in read] == pytest.approx([token.log_prob for token in row.tokens], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_without_room_is_refused(kind: str, folder: Path) -> None:
    decoder = decoder_of(kind, folder)
    with pytest.raises(InputError, match="a prompt must have fewer than 96 tokens"):
        decoder.prepare(DecoderJob([5] * 96, OPTIONS[0]))
    job = DecoderJob([5] * 90, OPTIONS[0])
    decoder.prepare(job)
    assert job.limit == 6
    with pytest.raises(InputError, match="must have token ids below"):
        decoder.prepare(DecoderJob([5, 10**6], OPTIONS[0]))


# --- long prompts ---


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_models.write_model(tmp_path_factory.mktemp("long"), positions=2_048)[1]


@pytest.fixture(scope="module")
def long_model(long_folder: Path) -> regard.Model:
    return regard.load(long_folder, engine="torch", device="cpu")


def long_job(decoder: TextDecoder, length: int, samples: int = 1, seed: int = 0) -> DecoderJob:
    options = writing_options(n=samples, seed=4, max_tokens=8).search
    job = DecoderJob([3 + (seed + 7 * n * n) % 200 for n in range(length)], options)
    decoder.prepare(job)
    return job


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_does_not_hold_up_other_texts(kind: str, long_folder: Path, long_model: regard.Model) -> None:
    """A text gets a token at every step while a prompt of four parts is read, and a short prompt that comes later is first."""
    decoder = decoder_of(kind, long_folder, rows=6)
    writing, long = long_job(decoder, 5), long_job(decoder, 4 * PART_TOKENS, samples=2)
    decoder.enter([writing])
    decoder.step()
    decoder.enter([long])
    counts = []
    for _ in range(5):
        decoder.step()
        counts.append((len(writing.rows[0].tokens), len(long.rows[0].tokens)))
    assert counts == [(2, 0), (3, 0), (4, 0), (5, 1), (6, 2)]
    second, short = long_job(decoder, 3 * PART_TOKENS), long_job(decoder, 9)
    decoder.enter([second, short])
    decoder.step()
    assert (len(short.rows[0].tokens), len(second.rows[0].tokens)) == (1, 0)
    decoder.remove([second])
    while not long.is_done:
        decoder.step()
    assert texts(long) == expected(long_model, long.prompt, long.options)
    decoder.remove([writing, long, short])
    assert decoder.num_rows == 0
    if isinstance(decoder, SlotTextDecoder):
        assert sorted(decoder._free) == list(range(6)) and not decoder._read_so_far
    else:
        assert not decoder._parts


def test_a_long_prompt_is_read_alike_whatever_else_is_read(long_model: regard.Model) -> None:
    """To the last bit, and as the engine reads it at once, but for rounding."""

    def values(jobs: list[DecoderJob]) -> list[list[float]]:
        decoder.enter(jobs)
        while not all(job.is_done for job in jobs):
            decoder.step()
        decoder.remove(jobs)
        return [[token.log_prob for token in row.tokens] for row in jobs[0].rows]

    decoder = JointDecoder(engine_of(long_model))
    length = 2 * PART_TOKENS + 77
    alone = long_job(decoder, length)
    found = values([alone])
    others = [long_job(decoder, size, seed=size) for size in (1, 300, 700, 20)]
    assert values([long_job(decoder, length), *others]) == found
    [scored] = engine_of(long_model).score([alone.prompt], [[token.id for token in alone.rows[0].tokens]])
    assert found[0] == pytest.approx(scored[: len(found[0])], abs=1e-3)


def test_a_prompt_that_cannot_be_read_fails_alone(long_model: regard.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = JointDecoder(engine_of(long_model))
    for length in (9, PART_TOKENS + 9):
        bad, good = long_job(decoder, length), long_job(decoder, 5)
        bad.prompt = [*bad.prompt[:-2], 10**6, 1]
        decoder.enter([bad, good])
        decoder.step()
        decoder.step()
        assert isinstance(bad.failure, IndexError) and bad.is_done
        assert good.failure is None and len(good.rows[0].tokens) >= 1
        decoder.remove([bad, good])


def test_prompts_are_read_in_turns() -> None:
    queue = ReadingQueue()
    jobs = [DecoderJob([5] * length, OPTIONS[0]) for length in (3 * PART_TOKENS, PART_TOKENS + 1, 1, 40)]
    queue.add(jobs)
    taken = []
    while parts := queue.take():
        assert sum(part.end - part.start for part in parts) <= READ_TOKENS
        taken.append([(jobs.index(part.job), part.start, part.end) for part in parts])
    assert taken == [
        [(0, 0, 256), (1, 0, 256), (2, 0, 0)],
        [(3, 0, 39), (0, 256, 512)],
        [(0, 512, 767)],
    ]


# --- engines ---


def test_int8_is_for_language_models_on_cpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load_bundle(folder)
    with pytest.raises(UserError, match="engine torch-int8 is for language models"):
        make_engine(load_bundle(GOLDEN), "torch-int8")
    with pytest.raises(UserError, match="device must be auto or cpu with engine torch-int8"):
        make_served_engine(bundle, "torch-int8", "cuda")
    monkeypatch.setattr("regard.nn.int8.int8_refusal", lambda: "it has no VNNI")
    with pytest.raises(UserError, match="torch-int8 cannot be used: it has no VNNI; use --engine torch"):
        make_text_engine(bundle, "torch-int8")
    assert make_served_engine(bundle, "auto", "cpu").precision == "fp32"
    monkeypatch.undo()
    if int8_refusal() is None:
        assert make_served_engine(bundle, "auto", "cpu").precision == "int8"
    assert make_served_engine(bundle, "torch", "cpu").precision == "fp32"


@pytest.mark.skipif(int8_refusal() is not None, reason=str(int8_refusal()))
def test_int8_texts_do_not_depend_on_what_shares_the_batch(long_folder: Path) -> None:
    """To the last bit, with short and long prompts beside them."""
    decoder = JointDecoder(TorchEngine.from_bundle(load_bundle(long_folder), "cpu", int8=True))

    def values(jobs: list[DecoderJob]) -> list[list[float]]:
        for job in jobs:
            decoder.enter([job])
            decoder.step()
        while not all(job.is_done for job in jobs):
            decoder.step()
        decoder.remove(jobs)
        return [[token.log_prob for token in row.tokens] for row in jobs[-1].rows]

    for length in (7, PART_TOKENS + 40):
        alone = values([long_job(decoder, length, samples=2)])
        others = [long_job(decoder, size, seed=size) for size in (1, 300, 31, 20)]
        assert values([*others, long_job(decoder, length, samples=2)]) == alone


# --- slots ---


def test_samples_share_the_slot_of_their_prompt_and_leave_it_together(folder: Path, alone: regard.Model) -> None:
    """The first sample, whose row holds the prompt, ends at once: the others go on as if alone."""
    decoder = decoder_of("slots", folder, rows=9)
    options = writing_options(n=4, seed=3, max_tokens=12).search
    job, other = (DecoderJob(alone.writer.prompt_ids(prompt), options) for prompt in ("The dog", "A cat sat"))
    for one in (job, other):
        decoder.prepare(one)
    decoder.enter([job])
    decoder.step()
    job.rows[0].is_done = True
    decoder.enter([other])
    while not (job.is_done and other.is_done):
        decoder.step()
    assert len(job.rows[0].tokens) == 1
    found = expected(alone, job.prompt, job.options)
    assert {tuple(token.id for token in row.tokens) for row in job.rows[1:]} < found
    assert texts(other) == expected(alone, other.prompt, other.options)


def test_a_step_computes_few_rows_for_few_texts(
    folder: Path, alone: regard.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of("slots", folder, rows=40)
    assert isinstance(decoder, SlotTextDecoder)
    computed: list[int] = []

    def counted(width: int, work: Callable[[], None]) -> None:
        computed.append(width)
        work()

    for width, work in decoder._steps.items():
        monkeypatch.setitem(decoder._steps, width, partial(counted, width, work))
    jobs = jobs_for(alone, decoder)[4:12]  # 4 of three rows, 4 of two
    decoder.enter(jobs[:2])
    decoder.step()
    decoder.enter(jobs[2:])
    decoder.step()
    decoder.remove(jobs[1:])
    decoder.step()
    assert computed == [8, 32, 8]


def test_the_memory_of_slots_is_known(folder: Path) -> None:
    engine = slot_engine(folder)
    of_token = engine.bytes_per_token
    decoder = SlotTextDecoder(engine, 64, 50, cache_bytes=8 * 50 * of_token)
    assert (decoder.max_rows, decoder.capacity, decoder.max_tokens) == (7, 50, 350)
    held = sum(
        kept.numel() * kept.itemsize
        for one in decoder._cache.layers
        for kept in vars(one.self_attention).values()
        if hasattr(kept, "numel") and kept.dim() == 4
    )
    assert decoder.cache_bytes == held == 8 * 50 * of_token
    with pytest.raises(InputError, match="fewer than 50 tokens on this server"):
        decoder.prepare(DecoderJob([5] * 50, OPTIONS[0]))
    with pytest.raises(UserError, match="limit cache_bytes must be at least"):
        SlotTextDecoder(engine, 64, 50, cache_bytes=50 * of_token)


@pytest.mark.gpu
def test_a_gpu_writes_in_slots_what_a_cpu_writes(folder: Path, long_folder: Path, long_model: regard.Model) -> None:
    decoder = SlotTextDecoder(slot_engine(long_folder, "cuda"), 40, 2_048)
    jobs = [long_job(decoder, length, samples, seed=length) for length in (3, 300, 900) for samples in (1, 3)]
    for job in jobs:
        decoder.enter([job])
        decoder.step()
    while not all(job.is_done for job in jobs):
        decoder.step()
    same, written = 0, 0
    for job in jobs:
        rows = [[token.id for token in row.tokens] for row in job.rows]
        scored = engine_of(long_model).score([job.prompt] * len(rows), rows)
        for row, values in zip(job.rows, scored, strict=True):
            assert [token.log_prob for token in row.tokens] == pytest.approx(values[: len(row.tokens)], abs=1e-4)
        same += len(texts(job) & expected(long_model, job.prompt, job.options))
        written += len(rows)
    # Tokens that are equally likely but for their last bits may change places, and so what is drawn.
    assert same >= 0.75 * written

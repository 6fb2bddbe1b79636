"""Continuous batching for a server: the same texts as the engine alone writes, whatever joins and leaves meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import regard
from regard.errors import InputError
from regard.generate.engines.decoder_jobs import DecoderJob
from regard.generate.engines.joint_decoder import JointDecoder
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.writing.options import writing_options
from tests import chat_models

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
    return regard.load(folder, engine="torch")


@pytest.fixture(scope="module")
def alone(folder: Path) -> regard.Model:
    """The same model, which no server has touched."""
    return regard.load(folder, engine="torch")


def engine_of(model: regard.Model) -> TorchEngine:
    assert isinstance(model.engine, TorchEngine)
    return model.engine


def jobs_for(model: regard.Model, decoder: JointDecoder) -> list[DecoderJob]:
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


def test_texts_are_those_of_the_engine_alone(model: regard.Model, alone: regard.Model) -> None:
    decoder = JointDecoder(engine_of(model))
    jobs = jobs_for(model, decoder)
    waiting = list(jobs)
    running: list[DecoderJob] = []
    done: list[DecoderJob] = []
    abandoned = jobs[5]
    steps = 0
    while waiting or running:
        entering = waiting[: 1 + steps % 3]  # some together, some alone
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


@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_log_probabilities_are_those_of_the_engine(model: regard.Model, penalty: float) -> None:
    """As the model gives them, whatever the penalty of repetitions makes of them."""
    decoder = JointDecoder(engine_of(model))
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


def test_a_prompt_without_room_is_refused(model: regard.Model) -> None:
    decoder = JointDecoder(engine_of(model))
    with pytest.raises(InputError, match="a prompt must have fewer than 96 tokens"):
        decoder.prepare(DecoderJob([5] * 96, OPTIONS[0]))
    job = DecoderJob([5] * 90, OPTIONS[0])
    decoder.prepare(job)
    assert job.limit == 6

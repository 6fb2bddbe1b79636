"""The batch of texts that a server writes: who enters when, who leaves, and what happens when something fails. The model is one
that counts, and takes a step only when the test says so."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from queue import Queue
from typing import Any

import pytest

from regard.data.tokenizer import Tokenizer
from regard.errors import InputTooLarge
from regard.generate.engines.decoder_jobs import DecoderJob, Row, Token
from regard.serve.batching import QueueFull
from regard.serve.limits import Limits
from regard.serve.writing_batch import Piece, WritingBatcher, WritingJob
from regard.writing.options import writing_options
from tests.serve.server import GOLDEN, PATIENCE


class CountingDecoder:
    """Writes the letters of the alphabet, one for each step."""

    max_rows = max_tokens = sys.maxsize

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.letters = [tokenizer.encode(f"{letter}", "target", at_start=False)[-1] for letter in "abcdefghijklmnop"]
        self.jobs: list[DecoderJob] = []
        self.steps = threading.Semaphore(0)
        self.entered: list[list[int]] = []
        self.broken: Exception | None = None
        self.bad_prompt: list[int] | None = None

    @property
    def num_rows(self) -> int:
        return sum(len(job.rows) for job in self.jobs)

    def prepare(self, job: DecoderJob) -> None:
        job.limit = job.options.max_extra
        job.rows = [Row() for _ in range(job.options.beam)]

    def enter(self, jobs: Sequence[DecoderJob]) -> None:
        self.jobs += jobs
        for job in jobs:
            if job.prompt == self.bad_prompt:
                job.fail(RuntimeError("this prompt is bad"))
        self.entered += [list(job.prompt) for job in jobs]

    def step(self) -> None:
        assert self.steps.acquire(timeout=PATIENCE)
        if self.broken is not None:
            broken, self.broken = self.broken, None
            raise broken
        for job in self.jobs:
            for row in job.rows:
                if not row.is_done:
                    row.tokens.append(Token(self.letters[len(row.tokens) % len(self.letters)], -1.0))
                    row.is_done = len(row.tokens) >= job.limit

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        self.jobs = [job for job in self.jobs if job not in gone]

    def read(self, prompt: Sequence[int], top: int) -> list[Token]:
        raise NotImplementedError


class Listener:
    """What comes of one job."""

    def __init__(self) -> None:
        self.queue: Queue[Piece | Exception] = Queue()

    def piece(self) -> Any:
        return self.queue.get(timeout=PATIENCE)


@pytest.fixture
def decoder() -> CountingDecoder:
    return CountingDecoder(Tokenizer.load(GOLDEN / "tokenizer"))


def batcher_of(decoder: Any, **limits: Any) -> WritingBatcher:
    return WritingBatcher(decoder, Tokenizer.load(GOLDEN / "tokenizer"), Limits(**limits))


@pytest.fixture
def batcher(decoder: CountingDecoder) -> Iterator[WritingBatcher]:
    made = batcher_of(decoder, rows=4)
    yield made
    decoder.steps.release(10_000)
    made.close(PATIENCE)


def submit(
    batcher: WritingBatcher, prompt: int, client: str = "a", tokens: int = 3, **options: Any
) -> tuple[WritingJob, Listener]:
    listener = Listener()
    chosen = writing_options(max_tokens=tokens, seed=1, **options)
    return batcher.submit([prompt], chosen, listener.queue.put, client=client), listener


def test_a_text_that_comes_later_does_not_wait_for_those_before(
    batcher: WritingBatcher, decoder: CountingDecoder
) -> None:
    _, first = submit(batcher, 1, "a", tokens=9)
    decoder.steps.release(2)
    assert first.piece().text and first.piece().text
    _, second = submit(batcher, 2, "b", tokens=1)
    decoder.steps.release(2)
    assert second.piece().reason == "length"
    assert not decoder.jobs[0].is_done, "the first goes on"


def test_whoever_fills_the_room_leaves_a_share_to_others(batcher: WritingBatcher, decoder: CountingDecoder) -> None:
    """Of 4 rows one client gets half while it is alone; another finds a place at once."""
    mine = [submit(batcher, number, "a", tokens=50) for number in range(4)]
    decoder.steps.release(2)
    mine[0][1].piece()
    mine[0][1].piece()
    assert [prompt for [prompt] in decoder.entered] == [0, 1]
    _, other = submit(batcher, 9, "b", tokens=1)
    decoder.steps.release(2)
    assert other.piece().reason == "length"
    assert [prompt for [prompt] in decoder.entered] == [0, 1, 9]


def test_who_leaves_makes_room(batcher: WritingBatcher, decoder: CountingDecoder) -> None:
    jobs = [submit(batcher, number, "a", tokens=500) for number in range(3)]
    decoder.steps.release(1)
    jobs[0][1].piece()
    batcher.cancel(jobs[0][0])
    decoder.steps.release(3)
    assert jobs[2][1].piece().text, "the third has entered"
    batcher.cancel(jobs[1][0])
    batcher.cancel(jobs[2][0])
    decoder.steps.release(2)
    _, last = submit(batcher, 7, "a", tokens=1)
    decoder.steps.release(3)
    assert last.piece().reason == "length"
    assert len(decoder.jobs) <= 1


def test_a_stop_string_ends_a_text_at_once(batcher: WritingBatcher, decoder: CountingDecoder) -> None:
    _, listener = submit(batcher, 1, tokens=16, stop=["cd"])
    decoder.steps.release(16)
    pieces = [listener.piece()]
    while pieces[-1].reason is None:
        pieces.append(listener.piece())
    assert "".join(piece.text for piece in pieces).strip() == "ab"
    assert (pieces[-1].reason, pieces[-1].count) == ("stop", 4)


def test_a_bad_prompt_fails_alone(batcher: WritingBatcher, decoder: CountingDecoder) -> None:
    decoder.bad_prompt = [1]
    _, first = submit(batcher, 0, "c", tokens=40)  # so that the next two enter together
    _, bad = submit(batcher, 1, "a")
    _, good = submit(batcher, 2, "b", tokens=1)
    decoder.steps.release(4)
    assert isinstance(bad.piece(), RuntimeError)
    assert good.piece().reason == "length" and first.piece().text


def test_a_step_that_fails_is_told_and_the_thread_goes_on(batcher: WritingBatcher, decoder: CountingDecoder) -> None:
    decoder.broken = RuntimeError("out of memory")
    _, listener = submit(batcher, 1)
    decoder.steps.release(1)
    assert isinstance(listener.piece(), RuntimeError)
    _, again = submit(batcher, 2, tokens=1)
    decoder.steps.release(1)
    assert again.piece().reason == "length" and batcher.is_alive


def test_a_full_queue_says_when_to_come_again(decoder: CountingDecoder) -> None:
    batcher = batcher_of(decoder, rows=1, queue_tokens=30)
    _, running = submit(batcher, 0, tokens=5)
    decoder.steps.release(1)
    running.piece()
    submit(batcher, 1, tokens=20)
    with pytest.raises(QueueFull, match=r"too much is waiting; try again in \d+ s"):
        submit(batcher, 2, tokens=20)
    decoder.steps.release(1_000)
    batcher.close(PATIENCE)


def test_what_could_never_fit_is_refused(decoder: CountingDecoder) -> None:
    decoder.max_tokens = 100
    batcher = batcher_of(decoder, rows=2)
    with pytest.raises(InputTooLarge, match="at most 100 tokens together, but could have 201"):
        submit(batcher, 0, tokens=200)
    with pytest.raises(InputTooLarge, match="n may be at most 2"):
        submit(batcher, 0, n=3)
    batcher.close(PATIENCE)
    decoder.max_rows = 1
    batcher = batcher_of(decoder, rows=2)
    with pytest.raises(InputTooLarge, match="n may be at most 1"):
        submit(batcher, 0, n=2)
    batcher.close(PATIENCE)


def test_closing_finishes_what_was_begun(decoder: CountingDecoder) -> None:
    batcher = batcher_of(decoder)
    listeners = [submit(batcher, number)[1] for number in range(3)]
    decoder.steps.release(100)
    batcher.close(PATIENCE)
    for listener in listeners:
        pieces = [listener.queue.get_nowait() for _ in range(listener.queue.qsize())]
        assert isinstance(pieces[-1], Piece) and pieces[-1].reason == "length"


def test_tokens_are_counted_that_were_written(decoder: CountingDecoder) -> None:
    """Not those of texts that are done while others of their request go on."""
    seen: list[tuple[int, int]] = []
    tokenizer = Tokenizer.load(GOLDEN / "tokenizer")
    batcher = WritingBatcher(decoder, tokenizer, Limits(), None, lambda tokens, rows, _: seen.append((tokens, rows)))
    job, _ = submit(batcher, 1, tokens=2, n=2)
    job.texts[1].row.is_done = True
    decoder.steps.release(2)
    batcher.close(PATIENCE)
    assert seen == [(1, 2), (1, 2)]

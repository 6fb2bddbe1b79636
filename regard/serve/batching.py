"""Dynamic batching: sentences of many requests go through the engine together.

    submit -> jobs that wait -> threads around the engine -> futures

An idle engine starts at once, so a lone request never waits; while the engine works, jobs gather and then share a batch. Under load
a thread waits up to `window` seconds after the last arrival for a full share of the active jobs: answers go out one by one, so
their clients return one by one, and a thread that took the first would compute single sentences for ever. Batches are limited by
tokens, and jobs take turns, so that a book does not block a greeting: first by client (`fairness.py`), then among the jobs of one
client. While others are there, a client gets a fraction of a second of the engine at a time, never all threads, and long sentences
do not share a batch with short ones, which would wait for them.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from regard.errors import RegardError
from regard.generate.options import Constraints, Engine, Hypothesis, SearchOptions
from regard.serve.fairness import TURN_SECONDS, Client, FairShares

_TURN = 16  # sentences taken from one job before it is another's turn
_SHORT = 32  # tokens: sentences up to this length share a batch, then those up to twice as many, and so on
_RETRY_SECONDS = 0.02  # between two looks at whether a client may have another thread

Hypotheses = list[Hypothesis]  # hypotheses of one sentence, best first
# Called for each sentence as it is finished, with its number, from a thread of the batcher.
OnHypotheses = Callable[[int, Hypotheses], None]
Observe = Callable[[int, int, float], None]  # called for each batch: sentences, jobs, seconds


class QueueFull(RegardError):
    """The queue has no room for a job."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too much is waiting; try again in {seconds} s")
        self.seconds = seconds


def sentence_tokens(ids: Sequence[int], constraint: Constraints | None) -> int:
    """What a sentence costs: its tokens with the end token and its prefix, and as much again for every phrase, which makes the
    search about that much longer."""
    length = len(ids) + 1
    if constraint is None:
        return length
    written = length + len(constraint.prefix) + sum(phrase.min_length for phrase in constraint.phrases)
    return written * (1 + len(constraint.phrases))


def beam_weight(beam: int, usual: int) -> int:
    """The cost of a token, relative to a search with the model's own beam."""
    return max(1, math.ceil(beam / usual))


@dataclass(eq=False)
class BatchJob:
    """The sentences of one request."""

    ids: Sequence[Sequence[int]]
    options: SearchOptions
    on_hypotheses: OnHypotheses | None
    client: Client
    constraints: Sequence[Constraints] = ()  # one for each sentence, or none at all
    weight: int = 1  # the cost of a token, relative to a job with the model's own beam
    future: Future[list[Hypotheses]] = field(default_factory=Future)
    taken: int = 0  # sentences that were handed to the engine
    finished: int = 0
    served: int = 0  # its clock among the jobs of its client: tokens handed to the engine
    results: list[Hypotheses] = field(default_factory=list)

    @property
    def waiting_tokens(self) -> int:
        """The cost of the sentences that were not handed to the engine yet."""
        return sum(self.tokens(number) for number in range(self.taken, len(self.ids)))

    def tokens(self, number: int) -> int:
        """The cost of a sentence."""
        return self.weight * sentence_tokens(self.ids[number], self.constraints[number] if self.constraints else None)

    @property
    def size(self) -> int:
        """The size class of the next sentence."""
        return _size(self.tokens(self.taken))

    def is_like(self, other: BatchJob) -> bool:
        """Whether their next sentences may share a batch. Constrained searches and long sentences take longer, so the others do not
        wait for them."""
        alike = self.options == other.options and bool(self.constraints) == bool(other.constraints)
        return alike and self.size == other.size


def _size(tokens: int) -> int:
    return max(_SHORT, tokens - 1).bit_length()


SentenceBatch = list[tuple[BatchJob, int]]  # (job, number of its sentence)


class Batcher:
    """Threads around one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        queue_tokens: int = 200_000,
        batch_tokens: int = 4_096,
        window: float = 0.004,
        shared: bool = True,
        observe: Observe | None = None,
        beam: int = 4,
        threads: int = 0,
        shares: FairShares | None = None,
        is_slow: bool = False,
    ) -> None:
        """`shared`: whether sentences of several jobs may share a batch; for comparisons. Tokens cost more with a beam wider than
        `beam`. `threads`: 0 means as many as the engine benefits from. `is_slow`: its threads come on top of those that the cores
        are for, so they wait for an idle one or for their client's turn."""
        self.engine, self.queue_tokens, self.batch_tokens = engine, queue_tokens, batch_tokens
        self._window, self._shared, self._observe, self._beam = window, shared, observe, beam
        self._shares, self._is_slow = shares or FairShares(), is_slow
        self._jobs: list[BatchJob] = []  # jobs with waiting sentences
        self._changed = threading.Condition()
        self._waiting = 0  # the cost of all waiting sentences, in tokens
        self._busy = 0  # threads in the engine
        self._computed = 0  # jobs in the engine, counted once for each thread that has sentences of them
        self._present = 1.0  # moving average of the jobs that wait or are computed
        self._came = 0.0  # when the newest job was submitted, or the newest batch finished
        self._gather_until = 0.0
        self._closed = False
        self._failure: BaseException | None = None  # what ended a thread
        self._speed = 2_000.0  # tokens a second of one thread; a first guess
        self._threads = [
            threading.Thread(target=self._work, name=f"regard-batch-{n}", daemon=True)
            for n in range(threads or engine.parallel)
        ]
        self._shares.threads += 0 if is_slow else len(self._threads)
        for thread in self._threads:
            thread.start()

    @property
    def waiting_tokens(self) -> int:
        """The cost of all waiting sentences."""
        return self._waiting

    def submit(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_hypotheses: OnHypotheses | None = None,
        constraints: Sequence[Constraints] = (),
        client: str = "",
    ) -> Future[list[Hypotheses]]:
        """Queue sentences of a client; raises QueueFull if too much waits. Cancelling the future frees the room."""
        if not ids:
            nothing: Future[list[Hypotheses]] = Future()
            nothing.set_result([])
            return nothing
        account = self._shares.enter(client)
        weight = beam_weight(options.beam, self._beam)
        job = BatchJob(ids, options, on_hypotheses, account, constraints, weight, results=[[] for _ in ids])
        job.future.add_done_callback(lambda _: self._shares.leave(account))
        try:
            self._queue(job)
        except (RegardError, RuntimeError):
            job.future.cancel()
            raise
        # Not the job itself: it and its future would hold each other, and every request would leave work for the collector.
        waiting = weakref.ref(job)
        job.future.add_done_callback(lambda _: self._drop(waiting()))
        return job.future

    def _queue(self, job: BatchJob) -> None:
        tokens = job.waiting_tokens
        with self._changed:
            if self._failure is not None:
                raise RuntimeError("a thread of the batcher has ended; restart the server") from self._failure
            if self._closed:
                raise RegardError("the server is being stopped")
            # A job larger than the whole queue is accepted when the queue is empty; request limits bound its size.
            if self._waiting and self._waiting + tokens > self.queue_tokens and not self._has_room(job.client, tokens):
                raise QueueFull(self._seconds_left())
            self._waiting += tokens
            self._came = time.monotonic()
            job.served = min((one.served for one in self._jobs if one.client is job.client), default=0)
            self._jobs.append(job)
            self._changed.notify()

    def _has_room(self, client: Client, tokens: int) -> bool:
        """Whether a client stays within its share of the queue: those who fill it leave room for others."""
        own = sum(job.waiting_tokens for job in self._jobs if job.client is client)
        clients = len({job.client for job in self._jobs} | {client})
        return own + tokens <= self.queue_tokens / (clients + 1)

    @property
    def is_alive(self) -> bool:
        """Whether no bug has ended a thread."""
        return self._failure is None

    def seconds_left(self) -> int:
        """Seconds that the queue will take, for clients that must retry."""
        with self._changed:
            return self._seconds_left()

    def _seconds_left(self) -> int:
        return min(60, max(1, math.ceil(self._waiting / (self._speed * len(self._threads)))))

    def close(self, patience: float | None = None) -> None:
        """Finish the queue, then stop. `patience`: seconds to wait for that; the threads are daemons."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = None if patience is None else time.monotonic() + patience
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _drop(self, job: BatchJob | None) -> None:
        """Remove a cancelled job from the queue."""
        with self._changed:
            if job is not None and job in self._jobs:
                self._jobs.remove(job)
                self._waiting -= job.waiting_tokens
                job.taken = len(job.ids)

    # --- the threads ---

    def _work(self) -> None:
        batch: SentenceBatch = []
        try:
            while taken := self._take():
                batch, estimates = taken
                start = time.monotonic()
                found, failed = self._translate(batch)
                self._account(batch, estimates, time.monotonic() - start)
                # Last: a client with its answer may return at once, and must not count twice.
                self._hand_out(found, failed)
                batch = []
        except BaseException as error:
            self._fail(batch, error)
            raise

    def _fail(self, batch: SentenceBatch, error: BaseException) -> None:
        """A bug has ended a thread: nobody may wait for it, neither those in its batch nor those in the queue."""
        with self._changed:
            self._failure, self._closed = error, True
            jobs = {id(job): job for job in [*self._jobs, *(job for job, _ in batch)]}
            self._changed.notify_all()
        for job in jobs.values():
            with suppress(InvalidStateError):  # it was cancelled
                job.future.set_exception(error)

    def _account(self, batch: SentenceBatch, estimates: Mapping[Client, float], seconds: float) -> None:
        jobs = len({id(job) for job, _ in batch})
        end = time.monotonic()
        with self._changed:
            present = self._computed + sum(job.taken == 0 for job in self._jobs)
            self._present = max(present, (self._present + present) / 2)
            self._busy -= 1
            self._computed -= jobs
            tokens = sum(job.tokens(n) for job, n in batch)
            self._speed += 0.2 * (tokens / max(seconds, 1e-4) - self._speed)
            self._came = end
            self._gather_until = end + max(self._window, seconds / 2)
        self._shares.end(estimates, _costs(batch, tokens / max(seconds, 1e-4)))
        if self._observe is not None:
            self._observe(len(batch), jobs, seconds)

    def _take(self) -> tuple[SentenceBatch, Mapping[Client, float]] | None:
        """Wait for the next batch; returns it with the seconds that it may take, by client. None when the queue is empty and
        closed."""
        with self._changed:
            while True:
                if not self._jobs:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                left = min(self._came + self._window, self._gather_until) - time.monotonic()
                if left > 0 and len(self._jobs) < self._share and not self._closed:
                    self._changed.wait(left)
                    continue
                jobs = self._in_turn()
                if not jobs:  # all threads that their clients may have are taken
                    self._changed.wait(_RETRY_SECONDS)
                    continue
                batch = self._cut(jobs)
                estimates = _costs(batch, self._speed)
                self._shares.begin(estimates)
                self._busy += 1
                self._computed += len({id(job) for job, _ in batch})
                if self._jobs:
                    self._changed.notify()
                return batch, estimates

    @property
    def _share(self) -> int:
        """One thread's share of the active jobs."""
        # Minus a half: what the average keeps of a job that has left must not make a lone job wait.
        return math.ceil((self._present - 0.5) / len(self._threads)) if self._shared else 1

    def _in_turn(self) -> list[BatchJob]:
        """The jobs whose clients may have another thread, in the order of their turns."""
        may_begin = {job.client: self._shares.may_begin(job.client, self._is_slow) for job in self._jobs}
        jobs = [job for job in self._jobs if may_begin[job.client] or self._closed]
        return sorted(jobs, key=lambda job: (job.client.clock, job.served))  # stable: of equals, the first that came

    def _cut(self, jobs: Sequence[BatchJob]) -> SentenceBatch:
        """Take sentences of jobs that are alike, in turns, at most what the engine computes together."""
        first = jobs[0]
        alike = [job for job in jobs if job.is_like(first)] if self._shared else [first]
        # Divide the waiting sentences among idle threads, unless more are about to arrive.
        waiting = sum(len(job.ids) - job.taken for job in alike)
        idle = 1 if 1 < len(alike) <= self._share else len(self._threads) - self._busy
        most = min(max(1, self.engine.batch // first.weight), math.ceil(waiting / max(1, idle)))
        turn = TURN_SECONDS * self._speed if self._shares.others_than(first.client) else math.inf
        batch: SentenceBatch = []
        longest = 0
        taken: Counter[Client] = Counter()  # tokens
        size = first.size
        for job in alike:
            for number in range(job.taken, min(len(job.ids), job.taken + (_TURN if len(jobs) > 1 else most))):
                length = job.tokens(number)
                is_full = len(batch) >= most or (len(batch) + 1) * max(longest, length) > self.batch_tokens
                if batch and is_full:
                    return self._leave(batch)
                is_longer = len(alike) > 1 and _size(length) > size
                if is_longer or (taken[job.client] and taken[job.client] + length > turn):
                    break
                batch.append((job, number))
                longest = max(longest, length)
                taken[job.client] += length
                job.taken += 1
                job.served += length
                self._waiting -= length
        return self._leave(batch)

    def _leave(self, batch: SentenceBatch) -> SentenceBatch:
        """Jobs with no sentences left leave the queue."""
        for job in {id(job): job for job, _ in batch}.values():
            self._jobs.remove(job)
            if job.taken < len(job.ids):
                self._jobs.append(job)
        return batch

    def _translate(
        self, batch: SentenceBatch
    ) -> tuple[list[tuple[BatchJob, int, Hypotheses]], list[tuple[BatchJob, Exception]]]:
        """The hypotheses of each sentence, and the jobs that failed."""
        try:
            ids, first = [job.ids[n] for job, n in batch], batch[0][0]
            constraints = [job.constraints[n] for job, n in batch] if first.constraints else ()
            found = self.engine.translate(ids, first.options, None, constraints)
            return [(job, number, hypotheses) for (job, number), hypotheses in zip(batch, found, strict=True)], []
        except Exception as error:  # noqa: BLE001 - reported through the future
            jobs = list({id(job): job for job, _ in batch}.values())
            if len(jobs) == 1:
                return [], [(jobs[0], error)]
        # Retry each job alone, so that only the bad one fails.
        parts = [self._translate([(owner, n) for owner, n in batch if owner is job]) for job in jobs]
        return [one for part, _ in parts for one in part], [one for _, part in parts for one in part]

    def _hand_out(
        self, found: list[tuple[BatchJob, int, Hypotheses]], failed: list[tuple[BatchJob, Exception]]
    ) -> None:
        finished = []
        with self._changed:
            for job, number, hypotheses in found:
                job.results[number] = hypotheses
                job.finished += 1
                if job.finished == len(job.ids):
                    finished.append(job)
        for job, number, hypotheses in found:
            if job.on_hypotheses is not None and not job.future.done():
                try:
                    job.on_hypotheses(number, hypotheses)
                except Exception as raised:  # noqa: BLE001 - reported through the future
                    failed.append((job, raised))
        for job, error in failed:
            with suppress(InvalidStateError):  # it was cancelled
                job.future.set_exception(error)
        for job in finished:
            with suppress(InvalidStateError):  # it was cancelled, or has failed
                job.future.set_result(job.results)


def _costs(batch: SentenceBatch, speed: float) -> dict[Client, float]:
    """The seconds of a batch, by client, at a speed in tokens a second."""
    seconds: dict[Client, float] = {}
    for job, number in batch:
        seconds[job.client] = seconds.get(job.client, 0.0) + job.tokens(number) / speed
    return seconds

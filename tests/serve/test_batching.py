"""Batching across requests, with an engine that the test itself lets go on: nothing here depends on the clock."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from regard.errors import RegardError
from regard.generate.options import Constraints, Hypothesis, OnFinished, SearchOptions
from regard.generate.search.phrases import Phrase
from regard.serve.batching import Batcher, BatchJob, QueueFull

OPTIONS = SearchOptions()
BAD = 666


class HeldEngine:
    """Answers with its input, but each call waits until the test lets it go."""

    def __init__(self, batch: int = 64, parallel: int = 1) -> None:
        self.batch, self.parallel = batch, parallel
        self.calls: list[list[list[int]]] = []
        self.options: list[SearchOptions] = []
        self.constraints: list[list[Constraints]] = []
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        self.calls.append([list(sentence) for sentence in ids])
        self.constraints.append(list(constraints))
        self.options.append(options)
        self.started.release()
        assert self.go.acquire(timeout=60)
        if any(BAD in sentence for sentence in ids):
            raise ValueError("cannot translate this")
        return [[Hypothesis(tuple(sentence), -1.0, -1.0)] for sentence in ids]

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        raise NotImplementedError


@contextmanager
def batcher(engine: HeldEngine, **settings) -> Iterator[Batcher]:
    made = Batcher(engine, **settings)
    try:
        yield made
    finally:
        engine.go.release(1000)
        made.close()


def ids_of(future) -> list[tuple[int, ...]]:
    return [hypotheses[0].ids for hypotheses in future.result(timeout=60)]


def test_what_gathers_while_the_engine_works_goes_together() -> None:
    engine = HeldEngine()
    with batcher(engine) as made:
        first = made.submit([[1]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        others = [made.submit([[n], [n, n]], OPTIONS) for n in range(2, 7)]
        engine.go.release(2)
        assert ids_of(first) == [(1,)]
        assert [ids_of(other) for other in others] == [[(n,), (n, n)] for n in range(2, 7)]
    assert engine.calls == [[[1]], [[n] * k for n in range(2, 7) for k in (1, 2)]]


def test_a_lone_request_does_not_wait_for_the_window() -> None:
    engine = HeldEngine()
    with batcher(engine, window=3600) as made:
        for n in range(3):  # with a window that is ever waited for, the second would never start
            engine.go.release()
            assert ids_of(made.submit([[n]], OPTIONS)) == [(n,)]


def test_who_is_alone_does_not_wait_for_those_who_left() -> None:
    engine = HeldEngine()
    with batcher(engine, window=3600) as made:
        for n in range(3):
            made._present = 1.5  # two were there at first, one later
            engine.go.release()
            assert ids_of(made.submit([[n]], OPTIONS)) == [(n,)]


def test_a_finished_job_leaves_nothing_for_the_collector() -> None:
    engine = HeldEngine()
    gc.collect()
    gc.disable()
    try:
        with batcher(engine) as made:
            engine.go.release(100)
            for n in range(3):
                assert ids_of(made.submit([[n]], OPTIONS, lambda number, hypotheses: None)) == [(n,)]
            gone = made.submit([[9]], OPTIONS)
            gone.cancel()
        del gone
        left = [one for one in gc.get_objects() if type(one) is BatchJob]  # not isinstance: proxies answer for others
    finally:
        gc.enable()
    assert left == []


def test_under_load_a_thread_waits_for_its_share_of_those_who_come_again() -> None:
    engine = HeldEngine()
    with batcher(engine, window=3600) as made:
        first = made.submit([[0]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        others = [made.submit([[n]], OPTIONS) for n in (1, 2)]
        engine.go.release()
        assert ids_of(first) == [(0,)]  # three were there, and two of them wait: the third is waited for
        again = made.submit([[3]], OPTIONS)
        engine.go.release()
        assert [ids_of(one) for one in (*others, again)] == [[(1,)], [(2,)], [(3,)]]
        more = [made.submit([[n]], OPTIONS) for n in (4, 5, 6)]
        engine.go.release()
        assert [ids_of(one) for one in more] == [[(4,)], [(5,)], [(6,)]]
    assert engine.calls == [[[0]], [[1], [2], [3]], [[4], [5], [6]]]


def test_whoever_comes_again_at_once_is_counted_once() -> None:
    engine = HeldEngine()
    with batcher(engine, window=3600) as made:
        first, again = made.submit([[0]], OPTIONS), []
        assert engine.started.acquire(timeout=60)
        others = [made.submit([[n]], OPTIONS) for n in (1, 2)]
        first.add_done_callback(lambda _: again.append(made.submit([[3]], OPTIONS)))
        engine.go.release(2)
        assert [ids_of(other) for other in others] == [[(1,)], [(2,)]]  # a fourth would be waited for in vain
        assert ids_of(again[0]) == [(3,)]
    assert engine.calls == [[[0]], [[1], [2], [3]]]


def test_a_share_is_waited_for_only_as_long_as_jobs_keep_coming() -> None:
    engine = HeldEngine()
    with batcher(engine, window=0.001) as made:
        futures = [made.submit([[n]], OPTIONS) for n in range(8)]
        engine.go.release(100)
        assert [ids_of(future) for future in futures] == [[(n,)] for n in range(8)]
        assert ids_of(made.submit([[8]], OPTIONS)) == [(8,)]  # the other seven do not come again


def test_a_book_alone_is_not_kept_waiting_by_itself() -> None:
    engine = HeldEngine(batch=2)
    with batcher(engine, window=3600) as made:
        engine.go.release(100)
        assert len(ids_of(made.submit([[1]] * 9, OPTIONS))) == 9


def test_batches_are_cut_by_tokens_and_by_the_engines_own_limit() -> None:
    engine = HeldEngine(batch=3)
    with batcher(engine, batch_tokens=10) as made:
        engine.go.release(100)
        future = made.submit([[1] * 4, [2] * 4, [3] * 4, [4], [5], [6], [7]], OPTIONS)
        assert ids_of(future) == [(1,) * 4, (2,) * 4, (3,) * 4, (4,), (5,), (6,), (7,)]
    assert [len(call) for call in engine.calls] == [2, 2, 3]
    assert all(len(call) * (max(map(len, call)) + 1) <= 10 for call in engine.calls)


def test_requests_with_other_options_do_not_share_a_batch() -> None:
    engine = HeldEngine()
    greedy = SearchOptions(beam=1)
    with batcher(engine) as made:
        made.submit([[1]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        others = [made.submit([[2]], OPTIONS), made.submit([[3]], greedy), made.submit([[4]], OPTIONS)]
        engine.go.release(100)
        assert [ids_of(other) for other in others] == [[(2,)], [(3,)], [(4,)]]
    assert engine.calls[1:] == [[[2], [4]], [[3]]]
    assert engine.options == [OPTIONS, OPTIONS, greedy]


def test_wishes_stay_with_their_sentences_and_plain_ones_do_not_wait_for_them() -> None:
    engine = HeldEngine()
    begins, says = Constraints(prefix=(7,)), Constraints(phrases=(Phrase(((8, 9),)),))
    with batcher(engine) as made:
        made.submit([[1]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        others = [
            made.submit([[2]], OPTIONS),
            made.submit([[3], [4]], OPTIONS, None, [begins, Constraints()]),
            made.submit([[5]], OPTIONS),
            made.submit([[6]], OPTIONS, None, [says]),
        ]
        engine.go.release(100)
        assert [ids_of(other) for other in others] == [[(2,)], [(3,), (4,)], [(5,)], [(6,)]]
    assert engine.calls[1:] == [[[2], [5]], [[3], [4], [6]]]
    assert engine.constraints[1:] == [[], [begins, Constraints(), says]]


def test_what_takes_longer_counts_more() -> None:
    engine = HeldEngine(batch=8)
    wide = SearchOptions(beam=16)
    says = Constraints(prefix=(1, 2), phrases=(Phrase(((8, 9),)),))
    with batcher(engine, queue_tokens=100, batch_tokens=60, beam=4) as made:
        made.submit([[1]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        made.submit([[2, 2]] * 8, wide)  # 3 tokens, four times
        assert made.waiting_tokens == 96
        with pytest.raises(QueueFull):
            made.submit([[3, 3]], OPTIONS, None, [says])  # 3 tokens, and 4 that must be there, twice
        engine.go.release(2)
        assert engine.started.acquire(timeout=60) and engine.started.acquire(timeout=60)
        made.submit([[3, 3]], OPTIONS, None, [says])
        engine.go.release(100)
    # 8 sentences of a beam of 4 are 2 of a beam of 16; then it is the other's turn.
    assert [len(call) for call in engine.calls] == [1, 2, 2, 2, 1, 2]


def test_a_long_job_does_not_stand_in_the_way_of_a_short_one() -> None:
    engine = HeldEngine(batch=32)
    with batcher(engine) as made:
        book = made.submit([[1]] * 1000, OPTIONS)
        assert engine.started.acquire(timeout=60)
        greeting = made.submit([[2]], OPTIONS)
        engine.go.release(2)
        assert ids_of(greeting) == [(2,)]
        assert not book.done()
        engine.go.release(1000)
        assert len(ids_of(book)) == 1000


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    engine = HeldEngine()
    with batcher(engine, queue_tokens=10) as made:
        made.submit([[1] * 50], OPTIONS)  # larger than the queue, which is empty
        assert engine.started.acquire(timeout=60)
        waiting = made.submit([[2] * 8], OPTIONS)
        with pytest.raises(QueueFull, match=r"try again in \d+ s") as refused:
            made.submit([[3]], OPTIONS)
        assert 1 <= refused.value.seconds <= 60
        assert made.waiting_tokens == 9
        waiting.cancel()  # a client that goes away makes room
        assert made.waiting_tokens == 0
        after = made.submit([[4]], OPTIONS)
        engine.go.release(100)
        assert ids_of(after) == [(4,)]
    assert [[2] * 8] not in engine.calls


def test_a_job_that_fails_fails_alone() -> None:
    engine = HeldEngine()
    with batcher(engine) as made:
        made.submit([[0]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        good, bad, fine = (made.submit([[n]], OPTIONS) for n in (1, BAD, 2))
        engine.go.release(100)
        assert ids_of(good) == [(1,)] and ids_of(fine) == [(2,)]
        with pytest.raises(ValueError, match="cannot translate this"):
            bad.result(timeout=60)


def test_whoever_cannot_be_told_fails_and_the_thread_goes_on() -> None:
    def tell(number: int, hypotheses: object) -> None:
        raise RuntimeError("the event loop is closed")

    engine = HeldEngine()
    with batcher(engine) as made:
        engine.go.release(100)
        with pytest.raises(RuntimeError, match="the event loop is closed"):
            made.submit([[1]], OPTIONS, tell).result(timeout=60)
        assert ids_of(made.submit([[2]], OPTIONS)) == [(2,)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    def observe(sentences: int, jobs: int, seconds: float) -> None:
        raise RuntimeError("a bug")

    engine = HeldEngine()
    with batcher(engine, observe=observe) as made:
        futures = [made.submit([[1]], OPTIONS)]
        assert engine.started.acquire(timeout=60)
        futures.append(made.submit([[2]], OPTIONS))
        engine.go.release(100)
        for future in futures:
            with pytest.raises(RuntimeError, match="a bug"):
                future.result(timeout=60)
        with pytest.raises(RuntimeError, match="restart the server"):
            made.submit([[3]], OPTIONS)
        assert not made.is_alive


def test_closing_finishes_what_waits_and_takes_nothing_more() -> None:
    engine = HeldEngine()
    with batcher(engine) as made:
        futures = [made.submit([[n]], OPTIONS) for n in range(5)]
        engine.go.release(100)
        made.close()
        assert [ids_of(future) for future in futures] == [[(n,)] for n in range(5)]
        with pytest.raises(RegardError, match="being stopped"):
            made.submit([[9]], OPTIONS)


def test_what_waits_is_shared_among_idle_threads() -> None:
    engine = HeldEngine(parallel=2)
    with batcher(engine) as made:
        future = made.submit([[n] for n in range(8)], OPTIONS)
        assert engine.started.acquire(timeout=60) and engine.started.acquire(timeout=60)
        engine.go.release(100)
        assert ids_of(future) == [(n,) for n in range(8)]
    assert sum(map(len, engine.calls)) == 8
    assert len(engine.calls) >= 2


def test_sentences_are_told_of_as_they_are_finished() -> None:
    engine = HeldEngine(batch=1)
    told: list[int] = []
    with batcher(engine) as made:
        future = made.submit([[0], [1], [2]], OPTIONS, lambda number, hypotheses: told.append(number))
        engine.go.release(3)
        future.result(timeout=60)
    assert told == [0, 1, 2]

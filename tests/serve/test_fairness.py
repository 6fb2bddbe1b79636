"""Turns between clients, with engines that the test itself lets go on and a clock that it sets."""

from __future__ import annotations

import asyncio
import threading

import pytest

from regard.generate.options import SearchOptions
from regard.serve.batching import QueueFull
from regard.serve.fairness import CLIENT, FairShares
from regard.serve.limits import Limits
from regard.serve.refusal import Busy
from regard.serve.thread_pool import ThreadPool
from regard.serve.web.gate import Admission
from regard.serve.web.status import HttpRefused
from tests.serve.server import running
from tests.serve.test_batching import HeldEngine, batcher, ids_of

OPTIONS = SearchOptions()


def test_whoever_was_given_less_comes_first() -> None:
    engine = HeldEngine(batch=1)
    with batcher(engine) as made:
        book = made.submit([[n] for n in range(1, 9)], OPTIONS, client="author")
        assert engine.started.acquire(timeout=60)
        greetings = [made.submit([[100 + n]], OPTIONS, client=f"guest {n}") for n in range(3)]
        engine.go.release(100)
        assert [ids_of(one) for one in greetings] == [[(100,)], [(101,)], [(102,)]]
        assert len(ids_of(book)) == 8
    order = [call[0][0] for call in engine.calls]
    assert order[0] == 1 and set(order[1:4]) == {100, 101, 102}  # all of them before the second page


def test_many_requests_of_one_client_are_worth_no_more_than_one() -> None:
    engine = HeldEngine(batch=1)
    with batcher(engine) as made:
        first = [made.submit([[n]] * 4, OPTIONS, client="greedy") for n in range(1, 6)]
        assert engine.started.acquire(timeout=60)
        other = made.submit([[100]] * 4, OPTIONS, client="modest")
        engine.go.release(100)
        ids_of(other)
        for one in first:
            ids_of(one)
    places = [place for place, call in enumerate(engine.calls) if call[0][0] == 100]
    assert places[-1] <= 10  # alternating; behind five requests it would end at 20


def test_a_client_gets_a_little_at_a_time_while_others_are_there() -> None:
    for has_guest, most in ((False, 20), (True, 10)):
        engine = HeldEngine(parallel=2)
        with batcher(engine, batch_tokens=10_000, window=0) as made:
            made.submit([[2]], OPTIONS, client="guest" if has_guest else "author")
            assert engine.started.acquire(timeout=60)
            # At first, 2,000 tokens a second are assumed: 300 in a turn, or ten of these sentences.
            book = made.submit([[1] * 29] * 20, OPTIONS, client="author")
            assert engine.started.acquire(timeout=60)
            assert len(engine.calls[1]) == most
            engine.go.release(100)
            assert len(ids_of(book)) == 20


def test_long_sentences_do_not_share_a_batch_with_short_ones() -> None:
    engine = HeldEngine()
    with batcher(engine) as made:
        made.submit([[0]], OPTIONS)
        assert engine.started.acquire(timeout=60)
        waiting = [made.submit([[n] * size], OPTIONS) for n, size in enumerate((5, 150, 20, 140), 1)]
        engine.go.release(100)
        for one in waiting:
            ids_of(one)
    assert sorted(sorted(len(ids) for ids in call) for call in engine.calls[1:]) == [[5, 20], [140, 150]]


class GuestEngine(HeldEngine):
    """Computes the sentences that begin with 2 at once, and holds the others."""

    def translate(self, ids, options, on_finished=None, constraints=()):
        if ids[0][0] == 2:
            self.go.release()
        return super().translate(ids, options, on_finished, constraints)


def test_one_client_never_takes_the_last_thread_while_others_are_there() -> None:
    engine = GuestEngine(batch=1, parallel=2)
    with batcher(engine, shares=FairShares(lambda: 0.0)) as made:  # nobody's time runs out
        assert ids_of(made.submit([[2]], OPTIONS, client="guest")) == [(2,)]
        book = made.submit([[1]] * 6, OPTIONS, client="author")
        for _ in range(2):  # the guest's, and the first page
            assert engine.started.acquire(timeout=60)
        assert ids_of(made.submit([[2]], OPTIONS, client="guest")) == [(2,)]  # although all pages are held
        assert engine.calls == [[[2]], [[1]], [[2]]]
        engine.go.release(100)
        assert len(ids_of(book)) == 6


def test_a_full_queue_has_room_for_those_who_did_not_fill_it() -> None:
    engine = HeldEngine()
    with batcher(engine, queue_tokens=100) as made:
        made.submit([[1]], OPTIONS, client="greedy")
        assert engine.started.acquire(timeout=60)
        made.submit([[2] * 98], OPTIONS, client="greedy")
        with pytest.raises(QueueFull):
            made.submit([[3] * 9], OPTIONS, client="greedy")
        modest = made.submit([[4] * 9], OPTIONS, client="modest")
        with pytest.raises(QueueFull):  # its share is a third
            made.submit([[5] * 50], OPTIONS, client="modest")
        engine.go.release(100)
        assert ids_of(modest) == [(4,) * 9]


def test_whoever_was_given_more_waits_while_others_use_the_threads() -> None:
    now = 0.0
    shares = FairShares(lambda: now)
    shares.threads = 2
    greedy, modest = shares.enter("greedy"), shares.enter("modest")
    greedy.clock = 100.0
    assert shares.may_begin(greedy) and shares.may_begin(modest)  # nobody uses the threads
    for _ in range(10):
        shares.begin({modest: 0.5})
        now += 0.5
        shares.end({modest: 0.5}, {modest: 0.5})
    shares.begin({greedy: 2.0})
    shares.end({greedy: 2.0}, {greedy: 2.0})
    assert not shares.may_begin(greedy) and not shares.may_begin(greedy, is_slow=True)
    modest.clock = 200.0
    assert shares.may_begin(greedy) and shares.may_begin(greedy, is_slow=True)  # its turn
    modest.clock = 50.0
    now += 5.0
    assert shares.may_begin(greedy)  # the other one has a job, but hardly used any thread
    shares.begin({greedy: 1.0})
    assert not shares.may_begin(greedy)  # the last thread
    shares.leave(modest)
    now += 5.0
    assert shares.may_begin(greedy)  # nobody else is there


def test_idling_saves_up_nothing() -> None:
    now = 0.0
    shares = FairShares(lambda: now)
    busy = shares.enter("busy")
    for _ in range(10):
        shares.begin({busy: 1.0})
        shares.end({busy: 1.0}, {busy: 1.0})
    assert shares.enter("newcomer").clock >= 9.0
    assert shares.others_than(busy)


def test_clients_are_forgotten_but_not_what_they_were_given() -> None:
    now = 0.0
    shares = FairShares(lambda: now)
    greedy = shares.enter("greedy")
    shares.begin({greedy: 60.0})
    shares.end({greedy: 60.0}, {greedy: 60.0})
    shares.leave(greedy)

    def come(number: int) -> None:
        guest = shares.enter(f"guest {number}")
        shares.begin({guest: 0.1})
        shares.end({guest: 0.1}, {guest: 0.1})
        shares.leave(guest)

    for number in range(500):
        now += 0.1
        come(number)
    assert shares.enter("greedy") is greedy  # who was away for less than it was given
    shares.leave(greedy)
    for number in range(10_000):
        now += 1.0
        come(number)
    assert len(shares._clients) < 300
    assert shares.enter("greedy") is not greedy


def run_as(client: str, pool: ThreadPool, work, *arguments) -> asyncio.Task:
    async def run():
        CLIENT.set(client)
        return await pool.run(work, *arguments)

    return asyncio.ensure_future(run())


def test_clients_take_turns_at_the_threads_and_leave_places_to_others() -> None:
    async def check() -> None:
        pool, go, order = ThreadPool("things", 1, places=4), threading.Event(), []

        def work(name: str) -> None:
            assert go.wait(60)
            order.append(name)

        greedy = [run_as("greedy", pool, work, f"greedy {n}") for n in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await run_as("greedy", pool, work, "too many")
        modest = run_as("modest", pool, work, "modest")
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*greedy, modest)
        assert order.index("modest") <= 2
        pool.close()

    asyncio.run(check())


def test_a_request_is_refused_by_its_tokens_beforehand() -> None:
    with running("--limit", "tokens=100", "--limit", "file_tokens=200") as server:
        pair = {"source": "src", "target": "tgt"}
        assert server.post("/translate", json={"q": 10 * "a b. ", **pair}).status_code == 200
        answer = server.post("/translate", json={"q": 20 * "a b. ", **pair})
        assert answer.status_code == 413 and "more than 100 tokens" in answer.json()["error"]
        # The same text within the limit, but each token counts four times.
        wide = server.post("/translate", json={"q": 10 * "a b. ", "beam": 16, **pair})
        assert wide.status_code == 413
        theirs = {"text": [20 * "a b. "], "source_lang": "src", "target_lang": "tgt"}
        assert server.post("/v2/translate", json=theirs).status_code == 413
        for count, status in ((20, 200), (60, 413)):
            files = {"file": ("a.txt", (count * "a b. ").encode())}
            assert server.post("/translate_file", data=pair, files=files).status_code == status


def test_one_address_does_not_take_all_places() -> None:
    admission = Admission(Limits(places=4))
    for _ in range(4):
        admission.check(False, "192.0.2.1")
        admission.enter(False, "192.0.2.1")
    assert admission.are_full("192.0.2.1") and not admission.are_full("192.0.2.2")
    with pytest.raises(HttpRefused, match="too many requests"):
        admission.check(False, "192.0.2.1")
    admission.enter(False, "192.0.2.2")
    assert admission.are_full("192.0.2.2")  # its share is a third of four
    admission.leave(False, "192.0.2.2")
    admission.leave(False, "192.0.2.1")
    assert not admission.are_full("192.0.2.1") and admission.by_address == {"192.0.2.1": 3}
    for number in range(1_000):
        if not admission.are_full(f"198.51.100.{number}"):
            admission.enter(False, f"198.51.100.{number}")
    assert admission.in_flight <= 8


def test_many_who_want_the_same_do_not_wait_for_each_other() -> None:
    now = 0.0
    shares = FairShares(lambda: now)
    shares.threads = 2
    equals = [shares.enter(f"guest {number}") for number in range(16)]
    greedy = shares.enter("greedy")
    for step in range(200):
        now += 0.05
        for number, one in enumerate(equals):  # some want a little more than others
            spent = {one: 0.1 / 16 * (1 + (number + step) % 3 / 10)}
            shares.begin(spent)
            shares.end(spent, spent)
    equals[3].clock += 5.0  # over the hours it wanted a little more
    greedy.clock += 50.0
    shares.begin({greedy: 1.0})
    shares.end({greedy: 1.0}, {greedy: 1.0})
    assert all(map(shares.may_begin, equals))
    assert not shares.may_begin(greedy)

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.prefetch import Prefetcher

PATIENCE = 120.0  # seconds after which a test that hangs fails


class Source:
    """Counts from 0 on, tells how many were asked for, and lets a test wait until that happens."""

    def __init__(self) -> None:
        self.asked = 0
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            return self.asked - 1

    def wait_for(self, asked: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= asked, PATIENCE), f"only {self.asked} were asked for"


def start_closing(prefetcher: Prefetcher[int]) -> threading.Thread:
    """A thread that is in close()."""
    closer = threading.Thread(target=prefetcher.close, daemon=True)
    closer.start()
    while not prefetcher._ended:
        closer.join(0.001)
    return closer


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread is not threading.main_thread()}


@settings(deadline=None)
@given(st.lists(st.integers()), st.integers(1, 5))
def test_items_come_all_and_in_order(items: list[int], depth: int) -> None:
    with Prefetcher(items, depth) as prefetcher:
        assert list(prefetcher) == items
        assert list(prefetcher) == []  # and it stays at its end


@pytest.mark.parametrize("depth", [1, 3])
def test_up_to_depth_items_are_made_ahead_and_never_more(depth: int) -> None:
    source = Source()
    with Prefetcher(source, depth) as prefetcher:
        for taken in range(20):
            source.wait_for(taken + depth)
            assert source.asked == taken + depth
            assert next(prefetcher) == taken


def test_items_are_made_in_another_thread_that_does_not_keep_the_program_alive() -> None:
    def names() -> Iterator[threading.Thread]:
        yield threading.current_thread()

    with Prefetcher(names()) as prefetcher:
        (thread,) = prefetcher
    assert thread is not threading.current_thread() and thread.daemon


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_comes_after_the_items_before_it(kind: type[BaseException]) -> None:
    def failing() -> Iterator[int]:
        yield 0
        yield 1
        raise kind("broken pair")

    with Prefetcher(failing(), depth=5) as prefetcher:
        assert [next(prefetcher), next(prefetcher)] == [0, 1]
        with pytest.raises(kind, match="broken pair") as raised:
            next(prefetcher)
        assert any(entry.name == "failing" for entry in raised.traceback)  # it says where
        with pytest.raises(StopIteration):
            next(prefetcher)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_closing_early_stops_the_thread_although_all_places_are_full(taken: int) -> None:
    source = Source()
    prefetcher = Prefetcher(source, 2)
    for expected in range(taken):
        assert next(prefetcher) == expected
    source.wait_for(taken + 2)
    closer = start_closing(prefetcher)
    closer.join(PATIENCE)
    assert not closer.is_alive() and "prefetch" not in threads()
    assert source.asked == taken + 2
    with pytest.raises(StopIteration):  # what was ready is dropped
        next(prefetcher)
    prefetcher.close()


def test_closing_waits_for_the_item_in_the_making_and_asks_for_no_more() -> None:
    begun, go_on = threading.Event(), threading.Event()
    made = []

    def slow() -> Iterator[int]:
        for number in count():
            begun.set()
            assert go_on.wait(PATIENCE)
            made.append(number)
            yield number

    prefetcher = Prefetcher(slow(), 4)
    assert begun.wait(PATIENCE)
    closer = start_closing(prefetcher)
    closer.join(0.05)
    assert closer.is_alive()
    go_on.set()
    closer.join(PATIENCE)
    assert not closer.is_alive() and made == [0]
    assert list(prefetcher) == []


def test_closing_wakes_a_consumer_that_waits() -> None:
    go_on = threading.Event()

    def never() -> Iterator[int]:
        assert go_on.wait(PATIENCE)
        yield 0

    prefetcher = Prefetcher(never())
    taken: list[list[int]] = []
    consumer = threading.Thread(target=lambda: taken.append(list(prefetcher)), daemon=True)
    consumer.start()
    closer = start_closing(prefetcher)
    consumer.join(PATIENCE)
    assert taken == [[]]
    go_on.set()
    closer.join(PATIENCE)
    assert not closer.is_alive()


def test_leaving_the_block_by_an_exception_stops_the_thread() -> None:
    def consume() -> None:
        with Prefetcher(count()) as prefetcher:
            next(prefetcher)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert "prefetch" not in threads()


def test_an_exception_that_nobody_waits_for_any_more_is_dropped() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def failing() -> Iterator[int]:
        begun.set()
        assert go_on.wait(PATIENCE)
        yield int("too late")

    prefetcher = Prefetcher(failing())
    assert begun.wait(PATIENCE)
    closer = start_closing(prefetcher)
    go_on.set()
    closer.join(PATIENCE)
    with pytest.raises(StopIteration):
        next(prefetcher)


def test_an_item_that_was_taken_is_not_held() -> None:
    class Item:
        pass

    begun, go_on = threading.Event(), threading.Event()

    def items() -> Iterator[Item]:
        yield Item()
        begun.set()
        assert go_on.wait(PATIENCE)
        yield Item()

    with Prefetcher(items(), 2) as prefetcher:
        first = weakref.ref(next(prefetcher))
        assert begun.wait(PATIENCE)
        gc.collect()
        assert first() is None
        go_on.set()


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`depth` must be at least 1, but is 0"):
        Prefetcher([1], 0)

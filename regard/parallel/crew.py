"""Text processed by several processes of torchrun, or by one alone:

    torchrun --nproc-per-node 4 -m regard translate -m runs/en-de -i book.en -o book.de

Rank 0 reads, writes and prints. It broadcasts every chunk of rows; each rank works on its share, on a GPU of its own or with its
share of the cores, and rank 0 gathers the results in the order of the rows. So the output does not depend on the number of
processes, and a resumed job may have a different number.

    rank 0                                               the other ranks
    crew.run_on_first(...)   checks the inputs           wait
    crew.load(...)           loads the model             crew.help(...)   load it, too, and
    crew.share(...)          chunk after chunk           work on their share of every chunk

An error that Regard raises on one rank ends all of them and is reported once. If a process dies otherwise, the others lose their
connection to it.

Rows and results travel as JSON.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from regard.errors import RegardError
from regard.parallel.processes import own_threads, process_info
from regard.progress import OnProgress

if TYPE_CHECKING:
    from regard.parallel.ranks import Ranks

T = TypeVar("T")
Work = Callable[[list[Any], OnProgress], list[Any]]  # rows -> results, one per row


@contextmanager
def join_crew(device: str, engine: str) -> Iterator[Crew]:
    """Connect the processes that torchrun started. A single process imports torch only if its engine does."""
    if process_info().size == 1:
        yield Crew(device)
        return
    import torch

    from regard.parallel.ranks import join

    own_device = "cpu" if engine == "ctranslate2" and device == "auto" else device
    with interrupted_once(), join(own_device, device_option="--device") as ranks:
        if ranks.device.type == "cpu":
            torch.set_num_threads(own_threads())
        crew = Crew(str(ranks.device), ranks)
        try:
            yield crew
        finally:
            crew.dismiss()


class Crew:
    """The processes that share out one job of text."""

    def __init__(self, device: str, ranks: Ranks | None = None) -> None:
        """`device` is this process's own; without `ranks` there is only this process."""
        self.device, self._ranks = device, ranks
        self._others_wait = False  # on rank 0: whether the others wait for its next broadcast

    @property
    def size(self) -> int:
        return 1 if self._ranks is None else self._ranks.size

    def run_on_first(self, work: Callable[[], T]) -> T | None:
        """Rank 0 does this work while the others wait; if it fails, all ranks end."""
        if self._ranks is None:
            return work()
        result = self._ranks.run_on_first(work)
        self._others_wait = True
        return result

    def load(self, load: Callable[[], T]) -> T:
        """On rank 0: let every rank load what the work needs; if one fails, all ranks end."""
        if self._ranks is None:
            return load()
        self._broadcast([])
        loaded = self._ranks.run_on_all(load)
        self._others_wait = True
        return loaded

    def share(self, rows: list[Any], work: Work, on_progress: OnProgress) -> list[Any]:
        """On rank 0: the results of all rows, each rank having worked on its share."""
        if self._ranks is None:
            return work(rows, on_progress)
        self._broadcast(rows)
        shares = self._own_share(rows, work, on_progress)
        self._others_wait = True
        return [result for share in shares for result in share]

    def help(self, load: Callable[[], Work]) -> None:
        """On the other ranks: work on this rank's share of every chunk until rank 0 has no more. `load` returns the work."""
        assert self._ranks is not None
        if self._ranks.broadcast(None) is None:
            return
        work = self._ranks.run_on_all(load)
        while (rows := self._ranks.broadcast(None)) is not None:
            self._own_share(rows, work, lambda count: None)

    def dismiss(self) -> None:
        """On rank 0, when there is no more work or it has failed: release the ranks that wait. Busy ranks notice that rank 0
        is gone."""
        if self._ranks is not None and self._ranks.is_first and self._others_wait:
            with suppress(RegardError):  # they are gone already
                self._broadcast(None)

    def _broadcast(self, rows: list[Any] | None) -> None:
        assert self._ranks is not None
        self._others_wait = False
        self._ranks.broadcast(rows)

    def _own_share(self, rows: list[Any], work: Work, on_progress: OnProgress) -> list[list[Any]]:
        """Work on this rank's share of the rows. Rank 0 gets the results of every rank, the others an empty list."""
        ranks = self._ranks
        assert ranks is not None
        bounds = [len(rows) * rank // ranks.size for rank in range(ranks.size + 1)]
        own = rows[bounds[ranks.rank] : bounds[ranks.rank + 1]]
        shares = ranks.gather_values(ranks.run_on_all(lambda: work(own, on_progress) if own else []))
        on_progress(len(rows) - len(own))
        return shares


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into a KeyboardInterrupt and ignore the rest: torchrun forwards a Ctrl-C to processes that
    already got it from the terminal, and a second one would disturb the cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def handle(number: int, frame: object) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not is_interrupted:
            for number, handler in previous.items():
                signal.signal(number, handler)

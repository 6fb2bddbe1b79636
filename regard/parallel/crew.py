"""Text worked through by several processes that torchrun started, or by one alone:

    torchrun --nproc-per-node 4 -m regard translate -m runs/en-de -i book.en -o book.de

The first process reads, writes and prints. It hands every chunk of rows to all of them; each works on its share, on a GPU of its
own or with its share of the cores, and the first gets all results back, in the order of the rows. So nothing that is
written depends on their number, and work that is resumed may have another.

    the first                                            the others
    crew.run_on_first(...)   looks at what can be wrong    wait
    crew.load(...)         loads the model               crew.help(...)   load it, too, and
    crew.share(...)        chunk after chunk             do their share of every chunk

An error that Regard raises in one of them ends all, and is said once; of any other end the connections tell.

Rows and results go from process to process as JSON.
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
Work = Callable[[list[Any], OnProgress], list[Any]]  # rows to results, one for each


@contextmanager
def join_crew(device: str, engine: str) -> Iterator[Crew]:
    """The processes that torchrun started; one alone needs no torch where its engine does not."""
    if process_info().size == 1:
        yield Crew(device)
        return
    import torch

    from regard.parallel.ranks import join

    wish = "cpu" if engine == "ctranslate2" and device == "auto" else device
    with interrupted_once(), join(wish, said_by="--device") as ranks:
        if ranks.device.type == "cpu":
            torch.set_num_threads(own_threads())
        crew = Crew(str(ranks.device), ranks)
        try:
            yield crew
        finally:
            crew.dismiss()


class Crew:
    def __init__(self, device: str, ranks: Ranks | None = None) -> None:
        """`device` is that of this process; without `ranks` it is alone."""
        self.device, self._ranks = device, ranks
        self._others_wait = False  # for a word of the first process, which knows

    @property
    def size(self) -> int:
        return 1 if self._ranks is None else self._ranks.size

    def run_on_first(self, work: Callable[[], T]) -> T | None:
        """The first process does something alone, and the others wait until it is done; if it fails, all of them end."""
        if self._ranks is None:
            return work()
        result = self._ranks.run_on_first(work)
        self._others_wait = True
        return result

    def load(self, load: Callable[[], T]) -> T:
        """For the first process: all of them load what the work needs; if one cannot, all of them end."""
        if self._ranks is None:
            return load()
        self._tell([])
        loaded = self._ranks.run_on_all(load)
        self._others_wait = True
        return loaded

    def share(self, rows: list[Any], work: Work, on_progress: OnProgress) -> list[Any]:
        """For the first process: the results of all rows, each process having worked on some of them."""
        if self._ranks is None:
            return work(rows, on_progress)
        self._tell(rows)
        shares = self._own_share(rows, work, on_progress)
        self._others_wait = True
        return [result for share in shares for result in share]

    def help(self, load: Callable[[], Work]) -> None:
        """For the others: their share of all rows, until the first one has no more. `load` gives the work."""
        assert self._ranks is not None
        if self._ranks.broadcast(None) is None:
            return
        work = self._ranks.run_on_all(load)
        while (rows := self._ranks.broadcast(None)) is not None:
            self._own_share(rows, work, lambda count: None)

    def dismiss(self) -> None:
        """The first process has no more work, or has failed: others that wait for its word get it. Those that are at work
        notice that it has gone."""
        if self._ranks is not None and self._ranks.is_first and self._others_wait:
            with suppress(RegardError):  # they have gone
                self._tell(None)

    def _tell(self, rows: list[Any] | None) -> None:
        assert self._ranks is not None
        self._others_wait = False
        self._ranks.broadcast(rows)

    def _own_share(self, rows: list[Any], work: Work, on_progress: OnProgress) -> list[list[Any]]:
        """What each process has made of its share, for the first one; the others get nothing."""
        ranks = self._ranks
        assert ranks is not None
        bounds = [len(rows) * rank // ranks.size for rank in range(ranks.size + 1)]
        own = rows[bounds[ranks.rank] : bounds[ranks.rank + 1]]
        shares = ranks.gather_values(ranks.run_on_all(lambda: work(own, on_progress) if own else []))
        on_progress(len(rows) - len(own))
        return shares


@contextmanager
def interrupted_once() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM is a KeyboardInterrupt, and no other is heard: torchrun passes a Ctrl-C on to processes that have
    it from the terminal already, and a second one would disturb the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_heard = False

    def handle(number: int, frame: object) -> None:
        nonlocal is_heard
        if not is_heard:
            is_heard = True
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not is_heard:
            for number, handler in previous.items():
                signal.signal(number, handler)

"""Which of several processes this one is, as `torchrun` says it in the environment, and which share of the cores it has.

Nothing else reads these variables. What the processes say to each other is in `regard.parallel.ranks`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from regard.errors import UserError

REPORT_DELAY = 5.0  # seconds in which the first process says what all have found; torchrun ends the others then

is_connected = False  # whether this process has found those that it works with


@dataclass(frozen=True)
class ProcessInfo:
    """A process among those of a run, all counted from 0; without torchrun it is one alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its machine
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """What goes before a message; the first one, or one alone, needs no name."""
        return "" if self.is_first else f"rank {self.rank}: "


def process_info() -> ProcessInfo:
    size = _number("WORLD_SIZE", 1)
    if size < 1:
        raise UserError(f"the environment variable WORLD_SIZE must be at least 1, but is {size}")
    if size == 1:
        return ProcessInfo()
    return ProcessInfo(_number("RANK", 0), size, _number("LOCAL_RANK", 0), max(1, _number("LOCAL_WORLD_SIZE", 1)))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text or default)
    except ValueError:
        raise UserError(f"the environment variable {name} must be a whole number, but is {text!r}") from None


@contextmanager
def first_reports() -> Iterator[None]:
    """Around what every process looks at by itself, before they have found each other: the first says what is wrong, and torchrun
    ends the others. One that is still there after a while says it, too: it may be the only one that cannot go on."""
    try:
        yield
    except UserError:
        if not process_info().is_first:
            time.sleep(REPORT_DELAY)
        raise


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_threads() -> int:
    """How many threads this process should compute with: what OMP_NUM_THREADS says, else its share of the cores.

    Where nobody has set it, torchrun sets it to 1 for several processes, whatever the machine has; that 1 is nobody's wish.
    """
    wished = os.environ.get("OMP_NUM_THREADS", "")
    is_default = wished == "1" and "TORCHELASTIC_RUN_ID" in os.environ and process_info().local_size > 1
    if wished.isdigit() and not is_default:
        return max(1, int(wished))
    return max(1, cores() // process_info().local_size)

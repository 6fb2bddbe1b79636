"""Which of torchrun's processes this one is, from the environment, and its share of the cores.

Nothing else reads these variables. How processes communicate is in `regard.parallel.ranks`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from regard.errors import UserError

REPORT_DELAY = 5.0  # seconds for the first process to report an error that all have; torchrun then ends the others

is_connected = False  # whether this process has joined the process group


@dataclass(frozen=True)
class ProcessInfo:
    """The rank of a process, globally and on its machine; without torchrun, a single process of rank 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def name(self) -> str:
        """The prefix of this process's messages; empty for the first."""
        return "" if self.is_first else f"rank {self.rank}: "


def process_info() -> ProcessInfo:
    """This process, as torchrun's environment variables describe it."""
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
    """Around checks that every process makes before they are connected: the first process reports an error, and torchrun ends the
    others. A process that is still alive after a while reports it, too: it may be the only one with the error."""
    try:
        yield
    except UserError:
        if not process_info().is_first:
            time.sleep(REPORT_DELAY)
        raise


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_threads() -> int:
    """How many threads this process should compute with: OMP_NUM_THREADS if set, else its share of the machine's cores.

    If it is unset, torchrun sets it to 1 for several processes, whatever the machine has; that 1 is ignored.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    is_default = setting == "1" and "TORCHELASTIC_RUN_ID" in os.environ and process_info().local_size > 1
    if setting.isdigit() and not is_default:
        return max(1, int(setting))
    return max(1, cores() // process_info().local_size)

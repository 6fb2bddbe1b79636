"""Several processes that train one model, each on its share of every update. `torchrun` starts them:

    torchrun --nproc-per-node 4 -m regard train recipe.toml

All of them plan the same updates from the same seed. An update's pairs are cut into parts and the parts are shared out, so that
each pair is seen by exactly one process. Each divides the sum of its losses by the tokens of the *whole* update; added up
over all processes, the gradients are then those of one process that had done all the parts, and every process takes
the same step. So nothing about a run depends on the number of processes but the order in which numbers are added, and which
elements dropout drops.

    the first process (rank 0)      reads and tokenizes the text, validates, saves, writes and prints
    the others                      wait for it, then train; of the disk they read the tokenizer and the token store
    all of them, in step            updates; what the clock says and whether to stop; who has what random state

What depends on a clock or a signal is agreed on, once an update: processes of which one stops, logs or saves while another
goes on would wait for each other for ever. A process that dies breaks the connections of the others, which then end, too; what
it has cost is what came after the last checkpoint.

`regard.parallel.crew` shares out the translation of text with the same means.

Messages are tensors and JSON: torch's own exchange of objects is a pickle.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from regard.device import pick_device
from regard.errors import RegardError, UserError
from regard.parallel import processes
from regard.parallel.processes import first_reports, process_info

T = TypeVar("T")

BUCKET_ELEMENTS = 1 << 24  # gradients exchanged in one message: 64 MiB; a larger tensor goes in one of its own
BUCKETS_AT_ONCE = 3  # that are on their way, each a copy of its gradients
# For the first process, which may have a billion pairs to tokenize before the first update.
PATIENCE = timedelta(hours=24)


class EndedElsewhere(RegardError):
    """Another process has ended the run and said why; this one has nothing to add."""

    def __init__(self) -> None:
        super().__init__("")


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them. With one alone, every method is the obvious thing at no cost."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shards: bool = False  # FSDP2 splits the model over them, and adds its gradients up (`sharded.py`)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def run_on_first(self, work: Callable[[], T]) -> T | None:
        """The first process does something alone, and the others wait until it is done; if it fails, all of them end."""
        if not self.is_first:
            if not self.broadcast(None):
                raise EndedElsewhere
            return None
        try:
            result = work()
        except BaseException:
            self.broadcast(False)
            raise
        self.broadcast(True)
        return result

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Every process does something; if any fails, all of them end, and the first of those that failed says why."""
        try:
            result = work()
        except RegardError:
            if self._lowest(self.rank) == self.rank:
                raise
            raise EndedElsewhere from None
        if self._lowest(self.size) < self.size:
            raise EndedElsewhere
        return result

    def _lowest(self, number: int) -> int:
        """The lowest of everybody's numbers."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        self._together(lambda: dist.all_reduce(numbers, dist.ReduceOp.MIN))
        return int(numbers)

    def broadcast(self, value: Any) -> Any:
        """What the first process says, for all; anything that JSON can hold."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(text)])
        self._together(lambda: dist.broadcast(length, 0))
        content = torch.empty(int(length), dtype=torch.uint8)
        if text:
            content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        self._together(lambda: dist.broadcast(content, 0))
        return json.loads(content.numpy().tobytes())

    def agree(self, said_by_first: Sequence[float], asked_by_any: bool) -> tuple[list[float], bool]:
        """Numbers as the first process has them, and whether any of them asks; one short message."""
        if self.size == 1:
            return list(said_by_first), asked_by_any
        said = said_by_first if self.is_first else [-torch.inf] * len(said_by_first)
        message = torch.tensor([*said, float(asked_by_any)], dtype=torch.float64)
        self._together(lambda: dist.all_reduce(message, dist.ReduceOp.MAX))
        *numbers, asked = message.tolist()
        return numbers, bool(asked)

    @torch.no_grad()
    def sum_gradients(self, parameters: Sequence[Tensor], *sums: Tensor) -> None:
        """Gradients, and sums beside them, become those over all processes, in place."""
        if self.size == 1:
            return
        for parameter in [] if self.shards else parameters:
            if parameter.grad is None:  # an update of very few pairs may leave a process without any
                parameter.grad = torch.zeros_like(parameter)
        gradients = [] if self.shards else [each.grad for each in parameters if each.grad is not None]
        self._together(lambda: self._all_reduce([*gradients, *sums]))

    def _all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """The sum over all processes, in few large messages, some of them on their way at once."""
        pending: deque[tuple[list[Tensor], Tensor, dist.Work]] = deque()

        def finish() -> None:
            bucket, flat, work = pending.popleft()
            work.wait()
            parts = flat.split([tensor.numel() for tensor in bucket])
            torch._foreach_copy_(bucket, [part.view_as(t) for part, t in zip(parts, bucket, strict=True)])

        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            work = dist.all_reduce(flat, async_op=True)
            assert work is not None
            pending.append((bucket, flat, work))
            if len(pending) == BUCKETS_AT_ONCE:
                finish()
        while pending:
            finish()

    def gather(self, state: Tensor) -> list[Tensor]:
        """The first process gets everybody's bytes, in the order of the ranks; the others get nothing."""
        if self.size == 1:
            return [state]
        out = [torch.empty_like(state) for _ in range(self.size)] if self.is_first else None
        self._together(lambda: dist.gather(state, out, 0))
        return out or []

    def gather_values(self, value: Any) -> list[Any]:
        """The first process gets what everybody says, in the order of the ranks; anything that JSON can hold."""
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        longest = torch.tensor([len(text)])
        self._together(lambda: dist.all_reduce(longest, dist.ReduceOp.MAX))
        padded = torch.full((int(longest),), ord(" "), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return [json.loads(each.numpy().tobytes()) for each in self.gather(padded)]

    def _together(self, exchange: Callable[[], Any]) -> None:
        try:
            exchange()
        except torch.OutOfMemoryError:
            raise  # is a RuntimeError, too
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            raise RegardError(
                f"process {self.rank} of {self.size} lost the others: one of them has ended, and says why if it could; "
                f"the same command with --resume goes on from what was saved ({first_line})"
            ) from error


@contextmanager
def join(device: str, shards: bool = False, said_by: str = "train.device") -> Iterator[Ranks]:
    """The processes that torchrun started, each with a device of its own; without torchrun, one process alone. `said_by` is where
    the person says the device."""
    process = process_info()
    if process.size == 1:
        yield Ranks(0, 1, pick_device(device), shards)
        return
    with first_reports():
        own = own_device(device, process.local_rank, said_by)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # Tensors of a GPU go through NCCL, those of the host through gloo, which is heard of at once when a process dies.
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    # The functions of this module would keep the group if it were imported later, and its threads would live on with it.
    import_module("torch.distributed.nn")
    try:
        dist.init_process_group(backend, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise RegardError(f"process {process.rank} of {process.size} could not reach the others: {error}") from error
    processes.is_connected = True
    try:
        yield Ranks(process.rank, process.size, own, shards)
    except BaseException:
        if own.type != "cuda":  # NCCL's end is a meeting, and one that fails alone would wait there for the others
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def own_device(name: str, local_rank: int, said_by: str = "train.device") -> torch.device:
    """Of several processes on a machine, number N gets GPU N."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"{said_by} must be auto, cpu or cuda with several processes, but is {name!r}")
    device = pick_device(name)
    if device.type == "mps":
        return torch.device("cpu")
    if device.type == "cpu":
        return device
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"--nproc-per-node must be at most {torch.cuda.device_count()}, the number of GPUs that torch sees, but there is a "
            f"process number {local_rank + 1}"
        )
    return torch.device("cuda", local_rank)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, of one type at a time, in lists of about BUCKET_ELEMENTS."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.numel() for each in bucket)
        if bucket and (size + tensor.numel() > BUCKET_ELEMENTS or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket

"""Data-parallel training: several processes, each with its share of every update. `torchrun` starts them:

    torchrun --nproc-per-node 4 -m regard train recipe.toml

All ranks plan the same updates from the same seed. The pairs of an update are cut into micro-batches, and each micro-batch is
processed by exactly one rank. Each rank divides its summed loss by the tokens of the *whole* update, so that the gradients, summed
over all ranks, are those of a single process, and every rank takes the same optimizer step. Only the order of additions and the
elements that dropout drops depend on the number of ranks.

    rank 0                  reads and tokenizes the text, validates, saves, writes and prints
    the other ranks         wait for it, then train; of the disk they read the tokenizer and the token store
    all ranks, in step      updates; the clock and whether to stop; each one's random state

What depends on a clock or a signal is agreed on once per update: if one rank stopped, logged or saved while another went on, they
would wait for each other for ever. If a rank dies, the others lose their connections and end, too, and the run can be resumed from
its last checkpoint.

`regard.parallel.crew` shares out the translation of text by the same means.

Messages are tensors and JSON, since torch's own exchange of objects uses pickle.
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

BUCKET_ELEMENTS = 1 << 24  # gradients per message: 64 MiB; a larger tensor gets a message of its own
BUCKETS_AT_ONCE = 3  # messages in flight, each a copy of its gradients
# Long, since rank 0 may have a billion pairs to tokenize before the first update.
TIMEOUT = timedelta(hours=24)


class EndedElsewhere(RegardError):
    """Another rank has ended the run and reported why; this one has nothing to add."""

    def __init__(self) -> None:
        super().__init__("")


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, as seen by one of them. With a single process, every method is trivial and costs nothing."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shards: bool = False  # whether FSDP2 splits the model over the ranks and sums its gradients (`sharded.py`)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def run_on_first(self, work: Callable[[], T]) -> T | None:
        """Rank 0 does this work while the others wait; if it fails, all ranks end. Returns its result, None on the others."""
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
        """Every rank does this work; if any fails, all ranks end, and the lowest that failed reports why."""
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
        """The minimum over all ranks."""
        if self.size == 1:
            return number
        numbers = torch.tensor([number])
        self._exchange(lambda: dist.all_reduce(numbers, dist.ReduceOp.MIN))
        return int(numbers)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank; anything that JSON can hold."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(text)])
        self._exchange(lambda: dist.broadcast(length, 0))
        content = torch.empty(int(length), dtype=torch.uint8)
        if text:
            content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        self._exchange(lambda: dist.broadcast(content, 0))
        return json.loads(content.numpy().tobytes())

    def agree(self, values: Sequence[float], flag: bool) -> tuple[list[float], bool]:
        """Rank 0's values, and whether the flag is set on any rank, in one short message."""
        if self.size == 1:
            return list(values), flag
        own = values if self.is_first else [-torch.inf] * len(values)
        message = torch.tensor([*own, float(flag)], dtype=torch.float64)
        self._exchange(lambda: dist.all_reduce(message, dist.ReduceOp.MAX))
        *agreed, any_flag = message.tolist()
        return agreed, bool(any_flag)

    @torch.no_grad()
    def sum_gradients(self, parameters: Sequence[Tensor], *sums: Tensor) -> None:
        """Sum the gradients, and these other tensors, over all ranks, in place."""
        if self.size == 1:
            return
        for parameter in [] if self.shards else parameters:
            if parameter.grad is None:  # a very small update may leave a rank without any micro-batch
                parameter.grad = torch.zeros_like(parameter)
        gradients = [] if self.shards else [each.grad for each in parameters if each.grad is not None]
        self._exchange(lambda: self._all_reduce([*gradients, *sums]))

    def _all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """The sums over all ranks, in few large messages, several in flight at once."""
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
        """Rank 0 gets the tensors of all ranks, in order; the others get an empty list."""
        if self.size == 1:
            return [state]
        out = [torch.empty_like(state) for _ in range(self.size)] if self.is_first else None
        self._exchange(lambda: dist.gather(state, out, 0))
        return out or []

    def gather_values(self, value: Any) -> list[Any]:
        """Rank 0 gets the values of all ranks, in order; anything that JSON can hold."""
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        longest = torch.tensor([len(text)])
        self._exchange(lambda: dist.all_reduce(longest, dist.ReduceOp.MAX))
        padded = torch.full((int(longest),), ord(" "), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return [json.loads(each.numpy().tobytes()) for each in self.gather(padded)]

    def _exchange(self, communicate: Callable[[], Any]) -> None:
        try:
            communicate()
        except torch.OutOfMemoryError:
            raise  # it is a RuntimeError, too
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            raise RegardError(
                f"rank {self.rank} of {self.size} lost its connection: another rank has ended, and reports why if it can; "
                f"run the same command with --resume to continue from the last checkpoint ({first_line})"
            ) from error


@contextmanager
def join(device: str, shards: bool = False, device_option: str = "train.device") -> Iterator[Ranks]:
    """Connect the processes that torchrun started, each with a device of its own; without torchrun, a single process.
    `device_option` names the setting that `device` comes from, for error messages."""
    process = process_info()
    if process.size == 1:
        yield Ranks(0, 1, pick_device(device), shards)
        return
    with first_reports():
        own = own_device(device, process.local_rank, device_option)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # GPU tensors go through NCCL, host tensors through gloo, which notices at once when a process dies.
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    # Imported later, this module's functions would hold on to the process group and keep its threads alive.
    import_module("torch.distributed.nn")
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RegardError(f"rank {process.rank} of {process.size} could not connect to the others: {error}") from error
    processes.is_connected = True
    try:
        yield Ranks(process.rank, process.size, own, shards)
    except BaseException:
        if own.type != "cuda":  # NCCL waits for all ranks here, and this one may be the only one that failed
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def own_device(name: str, local_rank: int, device_option: str = "train.device") -> torch.device:
    """The device of the process with this local rank: on a machine with GPUs, rank N gets GPU N."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"{device_option} must be auto, cpu or cuda with several processes, but is {name!r}")
    device = pick_device(name)
    if device.type == "mps":
        return torch.device("cpu")
    if device.type == "cpu":
        return device
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"--nproc-per-node must be at most {torch.cuda.device_count()}, the number of GPUs that torch finds, but is at least "
            f"{local_rank + 1}"
        )
    return torch.device("cuda", local_rank)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in order, in lists of one type and of about BUCKET_ELEMENTS."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.numel() for each in bucket)
        if bucket and (size + tensor.numel() > BUCKET_ELEMENTS or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket

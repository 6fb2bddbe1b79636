"""Cleans and tokenizes chunks of records, in this process or in worker processes, always in order.

Workers are started by hand rather than through multiprocessing: its fork is unsafe once torch has threads, its spawn runs
a caller's unguarded script again, and both use pickle. Here a message is JSON followed by blocks of bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import chain
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array
from regard.data.clean import EMPTY, HELD_OUT, CleanAccount, CleanOptions, is_empty, length_fault
from regard.data.corpus import Record
from regard.data.split import HeldOut
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Side
from regard.errors import RegardError, UserError

# (tokenizer, records) -> token ids of each record, column by column. A top-level function of a module without torch: worker
# processes import it by name.
EncodeRecords = Callable[[Tokenizer, Sequence[Record]], Sequence[list[list[int]]]]

_WORKER_CODE = "from regard.data.encoding_workers import worker_main; worker_main()"


def encode_sides(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[list[int]]]:
    """Encode both sides of pairs by themselves; not for tokenizers with protected spans, which must agree between the sides."""
    assert not tokenizer.protects, "protected spans would be lost"
    sides: tuple[Side, Side] = ("source", "target")
    return [tokenizer.encode_batch(texts, side) for side, texts in zip(sides, stripped_sides(records), strict=True)]


def stripped_sides(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """The source and the target texts of pairs without white space around them, as at inference time."""
    return [record.texts[0].strip() for record in records], [record.texts[1].strip() for record in records]


class Chunk(NamedTuple):
    """Some records of one corpus."""

    corpus: int  # its index
    name: str
    read: int  # the number of records before duplicates were dropped
    records: list[Record]


class EncodedColumn(NamedTuple):
    """The ids of one column of a chunk, end to end, and the length of each record."""

    ids: NDArray[Any]
    lengths: Int64Array


class EncodedChunk(NamedTuple):
    """The kept records of a chunk, and the account of the others."""

    corpus: int
    read: int
    columns: list[EncodedColumn]
    begins: NDArray[np.bool_]  # (records,) whether it is a record of its own, and not more of the one before
    account: CleanAccount


@dataclass(frozen=True)
class ChunkEncoder:
    """Cleans and tokenizes chunks: all that the chunks of a store have in common."""

    tokenizer: Tokenizer
    clean: CleanOptions
    held_out: HeldOut | None
    dtype: str
    encode_records: EncodeRecords = encode_sides

    def encode(self, chunk: Chunk) -> EncodedChunk:
        account = CleanAccount()
        records = [record for record in chunk.records if not self._is_dropped(record, chunk.name, account)]
        columns = self.encode_records(self.tokenizer, records)
        kept = []
        for i, record in enumerate(records):
            fault = length_fault([len(column[i]) for column in columns], self.clean)
            if fault is None:
                kept.append(i)
            else:
                account.drop(fault, chunk.name, record.number, *record.shown)
        begins = np.array([records[i].begins for i in kept], dtype=np.bool_)
        account.keep(int(begins.sum()))
        encoded = [self._pack([column[i] for i in kept]) for column in columns]
        return EncodedChunk(chunk.corpus, chunk.read, encoded, begins, account)

    def _is_dropped(self, record: Record, name: str, account: CleanAccount) -> bool:
        if not (record.begins and record.ends):  # a part of a document stays
            return False
        if is_empty(*record.texts):
            reason = EMPTY
        elif self.held_out is not None and self.held_out.is_held_out(*record.texts):
            reason = HELD_OUT
        else:
            return False
        account.drop(reason, name, record.number, *record.shown)
        return True

    def _pack(self, sequences: list[list[int]]) -> EncodedColumn:
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        return EncodedColumn(
            np.fromiter(chain.from_iterable(sequences), dtype=self.dtype, count=int(lengths.sum())), lengths
        )


class WorkerPool:
    """Processes that run an encoder on chunks. Leaving the `with` block ends them, also after Ctrl-C."""

    def __init__(self, encoder: ChunkEncoder, num_workers: int) -> None:
        self._workers = [_Worker() for _ in range(num_workers)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        # One thread per process waits for its answers.
        self._threads = ThreadPoolExecutor(num_workers)
        self._starts = [self._threads.submit(self._start, worker, encoder) for worker in self._workers]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        # Threads that still wait for an answer wake up now, since their pipes are closed.
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def map(self, chunks: Iterable[Chunk]) -> Iterator[EncodedChunk]:
        """The encoded chunks, in order; only a few are in memory at a time."""
        for start in self._starts:
            start.result()
        pending: deque[Future[EncodedChunk]] = deque()
        for chunk in chunks:
            pending.append(self._threads.submit(self._run, chunk))
            if len(pending) > 2 * len(self._workers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _start(self, worker: _Worker, encoder: ChunkEncoder) -> None:
        worker.send(*_encoder_message(encoder))
        self._idle.put(worker)

    def _run(self, chunk: Chunk) -> EncodedChunk:
        worker = self._idle.get()
        try:
            worker.send(chunk, [])
            return _parse_answer(chunk, *worker.receive())
        finally:
            self._idle.put(worker)


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER_CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,  # Ctrl-C reaches only the parent process, which then ends the worker
        )

    def send(self, content: Any, blocks: Sequence[bytes]) -> None:
        assert self._process.stdin is not None
        try:
            _write_message(self._process.stdin, content, blocks)
        except OSError:
            raise self._death() from None

    def receive(self) -> tuple[Any, list[bytes]]:
        assert self._process.stdout is not None
        try:
            return _read_message(self._process.stdout)
        except EOFError:
            raise self._death() from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent data is lost with the worker
                    pipe.close()

    def _death(self) -> RegardError:
        return RegardError(
            f"a tokenizing process ended unexpectedly (exit code {self._process.wait()}); "
            "if memory ran out, use fewer of them"
        )


def worker_main() -> None:
    """The main function of a worker: reads an encoder, then chunks, from standard input; answers on standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that prints may get between the answers
    try:
        encoder = _parse_encoder(*_read_message(sys.stdin.buffer))
        while True:
            (corpus, name, read, records), _ = _read_message(sys.stdin.buffer)
            chunk = Chunk(corpus, name, read, [Record(number, tuple(texts), *rest) for number, texts, *rest in records])
            _write_message(answers, *_answer(encoder, chunk))
    except (EOFError, BrokenPipeError):
        return


# --- messages: the length of the JSON, the JSON, the blocks ---


def _write_message(pipe: IO[bytes], content: Any, blocks: Sequence[bytes]) -> None:
    sizes = [len(block) for block in blocks]
    head = json.dumps([content, sizes], ensure_ascii=False).encode("utf-8", "surrogatepass")
    for part in (struct.pack("<Q", len(head)), head, *blocks):
        pipe.write(part)
    pipe.flush()


def _read_message(pipe: IO[bytes]) -> tuple[Any, list[bytes]]:
    (size,) = struct.unpack("<Q", _read_exactly(pipe, 8))
    content, sizes = json.loads(_read_exactly(pipe, size).decode("utf-8", "surrogatepass"))
    return content, [_read_exactly(pipe, size) for size in sizes]


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _encoder_message(encoder: ChunkEncoder) -> tuple[Any, list[bytes]]:
    held_out = None if encoder.held_out is None else asdict(encoder.held_out)
    tokenizer, models = encoder.tokenizer.to_message()
    content = {
        "clean": asdict(encoder.clean),
        "held_out": held_out,
        "dtype": encoder.dtype,
        "encode_records": [encoder.encode_records.__module__, encoder.encode_records.__qualname__],
        "tokenizer": tokenizer,
    }
    return content, models


def _parse_encoder(content: Any, models: list[bytes]) -> ChunkEncoder:
    held_out = None if content["held_out"] is None else HeldOut(**content["held_out"])
    tokenizer = Tokenizer.from_message(content["tokenizer"], models)
    module, name = content["encode_records"]
    encode_records: EncodeRecords = getattr(import_module(module), name)
    return ChunkEncoder(tokenizer, CleanOptions(**content["clean"]), held_out, content["dtype"], encode_records)


def _answer(encoder: ChunkEncoder, chunk: Chunk) -> tuple[Any, list[bytes]]:
    try:
        done = encoder.encode(chunk)
    except UserError as error:
        return {"user_error": str(error)}, []
    except Exception:  # noqa: BLE001 - the caller raises it again
        return {"failure": traceback.format_exc()}, []
    arrays = [done.begins, *chain.from_iterable(done.columns)]
    return {"account": done.account.to_json(), "dtype": encoder.dtype}, [array.tobytes() for array in arrays]


def _parse_answer(chunk: Chunk, content: Any, blocks: list[bytes]) -> EncodedChunk:
    if "user_error" in content:
        raise UserError(content["user_error"])
    if "failure" in content:
        raise RegardError(f"a tokenizing process failed: {content['failure']}")
    columns = [
        EncodedColumn(np.frombuffer(ids, dtype=content["dtype"]), np.frombuffer(lengths, dtype=np.int64))
        for ids, lengths in zip(blocks[1::2], blocks[2::2], strict=True)
    ]
    begins = np.frombuffer(blocks[0], dtype=np.bool_)
    return EncodedChunk(chunk.corpus, chunk.read, columns, begins, CleanAccount.from_json(content["account"]))

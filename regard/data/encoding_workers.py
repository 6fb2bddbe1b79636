"""Cleans and tokenizes chunks of pairs, in this process or in worker processes, always in order.

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
from regard.data.split import HeldOut
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError

# (tokenizer, source texts, target texts) -> token ids of each. A top-level function: worker processes import it by name.
EncodePairs = Callable[[Tokenizer, Sequence[str], Sequence[str]], tuple[list[list[int]], list[list[int]]]]

_WORKER_CODE = "from regard.data.encoding_workers import worker_main; worker_main()"


def encode_sides(
    tokenizer: Tokenizer, src: Sequence[str], tgt: Sequence[str]
) -> tuple[list[list[int]], list[list[int]]]:
    """Encode each side by itself; not for tokenizers with protected spans, which must agree between the sides."""
    assert not tokenizer.protects, "protected spans would be lost"
    return tokenizer.encode_batch(src, "source"), tokenizer.encode_batch(tgt, "target")


class NumberedPair(NamedTuple):
    """A sentence pair and where it comes from."""

    number: int  # of the line, from 1
    src: str
    tgt: str


class Chunk(NamedTuple):
    """Some lines of one corpus."""

    corpus: int  # its index
    name: str
    read: int  # the number of lines before duplicates were dropped
    lines: list[NumberedPair]


class EncodedChunk(NamedTuple):
    """A chunk's kept pairs, ids end to end with their lengths, and the account of the others."""

    corpus: int
    read: int
    src_ids: NDArray[Any]
    src_lengths: Int64Array
    tgt_ids: NDArray[Any]
    tgt_lengths: Int64Array
    account: CleanAccount


@dataclass(frozen=True)
class ChunkEncoder:
    """Cleans and tokenizes chunks: all that the chunks of a store have in common."""

    tokenizer: Tokenizer
    clean: CleanOptions
    held_out: HeldOut | None
    dtype: str
    encode_pairs: EncodePairs = encode_sides

    def encode(self, chunk: Chunk) -> EncodedChunk:
        account = CleanAccount()
        lines = [line for line in chunk.lines if not self._is_dropped(line, chunk.name, account)]
        # Stripped, as at inference time.
        sides = [line.src.strip() for line in lines], [line.tgt.strip() for line in lines]
        src, tgt = self.encode_pairs(self.tokenizer, *sides)
        kept = []
        for i, line in enumerate(lines):
            fault = length_fault(len(src[i]), len(tgt[i]), self.clean)
            if fault is None:
                kept.append(i)
            else:
                account.drop(fault, chunk.name, line.number, line.src, line.tgt)
        account.keep(len(kept))
        src_ids, src_lengths = self._pack([src[i] for i in kept])
        tgt_ids, tgt_lengths = self._pack([tgt[i] for i in kept])
        return EncodedChunk(chunk.corpus, chunk.read, src_ids, src_lengths, tgt_ids, tgt_lengths, account)

    def _is_dropped(self, line: NumberedPair, name: str, account: CleanAccount) -> bool:
        if is_empty(line.src, line.tgt):
            reason = EMPTY
        elif self.held_out is not None and self.held_out.is_held_out(line.src, line.tgt):
            reason = HELD_OUT
        else:
            return False
        account.drop(reason, name, line.number, line.src, line.tgt)
        return True

    def _pack(self, sentences: list[list[int]]) -> tuple[NDArray[Any], Int64Array]:
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(sentences), dtype=self.dtype, count=int(lengths.sum()))
        return ids, lengths


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
            (corpus, name, read, lines), _ = _read_message(sys.stdin.buffer)
            chunk = Chunk(corpus, name, read, [NumberedPair(*line) for line in lines])
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
        "encode_pairs": [encoder.encode_pairs.__module__, encoder.encode_pairs.__qualname__],
        "tokenizer": tokenizer,
    }
    return content, models


def _parse_encoder(content: Any, models: list[bytes]) -> ChunkEncoder:
    held_out = None if content["held_out"] is None else HeldOut(**content["held_out"])
    tokenizer = Tokenizer.from_message(content["tokenizer"], models)
    module, name = content["encode_pairs"]
    encode_pairs: EncodePairs = getattr(import_module(module), name)
    return ChunkEncoder(tokenizer, CleanOptions(**content["clean"]), held_out, content["dtype"], encode_pairs)


def _answer(encoder: ChunkEncoder, chunk: Chunk) -> tuple[Any, list[bytes]]:
    try:
        done = encoder.encode(chunk)
    except UserError as error:
        return {"user_error": str(error)}, []
    except Exception:  # noqa: BLE001 - the caller raises it again
        return {"failure": traceback.format_exc()}, []
    arrays = (done.src_ids, done.src_lengths, done.tgt_ids, done.tgt_lengths)
    return {"account": done.account.to_json(), "dtype": encoder.dtype}, [array.tobytes() for array in arrays]


def _parse_answer(chunk: Chunk, content: Any, blocks: list[bytes]) -> EncodedChunk:
    if "user_error" in content:
        raise UserError(content["user_error"])
    if "failure" in content:
        raise RegardError(f"a tokenizing process failed: {content['failure']}")
    dtypes = (content["dtype"], np.int64, content["dtype"], np.int64)
    arrays = [np.frombuffer(block, dtype=dtype) for block, dtype in zip(blocks, dtypes, strict=True)]
    account = CleanAccount.from_json(content["account"])
    return EncodedChunk(chunk.corpus, chunk.read, arrays[0], arrays[1], arrays[2], arrays[3], account)

"""Makes a parallel corpus from other text, chunk by chunk and resumable. How pairs are made from rows is left to callers.

The pairs of a chunk and the position in the input are on disk before the chunk after the next begins, so an interrupted run
resumes where it stopped. Chunks are cut at the same rows again, so it ends with the same files.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

from regard.data.corpus import Corpus, Pair, check_corpus, has_tabs, read_lines
from regard.data.writer import CorpusWriter
from regard.errors import Interrupted, UserError
from regard.files import sha256
from regard.progress import OnProgress, progress


class Row(NamedTuple):
    """A line of the input, with its counterpart on the other side if there is one."""

    where: str  # the corpus
    number: int  # of the line, from 1
    text: str
    reference: str | None


@dataclass(frozen=True)
class Text:
    """One side of a parallel corpus, or text without a counterpart."""

    corpus: Corpus
    side: int = 0  # of each pair, the one that is the text; the other is its reference

    def __post_init__(self) -> None:
        check_corpus(self.corpus)

    @property
    def is_monolingual(self) -> bool:
        """Whether there is no other side: rows have no reference."""
        return self.corpus.target is None and not has_tabs(self.corpus.name)

    def rows(self, note: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
        """The rows in order; `note` is told of columns that are ignored."""
        if self.is_monolingual:
            for number, line in enumerate(read_lines(self.corpus.source), 1):
                yield Row(str(self.corpus.source), number, line, None)
        else:
            for number, pair in enumerate(self.corpus.pairs(note), 1):
                yield Row(self.corpus.name, number, pair[self.side], pair[1 - self.side])


def rows_of(texts: Sequence[Text], note: Callable[[str], None] = lambda text: None) -> Iterator[Row]:
    """The rows of all texts, one after the other."""
    return chain.from_iterable(text.rows(note) for text in texts)


def windows_of(texts: Sequence[Text], count: int) -> Iterator[list[Row]]:
    """For every row, in order: the row and the next ones of its corpus, `count` in all; fewer at the corpus's end."""
    for text in texts:
        window: deque[Row] = deque()
        for row in text.rows():
            window.append(row)
            if len(window) == count:
                yield list(window)
                window.popleft()
        while window:
            yield list(window)
            window.popleft()


def input_files(texts: Sequence[Text]) -> list[list[Any]]:
    """The input's files by name and hash, for a resumed run to compare."""
    return [[path.name, sha256(path)] for text in texts for path in text.corpus.files]


def count_rows(texts: Sequence[Text]) -> int:
    """The number of lines. Reads them all, so that a broken one is found now and not hours later. Ignored columns are reported on
    standard error."""
    total, notes = 0, list[str]()
    with progress("reading", None) as done:
        for _ in rows_of(texts, notes.append):
            total += 1
            done(1)
    for note in notes:
        print(note, file=sys.stderr)
    if total == 0:
        raise UserError(f"{texts[0].corpus.source}: must hold at least one line, but is empty")
    return total


class Account(Protocol):
    """Counts of what became of the rows."""

    @property
    def kept(self) -> int: ...
    def lines(self) -> list[str]: ...
    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R")
Make = Callable[[list[R], OnProgress], Callable[[], list[Pair]]]


def write_chunks(
    rows: Iterable[R], total: int, writer: CorpusWriter, account: Account, make: Make[R], size: int, doing: str
) -> None:
    """Make pairs from the rows that are not written yet.

    `make` does the slow part, and returns a function that finishes the chunk: it returns the pairs and updates `account`.
    Finishing and writing a chunk run in a thread beside the slow part of the next, in the order of the rows.
    """
    saved = writer.saved or {"lines": 0, "chunk": size}
    lines, size = int(saved["lines"]), int(saved["chunk"])

    def write(count: int, finish: Callable[[], list[Pair]]) -> None:
        nonlocal lines
        pairs = finish()
        lines += count
        writer.append(pairs, {"lines": lines, "total": total, "chunk": size, "account": account.to_json()})

    remaining = islice(rows, lines, None)
    try:
        with progress(doing, total, before=lines) as done, ThreadPoolExecutor(1) as thread:
            writing: Future[None] | None = None
            while chunk := list(islice(remaining, size)):
                finish = make(chunk, done)
                if writing is not None:
                    writing.result()
                writing = thread.submit(write, len(chunk), finish)
            if writing is not None:
                writing.result()
    except KeyboardInterrupt:
        raise _stopped(writer.saved, total) from None
    if lines != total:
        raise UserError(f"the input had {total:,} lines when they were counted, but now has {lines:,}; start over")


def _stopped(saved: dict[str, Any] | None, total: int) -> Interrupted:
    if saved is None:
        return Interrupted("stopped before anything was written")
    return Interrupted(
        f"stopped after {saved['lines']:,} of {total:,} lines, which are saved; continue with the same command and --resume"
    )


def finish_corpus(writer: CorpusWriter) -> None:
    """The last step: compress the files if their names say so, and give them their names."""
    try:
        with progress("compressing", writer.bytes_to_compress, "bytes") as done:
            writer.finish(done)
    except KeyboardInterrupt:
        raise Interrupted("all pairs are made and saved; finish the files with --resume") from None

"""A parallel corpus made from other text, chunk by chunk: rows in, pairs out, whatever happens in between.

What a chunk came to is on disk before the next but one begins, with the place in the input, so that an interrupted run goes on
where it was; chunks are cut at the same rows again, so that it ends with the same files. How pairs are made is left to callers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

from regard.data.corpus import Corpus, Pair, has_tabs, read_lines
from regard.data.writer import CorpusWriter
from regard.errors import Interrupted, UserError
from regard.files import sha256
from regard.progress import OnProgress, progress


class Row(NamedTuple):
    """A line of the input: where it stands, its text, and a translation by people where there is one."""

    where: str
    number: int
    text: str
    reference: str | None


@dataclass(frozen=True)
class Text:
    """Files of text in one language, with its translation beside it or alone."""

    corpus: Corpus
    side: int = 0  # of the pair, that is the text; the other one is its reference

    def __post_init__(self) -> None:
        for path in self.corpus.files:
            if not path.is_file():
                raise UserError(
                    f"{path}: must be a plain file, since it is read twice: to count its lines, then to work on them"
                )

    @property
    def is_alone(self) -> bool:
        return self.corpus.target is None and not has_tabs(self.corpus.name)

    def rows(self) -> Iterator[Row]:
        if self.is_alone:
            for number, line in enumerate(read_lines(self.corpus.source), 1):
                yield Row(str(self.corpus.source), number, line, None)
        else:
            for number, pair in enumerate(self.corpus.pairs(), 1):
                yield Row(self.corpus.name, number, pair[self.side], pair[1 - self.side])


def rows_of(texts: Sequence[Text]) -> Iterator[Row]:
    return chain.from_iterable(text.rows() for text in texts)


def windows_of(texts: Sequence[Text], count: int) -> Iterator[list[Row]]:
    """For every row, in order: the row and those after it in its corpus, `count` in all; at the corpus's end there are fewer."""
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
    """What a resumed run compares: the input's files by name and content."""
    return [[path.name, sha256(path)] for text in texts for path in text.corpus.files]


def count_rows(texts: Sequence[Text]) -> int:
    """The lines, all of them read once: a broken one is found now and not in some hours."""
    total = 0
    with progress("reading", None) as done:
        for _ in rows_of(texts):
            total += 1
            done(1)
    if total == 0:
        raise UserError(f"{texts[0].corpus.source}: must hold at least one line, but is empty")
    return total


class Account(Protocol):
    """What became of the rows."""

    @property
    def kept(self) -> int: ...
    def lines(self) -> list[str]: ...
    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R")
Make = Callable[[list[R], OnProgress], Callable[[], list[Pair]]]


def write_chunks(
    rows: Iterable[R], total: int, writer: CorpusWriter, account: Account, make: Make[R], size: int, doing: str
) -> None:
    """Make pairs of the rows that are not yet written.

    `make` does what takes long and returns a function that ends it: gives the pairs and brings `account` up to date. That
    function, and the writing, go on beside the making of the next chunk, one after the other in the order of the rows.
    """
    saved = writer.saved or {"lines": 0, "chunk": size}
    lines, size = int(saved["lines"]), int(saved["chunk"])

    def write(count: int, end: Callable[[], list[Pair]]) -> None:
        nonlocal lines
        pairs = end()
        lines += count
        writer.append(pairs, {"lines": lines, "total": total, "chunk": size, "account": account.to_json()})

    left = islice(rows, lines, None)
    try:
        with progress(doing, total, before=lines) as done, ThreadPoolExecutor(1) as thread:
            writing: Future[None] | None = None
            while block := list(islice(left, size)):
                end = make(block, done)
                if writing is not None:
                    writing.result()
                writing = thread.submit(write, len(block), end)
            if writing is not None:
                writing.result()
    except KeyboardInterrupt:
        raise _stopped(writer.saved, total) from None
    if lines != total:
        raise UserError(f"the input had {total:,} lines when they were counted, but now has {lines:,}; start anew")


def _stopped(saved: dict[str, Any] | None, total: int) -> Interrupted:
    if saved is None:
        return Interrupted("stopped before anything was written")
    return Interrupted(
        f"stopped after {saved['lines']:,} of {total:,} lines, which are saved; go on with the same command and --resume"
    )


def name_corpus(writer: CorpusWriter) -> None:
    """The last step: compress what is to be compressed, and give the files their names."""
    try:
        with progress("compressing", writer.bytes_to_compress, "bytes") as done:
            writer.finish(done)
    except KeyboardInterrupt:
        raise Interrupted("all pairs are made and saved; give the files their names with --resume") from None

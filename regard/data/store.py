"""The token ids of a whole corpus on disk, memory-mapped: any record is a slice, and nothing has to be loaded.

    store/  store.json  and for each column  NAME.ids  NAME.offsets          columns: source, target  or  text

Ids are uint16 (uint32 for vocabularies above 65,535 pieces), without `<s>` and `</s>`, end to end. Record i of a column is
ids[offsets[i] : offsets[i + 1]], with int64 offsets. A store is written under a temporary name and renamed when complete.
store.json has the SHA-256 of every piece of these files (`checksums.py`), of the text that they were made from, and of itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array, IntArray
from regard.data.checksums import Piece, PieceHasher, check_pieces, combined, digests_of, pieces_of
from regard.data.clean import DUPLICATE, CleanAccount, CleanOptions, is_empty
from regard.data.corpus import CorpusRange, Record, RecordSource, Texts, check_corpus, check_ranges
from regard.data.encoding_workers import (
    Chunk,
    ChunkEncoder,
    EncodedChunk,
    EncodeRecords,
    WorkerPool,
    encode_sides,
)
from regard.data.split import HeldOut
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.files import atomic_folder, write_all, write_atomic, writing
from regard.parallel.processes import cores

FORMAT_VERSION = 1
CHUNK_RECORDS = 4096
CHUNK_CHARACTERS = 1 << 20  # of a chunk of documents, whose records are longer than sentences
INLINE_CHUNKS = 6  # up to this many chunks, starting processes would take longer than the work


@dataclass(frozen=True)
class Column:
    """One column of a store: the ids of all records end to end, and where each record begins."""

    ids: NDArray[Any]  # (tokens,)
    offsets: Int64Array  # (records + 1,)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """(records,), without `</s>`."""
        return np.diff(self.offsets).astype(np.int32)

    def gather(self, indices: IntArray) -> tuple[NDArray[Any], Int64Array]:
        """The ids of these records, end to end, and their lengths: (tokens,) and (len(indices),).

        >>> column = Column(np.array([7, 8, 9, 4, 5]), np.array([0, 3, 4, 5]))  # 7 8 9 | 4 | 5
        >>> column.gather(np.array([2, 0]))
        (array([5, 7, 8, 9]), array([1, 3]))
        """
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        ends = lengths.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        # Row r of the result is token r - (first row of its record) of the record that begins at `starts`.
        places = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        return np.asarray(self.ids[places]), lengths


class Store:
    """Encoded records, on disk (`Store.open`) or in memory (`store_in_memory`)."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        corpora: Sequence[CorpusRange],
        info: dict[str, Any],
        pieces: Sequence[Piece] = (),
    ) -> None:
        self.columns = dict(columns)
        self.corpora = list(corpora)
        self.info = info  # the content of store.json
        self.pieces = list(pieces)  # of its files; none for a store in memory, or one without checksums
        [self._size] = {len(column.offsets) - 1 for column in self.columns.values()}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    @property
    def key(self) -> str:
        """The `store_key` of what the store was made from; empty for a store in memory."""
        return str(self.info.get("key", ""))

    @property
    def content(self) -> str:
        """A hash of all ids: stores with the same hash train alike. Empty for a store without checksums."""
        return combined(self.info["checksums"]) if "checksums" in self.info else ""

    @property
    def texts(self) -> dict[str, list[str]]:
        """For each corpus by name, a hash of each column's text. Empty for a store of an earlier version."""
        return dict(self.info.get("texts", {}))

    @property
    def account(self) -> CleanAccount:
        """What cleaning kept and dropped when the store was made."""
        return CleanAccount.from_json(self.info["account"]) if "account" in self.info else CleanAccount(len(self))

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Memory-map a store that `prepare_store` wrote, and compare all of it with its checksums.

        A store of an earlier version has none; `add_checksums` adds them.
        """
        info = _read_info(folder)
        try:
            num_records, dtype = int(info["pairs"]), np.dtype({"<u2": "<u2", "<u4": "<u4"}[info["dtype"]])
            corpora = _read_corpora(info["corpora"], num_records)
            columns = {
                _column_name(name): _map_column(folder, name, num_records, int(num_tokens), dtype)
                for name, num_tokens in info["tokens"].items()
            }
            pieces = pieces_of(folder, _arrays(columns), info["checksums"]) if "checksums" in info else []
            store = cls(columns, corpora, info, pieces)
            store.account.lines()
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise _damaged(folder / "store.json") from None
        check_pieces(pieces)
        return store


def store_in_memory(
    records: Sequence[Texts],
    tokenizer: Tokenizer,
    encode_records: EncodeRecords = encode_sides,
    names: Sequence[str] = ("source", "target"),
) -> Store:
    """A store in memory, for validation and test sets: keeps every record, even empty ones. `names` are those of the columns."""
    encoded = encode_records(tokenizer, [Record(number, texts) for number, texts in enumerate(records, 1)])
    columns = {name: _column_in_memory(ids) for name, ids in zip(names, encoded, strict=True)}
    return Store(columns, [CorpusRange("memory", 1.0, 0, len(records))], {"tokenizer": tokenizer.fingerprint})


def _column_in_memory(sequences: Sequence[Sequence[int]]) -> Column:
    offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(offsets[-1]))
    return Column(ids, offsets)


# --- writing ---


def prepare_store(
    folder: Path,
    corpora: Sequence[RecordSource],
    tokenizer: Tokenizer,
    clean: CleanOptions,
    encode_records: EncodeRecords = encode_sides,
    *,
    held_out: HeldOut | None = None,
    workers: int = 0,
    progress: Callable[[int], None] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[Store, CleanAccount]:
    """Clean and tokenize corpora into a store, replacing one that is in `folder` already.

    `workers` is the number of processes; 0 means one per core. `progress` is called with the number of records read so far,
    `note` with what the user should know about the text.
    """
    for corpus in corpora:
        check_corpus(corpus)
    if folder.exists() and not (folder / "store.json").exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: must be empty for the token store, but holds something else; move it away")
    dtype = "<u2" if tokenizer.vocab_size <= 65535 else "<u4"
    encoder = ChunkEncoder(tokenizer, clean, held_out, dtype, encode_records)
    try:
        with atomic_folder(folder) as temporary:
            account = _write_store(temporary, corpora, encoder, workers or cores(), progress, note)
    except OSError as error:
        raise UserError(f"{folder}: the token store cannot be written ({error.strerror or error})") from error
    return Store.open(folder), account


def store_key(
    corpora: Sequence[RecordSource], tokenizer: Tokenizer, clean: CleanOptions, held_out: HeldOut | None = None
) -> str:
    """A hash of everything a store is made from: as long as it equals `Store.key`, the store is up to date."""
    files = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for c in corpora for path in c.files]
    weights = [[corpus.name, corpus.weight, *([corpus.unit] if corpus.unit else [])] for corpus in corpora]
    excluded = [held_out.valid, held_out.test] if held_out is not None else []
    parts = [FORMAT_VERSION, files, weights, tokenizer.fingerprint, asdict(clean), excluded]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _write_store(
    folder: Path,
    corpora: Sequence[RecordSource],
    encoder: ChunkEncoder,
    workers: int,
    progress: Callable[[int], None] | None,
    note: Callable[[str], None],
) -> CleanAccount:
    account = CleanAccount()
    names, noun = corpora[0].columns, corpora[0].noun
    texts = [_TextHash() for _ in corpora]
    kept = [0] * len(corpora)
    num_read = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(_ColumnWriter(folder, name)) for name in names]
        chunks = _chunks(corpora, encoder.clean.deduplicate, account, texts, note)
        for done in _encode_all(chunks, encoder, workers, stack):
            for writer, column in zip(writers, done.columns, strict=True):
                writer.write(column.ids, column.lengths, done.begins)
            kept[done.corpus] += done.account.kept
            account.merge(done.account)
            num_read += done.read
            if progress is not None:
                progress(num_read)
    if account.kept == 0:
        raise UserError(f"no {noun} is left after cleaning: " + "; ".join(line.strip() for line in account.lines(noun)))
    stops = np.cumsum(kept).tolist()
    info = {
        "format": FORMAT_VERSION,
        "pairs": account.kept,  # the records; the name is from the time when all of them were pairs
        "dtype": encoder.dtype,
        "tokens": {name: writer.total for name, writer in zip(names, writers, strict=True)},
        "corpora": [
            CorpusRange(corpus.name, corpus.weight, stop - count, stop)
            for corpus, count, stop in zip(corpora, kept, stops, strict=True)
        ],
        "tokenizer": encoder.tokenizer.fingerprint,
        "key": store_key(corpora, encoder.tokenizer, encoder.clean, encoder.held_out),
        "account": account.to_json(),
        "texts": {corpus.name: text.digests() for corpus, text in zip(corpora, texts, strict=True)},
        "checksums": {name: digests for writer in writers for name, digests in writer.digests().items()},
    }
    _write_info(folder, info)
    return account


def add_checksums(folder: Path, vocab_size: int) -> Store:
    """Add the checksums that a store of an earlier version lacks, after the checks that are possible without them."""
    store = Store.open(folder)
    arrays = _arrays(store.columns)
    for name, array in arrays.items():
        if name.endswith(".ids") and len(array) and int(array.max()) >= vocab_size:
            raise _damaged(folder / name)
    _write_info(folder, {**store.info, "checksums": digests_of(arrays)})
    return Store.open(folder)


def _encode_all(
    chunks: Iterator[Chunk], encoder: ChunkEncoder, workers: int, stack: ExitStack
) -> Iterator[EncodedChunk]:
    first = list(islice(chunks, INLINE_CHUNKS + 1))
    if workers == 1 or len(first) <= INLINE_CHUNKS:
        return map(encoder.encode, chain(first, chunks))
    pool = stack.enter_context(WorkerPool(encoder, workers))
    return pool.map(chain(first, chunks))


def _chunks(
    corpora: Sequence[RecordSource],
    deduplicate: bool,
    account: CleanAccount,
    texts: Sequence[_TextHash],
    note: Callable[[str], None],
) -> Iterator[Chunk]:
    """All corpora in chunks. This is the one place that sees every record: duplicates are dropped and counted in `account`, and
    `texts` get the text of each corpus."""
    seen: set[int] = set()
    for index, corpus in enumerate(corpora):
        records = corpus.records(note)
        while block := _block(records):
            texts[index].update(block)
            kept = _without_duplicates(block, seen, corpus.name, account) if deduplicate else block
            yield Chunk(index, corpus.name, sum(record.begins for record in block), kept)


def _block(records: Iterator[Record]) -> list[Record]:
    """The next records: so many, or fewer if they are long."""
    block: list[Record] = []
    characters = 0
    for record in records:
        block.append(record)
        characters += len(record.texts[0])
        if len(block) == CHUNK_RECORDS or characters >= CHUNK_CHARACTERS:
            break
    return block


def _without_duplicates(records: Iterable[Record], seen: set[int], name: str, account: CleanAccount) -> list[Record]:
    out = []
    for record in records:
        # 64 bits per record instead of its text: a hundred million still fit into memory.
        key = hash(record.texts)
        if key in seen and not is_empty(*record.texts):
            account.drop(DUPLICATE, name, record.number, *record.shown)
        else:
            seen.add(key)
            out.append(record)
    return out


class _TextHash:
    """A hash of each column's text of a corpus: a file that is packed or encoded in another way keeps them."""

    def __init__(self) -> None:
        self._columns: list[Any] = []

    def update(self, records: Sequence[Record]) -> None:
        self._columns = self._columns or [hashlib.sha256() for _ in records[0].texts]
        for column, texts in zip(self._columns, zip(*(record.texts for record in records), strict=True), strict=True):
            column.update(("\n".join(texts) + "\n").encode("utf-8", "surrogatepass"))

    def digests(self) -> list[str]:
        return [column.hexdigest() for column in self._columns]


class _ColumnWriter:
    """Appends records to the ids and offsets of one column."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ids, self._offsets = _HashedFile(folder / f"{name}.ids"), _HashedFile(folder / f"{name}.offsets")
        self.total = 0

    def write(self, ids: NDArray[Any], lengths: Int64Array, begins: NDArray[np.bool_]) -> None:
        """Append these sequences; one that does not begin a record is more of the record before."""
        starts = self.total + lengths.cumsum() - lengths
        self._ids.write(ids.tobytes())
        self._offsets.write(starts[begins].astype("<i8").tobytes())
        self.total += len(ids)

    def digests(self) -> dict[str, list[str]]:
        return {file.path.name: file.hasher.digests() for file in (self._ids, self._offsets)}

    def __enter__(self) -> _ColumnWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._offsets.write(np.array([self.total], dtype="<i8").tobytes())
        for file in (self._ids, self._offsets):
            file.close()


class _HashedFile:
    """A file that is hashed as it is written, so that its digests are those of what was meant to be written."""

    def __init__(self, path: Path) -> None:
        self.path, self.hasher = path, PieceHasher()
        self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115 - closed in close()
        self._size = 0

    def write(self, data: bytes) -> None:
        self.hasher.update(data)
        self._size += len(data)
        with writing(self.path, self._size):
            write_all(self._file, data)

    def close(self) -> None:
        self._file.close()


# --- files ---


def _write_info(folder: Path, info: dict[str, Any]) -> None:
    info = {**info, "sha256": _info_hash(info)}
    write_atomic(folder / "store.json", json.dumps(info, indent=2, ensure_ascii=False))


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / "store.json"
    if not path.exists():
        raise UserError(f"{folder}: must be a token store, but has no store.json")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        version = info["format"]
        is_intact = info["sha256"] == _info_hash(info) if "checksums" in info else "sha256" not in info
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path) from None
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: must have format {FORMAT_VERSION}, but has {version}; delete {folder} to rebuild it")
    if not is_intact:
        raise _damaged(path)
    return dict(info)


def _info_hash(info: dict[str, Any]) -> str:
    """The hash of all other fields of store.json, however they are written."""
    fields = {name: value for name, value in info.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read_corpora(entries: Any, num_records: int) -> list[CorpusRange]:
    """The corpora of a store, which must lie end to end; a ValueError if they do not."""
    try:
        corpora = check_ranges([CorpusRange(*entry) for entry in entries], num_records)
    except UserError as error:
        raise ValueError(str(error)) from None
    edges = [0, *(corpus.stop for corpus in corpora)]
    if [corpus.start for corpus in corpora] != edges[:-1] or edges[-1] != num_records or edges != sorted(edges):
        raise ValueError("the corpora do not lie end to end")
    return corpora


def _arrays(columns: Mapping[str, Column]) -> dict[str, NDArray[Any]]:
    """The arrays of a store by the names of their files."""
    return {f"{name}.{kind}": getattr(column, kind) for name, column in columns.items() for kind in ("ids", "offsets")}


def _column_name(name: str) -> str:
    if not name.isidentifier():  # it is part of a file's name
        raise ValueError(f"a column must have a plain name, but has {name!r}")
    return name


def _map_column(folder: Path, name: str, num_records: int, num_tokens: int, dtype: np.dtype[Any]) -> Column:
    offsets = _map(folder / f"{name}.offsets", num_records + 1, np.dtype("<i8"))
    if int(offsets[0]) != 0 or int(offsets[-1]) != num_tokens or bool((offsets[1:] < offsets[:-1]).any()):
        raise _damaged(folder / f"{name}.offsets")
    return Column(_map(folder / f"{name}.ids", num_tokens, dtype), offsets)


def _map(path: Path, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not path.is_file() or path.stat().st_size != count * dtype.itemsize:
        raise _damaged(path)
    # A plain array over the mapping, since indexing np.memmap itself is slower.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,))) if count else np.zeros(0, dtype)


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: is missing, truncated or damaged; delete {path.parent}, and it is made anew")

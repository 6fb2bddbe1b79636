"""Reads text: lines from plain or compressed UTF-8 files, pairs from two files or one with tabs. Documents are in `documents.py`.

Errors name the file and line. Whether a record is fit for training is up to `clean`.
"""

from __future__ import annotations

import glob
import gzip
import io
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, Protocol, cast

from regard.errors import UserError
from regard.files import check_regular, open_input

COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")

Pair = tuple[str, str]  # source and target text
Texts = tuple[str, ...]  # a text for each column

_BOM = b"\xef\xbb\xbf"
_BINARY = {  # the first bytes of files that people take for text
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"%PDF": "a PDF",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"\x1f\x8b": "a gzip file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}
_BLOCK = 1 << 18
_BRACE = re.compile(r"\{([^{}]*)\}")
_WILDCARD = re.compile(r"(\*+|\?|\[[^\]]+\])")


# --- lines ---


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or .gz, .xz, .zst, without their "\\n" or "\\r\\n". No other character ends a line."""
    path = Path(path)
    number = 0
    try:
        check_file(path)
        with open_input(path) as packed, _decompressed(path, packed) as file:
            for raw in file:
                number += 1
                if number == 1 and raw.startswith(_BOM):
                    raw = raw[len(_BOM) :]
                if raw.endswith(b"\n"):
                    raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
                yield raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if kind := _binary_kind(path):
            remedy = "give its name the suffix of its kind" if kind.endswith(" file") else "save its text as UTF-8"
            raise UserError(f"{path}: must be a text file in UTF-8, but is {kind}; {remedy}") from None
        byte = error.object[error.start]
        raise UserError(
            f"{path}, line {number}: is not valid UTF-8 (byte 0x{byte:02x} at byte {error.start + 1} of the line); "
            "save the file as UTF-8"
        ) from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: must be a complete {path.suffix} file, but is damaged or truncated after line {number} "
            f"({_one_line(error)}); download or compress it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or _one_line(error)})") from None


def _binary_kind(path: Path) -> str | None:
    """What a file that is not text is by its first bytes, if that is known."""
    if not path.is_file():  # a pipe cannot be read again
        return None
    with path.open("rb") as file:
        opening = file.read(8)
    return next((kind for start, kind in _BINARY.items() if opening.startswith(start)), None)


def check_file(path: Path) -> None:
    """Refuse a path that is not a file before any work is done."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: must be a file, but is a folder")
        if not path.exists():
            raise UserError(f"{path}: there is no such file")
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise UserError(f"{shorten(str(path), 200)}: cannot be read ({error.strerror})") from None
    if path.suffix == ".zst":
        import_zstandard(path, "reading")


def import_zstandard(path: Path, doing: str) -> Any:
    """Import the package that only `.zst` files need, or refuse the file before any work is done."""
    try:
        import zstandard
    except ImportError:
        raise UserError(f"{path}: {doing} .zst needs one more package; run: pip install zstandard") from None
    return zstandard


def _decompressed(path: Path, file: IO[bytes]) -> IO[bytes]:
    # gzip and lzma split lines in Python code; a BufferedReader around them does it in C.
    if path.suffix == ".gz":
        return io.BufferedReader(cast(Any, gzip.open(file, "rb")), _BLOCK)
    if path.suffix == ".xz":
        return io.BufferedReader(cast(Any, lzma.open(file, "rb")), _BLOCK)
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdReader(path, file), _BLOCK)
    return file


class _ZstdReader(io.RawIOBase):
    """Zstandard frames as a stream. Unlike zstandard's own reader, it notices a file that ends inside a frame."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        zstandard = import_zstandard(path, "reading")
        self._file = file
        self._damage: type[Exception] = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._file.read(_BLOCK)
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            self._ready = self._decompress(block)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, block: bytes) -> bytes:
        out = []
        try:
            while block:
                if self._frame is None:
                    self._frame = self._new_frame()
                out.append(self._frame.decompress(block))
                block = b""
                if self._frame.eof:
                    block, self._frame = self._frame.unused_data, None
        except self._damage as error:
            raise EOFError(str(error)) from None
        return b"".join(out)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --- records ---


class Record(NamedTuple):
    """A line of data: a text for each column. A long document is cut into several records: only the first `begins` it, only the
    last `ends` it."""

    number: int  # of its line, from 1
    texts: Texts
    begins: bool = True
    ends: bool = True
    label: str = ""  # by its name, where the last text has its number

    @property
    def shown(self) -> Texts:
        """The texts for messages."""
        return (*self.texts[:-1], self.label) if self.label else self.texts


class RecordSource(Protocol):
    """What a store is made from: a `Corpus` of pairs, or a `TextCorpus` of documents."""

    columns: ClassVar[tuple[str, ...]]
    noun: ClassVar[str]  # what people call a record

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def unit(self) -> str: ...  # what a record is, where there is a choice

    def records(self, note: Callable[[str], None] = ...) -> Iterator[Record]: ...


# --- pairs ---


@dataclass(frozen=True)
class Corpus:
    """Parallel text: two files with a sentence per line, or (`target` None) one file of source<TAB>target lines.

    `weight` is how often an epoch contains each pair; with 0.5 it contains half of them. In a run of several directions the codes
    of source and target, `languages`, come after the two texts of each record.
    """

    columns: ClassVar[tuple[str, ...]] = ("source", "target")
    noun: ClassVar[str] = "pair"

    name: str
    source: Path
    target: Path | None
    weight: float = 1.0
    languages: Texts = ()

    @property
    def files(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def unit(self) -> str:
        return " ".join(self.languages)  # the same files may be read in two directions

    def pairs(self, note: Callable[[str], None] = lambda text: None) -> Iterator[Pair]:
        """The sentence pairs in order, one per line, even empty ones. At the end, `note` is told of columns that were ignored."""
        return _pairs_of_tabs(self.source, note) if self.target is None else _pairs_of_files(self.source, self.target)

    def records(self, note: Callable[[str], None] = lambda text: None) -> Iterator[Record]:
        """The pairs, numbered by their lines."""
        return (Record(number, (*pair, *self.languages)) for number, pair in enumerate(self.pairs(note), 1))


class CorpusRange(NamedTuple):
    """The records [start, stop) of a store come from this corpus."""

    name: str
    weight: float
    start: int
    stop: int


def check_ranges(corpora: Sequence[CorpusRange] | None, num_records: int) -> list[CorpusRange]:
    """The corpora, or one of all records for None; refuses a weight that is negative or not finite."""
    if corpora is None:
        return [CorpusRange("", 1.0, 0, num_records)]
    for corpus in corpora:
        if not (math.isfinite(corpus.weight) and corpus.weight >= 0):
            raise UserError(f"the weight of corpus {corpus.name!r} must be 0 or more, but is {corpus.weight}")
    return [CorpusRange(name, float(weight), int(start), int(stop)) for name, weight, start, stop in corpora]


def check_corpus(corpus: RecordSource) -> None:
    """Refuse a corpus before any work is done if one of its files is missing, or is a pipe."""
    for path in corpus.files:
        check_file(path)
        check_regular(path, "a corpus is read more than once")


def _pairs_of_tabs(path: Path, note: Callable[[str], None]) -> Iterator[Pair]:
    number = wider = first_wider = 0
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t", 2)
        if len(columns) < 2:
            raise UserError(
                f"{path}, line {number}: must hold source<TAB>target, but has no tab ({shorten(line)!r}); "
                "for two files, one per language, write NAME.{source,target}"
            )
        if len(columns) > 2:
            wider += 1
            first_wider = first_wider or number
        yield columns[0], columns[1]
    if number == 0:
        raise UserError(f"{path}: must hold at least one line, but is empty")
    if wider:
        note(
            f"{path}: only the first two columns are used, source and target; more are on {wider:,} of {number:,} lines, "
            f"first on line {first_wider:,}"
        )


def _pairs_of_files(source: Path, target: Path) -> Iterator[Pair]:
    number = 0
    src_lines, tgt_lines = read_lines(source), read_lines(target)
    for src, tgt in zip_longest(src_lines, tgt_lines):
        if src is None or tgt is None:
            rest = number + 1 + _count(tgt_lines if src is None else src_lines)
            src_count, tgt_count = (number, rest) if src is None else (rest, number)
            raise UserError(
                f"{source} and {target}: must have the same number of lines, but have {src_count:,} and {tgt_count:,}; "
                "line N of one must be the translation of line N of the other"
            )
        yield src, tgt
        number += 1
    if number == 0:
        raise UserError(f"{source} and {target}: must hold at least one line, but are empty")


def _count(lines: Iterable[str]) -> int:
    return sum(1 for _ in lines)


def shorten(text: str, limit: int = 60) -> str:
    """The text, cut to `limit` characters with an ellipsis if it is longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- names of corpora ---


def resolve(spec: str, root: Path, source: str, target: str, weight: float = 1.0) -> Corpus:
    """The one corpus that `spec` names: "x.{en,de}.xz" is two files, source first; "x.tsv.gz" is one with tabs."""
    corpora = resolve_all(spec, root, source, target, weight)
    if len(corpora) > 1:
        raise UserError(f"{spec!r}: must name one corpus, but matches {len(corpora)}; write it without * ? [ ]")
    return corpora[0]


def resolve_all(spec: str, root: Path, source: str, target: str, weight: float = 1.0) -> list[Corpus]:
    """Every corpus that `spec` names, sorted: as `resolve`, with the wildcards * ? [abc]."""
    if not spec.strip():
        raise UserError("a corpus must be named by a file or by NAME.{source,target}, but its name is empty")
    spec = with_labels(os.path.expanduser(spec), source, target)
    src_spec, tgt_spec = _expand_braces(spec, source, target)
    names = [spec] if _is_literal(src_spec, root) else _matches(spec, src_spec, tgt_spec, root)
    corpora = []
    for name in names:
        src_name, tgt_name = _expand_braces(name, source, target)
        corpus = Corpus(name, root / src_name, None if tgt_name is None else root / tgt_name, weight)
        check_corpus(corpus)
        corpora.append(corpus)
    return corpora


def with_labels(spec: str, source: str, target: str) -> str:
    """Replace a literal {source,target} by the two labels, for a recipe that serves both directions."""
    return spec.replace("{source,target}", f"{{{source},{target}}}")


def brace_labels(spec: str) -> list[tuple[str, str]]:
    """The two labels in each pair of braces: "{en,de}/x.{en,de}" -> [("en", "de"), ("en", "de")]."""
    braces = []
    for inside in _BRACE.findall(spec):
        parts = [part.strip() for part in inside.split(",")]
        if len(parts) != 2 or parts[0] == parts[1]:
            inside = ",".join(parts)
            raise UserError(f"{spec!r}: braces must hold the two sides as {{source,target}}, but hold {{{inside}}}")
        braces.append((parts[0], parts[1]))
    return braces


def name_files(spec: str, source: str, target: str) -> list[Path]:
    """The files of a corpus to be written: one per side, or one with tabs."""
    src_name, tgt_name = _expand_braces(os.path.expanduser(spec), source, target)
    if tgt_name is not None:
        return [Path(src_name), Path(tgt_name)]
    if not has_tabs(spec):
        raise UserError(
            f"{spec!r}: must name two files as NAME.{{{source},{target}}} or one as NAME.tsv; "
            f"append {' or '.join(COMPRESSION_SUFFIXES)} to compress"
        )
    return [Path(src_name)]


def has_tabs(name: str) -> bool:
    """Whether a file holds source<TAB>target lines, by its name."""
    path = Path(name)
    return (path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path).suffix.lower() == ".tsv"


def _is_literal(spec: str, root: Path) -> bool:
    try:
        return not _WILDCARD.search(spec) or (root / spec).exists()
    except OSError:  # too long for a name, but perhaps not for a pattern
        return False


def _expand_braces(spec: str, source: str, target: str) -> tuple[str, str | None]:
    """ "x.{en,de}.xz" -> ("x.en.xz", "x.de.xz"); a name without braces is one file: (name, None)."""
    labels = brace_labels(spec)
    if not labels:
        return spec, None
    if (target, source) in labels:
        raise UserError(f"{spec!r}: the source side must come first; write {{{source},{target}}}")
    src_spec = _BRACE.sub(lambda match: match[1].split(",")[0].strip(), spec)
    tgt_spec = _BRACE.sub(lambda match: match[1].split(",")[1].strip(), spec)
    return src_spec, tgt_spec


def _matches(spec: str, src_spec: str, tgt_spec: str | None, root: Path) -> list[str]:
    """The names, still with braces, that the wildcards of `spec` match; each must exist on both sides."""
    by_side = [sorted(_wildcard_fillings(side, root)) for side in (src_spec, tgt_spec) if side is not None]
    if not by_side[0]:
        raise UserError(f"{spec!r}: must match at least one file, but matches none in {root}")
    for filling in sorted({filling for side in by_side for filling in side}):
        if any(filling not in side for side in by_side):
            name = _fill(spec, filling)
            raise UserError(f"{spec!r}: each file must exist on both sides, but {name} has only one of the two")
    return [_fill(spec, filling) for filling in by_side[0]]


def _wildcard_fillings(spec: str, root: Path) -> list[tuple[str, ...]]:
    """What each wildcard matched, for each matching file."""
    regex = "".join(
        _wildcard_regex(part) if _WILDCARD.fullmatch(part) else re.escape(part) for part in _WILDCARD.split(spec)
    )
    matches = [re.fullmatch(regex, path) for path in glob.glob(spec, root_dir=root)]
    return [match.groups() for match in matches if match]


def _wildcard_regex(wildcard: str) -> str:
    if wildcard[0] == "*":
        return "([^/]*)"
    return "([^/])" if wildcard == "?" else "(" + wildcard.replace("[!", "[^") + ")"


def _fill(spec: str, filling: tuple[str, ...]) -> str:
    parts = iter(filling)
    return _WILDCARD.sub(lambda _: next(parts), spec)

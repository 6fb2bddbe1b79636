"""Labelled text: rows of tables with a label and one or two texts, and sentences of words with tags.

A record has two texts. The first is the text itself, the two of a pair with a tab between them, or the words of a sentence with
tabs between them. The second says the labels by their numbers: "17", "3 5" or "-" for several or none, "=3.8" for a number, one
for each word with tabs between them for tags. No torch here: worker processes encode records.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from regard.data.columns import SAMPLE, Columns, nested_cell
from regard.data.corpus import Record, check_corpus, read_lines, shorten
from regard.data.tables import Nested, Row, header_of, read_rows, table_suffix
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

BETWEEN = "\t"  # the texts of a pair, the words of a sentence
NONE = "-"  # none of several labels
NUMBER = "="  # begins the label of a record that is a number
DEFAULT_THRESHOLD = 0.5  # the probability from which a text has one of several labels
LARGEST_NUMBER = 1e18  # as a label: its square is a float32, too
_WILDCARD = re.compile(r"[*?[]")
_SPACES = re.compile(r"[\t\n\r]+")
_CONLLU_COLUMNS = 10

Say = Callable[[str], None]


def on_one_line(text: str) -> str:
    """A text as records have it: a space for tabs and line breaks, none at the ends.

    >>> on_one_line(" one\\ttwo\\r\\nthree ")
    'one two three'
    """
    return _SPACES.sub(" ", text).strip()


def find_files(spec: str, root: Path) -> tuple[Path, ...]:
    """The files that `spec` names: one, or those that match a pattern."""
    if not spec.strip():
        raise UserError("a table must be named by a file or a pattern such as data/*.tsv, but its name is empty")
    pattern = os.path.expanduser(spec)
    if _WILDCARD.search(pattern) and not (root / pattern).exists():
        names = sorted(name for name in glob.glob(pattern, root_dir=root, recursive=True) if (root / name).is_file())
        if not names:
            raise UserError(f"{spec!r}: must match at least one file, but matches none in {root}")
        return tuple(root / name for name in names)
    return (root / pattern,)


# --- tables ---


@dataclass(frozen=True)
class TableCorpus:
    """Tables of labelled texts. Without `labels`, which only reading can tell, the labels of records are empty."""

    columns: ClassVar[tuple[str, ...]] = ("label", "second", "text")
    noun: ClassVar[str] = "text"

    name: str
    files: tuple[Path, ...]
    used: Columns
    labels: tuple[str, ...] = ()
    weight: float = 1.0

    @property
    def unit(self) -> str:
        """What a record is: decides, with the files, whether a store is up to date."""
        labels = hashlib.sha256("\n".join(self.labels).encode()).hexdigest()[:16]
        return f"{self.used} {labels}"

    def records(self, note: Say = lambda text: None) -> Iterator[Record]:
        """The rows in order, also those whose text or label is empty, which cleaning drops."""
        for path, row, header in self.rows():
            texts = [self._text(path, row, column, header) for column in self.used.text]
            joined = BETWEEN.join(texts) if all(text.strip() for text in texts) else ""
            cell = self.label_cell(path, row, header)
            yield Record(row.number, (joined, self._label(path, row, cell)), label=", ".join(self.names_in(cell)))

    def rows(self) -> Iterator[tuple[Path, Row, tuple[str, ...]]]:
        """The rows below the headers, with their files and headers."""
        for path in self.files:
            header: tuple[str, ...] = ()
            for number, row in enumerate(read_rows(path)):
                if number == 0 and self.used.header and not row.names:
                    header = header_of(row)
                    continue
                yield path, row, header

    def label_cell(self, path: Path, row: Row, header: tuple[str, ...]) -> str | list[str] | None:
        return _cell(path, row, self.used.label, header, "label")

    def names_in(self, cell: str | list[str] | None) -> list[str]:
        """The labels in a cell."""
        if isinstance(cell, list):
            return [name for one in cell if (name := one.strip())]
        text = (cell or "").strip()
        if self.used.answer == "several" and self.used.separator:
            return [name for part in text.split(self.used.separator) if (name := part.strip())]
        return [text] if text else []

    def _text(self, path: Path, row: Row, column: str, header: tuple[str, ...]) -> str:
        cell = _cell(path, row, column, header, "text")
        if isinstance(cell, list):
            raise UserError(
                f"{path}, line {row.number}: the text must be text, but is a list; name its column with --text"
            )
        return on_one_line(cell or "")

    def _label(self, path: Path, row: Row, cell: str | list[str] | None) -> str:
        names = self.names_in(cell)
        if self.used.answer == "several":
            numbers = sorted({self._number(path, row, name) for name in names})
            return " ".join(map(str, numbers)) or NONE
        if isinstance(cell, list) and len(names) > 1:
            raise UserError(
                f"{path}, line {row.number}: must have one label, but has {len(names)} ({', '.join(names[:3])}); set "
                f"model.head.answer = 'several'"
            )
        if not names:
            return ""
        if self.used.answer == "number":
            return f"{NUMBER}{_finite(path, row, names[0])!r}"
        return str(self._number(path, row, names[0]))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def _number(self, path: Path, row: Row, name: str) -> int:
        if name in self._numbers:
            return self._numbers[name]
        raise unknown_label(f"{path}, line {row.number}", name, self.labels)


def unknown_label(where: str, name: str, labels: Sequence[str]) -> UserError:
    near = difflib.get_close_matches(name, labels, n=1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''}"
    )
    return UserError(
        f"{where}: the label {shorten(name)!r} is not one of the {len(labels)} labels of the model; {hint}"
    )


def _cell(path: Path, row: Row, column: str, header: tuple[str, ...], what: str) -> str | list[str] | None:
    cell = row.cell(column, header)
    if isinstance(cell, Nested):
        raise nested_cell(path, row, cell, column, f"--{what}")
    if cell is None and column not in row.names:
        there = ", ".join(row.names) if row.names else f"{len(row.cells)} column{'' if len(row.cells) == 1 else 's'}"
        name = f"column {column}" if column.isdecimal() else repr(column)
        raise UserError(f"{path}, line {row.number}: must have the {what} in {name}, but has {there}")
    return cell


def _finite(path: Path, row: Row, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST_NUMBER:  # also NaN
        raise UserError(
            f"{path}, line {row.number}: the label must be a number, as on other lines, of at most {LARGEST_NUMBER:g}, but is "
            f"{shorten(text)!r}"
        )
    return value


def table_sample(path: Path) -> list[Row]:
    """The first rows of a table."""
    found = []
    for row in read_rows(path):
        found.append(row)
        if len(found) == SAMPLE:
            break
    return found


# --- words and tags ---


class Sentence(NamedTuple):
    """Words with tags."""

    path: Path
    lines: list[int]  # of each word
    words: list[str]
    tags: list[str]


@dataclass(frozen=True)
class WordsCorpus:
    """Sentences of words with tags: a word, a tab or spaces, and its tag on each line, a blank line after each sentence. Of lines
    with more columns the first and the last count; of CoNLL-U the form and the universal part of speech."""

    columns: ClassVar[tuple[str, ...]] = ("label", "text")
    noun: ClassVar[str] = "sentence"

    name: str
    files: tuple[Path, ...]
    word: str = ""  # the number of its column; empty: found
    tag: str = ""
    labels: tuple[str, ...] = ()
    weight: float = 1.0

    @property
    def unit(self) -> str:
        labels = hashlib.sha256("\n".join(self.labels).encode()).hexdigest()[:16]
        return f"{self.word} {self.tag} {labels}"

    def records(self, note: Say = lambda text: None) -> Iterator[Record]:
        numbers = {label: str(number) for number, label in enumerate(self.labels)}
        for path, lines, words, tags in self.sentences():
            for line, tag in zip(lines, tags, strict=True):
                if tag not in numbers:
                    raise unknown_label(f"{path}, line {line}", tag, self.labels)
            texts = BETWEEN.join(words), BETWEEN.join(numbers[tag] for tag in tags)
            yield Record(lines[0], texts, label=" ".join(tags))

    def sentences(self) -> Iterator[Sentence]:
        """The sentences in order. Lines without a word of their own are left out: comments, ranges and empty nodes of CoNLL-U."""
        for path in self.files:
            is_conllu = table_suffix(path) == ".conllu"
            one = Sentence(path, [], [], [])
            for number, line in enumerate(read_lines(path), 1):
                if not line.strip() or line.startswith("-DOCSTART-"):
                    if one.words:
                        yield one
                        one = Sentence(path, [], [], [])
                    continue
                cells = line.rstrip().split("\t") if "\t" in line else line.split()
                is_comment = is_conllu or len(cells) == 1 or line.startswith("# ")  # but "#", a tab and a tag is a word
                if line.startswith("#") and is_comment and (is_conllu or not one.words):
                    continue
                if len(cells) == _CONLLU_COLUMNS and not cells[0].isdecimal() and is_conllu:
                    continue  # a range of words such as 1-2, or an empty node such as 1.1
                word, tag = self._word_and_tag(path, number, line, cells, is_conllu)
                one.lines.append(number)
                one.words.append(word)
                one.tags.append(tag)
            if one.words:
                yield one

    def _word_and_tag(self, path: Path, number: int, line: str, cells: list[str], is_conllu: bool) -> tuple[str, str]:
        word, tag = (2, 4) if is_conllu else (1, len(cells))
        word, tag = int(self.word or word), int(self.tag or tag)
        if len(cells) < 2 or max(word, tag) > len(cells) or not cells[word - 1].strip() or not cells[tag - 1].strip():
            wanted = (
                "a word, a tab and its tag"
                if max(word, tag) <= 2
                else f"a word in column {word} and a tag in column {tag}"
            )
            raise UserError(
                f"{path}, line {number}: must have {wanted}, but is {shorten(line)!r}; a blank line ends a sentence"
            )
        return on_one_line(cells[word - 1]), cells[tag - 1].strip()


def find_words(
    spec: str, root: Path, text: Sequence[str], label: str, labels: Sequence[str], weight: float = 1.0
) -> WordsCorpus:
    """The corpus of words that `spec` names; columns are given by number."""
    for name, column in (("data.text", text[0] if text else ""), ("data.label", label)):
        if (column and not (column.isdecimal() and int(column))) or len(text) > 1:
            raise UserError(f"{name} must be the number of one column of words and tags, but is {column!r}")
    corpus = WordsCorpus(spec, find_files(spec, root), text[0] if text else "", label, tuple(labels), weight)
    check_corpus(corpus)
    return corpus


# --- token ids ---


def encode_labelled(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[list[int]]]:
    """The labels as `encode_label` writes them, and the ids of the second text, empty if there is one, and of the first."""
    firsts, seconds = [], []
    for record in records:
        first, _, second = record.texts[0].partition(BETWEEN)
        firsts.append(first)
        seconds.append(second)
    ids = tokenizer.encode_batch(firsts)
    others = tokenizer.encode_batch(seconds) if any(seconds) else [[] for _ in records]
    return [[encode_label(record.texts[1]) for record in records], others, ids]


def encode_label(text: str) -> list[int]:
    """The label of a record as whole numbers below 2^16, which a store keeps: those of its classes, or a float32 in two halves.

    >>> encode_label("17"), encode_label("3 5"), encode_label("-"), encode_label("=1.0")
    ([17], [3, 5], [], [0, 16256])
    """
    if text.startswith(NUMBER):
        return np.array([float(text[1:])], np.float32).view("<u2").astype(np.int64).tolist()  # type: ignore[no-any-return]
    return [] if text == NONE else [int(number) for number in text.split()]


def decode_number(ids: Sequence[int]) -> float:
    """The inverse of `encode_label` for a number."""
    return float(np.array(ids, dtype="<u2").view(np.float32)[0])


def encode_tagged(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[list[int]]]:
    """For each id of a sentence the number of the tag plus one if it begins a word, else 0; and the ids of its words."""
    prefix, known = word_prefix(tokenizer), dict[str, list[int]]()
    columns: list[list[list[int]]] = [[], []]
    for record in records:
        ids, tags = [], []
        numbers = record.texts[1].split(BETWEEN)
        for place, word in enumerate(record.texts[0].split(BETWEEN)):
            pieces = encode_word(tokenizer, (prefix if place else "") + word, known)
            ids += pieces
            tags += [int(numbers[place]) + 1, *[0] * (len(pieces) - 1)]
        columns[0].append(tags)
        columns[1].append(ids)
    return columns


def word_pattern(by_spaces: bool) -> str:
    """The regular expression that finds the words of a text: what stands between spaces or, unless `by_spaces`, also punctuation
    marks by themselves."""
    return r"\S+" if by_spaces else r"\w+(?:['’.\-]\w+)*|[^\w\s]"


def split_words(text: str, by_spaces: bool) -> list[str]:
    """The words of a text; see `word_pattern`.

    >>> split_words("It's in Berlin, e.g. here.", by_spaces=False)
    ["It's", 'in', 'Berlin', ',', 'e.g', '.', 'here', '.']
    """
    return re.findall(word_pattern(by_spaces), text)


def encode_word(tokenizer: Tokenizer, word: str, known: dict[str, list[int]]) -> list[int]:
    """The ids of a word, at least one; `known` keeps those of words that come again."""
    found = known.get(word)
    if found is None:
        unknown = tokenizer.unk_id if tokenizer.unk_id >= 0 else tokenizer.eos_id
        found = known[word] = tokenizer.encode(word) or [max(0, unknown)]
    return found


def word_prefix(tokenizer: Tokenizer) -> str:
    """What stands before a word inside a sentence so that its ids are those that it has there: a space, where the vocabulary has
    pieces with one that it does not put there itself (GPT-2, RoBERTa)."""
    if tokenizer.kind == "ids":
        return ""
    one, inside = tokenizer.encode("a"), tokenizer.encode(" a")
    return " " if one != inside and tokenizer.encode("a a") == one + inside else ""

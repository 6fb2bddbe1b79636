"""Reads text as documents, for language models: files, paragraphs or lines of plain text, or the `text` or `messages` of .jsonl
lines.

A long document comes in pieces, so that memory stays flat whatever the size of a file. They are cut before a space, where the
pieces of a vocabulary begin: their ids end to end are those of the document.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.corpus import COMPRESSION_SUFFIXES, Record, RecordSource, Texts, check_corpus, read_lines, shorten
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

PIECE = 1 << 16  # characters
CHAT_ROLES = ("system", "user", "assistant")
_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True)
class TextCorpus:
    """Text files. `unit` says what a document is: a "file", a "paragraph" (up to a blank line) or a "line"; in .jsonl files always
    a line. Documents neither begin nor end with blank lines, and there are no empty ones.

    `weight` is how often an epoch contains each row of the text; with 0.5 it contains half of them. `kept` has the number of
    characters that each document is cut down to, if the rest of it is held out.
    """

    columns: ClassVar[tuple[str, ...]] = ("text",)
    noun: ClassVar[str] = "document"

    name: str
    files: tuple[Path, ...]
    unit: str = "file"
    weight: float = 1.0
    kept: tuple[int, ...] = ()

    def records(self, note: Callable[[str], None] = lambda text: None) -> Iterator[Record]:
        """The documents in order; those longer than PIECE characters in several records."""
        return cut_documents(self._records(), self.kept, self.name) if self.kept else self._records()

    def _records(self) -> Iterator[Record]:
        for path in self.files:
            if is_jsonl(path):
                yield from _jsonl_records(path)
            elif self.unit == "line":
                for number, line in enumerate(read_lines(path), 1):
                    if text := line.strip():
                        yield Record(number, (text,))
            else:
                yield from _text_records(path, ends_at_blank=self.unit == "paragraph")


@dataclass(frozen=True)
class ChatCorpus(TextCorpus):
    """Conversations: the `messages` of .jsonl lines, each with a `role` and a `content`. A record has them as JSON, in both
    columns: what is learnt of a conversation depends on all of it."""

    columns: ClassVar[tuple[str, ...]] = ("text", "learnt")

    def _records(self) -> Iterator[Record]:
        for path in self.files:
            for number, line in enumerate(read_lines(path), 1):
                if line.strip():
                    content = _chat_content(line, f"{path}, line {number}")
                    yield Record(number, (content, content))


def chat_answers(texts: Texts) -> str:
    """What the assistant says in the conversation of a record; of a document all of it."""
    if len(texts) == 1:
        return texts[0]
    return "\n".join(message["content"] for message in json.loads(texts[0]) if message["role"] == "assistant")


def _chat_content(line: str, where: str) -> str:
    try:
        messages = json.loads(line)["messages"]
        given = [{"role": each["role"], "content": each["content"]} for each in messages]
        if not all(isinstance(value, str) for each in given for value in each.values()):
            raise TypeError
    except (KeyError, RecursionError, TypeError, ValueError):
        raise UserError(
            f'{where}: must be a JSON object with messages, {{"messages": [{{"role": "user", "content": "..."}}, ...]}}, but is '
            f"{shorten(line)!r}"
        ) from None
    roles = [each["role"] for each in given]
    if unknown := next((role for role in roles if role not in CHAT_ROLES), None):
        raise UserError(f"{where}: a role must be one of {', '.join(CHAT_ROLES)}, but is {shorten(unknown)!r}")
    if "assistant" not in roles[1:]:
        raise UserError(f"{where}: messages must have an answer, by the assistant, to others before it, but have none")
    return json.dumps(given, ensure_ascii=False)


def has_messages(path: Path) -> bool:
    """Whether the first line of a .jsonl file is a conversation."""
    first = next((line for line in read_lines(path) if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict) and "messages" in json.loads(first)
    except (RecursionError, ValueError):
        return False


def whole_documents(corpus: RecordSource) -> Iterator[str]:
    """The documents of a corpus, each as a whole."""
    parts: list[str] = []
    for record in corpus.records():
        parts.append(record.texts[0])
        if record.ends:
            yield "".join(parts)
            parts.clear()


def document_lengths(corpus: RecordSource) -> list[int]:
    """The number of characters of each document."""
    lengths: list[int] = []
    for record in corpus.records():
        if record.begins:
            lengths.append(0)
        lengths[-1] += len(record.texts[0])
    return lengths


def cut_documents(records: Iterator[Record], kept: Sequence[int], name: str) -> Iterator[Record]:
    """The first so many characters of each document of the corpus with this name."""
    for record, left in _with_rest(records, kept, name):
        if left > 0:
            text = record.texts[0]
            yield record._replace(texts=(text[:left],), ends=record.ends or left <= len(text))


def document_ends(corpus: RecordSource, kept: Sequence[int]) -> Iterator[str]:
    """What follows the first so many characters of each document, which alone is in memory."""
    parts: list[str] = []
    for record, left in _with_rest(corpus.records(), kept, corpus.name):
        parts.append(record.texts[0][max(0, left) :])
        if record.ends:
            yield "".join(parts)
            parts.clear()


def _with_rest(records: Iterator[Record], kept: Sequence[int], name: str) -> Iterator[tuple[Record, int]]:
    """The records, and how many characters of its document are to be kept from each one on."""
    lengths, left = iter(kept), 0
    for record in records:
        if record.begins:
            following = next(lengths, None)
            if following is None or left > 0:
                raise _changed(name)
            left = following
        yield record, left
        left -= len(record.texts[0])
    if left > 0 or next(lengths, None) is not None:
        raise _changed(name)


def _changed(name: str) -> UserError:
    return UserError(f"{name}: must not change while it is read, but has other documents than before; train anew")


def find_texts(spec: str, root: Path, unit: str, weight: float = 1.0) -> TextCorpus:
    """The corpus of all files that `spec` names: a file, or a pattern with the wildcards * ? [abc] and ** for folders."""
    if not spec.strip():
        raise UserError("a text must be named by a file or a pattern such as books/*.txt, but its name is empty")
    pattern = os.path.expanduser(spec)
    names = [pattern]
    if _WILDCARD.search(pattern) and not (root / pattern).exists():
        found = glob.glob(pattern, root_dir=root, recursive=True)
        names = sorted(name for name in found if not (root / name).is_dir())
        if not names:
            raise UserError(f"{spec!r}: must match at least one file, but matches none in {root}")
    corpus = TextCorpus(spec, tuple(root / name for name in names), unit, weight)
    check_corpus(corpus)
    if all(map(is_jsonl, corpus.files)) and has_messages(corpus.files[0]):
        return ChatCorpus(spec, corpus.files, unit, weight)
    return corpus


def encode_documents(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[list[int]]]:
    """The ids of documents, or of pieces of them: one column."""
    if all(record.begins for record in records):
        return [tokenizer.encode_batch([record.texts[0] for record in records])]
    return [[tokenizer.encode(record.texts[0], at_start=record.begins) for record in records]]


def _text_records(path: Path, ends_at_blank: bool) -> Iterator[Record]:
    """The documents of a text file, in pieces: each ends at a blank line, or there is only one."""
    lines: list[str] = []  # of the piece that is being collected
    blank: list[str] = []  # lines since then, which belong to the document only if more text follows
    size, first, begins = 0, 1, True
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            if ends_at_blank and lines:
                yield Record(first, ("\n".join(lines),), begins)
                lines, size, begins = [], 0, True
            elif lines:
                blank.append(line)
            continue
        if not lines:
            first = number
        lines += [*blank, line]
        size += sum(map(len, blank)) + len(blank) + len(line) + 1
        blank = []
        if size >= PIECE:
            piece, rest = _cut("\n".join(lines))
            if rest:
                yield Record(first, (piece,), begins, ends=False)
                lines, size, begins = [rest], len(rest), False
    if lines:
        yield Record(first, ("\n".join(lines),), begins)


def _cut(text: str) -> tuple[str, str]:
    """The text before its last space between two words, and the rest. Where there are no spaces, it is cut before its last line;
    an empty rest if it is one line."""
    place = len(text)
    while (place := text.rfind(" ", len(text) - PIECE // 8, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1 : place + 2].isspace():
            return text[:place], text[place:]
    place = text.rfind("\n") + 1
    return (text[:place], text[place:]) if place else (text, "")


def is_jsonl(path: Path) -> bool:
    """Whether a file holds a JSON object on each line, by its name."""
    return (path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path).suffix.lower() == ".jsonl"


def _jsonl_records(path: Path) -> Iterator[Record]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            if not isinstance(text, str):
                raise TypeError
        except (KeyError, RecursionError, TypeError, ValueError):
            raise UserError(
                f'{path}, line {number}: must be a JSON object with a text, {{"text": "..."}}, but is {shorten(line)!r}'
            ) from None
        if text := text.strip():
            yield Record(number, (text,))

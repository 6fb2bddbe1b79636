"""Cuts documents into passages, which a search finds. Neighbouring paragraphs form a passage up to a number of tokens; a longer
paragraph is cut between sentences, a longer sentence between words. A heading stays with the text below it. Each passage knows its
place in the file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from regard.errors import InputError, UserError
from regard.translation.documents.document import Document, read_text
from regard.translation.documents.formats import LOCAL_BYTES, TABLES, find_kind
from regard.translation.markup.marked_text import MarkedText
from regard.understanding.html_text import html_paragraphs

CountTokens = Callable[[Sequence[str]], list[int]]  # of each text

_MAX_CELL = 1_000_000
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？])[\"'”’»)\]]*\s+|(?<=[。！？])")
_MARKS = re.compile(r"^#{1,6} |(?<!\S)\|?(?::?-{3,}:?\|?)+(?!\S)")
_HEADING = re.compile(r"#{1,6}[ \t][^\n]*|[^\n]+\n[ \t]*(?:=+|-+)[ \t]*")  # of Markdown: marked, or underlined
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n")


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a document."""

    place: str  # "line 12", "paragraph 3", "row 7"
    text: str
    is_heading: bool = False


@dataclass(frozen=True)
class Passage:
    """Some neighbouring paragraphs, or a part of a long one."""

    place: str  # of its first paragraph
    text: str


def read_paragraphs(path: Path) -> list[Paragraph]:
    """The paragraphs of a document that have letters or digits; errors name the file."""
    try:
        data = path.read_bytes()
        found = list(_paragraphs(data, find_kind(path.name) or "txt"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except InputError as error:
        raise UserError(f"{path}: {str(error).removeprefix('file ')}") from None
    return [one for one in found if any(map(str.isalnum, one.text))]


def _paragraphs(data: bytes, kind: str) -> Iterator[Paragraph]:
    if kind == "txt":
        yield from (Paragraph(f"line {line}", " ".join(block.split())) for line, block in _blocks(read_text(data)[0]))
    elif kind == "md":  # not by its reader, which leaves out code: people look for that, too
        for line, block in _blocks(read_text(data)[0]):
            text = _without_marks(" ".join(block.split()))
            yield Paragraph(f"line {line}", text, _HEADING.fullmatch(block) is not None)
    elif kind in ("html", "htm"):  # the same
        for line, text, is_heading in html_paragraphs(read_text(data)[0]):
            yield Paragraph(f"line {line}", text, is_heading)
    elif kind in TABLES:
        yield from _of_table(read_text(data)[0], "\t" if kind == "tsv" else ",")
    else:
        from regard.translation.documents.readers import open_document

        document = open_document(data, kind, LOCAL_BYTES)
        for number, text in enumerate(_texts(document), 1):
            yield Paragraph(f"paragraph {number}", text)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """What stands between blank lines, each with its first line."""
    start, line = 0, 1
    for block in [*_BLANK_LINES.finditer(text), None]:
        end = len(text) if block is None else block.start()
        own = text[start:end]
        inner = own.lstrip()
        skipped = own[: len(own) - len(inner)].count("\n")
        if inner:
            yield line + skipped, inner.rstrip()
        if block is not None:
            line += text.count("\n", start, block.end())
            start = block.end()


def _without_marks(text: str) -> str:
    """Markdown without heading marks, table rules and link addresses."""
    return _LINK.sub(r"\1", _MARKS.sub(" ", text)).strip()


def _of_table(text: str, delimiter: str) -> Iterator[Paragraph]:
    """Each row is a paragraph."""
    csv.field_size_limit(_MAX_CELL)
    lines = io.StringIO(text, newline="")
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if delimiter == "\t" else csv.reader(lines)
    try:
        for number, row in enumerate(rows, 1):
            yield Paragraph(f"row {number}", " | ".join(" ".join(cell.split()) for cell in row if cell.strip()))
    except csv.Error:
        raise InputError("file must be a valid table; look for a quotation mark that is not closed") from None


def _texts(document: Document) -> Iterator[str]:
    """The paragraphs of any document, without markup."""
    if document.parts:
        for part in document.parts:
            yield from _texts(part)
        return
    for text in document.texts:
        yield from _plain(document, text)


def _plain(document: Document, text: str) -> list[str]:
    plan = replace(document, by_sentence=False, joins_lines=True).plan(text, "")
    return plan.whole_sentences if isinstance(plan, MarkedText) else plan.sentences


def make_passages(paragraphs: Sequence[Paragraph], size: int, count: CountTokens) -> list[Passage]:
    """Passages of at most `size` tokens; only a single word may have more. A heading goes with what follows it. Each part of a long
    paragraph has the paragraph's place, and the first one that of the headings above it."""
    lengths = count([one.text for one in paragraphs])
    passages: list[Passage] = []
    together: list[Paragraph] = []
    tokens = 0
    for group, own in _with_headings(paragraphs, lengths, size):
        length = sum(own)
        if tokens + length > size and together:
            passages.append(_joined(together))
            together, tokens = [], 0
        if length > size:
            *headings, long = group
            first, *rest = cut_paragraph(long.text, size, count, taken=length - own[-1])
            passages.append(_joined([*headings, replace(long, text=first)] if first else headings))
            passages += [Passage(long.place, part) for part in rest]
            continue
        together += group
        tokens += length
    return [*passages, _joined(together)] if together else passages


def _with_headings(
    paragraphs: Sequence[Paragraph], lengths: Sequence[int], size: int
) -> Iterator[tuple[list[Paragraph], list[int]]]:
    """Each paragraph with the headings right above it, as many as fit into `size`, and the tokens of each."""
    group: list[Paragraph] = []
    own: list[int] = []
    for one, length in zip(paragraphs, lengths, strict=True):
        if group and sum(own) + (length if one.is_heading else 0) > size:
            yield group, own
            group, own = [], []
        group.append(one)
        own.append(length)
        if not one.is_heading:
            yield group, own
            group, own = [], []
    if group:
        yield group, own


def _joined(paragraphs: Sequence[Paragraph]) -> Passage:
    return Passage(paragraphs[0].place, "\n".join(one.text for one in paragraphs))


def cut_paragraph(text: str, size: int, count: CountTokens, taken: int = 0) -> list[str]:
    """The parts of a long paragraph: whole sentences, or whole words of a sentence that is too long. The first part leaves room for
    `taken` tokens before it, and is empty if nothing fits beside them."""
    units: list[str] = []
    sentences = [one for one in _SENTENCE_END.split(text) if one and one.strip()]
    for sentence, length in zip(sentences, count(sentences), strict=True):
        units += [sentence] if length <= (size if units else size - taken) else sentence.split()
    parts = [""]
    tokens = taken
    for unit, length in zip(units, count(units), strict=True):
        if tokens + length <= size or not (parts[-1] or taken):
            parts[-1] = f"{parts[-1]} {unit}" if parts[-1] else unit
            tokens += length
        else:
            parts.append(unit)
            tokens = length
    return parts

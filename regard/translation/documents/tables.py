"""Columns of CSV and TSV files, and message catalogues (PO)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from regard.errors import InputError
from regard.translation.documents.document import Document, read_text

_MOST_CELL = 1_000_000

# --- tables ---


def open_table(data: bytes, delimiter: str, column: str | None) -> Document:
    """One column of a table: its name in the first row, or its number from 1 on. A name's row is not translated; by number every
    row is. Without either, a table of one column is translated whole."""
    text, mark = read_text(data)
    if delimiter == "\t":
        return _open_plain(text, mark, column)
    newline = "\r\n" if "\r\n" in text else "\n"
    csv.field_size_limit(_MOST_CELL)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error:
        raise InputError("file must be a table that can be read; a quotation mark may be open") from None
    place, first = _find_column(rows, column)
    numbers = [n for n, row in enumerate(rows) if n >= first and len(row) > place]

    def save(translations: Sequence[str]) -> bytes:
        for number, translation in zip(numbers, translations, strict=True):
            rows[number][place] = translation
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=delimiter, lineterminator=newline).writerows(rows)
        return mark + out.getvalue().encode()

    return Document([rows[n][place] for n in numbers], save)


def _open_plain(text: str, mark: bytes, column: str | None) -> Document:
    """A table whose cells are what stands between tabs: a quotation mark in them is one."""
    rows = [line.split("\t") for line in text.split("\n")]
    ends = ["\r" if row[-1].endswith("\r") else "" for row in rows]
    for row, end in zip(rows, ends, strict=True):
        row[-1] = row[-1].removesuffix(end)
    place, first = _find_column(rows, column)
    numbers = [n for n, row in enumerate(rows) if n >= first and len(row) > place]

    def save(translations: Sequence[str]) -> bytes:
        for number, translation in zip(numbers, translations, strict=True):
            rows[number][place] = re.sub(r"[\t\r\n]+", " ", translation)
        return mark + "\n".join("\t".join(row) + end for row, end in zip(rows, ends, strict=True)).encode()

    return Document([rows[n][place] for n in numbers], save)


def _find_column(rows: Sequence[Sequence[str]], column: str | None) -> tuple[int, int]:
    """The place of the column, and the first row to translate."""
    header = rows[0] if rows else []
    if column is None:
        if len(header) > 1:
            raise InputError("column must name the column to translate, by the name in its first row or by number")
        return 0, 0
    if column in header:
        return header.index(column), 1
    if column.isascii() and column.isdigit() and len(column) < 10 and 1 <= int(column) <= max(1, len(header)):
        return int(column) - 1, 0
    raise InputError(f"column must be a name in the first row or a number from 1 to {max(1, len(header))}")


# --- message catalogues ---

_ENTRY = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s+"')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"\s*')
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", '\\"': '"', "\\\\": "\\"}
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)")


def open_catalogue(data: bytes) -> Document:
    """A gettext catalogue: empty msgstr are filled with the translation of their msgid. What has a translation keeps it."""
    text, mark = read_text(data)
    lines = text.split("\n")
    jobs: list[
        tuple[int, int, str]
    ] = []  # lines from, to, what is written between the quotes of the source: strings to fill
    singular, plural = "", ""
    number = 0
    while number < len(lines):
        entry = _ENTRY.match(lines[number].lstrip())
        if entry is None or lines[number].lstrip().startswith("#"):
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].lstrip().startswith('"'):
            end += 1
        value = "".join(_quoted(line) for line in lines[number:end])
        kind = entry[1]
        if kind == "msgid":
            singular, plural = value, ""
        elif kind == "msgid_plural":
            plural = value
        elif kind.startswith("msgstr") and not value and singular:
            jobs.append((number, end, plural if plural and kind != "msgstr[0]" else singular))
        number = end

    def save(translations: Sequence[str]) -> bytes:
        filled = list(lines)
        for (start, stop, source), translation in reversed(list(zip(jobs, translations, strict=True))):
            word = lines[start][: lines[start].index('"')]
            ending = "\r" if lines[start].endswith("\r") else ""
            filled[start:stop] = [word + _quote(translation, source) + ending]
        return mark + "\n".join(filled).encode()

    return Document([_unescape(source) for _, _, source in jobs], save)


def _quoted(line: str) -> str:
    found = _STRING.fullmatch(line, max(0, line.find('"')))
    if found is None:
        raise InputError("file must be a message catalogue that can be read; a quotation mark may be missing")
    return found[1]


def _unescape(written: str) -> str:
    """What a string is; the codes of a terminal, such as \\033[1m, and their like stay as they are written."""
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0]), written)


def _quote(text: str, source: str) -> str:
    """A string as it is written, with those codes of its source that it has."""
    back = {value: key for key, value in _ESCAPES.items()}
    codes = sorted((code for code in set(_ESCAPE.findall(source)) if code not in _ESCAPES), key=len, reverse=True)
    kept = "|".join(map(re.escape, codes)) + "|" if codes else ""
    return '"' + re.sub(rf'{kept}[\n\t\r"\\]', lambda match: back.get(match[0], match[0]), text) + '"'

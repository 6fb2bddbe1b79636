"""CSV and TSV files, of which one column is translated."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from regard.errors import InputError
from regard.translation.documents.document import Document, read_text

_MAX_CELL = 1_000_000


def open_table(data: bytes, delimiter: str, column: str | None) -> Document:
    """`column` is a name from the first row, which is then not translated, or a number counted from 1. None is for a table with a
    single column."""
    text, bom = read_text(data)
    if delimiter == "\t":
        return _open_tsv(text, bom, column)
    newline = "\r\n" if "\r\n" in text else "\n"
    csv.field_size_limit(_MAX_CELL)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error:
        raise InputError("file must be a valid CSV table; look for a quotation mark that is not closed") from None
    index, first = _find_column(rows, column)
    numbers = [n for n, row in enumerate(rows) if n >= first and len(row) > index]

    def save(translations: Sequence[str]) -> bytes:
        for row_number, translation in zip(numbers, translations, strict=True):
            rows[row_number][index] = translation
        out = io.StringIO(newline="")
        csv.writer(out, delimiter=delimiter, lineterminator=newline).writerows(rows)
        return bom + out.getvalue().encode()

    return Document([rows[n][index] for n in numbers], save)


def _open_tsv(text: str, bom: bytes, column: str | None) -> Document:
    """TSV has no quoting: cells are whatever stands between tabs, quotation marks included."""
    rows = [line.split("\t") for line in text.split("\n")]
    ends = ["\r" if row[-1].endswith("\r") else "" for row in rows]
    for row, end in zip(rows, ends, strict=True):
        row[-1] = row[-1].removesuffix(end)
    index, first = _find_column(rows, column)
    numbers = [n for n, row in enumerate(rows) if n >= first and len(row) > index]

    def save(translations: Sequence[str]) -> bytes:
        for row_number, translation in zip(numbers, translations, strict=True):
            rows[row_number][index] = re.sub(r"[\t\r\n]+", " ", translation)
        return bom + "\n".join("\t".join(row) + end for row, end in zip(rows, ends, strict=True)).encode()

    return Document([rows[n][index] for n in numbers], save)


def _find_column(rows: Sequence[Sequence[str]], column: str | None) -> tuple[int, int]:
    """The index of the column, and the first row to translate."""
    header = rows[0] if rows else []
    if column is None:
        if len(header) > 1:
            raise InputError("column must name the column to translate, by its name in the first row or by number")
        return 0, 0
    if column in header:
        return header.index(column), 1
    if column.isascii() and column.isdigit() and len(column) < 10 and 1 <= int(column) <= max(1, len(header)):
        return int(column) - 1, 0
    raise InputError(f"column must be a name in the first row or a number from 1 to {max(1, len(header))}")

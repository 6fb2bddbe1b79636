"""Reads tables: rows of .tsv, .csv and .jsonl files, plain or packed. What the columns mean is up to `columns.py`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.corpus import COMPRESSION_SUFFIXES, read_lines, shorten
from regard.errors import UserError

LARGEST_CELL = 1 << 24  # characters of a cell in a .csv file


@dataclass(frozen=True)
class Nested:
    """A value of JSON that is neither a text nor a list of labels: an object, or a list with objects or lists in it."""

    shown: str


Cell = str | list[str] | Nested | None


@dataclass(frozen=True)
class Row:
    """A row of a table, by the numbers of its columns or, in .jsonl files, by their names."""

    number: int  # of its line, from 1
    cells: tuple[Cell, ...]
    names: tuple[str, ...] = ()  # of a line of JSON

    def cell(self, column: str, header: tuple[str, ...]) -> Cell:
        """The cell of a column, by name or number; None if the row has none."""
        names = self.names or header
        if column in names:
            place = names.index(column)
        elif column.isdecimal() and not self.names:
            place = int(column) - 1
        else:
            return None
        return self.cells[place] if 0 <= place < len(self.cells) else None


def header_of(row: Row) -> tuple[str, ...]:
    """The names of columns in a table's first row, without spaces around them; none if its rows have names of their own."""
    return () if row.names else tuple(str(cell).strip() for cell in row.cells)


def table_suffix(path: Path) -> str:
    """The suffix of a table without that of its packing, such as ".tsv"."""
    return (path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path).suffix.lower()


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a table, its header among them; blank lines are left out."""
    suffix = table_suffix(path)
    if suffix == ".jsonl":
        return _json_rows(path)
    return _csv_rows(path) if suffix == ".csv" else _tab_rows(path)


def _tab_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield Row(number, tuple(line.split("\t")))


def _csv_rows(path: Path) -> Iterator[Row]:
    """Cells in quotes may have line breaks. A semicolon separates cells where the first line has no comma."""
    first = next(iter(read_lines(path)), "")
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_CELL))
    lines = (f"{line}\n" for line in read_lines(path))
    reader = csv.reader(lines, delimiter=";" if ";" in first and "," not in first else ",", strict=True)
    number = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield Row(number, tuple(cells))
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f'{path}, line {number}: must be cells with commas between them, those with a comma or quotation mark in "...", '
            f"but is not ({error})"
        ) from None


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError
        except (RecursionError, ValueError):
            raise UserError(
                f'{path}, line {number}: must be a JSON object such as {{"label": "...", "text": "..."}}, but is '
                f"{shorten(line)!r}"
            ) from None
        yield Row(number, tuple(map(_cell, values.values())), tuple(values))


def _cell(value: Any) -> Cell:
    """A value of JSON as a cell: text, or the labels of a list."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict | list) for one in value)):
        return Nested(shorten(json.dumps(value, ensure_ascii=False)))
    if isinstance(value, list):
        return [_text(one) for one in value]
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

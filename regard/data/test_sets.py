"""Test sets of language models in .jsonl files: minimal pairs in BLiMP's form, and questions with answers to choose from. Errors
name the file, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.corpus import check_file, read_lines
from regard.errors import UserError

_PARADIGM = ("UID", "paradigm")
_CONTEXT = ("question", "context", "ctx", "query")
_ANSWER = ("answer", "label", "gold")


def read_pairs(path: Path) -> list[tuple[str, str, str]]:
    """Good sentence, bad sentence and paradigm (`UID`, or `paradigm`; else the file's name) of each line."""
    found = []
    for where, fields in _lines(path):
        good, bad = (_text(where, fields, (name,)) for name in ("sentence_good", "sentence_bad"))
        has_name = any(name in fields for name in _PARADIGM)
        found.append((good, bad, _text(where, fields, _PARADIGM) if has_name else path.name))
    return found


def read_choices(path: Path) -> list[tuple[str, tuple[str, ...], int]]:
    """Question, answers and the number of the right one, from 0, of each line."""
    found = []
    for where, fields in _lines(path):
        choices = fields.get("choices")
        if (
            not isinstance(choices, list)
            or len(choices) < 2
            or not all(isinstance(one, str) and one for one in choices)
        ):
            raise UserError(f"{where}: choices must be a list of at least two texts, but is {choices!r}")
        name = next((name for name in _ANSWER if name in fields), _ANSWER[0])
        answer = fields.get(name)
        if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
            raise UserError(f"{where}: {name} must be a number from 0 to {len(choices) - 1}, but is {answer!r}")
        found.append((_text(where, fields, _CONTEXT), tuple(choices), answer))
    return found


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each line stands, and its fields."""
    check_file(path)
    is_empty = True
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number:,}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: must be JSON, but is not ({error})") from None
        if not isinstance(fields, dict):
            raise UserError(f"{where}: must be a JSON object, but is {type(fields).__name__}")
        is_empty = False
        yield where, fields
    if is_empty:
        raise UserError(f"{path}: must have at least one line, but is empty")


def _text(where: str, fields: dict[str, Any], names: tuple[str, ...]) -> str:
    """The text of the first of these fields that is there."""
    name = next((name for name in names if name in fields), names[0])
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: {' or '.join(names)} must be a text, but is {value!r}")
    return value

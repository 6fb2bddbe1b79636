"""Interface texts in JSON and YAML: the values that are texts are translated, and every other byte stays. In Jupyter notebooks,
which are JSON, the Markdown cells are translated.

The files are scanned for the positions of values instead of being parsed and written again, which would change their layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from regard.errors import InputError, InputTooLarge, UserError
from regard.translation.documents.document import Document, combine, read_text
from regard.translation.documents.markdown import open_markdown
from regard.translation.documents.subtitles import parse_speech

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s"{}\[\],:]+')
# Values that are no texts: addresses, names of files, keys, colours; and choices by number or gender, whose cases are code.
_NAME = re.compile(r"\S+://\S*|[\w-]*(?:[._/:#]+[\w-]+)+/?|/\S*")
_CHOICE = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,")
_MAX_YAML = 2_000_000  # characters: its parser is slow
_STRING = "tag:yaml.org,2002:str"
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")  # before a value: an anchor and a tag
_SIMPLE = re.compile(r"[^\W\d_](?:[^:#\[\]{}&*!|>'\"%@`,\\\x00-\x1f\x7f-\xa0]|,(?= ))*(?<!\s)")


def is_text(value: str) -> bool:
    """Whether a value is a text for people.

    >>> [is_text(value) for value in ("Save", "Log in.", "app.title", "img/a.png", "https://x.y", "#fff", "12")]
    [True, True, False, False, False, False, False]
    """
    has_letters = any(map(str.isalpha, value))
    return has_letters and not _NAME.fullmatch(value.strip()) and not _CHOICE.search(value)


@dataclass(frozen=True)
class _Value:
    """A value in a file: its place, what it says, and a function that writes another one."""

    start: int
    end: int
    value: str
    write: Callable[[str], str]


def _document(text: str, bom: bytes, values: Sequence[_Value]) -> Document:
    def save(translations: Sequence[str]) -> bytes:
        pieces, position = [], 0
        for one, translation in zip(values, translations, strict=True):
            written = text[one.start : one.end] if translation == one.value else one.write(translation)
            pieces += [text[position : one.start], written]
            position = one.end
        return bom + "".join([*pieces, text[position:]]).encode()

    return Document([one.value for one in values], save, parse_markup=parse_speech)


# --- JSON ---


def open_json(data: bytes) -> Document:
    """All values that are texts, wherever they are; never keys."""
    text, bom = read_text(data)
    _load(text)
    values = []
    for _, start, end in _json_values(text):
        if text[start] == '"' and is_text(value := json.loads(text[start:end])):
            is_ascii = text[start:end].isascii() and not value.isascii()
            values.append(_Value(start, end, value, partial(json.dumps, ensure_ascii=is_ascii)))
    return _document(text, bom, values)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("file must be valid JSON; look for a missing comma or quotation mark") from None


def _json_values(text: str) -> Iterator[tuple[tuple[str | int, ...], int, int]]:
    """The strings and lists of a JSON text that are values: path, start and end. A list comes after what is in it."""
    around: list[tuple[int, bool]] = []  # start of each open bracket, and whether it is a list
    path: list[str | int] = []
    key: tuple[int, int] | None = None  # a string that may be a key
    for token in [*_TOKEN.finditer(text), None]:
        mark = token[0] if token else ""
        if key is not None:
            if mark == ":":
                path[-1] = json.loads(text[slice(*key)])
            else:
                yield tuple(path), *key
            key = None
        if token is None:
            return
        if mark in ("{", "["):
            around.append((token.start(), mark == "["))
            path.append(0 if mark == "[" else "")
        elif mark in ("}", "]"):
            start, is_list = around.pop()
            path.pop()
            if is_list:
                yield tuple(path), start, token.end()
        elif mark == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else ""
        elif mark.startswith('"'):
            key = token.span()


def open_notebook(data: bytes) -> Document:
    """The Markdown cells of a notebook; code and outputs stay."""
    text, bom = read_text(data)
    notebook = _load(text)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise InputError("file must be a notebook of format 4; save it again with Jupyter")
    wanted = {
        number for number, cell in enumerate(cells) if isinstance(cell, dict) and cell.get("cell_type") == "markdown"
    }
    places = {
        path[1]: (start, end)
        for path, start, end in _json_values(text)
        if len(path) == 3 and path[0] == "cells" and path[2] == "source" and path[1] in wanted
    }
    sources = {number: cells[number]["source"] for number in sorted(places)}
    if not all(isinstance(line, str) for one in sources.values() for line in one):
        raise InputError("file must be a notebook of format 4; save it again with Jupyter")
    joined = ["".join(one) for one in sources.values()]

    def save(parts: Sequence[bytes]) -> bytes:
        pieces, position = [], 0
        for number, part in zip(sources, parts, strict=True):
            start, end = places[number]
            pieces += [text[position:start], _written_cell(text[start:end], part.decode())]
            position = end
        return bom + "".join([*pieces, text[position:]]).encode()

    return combine([open_markdown(one.encode()) for one in joined], save)


def _written_cell(before: str, source: str) -> str:
    """The source of a cell as a string, or as a list of lines laid out as before."""
    if not before.startswith("["):
        return json.dumps(source, ensure_ascii=False)
    opening, closing = re.match(r"\[\s*", before), re.search(r"\s*\]$", before)
    assert opening is not None and closing is not None
    between = "," + opening[0][1:] if opening[0] != "[" else ", "
    lines = [json.dumps(line, ensure_ascii=False) for line in source.splitlines(keepends=True)]
    return opening[0] + between.join(lines) + closing[0] if lines else before


# --- YAML ---


def open_yaml(data: bytes) -> Document:
    """All values of mappings and lists that are texts. Numbers, yes and no, and values with a tag of their own stay."""
    text, bom = read_text(data)
    if len(text) > _MAX_YAML:
        raise InputTooLarge(f"file must have at most {_MAX_YAML} characters; split it")
    return _document(text, bom, list(_yaml_values(text)))


def _yaml_values(text: str) -> Iterator[_Value]:
    try:
        import yaml
    except ImportError:
        raise UserError("YAML needs one more package; run: pip install 'regard[documents]'") from None

    around: list[
        list[bool]
    ] = []  # open collections: whether each is a mapping, expects a key, and is written in brackets
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                around.pop()
                continue
            is_key = bool(around) and around[-1][0] and around[-1][1]
            if isinstance(event, yaml.NodeEvent) and around:
                around[-1][1] = not around[-1][1]
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                in_brackets = bool(event.flow_style) or (bool(around) and around[-1][2])
                around.append([isinstance(event, yaml.MappingStartEvent), True, in_brackets])
            elif isinstance(event, yaml.ScalarEvent) and around and not is_key:
                start, end = event.start_mark, event.end_mark
                assert start is not None and end is not None
                is_string = event.tag == _STRING if event.tag else event.style or _is_string(event.value)
                if is_string and is_text(event.value):
                    begin = start.index
                    if event.anchor or event.tag:
                        begin += len(_PROPERTIES.match(text[begin : end.index])[0])  # type: ignore[index]
                    yield _yaml_value(text, begin, end.index, event.value, event.style or "", around[-1][2])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"; look at line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"file must be valid YAML{where}") from None


def _yaml_value(text: str, start: int, end: int, value: str, style: str, in_brackets: bool) -> _Value:
    raw = text[start:end]
    if style in ("|", ">"):
        header, _, body = raw.partition("\n")
        indent = re.match(" *", next((line for line in body.split("\n") if line.strip()), ""))
        rest = body[len(body.rstrip()) :]
        between = "\n" if style == "|" else "\n\n"

        def write_block(new: str) -> str:
            lines = new.rstrip("\n").split("\n")
            return (
                header
                + "\n"
                + between.join((indent[0] if indent else "") + line if line else "" for line in lines)
                + rest
            )

        shown = value.rstrip("\n")
        return _Value(start, end, shown, write_block)

    def write(new: str) -> str:
        if style == "'" and new.isprintable():
            return "'" + new.replace("'", "''") + "'"
        is_simple = bool(_SIMPLE.fullmatch(new)) and not (in_brackets and "," in new) and _is_string(new)
        return new if not style and is_simple else json.dumps(new, ensure_ascii=False)

    return _Value(start, end, value, write)


def _is_string(value: str) -> bool:
    """Whether a value without quotation marks is a string, and not a number or the like."""
    import yaml

    resolve: Any = yaml.SafeLoader("").resolve
    return bool(resolve(yaml.ScalarNode, value, (True, False)) == _STRING)

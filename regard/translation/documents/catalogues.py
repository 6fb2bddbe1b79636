"""Message catalogues of gettext (PO): each empty msgstr is filled with the translation of its msgid.

Read by hand and not with polib: a catalogue goes back to its authors, whose diffs should show the new strings only. polib writes
every entry anew, so that wrapped strings, blank lines, line ends and trailing comments change, a header appears where there
was none, and `\\033[1m` becomes `\\\\033[1m`. It also opens a text that happens to be the path of a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from regard.errors import InputError
from regard.translation.documents.document import Document, read_text

_ENTRY = re.compile(r'(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s+"')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"\s*')
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", '\\"': '"', "\\\\": "\\"}
_ESCAPE = re.compile(r"\\(?:[0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)")


class _EmptyString(NamedTuple):
    """A msgstr to fill: lines `start` to `stop` of the file, and its msgid as written between the quotes."""

    start: int
    stop: int
    source: str


def open_catalogue(data: bytes) -> Document:
    """Existing translations are kept. A plural form is translated from msgid_plural, except msgstr[0]."""
    text, bom = read_text(data)
    lines = text.split("\n")
    empty = _find_empty(lines)

    def save(translations: Sequence[str]) -> bytes:
        filled = list(lines)
        for (start, stop, source), translation in reversed(list(zip(empty, translations, strict=True))):
            keyword = lines[start][: lines[start].index('"')]
            ending = "\r" if lines[start].endswith("\r") else ""
            filled[start:stop] = [keyword + _quote(translation, source) + ending]
        return bom + "\n".join(filled).encode()

    return Document([_unescape(one.source) for one in empty], save)


def _find_empty(lines: Sequence[str]) -> list[_EmptyString]:
    empty: list[_EmptyString] = []
    singular, plural = "", ""
    start = 0
    while start < len(lines):
        entry = _ENTRY.match(lines[start].lstrip())
        if entry is None:
            start += 1
            continue
        stop = start + 1
        while stop < len(lines) and lines[stop].lstrip().startswith('"'):
            stop += 1
        value = "".join(_unquote(line) for line in lines[start:stop])
        keyword = entry[1]
        if keyword == "msgid":
            singular, plural = value, ""
        elif keyword == "msgid_plural":
            plural = value
        elif keyword.startswith("msgstr") and not value and singular:
            empty.append(_EmptyString(start, stop, plural if plural and keyword != "msgstr[0]" else singular))
        start = stop
    return empty


def _unquote(line: str) -> str:
    found = _STRING.fullmatch(line, max(0, line.find('"')))
    if found is None:
        raise InputError("file must be a valid message catalogue; look for a missing quotation mark")
    return found[1]


def _unescape(written: str) -> str:
    """A string as a reader sees it. Other escapes, such as the terminal code \\033[1m, stay as written."""
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0]), written)


def _quote(text: str, source: str) -> str:
    """A string as it is written in the file. Escapes that `_unescape` left in its source are left in it, too."""
    back = {value: key for key, value in _ESCAPES.items()}
    codes = sorted((code for code in set(_ESCAPE.findall(source)) if code not in _ESCAPES), key=len, reverse=True)
    kept = "|".join(map(re.escape, codes)) + "|" if codes else ""
    return '"' + re.sub(rf'{kept}[\n\t\r"\\]', lambda match: back.get(match[0], match[0]), text) + '"'

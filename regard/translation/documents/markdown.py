"""Markdown: which of its lines are text, and what opens them. The markup inside a line is left to `inline_markdown.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from regard.translation.documents.document import Document, from_pieces, read_text
from regard.translation.documents.reference_links import defined_by, shortened, spelled_out
from regard.translation.markup.inline_markdown import parse_inline_markdown

# What opens a line and is not text: quotes, headings, list items, tables' bars.
_OPENING = re.compile(r"[ \t]*(?:>[ \t]*|(?:#{1,6}|[-*+]|\d{1,9}[.)])[ \t]+|\[[ xX]\][ \t]+)*")
_NO_TEXT = re.compile(r"(?:[-*_=] ?){3,}|\|?(?: {0,9}:?-+:? {0,9}\|)+ {0,9}:?-*:?|\[[^\]]{1,300}\]:\s.*|<[^<>]{1,999}>")
_SPACES = re.compile(" *")
_ITEM = re.compile(r"(?:[-*+]|(\d{1,9})[.)])(?= |$)")
_RULE = re.compile(r"([-*_])(?: *\1){2,} *$")
_HEADING = re.compile(r"#{1,6}(?: |$)|=+$|-+$")  # or the line under one
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})")
_QUOTE = 0
_DEEPEST = 100  # quotes and items in each other


def open_markdown(data: bytes) -> Document:
    text, mark = read_text(data)
    lines = text.splitlines(keepends=True)
    first = _front_matter(lines)
    pieces = lines[:first]
    places: list[int] = []
    blocks = _Blocks()
    defined: set[str] = set()
    for line in lines[first:]:
        if not blocks.is_text(line):
            pieces.append(line)
            if label := defined_by(blocks.content):
                defined.add(label)
            continue
        start = _OPENING.match(line)
        assert start is not None
        places.append(len(pieces) + 1)
        pieces += [start[0], line[start.end() :]]
    document = from_pieces(pieces, places, mark, parse_markup=parse_inline_markdown)

    def save(translations: Sequence[str]) -> bytes:
        both = zip(translations, document.texts, strict=True)
        return document.save([shortened(translation, text, defined) for translation, text in both])

    return replace(document, texts=[spelled_out(text, defined) for text in document.texts], save=save)


def _front_matter(lines: Sequence[str]) -> int:
    """How many lines are settings (YAML, TOML) before the text.

    >>> _front_matter(["---\\r\\n", "title: x\\r\\n", "---\\r\\n", "text"]), _front_matter(["---\\n", "text"])
    (3, 0)
    """
    opening = lines[0].rstrip() if lines else ""
    closing = {"---": ("---", "..."), "+++": ("+++",)}.get(opening, ())
    return next((number + 1 for number, line in enumerate(lines) if number and line.rstrip() in closing), 0)


class _Blocks:
    """Tells of one line after the other whether it is text, by the rules of CommonMark. Quotes and list items go on over lines:
    their marks and columns decide what is code."""

    def __init__(self) -> None:
        # Outermost first: _QUOTE, or how far an item's text is from the edge of what it lies in.
        self._around: list[int] = []
        self.content = ""  # of the last line, without the marks of what is around it, if that was not code
        self._fence = ""
        self._fence_column = 0
        self._is_paragraph = False  # whether the last line was text that the next one can go on with

    def is_text(self, line: str) -> bool:
        self.content = ""
        shown = line.rstrip().expandtabs(4)  # places in it are columns
        matched, base = self._match(shown)
        # Code in an item may be indented less than it ought to be.
        if self._fence and _QUOTE not in self._around[matched:]:
            self._end_fence(shown, base)
            return False
        self._fence = ""
        goes_on, self._is_paragraph = self._is_paragraph, False
        if _column(shown, base) >= len(shown):
            del self._around[matched:]
            return False
        may_begin_anywhere = not goes_on or matched < len(self._around)
        opened, inner = _opened(shown, base, may_begin_anywhere)
        column = _column(shown, inner)
        content = shown[column:]
        fence = _FENCE.match(content)
        # Where an item begins, more spaces than usual are only spaces.
        is_code = column - inner >= 4 and not (goes_on and not opened) and not any(opened)
        is_text = not is_code and not fence and bool(content) and not _NO_TEXT.fullmatch(content)
        self._is_paragraph = is_text and not _HEADING.match(content)
        if opened or not (goes_on and self._is_paragraph):  # else the paragraph goes on, even if marks are left out
            self._around = [*self._around[:matched], *opened][:_DEEPEST]
        if fence and not is_code:
            self._fence, self._fence_column = fence[1] or fence[2], column
        self.content = "" if is_code or fence else content
        return is_text

    def _match(self, shown: str) -> tuple[int, int]:
        """How many of the quotes and items around the last line are around this one, too, and the innermost one's edge."""
        base = 0
        for number, width in enumerate(self._around):
            column = _column(shown, base)
            if width == _QUOTE and shown.startswith(">", column) and column - base < 4:
                base = _after_quote(shown, column)
            elif width != _QUOTE and (column >= len(shown) or column - base >= width):
                base += width
            else:
                return number, base
        return len(self._around), base

    def _end_fence(self, shown: str, base: int) -> None:
        """A closing fence has nothing after it, and is at least as long as the opening one."""
        column = _column(shown, base)
        content = shown[column:]
        is_fence = content.startswith(self._fence) and not content.strip(self._fence[0])
        if is_fence and (column - base < 4 or column <= self._fence_column):
            self._fence = ""


def _opened(shown: str, base: int, may_begin_anywhere: bool) -> tuple[list[int], int]:
    """Quotes and items that begin in a line, and the column of the innermost's edge. Inside a paragraph, a number that is not 1 and
    a mark without text begin no list."""
    opened: list[int] = []
    while len(opened) < _DEEPEST:
        column = _column(shown, base)
        item = _ITEM.match(shown, column)
        if column - base >= 4:
            break
        if shown.startswith(">", column):
            opened.append(_QUOTE)
            base = _after_quote(shown, column)
        elif item and not _RULE.match(shown, column):
            if not (may_begin_anywhere or opened) and (item[1] not in (None, "1") or item.end() == len(shown)):
                break
            text = _column(shown, item.end())
            # Far from its mark, or in the next line, an item's text is taken to begin after one space.
            edge = text if item.end() < len(shown) and text - item.end() <= 4 else item.end() + 1
            opened.append(edge - base)
            base = edge
        else:
            break
    return opened, base


def _after_quote(shown: str, column: int) -> int:
    return column + 1 + shown.startswith(" ", column + 1)


def _column(shown: str, base: int) -> int:
    """Where the text after some spaces begins.

    >>> _column("  a", 0), _column("  a", 1), _column("a", 5)
    (2, 2, 5)
    """
    spaces = _SPACES.match(shown, base)
    return max(base, spaces.end()) if spaces else base

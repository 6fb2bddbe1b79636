"""Markdown: which lines are text, and what opens them. The markup inside a line is left to `inline_markdown.py`.

Read by hand and not with markdown-it-py, which follows CommonMark to the letter. Authors indent code in lists less or more than
CommonMark asks and put indented lines into HTML; by the letter such lines are text, and code would be translated. With rules
of our own for these cases, the parser was as long as this one and three times as slow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from regard.translation.documents.document import Document, from_pieces, read_text
from regard.translation.documents.reference_links import defined_by, shortened, spelled_out
from regard.translation.documents.titles import put_back_titles, take_out_titles
from regard.translation.markup.inline_markdown import parse_inline_markdown

# Opens a line and is not text: marks of quotes, headings, list items, tasks and footnotes.
_OPENING = re.compile(
    r"[ \t]*(?:>[ \t]*|(?:#{1,6}|[-*+]|\d{1,9}[.)])[ \t]+|\[[ xX]\][ \t]+|\[\^[^\]\s]{1,300}\]:[ \t]+)*"
)
_NO_TEXT = re.compile(
    r"(?:[-*_=] ?){3,}|\|?(?: {0,9}:?-+:? {0,9}\|)+ {0,9}:?-*:?|\[(?!\^)[^\]]{1,300}\]:\s.*|<[^<>]{1,999}>"
)
_SPACES = re.compile(" *")
_ITEM = re.compile(r"(?:[-*+]|(\d{1,9})[.)])(?= |$)")
_RULE = re.compile(r"([-*_])(?: *\1){2,} *$")
_HEADING = re.compile(r"#{1,6}(?: |$)|=+$|-+$")  # or the line under one
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})")
_QUOTE = 0
_MAX_DEPTH = 100  # of quotes and items inside each other


def open_markdown(data: bytes) -> Document:
    text, bom = read_text(data)
    lines = text.splitlines(keepends=True)
    first = _front_matter(lines)
    pieces = lines[:first]
    to_translate: list[int] = []
    blocks = _Blocks()
    defined: set[str] = set()
    for line in lines[first:]:
        if not blocks.is_text(line):
            if label := defined_by(blocks.content):
                defined.add(label)
            pieces.append(line)
            continue
        start = _OPENING.match(line)
        assert start is not None
        to_translate.append(len(pieces) + 1)
        pieces += [start[0], line[start.end() :]]
    return _with_titles(from_pieces(pieces, to_translate, bom, parse_markup=parse_inline_markdown), defined)


def _with_titles(document: Document, defined: Collection[str]) -> Document:
    """The same document with the texts inside links and images, alternative texts and titles, as texts of their own."""
    texts = [spelled_out(text, defined) for text in document.texts]
    bare, titles = [], list[str]()
    for text in texts:
        taken, found = take_out_titles(text, len(titles))
        bare.append(taken)
        titles += found

    def save(translations: Sequence[str]) -> bytes:
        lines = [put_back_titles(line, translations[len(bare) :], titles) for line in translations[: len(bare)]]
        both = zip(lines, document.texts, strict=True)
        return document.save([shortened(line, text, defined) for line, text in both])

    return replace(document, texts=[*bare, *titles], save=save)


def _front_matter(lines: Sequence[str]) -> int:
    """The number of lines of front matter (YAML or TOML) before the text.

    >>> _front_matter(["---\\r\\n", "title: x\\r\\n", "---\\r\\n", "text"]), _front_matter(["---\\n", "text"])
    (3, 0)
    """
    opening = lines[0].rstrip() if lines else ""
    closing = {"---": ("---", "..."), "+++": ("+++",)}.get(opening, ())
    return next((number + 1 for number, line in enumerate(lines) if number and line.rstrip() in closing), 0)


class _Blocks:
    """Decides line by line what is text, by the rules of CommonMark but lenient about indentation. It keeps track of the quotes and
    list items that are open, since their columns decide what is code."""

    def __init__(self) -> None:
        # Open quotes and items, outermost first: _QUOTE, or the indentation of an item's text inside its parent.
        self._around: list[int] = []
        self.content = ""  # of the last line, without the marks around it; empty for code
        self._fence = ""
        self._fence_column = 0
        self._is_paragraph = False  # whether the last line was text that the next line may continue

    def is_text(self, line: str) -> bool:
        self.content = ""
        shown = line.rstrip().expandtabs(4)  # so that an index is a column
        matched, base = self._match(shown)
        # Lenient: code in an item may be indented less than the item's text.
        if self._fence and _QUOTE not in self._around[matched:]:
            self._end_fence(shown, base)
            return False
        self._fence = ""
        continues, self._is_paragraph = self._is_paragraph, False
        if _column(shown, base) >= len(shown):
            del self._around[matched:]
            return False
        may_begin_anywhere = not continues or matched < len(self._around)
        opened, inner = _opened(shown, base, may_begin_anywhere)
        column = _column(shown, inner)
        content = shown[column:]
        fence = _FENCE.match(content)
        # Lenient: after the mark of an item, any number of spaces is only space.
        is_code = column - inner >= 4 and not (continues and not opened) and not any(opened)
        is_text = not is_code and not fence and bool(content) and not _NO_TEXT.fullmatch(content)
        self._is_paragraph = is_text and not _HEADING.match(content)
        if opened or not (continues and self._is_paragraph):  # else a lazy continuation, which may omit marks
            self._around = [*self._around[:matched], *opened][:_MAX_DEPTH]
        if fence and not is_code:
            self._fence, self._fence_column = fence[1] or fence[2], column
        self.content = "" if is_code or fence else content
        return is_text

    def _match(self, shown: str) -> tuple[int, int]:
        """How many of the open quotes and items contain this line, and the column where the innermost one's content begins."""
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
        """A closing fence is at least as long as the opening one, with nothing after it."""
        column = _column(shown, base)
        content = shown[column:]
        is_fence = content.startswith(self._fence) and not content.strip(self._fence[0])
        if is_fence and (column - base < 4 or column <= self._fence_column):
            self._fence = ""


def _opened(shown: str, base: int, may_begin_anywhere: bool) -> tuple[list[int], int]:
    """Quotes and items that begin in a line, and the column where the innermost one's content begins. A list can interrupt a
    paragraph only if it has text and its number is 1."""
    opened: list[int] = []
    while len(opened) < _MAX_DEPTH:
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
            # Text more than four columns away from its mark, or on the next line, counts as one space away.
            edge = text if item.end() < len(shown) and text - item.end() <= 4 else item.end() + 1
            opened.append(edge - base)
            base = edge
        else:
            break
    return opened, base


def _after_quote(shown: str, column: int) -> int:
    return column + 1 + shown.startswith(" ", column + 1)


def _column(shown: str, base: int) -> int:
    """The column of the first character that is not a space, from `base` on.

    >>> _column("  a", 0), _column("  a", 1), _column("a", 5)
    (2, 2, 5)
    """
    spaces = _SPACES.match(shown, base)
    return max(base, spaces.end()) if spaces else base

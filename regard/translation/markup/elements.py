"""Runs of text with inline elements, such as bold words and links, independent of the markup language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# Beyond these limits elements become separators: each one costs a translation of its words and a search for their place.
MAX_DEPTH, MAX_ELEMENTS = 4, 50


@dataclass(eq=False)
class Inline:
    """An element inside a run of text: its tags as written, and the span of characters between them."""

    opening: str
    closing: str = ""  # unknown until it is read
    start: int = 0
    end: int = 0
    parent: Inline | None = None


class Tag(NamedTuple):
    """The opening or closing tag of an element."""

    inline: Inline
    is_closing: bool

    def __str__(self) -> str:
        return self.inline.closing if self.is_closing else self.inline.opening


@dataclass
class TextRun:
    """Unescaped text between two separators, with the tags of inline elements in it."""

    tokens: list[str | Tag] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(token for token in self.tokens if isinstance(token, str))


MarkupParser = Callable[[str], list[str | TextRun]]  # text -> literal markup (str) and runs, in order


def separate(run: TextRun, separating: Iterable[Inline]) -> list[str | TextRun]:
    """Split a run at the tags of these elements, which become literal markup."""
    separating = frozenset(separating)
    parts: list[str | TextRun] = [TextRun()]
    for token in run.tokens:
        if isinstance(token, Tag) and token.inline in separating:
            parts += [str(token), TextRun()]
        else:
            last = parts[-1]
            assert isinstance(last, TextRun)
            last.tokens.append(token)
    return [part for part in parts if isinstance(part, str) or part.tokens]


def measure(run: TextRun) -> list[Inline]:
    """Set `start`, `end` and `parent` of each element in a run; returns them, outer ones first."""
    inlines: list[Inline] = []
    around: list[Inline] = []
    position = 0
    for token in run.tokens:
        if isinstance(token, str):
            position += len(token)
        elif token.is_closing:
            token.inline.end = position
            around.pop()
        else:
            token.inline.start, token.inline.parent = position, around[-1] if around else None
            around.append(token.inline)
            inlines.append(token.inline)
    return inlines

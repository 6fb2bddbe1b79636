"""Text with elements in it, such as bold words and links, whatever markup they are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# More than this separates, too: each element is a search for its place, and its words are translated once more.
MAX_DEPTH, MAX_ELEMENTS = 4, 50


@dataclass(eq=False)
class Inline:
    """An element inside a run of text: its tags as they were written, and which characters it encloses."""

    opening: str
    closing: str = ""  # until it is known
    start: int = 0
    end: int = 0
    parent: Inline | None = None


class Tag(NamedTuple):
    inline: Inline
    is_closing: bool

    def __str__(self) -> str:
        return self.inline.closing if self.is_closing else self.inline.opening


@dataclass
class TextRun:
    """Text without a separating tag in it, unescaped, with the tags of inline elements between."""

    tokens: list[str | Tag] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(token for token in self.tokens if isinstance(token, str))


MarkupParser = Callable[[str], list[str | TextRun]]  # a text as literal markup and runs of text


def separate(run: TextRun, separating: Iterable[Inline]) -> list[str | TextRun]:
    """A run without these elements: their tags become literal and cut it."""
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
    """The elements of a run, outer ones first, each told where it starts and ends and what it lies in."""
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

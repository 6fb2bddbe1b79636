"""Text, Markdown, subtitles and pages: files that are text themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.serve.documents.document import Document, from_pieces, read_text

# --- text and HTML ---


def open_text(data: bytes) -> Document:
    text, mark = read_text(data)
    return from_pieces([text], [0], mark)


def open_html(data: bytes) -> Document:
    text, mark = read_text(data)
    return Document([text], lambda translations: mark + translations[0].encode(), is_html=True)


# --- Markdown ---

# What opens a line and is not text: quotes, headings, list items, tables' bars.
_OPENING = re.compile(r"[ \t]*(?:(?:>|#{1,6}|[-*+]|\d{1,9}[.)])[ \t]+|\[[ xX]\][ \t]+)*")
_NO_TEXT = re.compile(r"(?:[-*_=] ?){3,}|\|?(?: {0,9}:?-+:? {0,9}\|)+ {0,9}:?-*:?|\[[^\]]{1,300}\]:\s.*|<[^<>]{1,999}>")
_FENCE = re.compile(r"[ \t]*(```+|~~~+)")


def open_markdown(data: bytes) -> Document:
    text, mark = read_text(data)
    pieces: list[str] = []
    places: list[int] = []
    fence = ""
    is_front_matter = text.startswith("---\n")
    for number, line in enumerate(text.splitlines(keepends=True)):
        opened = _FENCE.match(line)
        if is_front_matter:
            is_front_matter = number == 0 or line.rstrip() != "---"
            pieces.append(line)
        elif opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
            pieces.append(line)
        elif fence or line.startswith(("    ", "\t")) or _NO_TEXT.fullmatch(line.strip()):
            pieces.append(line)
        else:
            start = _OPENING.match(line)
            assert start is not None
            places.append(len(pieces) + 1)
            pieces += [start[0], line[start.end() :]]
    return from_pieces(pieces, places, mark, is_markdown=True)


# --- subtitles ---

_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+\s*-->")


def open_subtitles(data: bytes) -> Document:
    """SubRip: blocks of a number, two times and lines of text. A sentence may go over the lines of a block, so they are joined
    for the model and cut again to as many lines; where two people speak, each one's lines. Tags around all of a speech stay
    around it and are not shown to the model."""
    text, mark = read_text(data)
    newline = "\r\n" if "\r\n" in text else "\n"
    blocks: list[tuple[list[str], list[str]]] = []  # lines that stay, lines of text
    current: tuple[list[str], list[str]] = ([], [])
    is_speech = False  # whether the times of a block have come
    for line in text.split(newline):
        if is_speech and line.strip():
            current[1].append(line)
            continue
        if current[1]:
            blocks.append(current)
            current = ([], [])
        current[0].append(line)
        is_speech = bool(_TIMES.match(line))
    blocks.append(current)

    speeches = [[_unwrapped(lines) for lines in _by_speaker(spoken)] for _, spoken in blocks]

    def save(translations: Sequence[str]) -> bytes:
        rest = iter(translations)
        lines: list[str] = []
        for (kept, _), some in zip(blocks, speeches, strict=True):
            lines += kept
            for opening, _, closing, count in some:
                lines += _wrap(opening + next(rest) + closing, count)
        return mark + newline.join(lines).encode()

    return Document([speech for some in speeches for _, speech, _, _ in some], save)


def _by_speaker(lines: Sequence[str]) -> list[list[str]]:
    """The lines of a block; those that begin with a dash begin another's speech.

    >>> _by_speaker(["- Who are you?", "- I am", "your father."]), _by_speaker(["one", "two"])
    ([['- Who are you?'], ['- I am', 'your father.']], [['one', 'two']])
    >>> _by_speaker(["<i>- A", "- B</i>"]), _by_speaker(["It was", "-5 degrees"])
    ([['<i>- A', '- B</i>']], [['It was', '-5 degrees']])
    """
    speeches: list[list[str]] = []
    for line in lines:
        if not speeches or re.match(r"(?:<[^<>]+>)*[-–—](?:\s+\S|[^\W\d_a-z])", line.strip()):
            speeches.append([])
        speeches[-1].append(line.strip())
    are_whole = all(len(re.findall("<[^/]", " ".join(some))) == " ".join(some).count("</") for some in speeches)
    return speeches if are_whole else [[line for some in speeches for line in some]]


def _unwrapped(lines: Sequence[str]) -> tuple[str, str, str, int]:
    """What opens a speech, the speech, what closes it, and its lines.

    >>> _unwrapped(["<i>I was", "at home.</i>"]), _unwrapped(["<b>No</b>, <b>never</b>"])
    (('<i>', 'I was at home.', '</i>', 2), ('', '<b>No</b>, <b>never</b>', '', 1))
    """
    speech = " ".join(lines)
    around = re.fullmatch(r"(<(\w{1,20})\b[^<>]*>)([^<>]+)(</\2>)", speech)
    return ("", speech, "", len(lines)) if around is None else (around[1], around[3], around[4], len(lines))


def _wrap(text: str, count: int) -> list[str]:
    """A text in so many lines of about one length, or fewer if it has fewer words.

    >>> _wrap("one two three four", 2)
    ['one two', 'three four']
    """
    words = text.split()
    lines: list[str] = []
    while words and len(lines) < count - 1:
        goal = len(" ".join(words)) / (count - len(lines))
        line = words.pop(0)
        while words and len(line) + (1 + len(words[0])) / 2 <= goal:
            line += " " + words.pop(0)
        lines.append(line)
    return [*lines, " ".join(words)] if words else lines

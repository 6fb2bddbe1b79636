"""Subtitles (SubRip and WebVTT): blocks of a number or name, two times and lines of text, of which only the text is translated.

Read by hand because everything else must keep its bytes, and files in the wild lack numbers or blank lines and mix line ends. The
libraries srt and pysrt write numbers, times and line ends anew, and miss blocks without a blank line or number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from regard.translation.documents.document import Document, read_text
from regard.translation.markup.elements import TextRun
from regard.translation.markup.run_builder import RunBuilder

_NUMBER = re.compile(r"\s*\d+\s*")
_TIMES = re.compile(r"\s*(?:\d+:)?\d\d:\d\d[,.]\d+\s*-->")
_TAG = re.compile(
    r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}"
)  # <i>, a time, and {\i1} as in Advanced SubStation files
_OPENING = re.compile(r"<[^\W\d]|\{\\[bius]1\}")
_WORD = re.compile(rf"(?:{_TAG.pattern}|\S)+")  # a tag belongs to its word, including any spaces in the tag


@dataclass
class _Block:
    """Lines to keep, with their line ends; then lines of speech, and their line ends apart."""

    kept: list[str] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


def open_subtitles(data: bytes) -> Document:
    """The lines of a block are joined for the model, since sentences run across them, and the translation is wrapped to as many
    lines; if two people speak, each speaker's lines separately. Tags around a whole speech are not shown to the model; tags
    inside follow their words (`parse_speech`)."""
    text, bom = read_text(data)
    blocks = _blocks(text)
    speeches = [[_unwrapped(lines) for lines in _by_speaker(block.spoken)] for block in blocks]

    def save(translations: Sequence[str]) -> bytes:
        rest = iter(translations)
        pieces: list[str] = []
        for block, some in zip(blocks, speeches, strict=True):
            pieces += block.kept
            ends = iter(block.ends)
            for opening, _, closing, count in some:
                lines = _wrap(opening + next(rest) + closing, count)
                *inner, last = islice(ends, count)
                # If there are fewer lines than before, the last one gets the last line end, which may be the end of the file.
                pieces += [line + end for line, end in zip(lines[:-1], inner, strict=False)]
                pieces += [line + last for line in lines[-1:]]
        return bom + "".join(pieces).encode()

    return Document([speech for some in speeches for _, speech, _, _ in some], save, parse_markup=parse_speech)


def parse_speech(text: str) -> list[str | TextRun]:
    """Elements are named tags, and styles such as bold that are switched on and off again. Other tags, such as a position or a
    colour, are kept as they are and separate.

    >>> [part if isinstance(part, str) else part.text for part in parse_speech(r"{\\an8}I {\\i1}never{\\i0} <b>said that.")]
    ['{\\\\an8}', 'I never ', '<b>', 'said that.']
    """
    builder, position = RunBuilder(), 0
    for tag in _TAG.finditer(text):
        builder.text(text[position : tag.start()])
        position = tag.end()
        if _OPENING.match(tag[0]):
            builder.open(tag[0])
        elif builder.innermost and _is_closed(builder.innermost, tag[0]):
            builder.close(tag[0])
        else:
            builder.separator(tag[0])
    builder.text(text[position:])
    return builder.parts()


def _is_closed(opening: str, tag: str) -> bool:
    """Whether `tag` closes `opening`.

    >>> _is_closed('<font color="red">', "</font>"), _is_closed(r"{\\i1}", r"{\\i0}"), _is_closed("<b>", "</i>")
    (True, True, False)
    """
    if opening.startswith("{"):
        return tag == opening.replace("1", "0")
    name = re.match(r"<\w+", opening)
    return name is not None and tag.rstrip(">").rstrip().lower() == name[0].replace("<", "</").lower()


def _blocks(text: str) -> list[_Block]:
    """Blocks begin after a blank line or, if that is missing, at a number before times, or at times."""
    cut = re.split(r"(\r?\n)", text)
    lines, ends = cut[::2], [*cut[1::2], ""]
    blocks = [_Block()]
    is_speech = False  # whether the times of this block were read
    for line, end, following in zip(lines, ends, [*lines[1:], ""], strict=True):
        is_times = bool(_TIMES.match(line))
        begins = is_times or (_NUMBER.fullmatch(line) and _TIMES.match(following))
        if is_speech and line.strip() and not begins:
            blocks[-1].spoken.append(line)
            blocks[-1].ends.append(end)
            continue
        if blocks[-1].spoken:
            blocks.append(_Block())
        blocks[-1].kept.append(line + end)
        is_speech = is_times
    return blocks


def _by_speaker(lines: Sequence[str]) -> list[list[str]]:
    """The lines of a block, grouped by speaker: a line that begins with a dash begins another speech.

    >>> _by_speaker(["- Who are you?", "- I am", "your father."]), _by_speaker(["one", "two"])
    ([['- Who are you?'], ['- I am', 'your father.']], [['one', 'two']])
    >>> _by_speaker(["<i>- A", "- B</i>"]), _by_speaker(["It was", "-5 degrees"])
    ([['<i>- A', '- B</i>']], [['It was', '-5 degrees']])
    """
    speeches: list[list[str]] = []
    for line in lines:
        if not speeches or re.match(r"(?:<[^<>]+>|\{\\[^{}]*\})*[-–—](?:\s+\S|[^\W\d_a-z])", line.strip()):
            speeches.append([])
        speeches[-1].append(line.strip())
    are_whole = all(len(re.findall("<[^/]", " ".join(some))) == " ".join(some).count("</") for some in speeches)
    return speeches if are_whole else [[line for some in speeches for line in some]]


def _unwrapped(lines: Sequence[str]) -> tuple[str, str, str, int]:
    """A speech without the tag around it: opening tag, text, closing tag, number of lines.

    >>> _unwrapped(["<i>I was", "at home.</i>"]), _unwrapped(["<b>No</b>, <b>never</b>"])
    (('<i>', 'I was at home.', '</i>', 2), ('', '<b>No</b>, <b>never</b>', '', 1))
    """
    speech = " ".join(lines)
    around = re.fullmatch(r"(<(\w{1,20})\b[^<>]*>)([^<>]+)(</\2>)", speech)
    return ("", speech, "", len(lines)) if around is None else (around[1], around[3], around[4], len(lines))


def _wrap(text: str, count: int) -> list[str]:
    """Wrap a text to `count` lines of similar length, or fewer if it has fewer words. Tags have no length, since viewers do not see
    them.

    >>> _wrap("one two three four", 2)
    ['one two', 'three four']
    >>> _wrap('<font face="Arial Black">one two three four</font>', 2)
    ['<font face="Arial Black">one two', 'three four</font>']
    """
    words = _WORD.findall(text)
    lengths = [len(_TAG.sub("", word)) for word in words]
    left = sum(lengths) + len(words) - 1  # with the spaces between
    lines: list[str] = []
    first = 0
    while first < len(words) and len(lines) < count - 1:
        goal = left / (count - len(lines))
        length, end = lengths[first], first + 1
        while end < len(words) and length + (1 + lengths[end]) / 2 <= goal:
            length, end = length + 1 + lengths[end], end + 1
        lines.append(" ".join(words[first:end]))
        left, first = left - length - 1, end
    return [*lines, " ".join(words[first:])] if first < len(words) else lines

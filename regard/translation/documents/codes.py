"""Codes for inline elements in texts from XML, in characters that XML cannot contain: `\\x01NUMBER\\x02`, the words of the element,
`\\x03`; and `\\x04NUMBER\\x02` for a break, which separates texts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from regard.translation.markup.elements import TextRun
from regard.translation.markup.run_builder import RunBuilder

_CODE = re.compile("([\x01\x04])([0-9]+)\x02|\x03")
_EMPTY = re.compile("([ \xa0]*)\x01([0-9]+)\x02\x03([ \xa0]*)")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot contain


@dataclass
class Piece:
    """An inline element in a translation: texts and elements in it."""

    number: int
    content: list[str | Piece] = field(default_factory=list)


def element_code(number: int, inner: str = "") -> str:
    return f"\x01{number}\x02{inner}\x03"


def break_code(number: int) -> str:
    return f"\x04{number}\x02"


def plain_text(text: str) -> str:
    """A text without codes and whatever else XML cannot contain."""
    return _NOT_XML.sub("", text)


def respaced(text: str, translation: str) -> str:
    """A translation in which elements without words have the same white space beside them as in the text.

    >>> respaced("words\\x010\\x02\\x03 and", "Wörter \\x010\\x02\\x03und").replace("\\x010\\x02\\x03", "#")
    'Wörter# und'
    >>> respaced("a \\x010\\x02\\x03 b", "x \\x010\\x02\\x03y").replace("\\x010\\x02\\x03", "#")
    'x # y'
    """
    if "\x02\x03" not in text:
        return translation
    is_spaced = {one[2]: (bool(one[1]), bool(one[3])) for one in _EMPTY.finditer(text)}

    def space(found: re.Match[str]) -> str:
        before, after = found[1], found[3]
        needs_before, needs_after = is_spaced.get(found[2], (False, False))
        if needs_before and needs_after:
            before, after = before[:1] or " ", after[:1] or " "
        elif needs_after and before:
            before, after = "", after or before
        elif needs_before and after:
            before, after = before or after, ""
        return f"{before}{element_code(int(found[2]))}{after}"

    return _EMPTY.sub(space, translation)


def parse_codes(text: str) -> list[str | TextRun]:
    """A `MarkupParser` for codes.

    >>> [run] = parse_codes("The \\x010\\x02black\\x03 cat")
    >>> run.text
    'The black cat'
    """
    builder, position = RunBuilder(), 0
    for code in _CODE.finditer(text):
        builder.text(text[position : code.start()])
        position = code.end()
        if code[1] == "\x01":
            builder.open(code[0])
        elif code[1] is None and builder.innermost:
            builder.close(code[0])
        else:
            builder.separator(code[0])
    builder.text(text[position:])
    return builder.parts()


def read_codes(translation: str) -> list[str | Piece]:
    """A translation as texts and inline elements."""
    top = Piece(-1)
    around, position = [top], 0
    for code in [*_CODE.finditer(translation), None]:
        text = plain_text(translation[position : code.start() if code else None])
        if text:
            around[-1].content.append(text)
        if code is None:
            break
        position = code.end()
        if code[1] is not None:
            around[-1].content.append(piece := Piece(int(code[2])))
            if code[1] == "\x01":
                around.append(piece)
        elif len(around) > 1:
            around.pop()
    return top.content

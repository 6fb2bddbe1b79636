"""HTML and XML, parsed into literal markup and runs of text.

Block tags (paragraphs, cells, line breaks) separate texts. Scripts, styles, comments, code and `translate="no"` are left untouched.
XML does not define which tags are inline: an element with text beside it, inside the same parent, counts as inline, any other
separates; `Xml` names exceptions.

The scanner is written by hand. `html.parser` takes minutes for a page of unfinished tags and does not give end tags as they were
written; parsers that build a tree (lxml, html5lib) repair a page, so that its markup would not come out as it went in.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from regard.errors import InputError
from regard.translation.markup.elements import MAX_DEPTH, MAX_ELEMENTS, Inline, Tag, TextRun, separate

# Inline tags; any other separates.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins mark q s small span strike strong sub sup time tt u".split()
)
_UNTOUCHED = frozenset("script style code pre textarea kbd samp var svg math template noscript iframe object".split())
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_LOOK_BACK = 100  # open untouched elements that an end tag may close at once
_RAW = frozenset("script style textarea iframe xmp".split())
# A comment, a declaration or a tag. A tag ends at the first ">" outside quotes; if a "<" comes first, it is not a tag. Whatever
# the page, a character is passed by at most three attempts: one that is outside quotes at a later "<" ends there, and of two that
# are inside quotes there, one is inside single and one inside double quotes. So a page of unfinished tags takes linear time.
_MARKUP = re.compile(
    r"<!--|<!\[CDATA\[|<[!?][^<>]{0,9999}>|"
    r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:.-]{0,99})"
    r"(?:[^<>\"']++|(?>\"[^\"<>]*+\"|\"[^\"]{0,9999}+\")|(?>'[^'<>]*+'|'[^']{0,9999}+'))*+>",
    re.DOTALL,
)
_NO = re.compile(r"""\stranslate\s*=\s*["']?no["'\s/>]|\sclass\s*=\s*("[^"]*|'[^']*|)\bnotranslate\b""", re.IGNORECASE)


@dataclass(frozen=True)
class Xml:
    """How to treat the tags of an XML text, by name."""

    separating: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()  # inline, part of a sentence
    untouched: frozenset[str] = frozenset()  # with everything in them
    by_outline: bool = True  # whether other tags separate unless they have text beside them; else they are inline


class TagReader:
    """Parses one page into literal markup and runs of text."""

    def __init__(self, xml: Xml | None = None) -> None:
        self._xml = xml
        self._is_beside_text: Iterator[bool] = iter(())  # for each start tag of XML
        self.parts: list[str | TextRun] = []
        self._open: list[tuple[str, Inline]] = []  # open inline elements of the current run
        self._count = 0  # inline elements of the current run
        self._kept: list[str] = []  # names of the open untouched elements, outermost first
        self.start_tags: list[
            tuple[int, str, str]
        ] = []  # of HTML, outside untouched elements: position, name, as written

    def parse(self, text: str) -> list[str | TextRun]:
        if self._xml is not None:
            self._is_beside_text = iter(_outline(text))
        position = 0
        while position < len(text):
            found = _MARKUP.search(text, position)
            start = found.start() if found else len(text)
            if start > position:
                self._text(text[position:start])
            if found is None:
                break
            position = self._markup(text, found)
        self._close_run()
        return self.parts

    def _markup(self, text: str, found: re.Match[str]) -> int:
        """Handle one piece of markup; returns the position after it."""
        raw, name = found[0], found["name"] or ""
        if self._xml is None:
            name = name.lower()
        if raw == "<![CDATA[":
            end = text.find("]]>", found.end())
            stop = end + 3 if end >= 0 else len(text)
            self._literal(text[found.start() : stop])
            return stop
        if raw == "<!--":
            end = text.find("-->", found.end())
            stop = end + 3 if end >= 0 else len(text)  # an unclosed comment extends to the end
            self._literal(text[found.start() : stop])
            return stop
        if not name:
            self._literal(raw)  # a declaration
            return found.end()
        if found["slash"]:
            self._end_tag(name, raw)
            return found.end()
        if self._xml is not None:
            self._start_xml_tag(name, raw, self._xml)
            return found.end()
        if not self._kept and not _NO.search(raw):
            self.start_tags.append((found.start(), name, raw))
        self._start_tag(name, raw)
        if name in _RAW and not raw.endswith("/>"):
            # Inside, only the element's own end tag is markup.
            closing = re.compile(rf"</{name}(?![\w-])", re.IGNORECASE).search(text, found.end())
            stop = closing.start() if closing else len(text)
            self._literal(text[found.end() : stop])
            return stop
        return found.end()

    def _start_tag(self, name: str, raw: str) -> None:
        is_empty = name in _VOID or raw.endswith("/>")
        if self._kept or (not is_empty and (name in _UNTOUCHED or _NO.search(raw))):
            if not is_empty:
                self._kept.append(name)
            self._literal(raw)
        elif name in _INLINE and not is_empty and len(self._open) < MAX_DEPTH and self._count < MAX_ELEMENTS:
            self._count += 1
            inline = Inline(raw)
            self._run().tokens.append(Tag(inline, False))
            self._open.append((name, inline))
        else:
            self._literal(raw)

    def _start_xml_tag(self, name: str, raw: str, xml: Xml) -> None:
        is_empty = raw.endswith("/>")
        is_beside_text = next(self._is_beside_text, False)
        is_inside = name in xml.inside or (name not in xml.separating and (is_beside_text or not xml.by_outline))
        if self._kept or name in xml.untouched:
            if not is_empty:
                self._kept.append(name)
            self._literal(raw)
        elif is_inside and len(self._open) < MAX_DEPTH and self._count < MAX_ELEMENTS:
            self._count += 1
            inline = Inline(raw)
            self._run().tokens.append(Tag(inline, False))
            if is_empty:
                self._run().tokens.append(Tag(inline, True))
            else:
                self._open.append((name, inline))
        else:
            self._literal(raw)

    def _end_tag(self, name: str, raw: str) -> None:
        if self._kept:
            # An end tag also closes what is still open inside; a stray one closes nothing.
            if name in self._kept[-_LOOK_BACK:]:
                while self._kept.pop() != name:
                    pass
            self._literal(raw)
        elif self._open and self._open[-1][0] == name:
            inline = self._open.pop()[1]
            inline.closing = raw
            self._run().tokens.append(Tag(inline, True))
        else:
            self._literal(raw)

    def _text(self, text: str) -> None:
        if self._kept:
            self._literal(text)
        else:
            self._run().tokens.append(html.unescape(text))

    def _run(self) -> TextRun:
        if not self.parts or not isinstance(self.parts[-1], TextRun):
            self.parts.append(TextRun())
        run = self.parts[-1]
        assert isinstance(run, TextRun)
        return run

    def _literal(self, raw: str) -> None:
        self._close_run()
        self.parts.append(raw)

    def _close_run(self) -> None:
        """End the current run. Elements that are still open span a separator, so their tags become separators, too."""
        if not self.parts or not isinstance(self.parts[-1], TextRun):
            return
        run = self.parts.pop()
        assert isinstance(run, TextRun)
        unclosed = [inline for _, inline in self._open]
        self._open.clear()
        self._count = 0
        self.parts += separate(run, unclosed)


def _outline(text: str) -> list[bool]:
    """For each start tag of an XML text, whether its element has text beside it. Raises `InputError` if tags are not balanced."""
    around: list[tuple[str, list[bool]]] = [("", [False])]  # open elements: name, and whether it has text of its own
    found: list[list[bool]] = []
    position = 0
    while tag := _MARKUP.search(text, position):  # skips comments like `TagReader.parse`
        if text[position : tag.start()].strip():
            around[-1][1][0] = True
        position = tag.end()
        name, raw = tag["name"], tag[0]
        if raw in ("<!--", "<![CDATA["):
            end = text.find("-->" if raw == "<!--" else "]]>", position)
            if end < 0:
                raise _not_well_formed()
            position = end + 3
        elif name and tag["slash"]:
            if around.pop()[0] != name or not around:
                raise _not_well_formed()
        elif name:
            found.append(around[-1][1])
            if not raw.endswith("/>"):
                around.append((name, [False]))
    if text[position:].strip():
        around[-1][1][0] = True
    if len(around) > 1:
        raise _not_well_formed()
    return [has_text for (has_text,) in found]


def _not_well_formed() -> InputError:
    return InputError("text must be well-formed XML: close each tag, in order")

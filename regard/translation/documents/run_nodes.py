"""The parts of a paragraph in Office Open XML, and the names that they have in each format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Names of styles for code, as Word, LibreOffice and Pandoc write them.
_CODE = re.compile(
    r"(Source|HTML|Inline)?_?Code(Char|Zchn)?|SourceText|VerbatimChar|(HTML)?Preformatted(Text|Char)?|\w+Tok",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Vocabulary:
    """The element names of one format."""

    namespace: str
    paragraphs: tuple[str, ...]
    text: str = "t"
    run: str = "r"
    properties: str = "rPr"
    breaks: tuple[str, ...] = ()  # separate words without being text
    anchors: tuple[str, ...] = ()  # stand between words without being text
    skipped: tuple[str, ...] = ()  # with everything in them
    unimportant: tuple[str, ...] = ()  # properties that nobody sees
    styles: tuple[str, str] | None = None  # where the style of a paragraph and of a run is named
    keeps_space: bool = False  # needs xml:space="preserve" to keep spaces at the ends

    def name(self, local: str) -> str:
        """A name with its namespace, unless it has one."""
        return local if local.startswith("{") else f"{{{self.namespace}}}{local}"

    def is_code(self, element: Any, style: int) -> bool:
        """Whether a paragraph (0) or a run (1) has a style for code."""
        if self.styles is None:
            return False
        named = element.find("/".join(map(self.name, self.styles[style].split("/"))))
        return named is not None and bool(_CODE.fullmatch(named.get(self.name("val"), "")))


WORD = Vocabulary(
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    ("p",),
    breaks=("br", "cr", "tab", "ptab"),
    anchors=(
        *"fldChar footnoteReference endnoteReference commentReference drawing pict object sym noBreakHyphen".split(),
        "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath",
    ),
    styles=("pPr/pStyle", "rPr/rStyle"),
    unimportant=tuple("lang noProof rtl cs szCs bCs iCs webHidden".split()),
    keeps_space=True,
)
DRAWING = Vocabulary(
    "http://schemas.openxmlformats.org/drawingml/2006/main",
    ("p",),
    breaks=("br",),
    anchors=("fld",),
    skipped=("fld",),
    unimportant=tuple("lang altLang dirty err noProof smtClean".split()),
)
SHEET = Vocabulary(
    "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
    ("si", "is", "text"),
    skipped=("rPh",),
    keeps_space=True,
)


@dataclass
class Slot:
    """Text elements side by side that have the same format."""

    elements: list[Any]
    container: tuple[Any, ...]  # what is around them inside the paragraph, such as a link; of a field, its number
    format: str
    number: int = 0

    @property
    def text(self) -> str:
        return "".join(element.text or "" for element in self.elements)

    @property
    def field(self) -> int:
        """The number of the field that this is the text of; 0: none."""
        return self.container[0] if self.container and isinstance(self.container[0], int) else 0


@dataclass
class Anchor:
    """Something between two slots that is not text."""

    number: int = 0


@dataclass
class Level:
    """What stands side by side inside a paragraph, or inside a link: slots in the base format, and inline elements."""

    nodes: list[Slot | Anchor | Level] = field(default_factory=list)
    base: tuple[tuple[Any, ...], str] = ((), "")
    number: int = 0

    def is_base(self, node: Slot | Anchor | Level) -> bool:
        return isinstance(node, Slot) and (node.container, node.format) == self.base


def slots_of(level: Level) -> Iterator[Slot]:
    for node in level.nodes:
        if isinstance(node, Slot):
            yield node
        elif isinstance(node, Level):
            yield from slots_of(node)

"""XML whose paragraphs mix text and elements, as in OpenDocument. Spans and links are inline elements of a text, so that they
follow their words; anything else in a paragraph, such as a note or a picture, moves as it is; breaks separate texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.translation.documents.codes import Piece, break_code, element_code, parse_codes, read_codes, respaced
from regard.translation.documents.document import Document
from regard.translation.documents.xml import parse_xml, write_xml

_SPACES = re.compile("[ \t\r\n]+")


@dataclass(frozen=True)
class MixedContent:
    """Names of elements, with their namespaces as lxml writes them."""

    paragraphs: frozenset[str]
    inline: frozenset[str]
    breaks: frozenset[str] = frozenset()
    space: str = ""  # an element that is a space; several of them are a break
    count: str = "count"  # its attribute with their number
    keeps_space: bool = False  # line breaks and several spaces are part of the text
    is_skipped: Callable[[Any], bool] = lambda paragraph: False
    is_code: Callable[[Any], bool] = lambda span: False  # an inline element that is not text


class CodedText:
    """The content of an element as a text with codes, which `fill` replaces by a translation."""

    def __init__(self, element: Any, names: MixedContent) -> None:
        self._element, self._names = element, names
        self._numbered: list[Any] = []
        self._inner: list[str] = []  # the plain text
        self._base = None if names.keeps_space else _find_base(element, names)
        self.text = self._coded(element)

    @property
    def plain(self) -> str:
        return "".join(self._inner)

    def _coded(self, element: Any) -> str:
        parts = [self._shown(element.text)]
        for child in element:
            if self._base is not None and _is_like(child, self._base):
                parts.append(self._coded(child))
            else:
                parts.append(self._child(child))
            parts.append(self._shown(child.tail))
        return "".join(parts)

    def _child(self, child: Any) -> str:
        names, number = self._names, len(self._numbered)
        if child.tag == names.space and child.get(names.count, "1") == "1":
            return self._shown(" ")
        self._numbered.append(child)
        if child.tag in names.inline and not names.is_code(child):
            return element_code(number, self._coded(child))
        return break_code(number) if child.tag in names.breaks or child.tag == names.space else element_code(number)

    def _shown(self, text: str | None) -> str:
        shown = (text or "") if self._names.keeps_space else _SPACES.sub(" ", text or "")
        self._inner.append(shown)
        return shown

    def fill(self, translation: str) -> None:
        """Replace the text by a translation."""
        self._rebuild(self._element, read_codes(respaced(self.text, translation)))

    def _rebuild(self, element: Any, content: Sequence[str | Piece]) -> None:
        element.text, last = "", None
        for child in list(element):
            element.remove(child)
        for part in content:
            if isinstance(part, Piece):
                last = self._numbered[part.number]
                last.tail = ""
                element.append(last)
                if last.tag in self._names.inline and not self._names.is_code(last):
                    self._rebuild(last, part.content)
            elif self._base is not None and element is self._element:
                last = _empty_copy(self._base)
                last.text, last.tail = part, ""
                element.append(last)
            elif last is None:
                element.text += part
            else:
                last.tail += part


def _find_base(element: Any, names: MixedContent) -> Any:
    """Where all words of a paragraph are in spans, the one whose format most of them have: its words are the text, and only the
    other spans are elements in it."""
    if not len(element) or (element.text or "").strip() or any((child.tail or "").strip() for child in element):
        return None
    sizes: dict[tuple[Any, ...], int] = {}
    first: dict[tuple[Any, ...], Any] = {}
    for child in element:
        if child.tag in names.inline and not any(inner.tag in names.inline for inner in child):
            size = len(child.text or "") + sum(len(inner.tail or "") for inner in child)
            key = _format(child)
            sizes[key] = sizes.get(key, 0) + size
            first.setdefault(key, child)
    return _empty_copy(first[max(sizes, key=sizes.__getitem__)]) if sizes and not _is_link(first, sizes) else None


def _is_link(first: dict[tuple[Any, ...], Any], sizes: dict[tuple[Any, ...], int]) -> bool:
    """Whether the largest span leads somewhere, so that it must stay one."""
    return any(name.endswith("href") for name in first[max(sizes, key=sizes.__getitem__)].attrib)


def _format(element: Any) -> tuple[Any, ...]:
    return (element.tag, *sorted(element.attrib.items()))


def _is_like(element: Any, base: Any) -> bool:
    return bool(element.tag == base.tag and element.attrib == base.attrib)


def _empty_copy(element: Any) -> Any:
    from lxml import etree

    return etree.Element(element.tag, element.attrib, nsmap=element.nsmap)


def open_mixed(content: bytes, names: Callable[[Any], MixedContent]) -> Document:
    """Every paragraph is a text. Paragraphs may contain others, in notes and frames. `names` may depend on the root."""
    tree = parse_xml(content)
    found = names(tree)
    paragraphs = [one for one in tree.iter(*found.paragraphs) if not found.is_skipped(one)]
    texts = [text for text in (CodedText(one, found) for one in paragraphs) if text.plain.strip()]

    def save(translations: Sequence[str]) -> bytes:
        for text, translation in zip(texts, translations, strict=True):
            text.fill(translation)
        return write_xml(tree)

    return Document([text.text for text in texts], save, parse_markup=parse_codes)

"""Office Open XML (Word, PowerPoint, Excel): paragraphs that consist of runs, each a text with a format of its own.

    <w:p><w:r><w:t>The </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>black</w:t></w:r><w:r><w:t> cat</w:t></w:r></w:p>

A text is a paragraph, or a part of one between line breaks or tabs. Its most frequent format is the base; a piece in another
format, a link, or something without text such as a footnote mark is an inline element of the text (`markup/`), so that it
follows its words into the translation (`run_filling.py`). In the texts an element is written as codes (`codes.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regard.translation.documents.codes import element_code, parse_codes, plain_text, read_codes, respaced
from regard.translation.documents.document import Document
from regard.translation.documents.run_filling import fill
from regard.translation.documents.run_nodes import Anchor, Level, Slot, Vocabulary, slots_of
from regard.translation.documents.xml import parse_xml, write_xml


def open_runs(content: bytes, vocabulary: Vocabulary, kept: frozenset[str] = frozenset()) -> Document:
    """A member of an Office file. Texts in `kept` are not translated."""
    tree = parse_xml(content)
    groups = [_numbered(nodes) for nodes in _find_groups(tree, vocabulary)]
    groups = [level for level in groups if (text := _plain(level)).strip() and text not in kept]

    alternatives = [one for one in tree.xpath("//*[@descr]") if one.get("descr").strip()]  # what a picture shows

    def save(translations: Sequence[str]) -> bytes:
        for level, text, translation in zip(groups, texts, translations, strict=False):
            fill(level, read_codes(respaced(text, translation)), vocabulary)
        for element, translation in zip(alternatives, translations[len(groups) :], strict=True):
            element.set("descr", plain_text(translation))
        return write_xml(tree)

    texts = [*map(_coded, groups), *(plain_text(one.get("descr")) for one in alternatives)]
    return Document(texts, save, parse_markup=parse_codes)


# --- reading ---


def _find_groups(tree: Any, vocabulary: Vocabulary) -> list[list[Slot | Anchor]]:
    """The slots and anchors of each text. Paragraphs may contain others, in text boxes; each gets its own elements only, in a
    single walk, however deep they are."""
    from lxml import etree

    name = vocabulary.name
    paragraphs, text = {name(one) for one in vocabulary.paragraphs}, name(vocabulary.text)
    breaks, anchors = ({name(one) for one in some} for some in (vocabulary.breaks, vocabulary.anchors))
    skipped = {name(one) for one in vocabulary.skipped}
    found: list[list[list[Slot | Anchor]]] = []
    around: list[tuple[list[list[Slot | Anchor]], _Place]] = []  # open paragraphs, innermost last
    skipping = 0
    tags = [*paragraphs, text, *breaks, *anchors, *skipped]
    formats: dict[Any, str] = {}
    for event, element in etree.iterwalk(tree, events=("start", "end"), tag=tags):
        if element.tag in skipped:
            skipping += 1 if event == "start" else -1
        if element.tag in paragraphs and event == "start":
            around.append(([[]], _Place(vocabulary, is_code=vocabulary.is_code(element, 0))))
            found.append(around[-1][0])
        elif element.tag in paragraphs:
            around.pop()
        elif event == "end" or not around:
            continue
        elif element.tag in anchors:
            if around[-1][1].is_anchor(element, around[-1][0][-1]):
                around[-1][0][-1].append(Anchor())
        elif skipping or (element.tag == text and around[-1][1].is_code):
            continue
        elif element.tag == text:
            group, fields = around[-1][0][-1], around[-1][1]
            run = fields.run_of(element, paragraphs, formats)
            if run.is_code:
                group.append(Anchor())
            else:
                container = (fields.number, *run.container) if fields.number else run.container
                _add(group, Slot([element], container, run.format))
        elif element.getparent().tag != name("tabs"):  # tab stops are named <tab>, too
            around[-1][0].append([])
    return [group for parts in found for group in parts]


class _Run(NamedTuple):
    """A run, or what else a text is in."""

    element: Any
    container: tuple[Any, ...]
    format: str
    is_code: bool


class _Place:
    """Where in a paragraph the walk is: in which run, which is looked at once, and in which field, which Word writes as marks, not
    as an element."""

    def __init__(self, vocabulary: Vocabulary, is_code: bool) -> None:
        self.is_code = is_code  # the whole paragraph
        self._vocabulary = vocabulary
        self._run: _Run | None = None
        self.number, self._count = 0, 0
        self._mark, self._kind = vocabulary.name("fldChar"), vocabulary.name("fldCharType")

    def run_of(self, text: Any, paragraphs: set[str], formats: dict[Any, str]) -> _Run:
        element, vocabulary = text.getparent(), self._vocabulary
        if self._run is None or self._run.element is not element:
            is_run = element.tag == vocabulary.name(vocabulary.run)
            container = _container(element, paragraphs) if is_run else ()
            shown = _format(element, vocabulary, formats) if is_run else ""
            self._run = _Run(element, container, shown, is_run and vocabulary.is_code(element, 1))
        return self._run

    def is_anchor(self, element: Any, group: Sequence[Slot | Anchor]) -> bool:
        """Whether an element is an anchor; the marks around a field that has text belong to that text."""
        if element.tag != self._mark:
            return True
        last, was_inside = group[-1] if group else None, self.number
        is_result = element.get(self._kind) == "separate"
        self._count += is_result
        self.number = self._count if is_result else 0
        return not (is_result or (was_inside and isinstance(last, Slot) and last.field == was_inside))


def _add(group: list[Slot | Anchor], slot: Slot) -> None:
    """Add a slot to a group; an anchor before the first slot stays where it is anyway."""
    if not any(isinstance(node, Slot) for node in group):
        group.clear()
    last = group[-1] if group else None
    if isinstance(last, Slot) and (last.container, last.format) == (slot.container, slot.format):
        last.elements += slot.elements
        return
    if isinstance(last, Anchor):  # several side by side count as one; the mark before a field belongs to its text
        while isinstance(group[-1], Anchor):
            group.pop()
        if not slot.field:
            group.append(last)
    group.append(slot)


def _container(run: Any, paragraphs: set[str]) -> tuple[Any, ...]:
    """The elements between a run and its paragraph, such as a link, outermost first."""
    found = []
    above = run.getparent()
    while above is not None and above.tag not in paragraphs:
        found.append(above)
        above = above.getparent()
    return tuple(reversed(found))


def _format(run: Any, vocabulary: Vocabulary, known: dict[Any, str]) -> str:
    """The properties of a run, without those that nobody sees."""
    from lxml import etree

    properties = run.find(vocabulary.name(vocabulary.properties))
    if properties is None:
        return ""
    shown = copy.deepcopy(properties)
    shown.tail = None
    for name in vocabulary.unimportant:
        shown.attrib.pop(name, None)
        for child in shown.findall(vocabulary.name(name)):
            shown.remove(child)
    if not len(shown) and not shown.attrib:
        return ""
    written = etree.tostring(shown, method="c14n")
    return known.setdefault(written, str(len(known) + 1))


def _numbered(nodes: Sequence[Slot | Anchor]) -> Level:
    """The nodes of a text as a tree of levels, with a number for each inline element."""
    while nodes and isinstance(nodes[-1], Anchor):
        nodes = nodes[:-1]
    level = _level(nodes, ())
    for number, node in enumerate(_inlines(level)):
        node.number = number
    return level


def _level(nodes: Sequence[Slot | Anchor], container: tuple[Any, ...]) -> Level:
    sizes: dict[tuple[tuple[Any, ...], str], int] = {}
    for node in nodes:
        if isinstance(node, Slot):
            key = (node.container, node.format)
            sizes[key] = sizes.get(key, 0) + len(node.text)
    own = {key: size for key, size in sizes.items() if key[0] == container} or sizes
    base = max(own, key=own.__getitem__, default=(container, ""))
    level = Level(base=base)
    position = 0
    while position < len(nodes):
        end = _same_container(nodes, position, base[0])
        inner = nodes[position:end]
        level.nodes.append(_level(inner, _of(inner[0])) if len(inner) > 1 else inner[0])
        position = end
    return level


def _of(node: Slot | Anchor) -> tuple[Any, ...]:
    return node.container if isinstance(node, Slot) else ()


def _same_container(nodes: Sequence[Slot | Anchor], start: int, outside: tuple[Any, ...]) -> int:
    """The end of the slots from `start` that are in the same container, if that is not the one of the level."""
    container, end = _of(nodes[start]), start + 1
    if container == outside or isinstance(nodes[start], Anchor):
        return end
    last = end
    while end < len(nodes) and (isinstance(nodes[end], Anchor) or _of(nodes[end]) == container):
        end += 1
        if isinstance(nodes[end - 1], Slot):
            last = end
    return last


def _inlines(level: Level) -> Iterator[Slot | Anchor | Level]:
    for node in level.nodes:
        if not level.is_base(node):
            yield node
        if isinstance(node, Level):
            yield from _inlines(node)


def _plain(level: Level) -> str:
    return "".join(slot.text for slot in slots_of(level))


def _coded(level: Level) -> str:
    """The text of a level with its inline elements as codes."""
    parts = []
    for node in level.nodes:
        inner = _coded(node) if isinstance(node, Level) else node.text if isinstance(node, Slot) else ""
        parts.append(inner if level.is_base(node) else element_code(node.number, inner))
    return "".join(parts)

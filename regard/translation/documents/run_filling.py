"""Writes a translation into the runs of its text (`runs.py`): inline elements keep their format and change places where the
translation needs it."""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from regard.translation.documents.codes import Piece
from regard.translation.documents.run_nodes import Anchor, Level, Slot, Vocabulary, slots_of

_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def fill(level: Level, content: Sequence[str | Piece], vocabulary: Vocabulary) -> None:
    """Write a translation into the elements of its text."""
    pieces = {piece.number: piece for piece in content if isinstance(piece, Piece)}
    inlines = _inlines(level)
    if sorted(pieces) != sorted(node.number for node in inlines) or not _reorder(level, list(pieces), vocabulary):
        _spread(level, content, vocabulary)
        return
    gaps = _gaps(content)
    for number, node in enumerate(_inlines(level), start=1):
        inner = pieces[node.number].content
        if isinstance(node, Level):
            fill(node, inner, vocabulary)
        elif isinstance(node, Slot):
            _set_text(node, "".join(_texts(inner)), vocabulary)
        else:  # an anchor has no place for text
            gaps[number] = "".join(_texts(inner)) + gaps[number]
    _fill_gaps(level, gaps, vocabulary)


def _inlines(level: Level) -> list[Slot | Anchor | Level]:
    return [node for node in level.nodes if not level.is_base(node)]


def _fill_gaps(level: Level, gaps: Sequence[str], vocabulary: Vocabulary) -> None:
    """Write the text before, between and after the inline elements into the runs in the base format that are there, or into new
    ones."""
    free: list[list[Slot]] = [[]]  # runs in each gap
    for node in list(level.nodes):
        if level.is_base(node):
            assert isinstance(node, Slot)
            free[-1].append(node)
        else:
            free.append([])
    around = [None, *_inlines(level), None]
    for slots, text, before, after in zip(free, gaps, around[:-1], around[1:], strict=True):
        if slots:
            _set_text(slots[0], text, vocabulary)
            for other in slots[1:]:
                _set_text(other, "", vocabulary)
        elif text:
            _insert(level, text, before, after, vocabulary)


def _gaps(content: Sequence[str | Piece]) -> list[str]:
    """The text before, between and after the inline elements."""
    gaps = [""]
    for part in content:
        if isinstance(part, str):
            gaps[-1] += part
        else:
            gaps.append("")
    return gaps


def _texts(content: Sequence[str | Piece]) -> Iterator[str]:
    for part in content:
        if isinstance(part, str):
            yield part
        else:
            yield from _texts(part.content)


def _spread(level: Level, content: Sequence[str | Piece], vocabulary: Vocabulary) -> None:
    """Where elements cannot change places: in the same proportions as before."""
    slots = list(slots_of(level))
    for slot, text in zip(slots, spread([slot.text for slot in slots], "".join(_texts(content))), strict=True):
        _set_text(slot, text, vocabulary)


def _set_text(slot: Slot, text: str, vocabulary: Vocabulary) -> None:
    parts = spread([element.text or "" for element in slot.elements], text)
    for element, part in zip(slot.elements, parts, strict=True):
        element.text = part
        if vocabulary.keeps_space and part != part.strip():
            element.set(_SPACE, "preserve")


def _first_slot(node: Slot | Level) -> Slot:
    return node if isinstance(node, Slot) else next(slots_of(node))


def _tops(level: Level, node: Slot | Anchor | Level) -> list[Any] | None:
    """The elements directly inside a level's parent that hold a node, each alone; None if that cannot be said."""
    if isinstance(node, Anchor):
        return None
    parent = _parent(level)
    slots = [node] if isinstance(node, Slot) else list(slots_of(node))
    found: list[Any] = []
    for element in (element for slot in slots for element in slot.elements):
        top = element
        while top is not None and top.getparent() is not parent:
            top = top.getparent()
        if top is None:
            return None
        if not found or found[-1] is not top:
            found.append(top)
    return found


def _parent(level: Level) -> Any:
    """The element whose children a level's runs are."""
    slot = next(node for node in level.nodes if level.is_base(node))
    assert isinstance(slot, Slot)
    return slot.elements[0].getparent().getparent()


def _is_alone(top: Any, node: Slot | Level, vocabulary: Vocabulary) -> bool:
    """Whether an element holds nothing but the text of a node."""
    slots = [node] if isinstance(node, Slot) else list(slots_of(node))
    own = {element for slot in slots for element in slot.elements}
    properties = vocabulary.name(vocabulary.properties)
    run = vocabulary.name(vocabulary.run)
    return all(inner.tag == properties or inner in own for child in top.iter(run) for inner in child)


def _reorder(level: Level, order: Sequence[int], vocabulary: Vocabulary) -> bool:
    """Bring the inline elements of a level into the order of the translation; False if they cannot be moved."""
    inlines = _inlines(level)
    if [node.number for node in inlines] == list(order):
        return True
    places: list[tuple[Slot | Level, Any]] = []
    for node in inlines:
        tops = _tops(level, node)
        if isinstance(node, Anchor) or tops is None or len(tops) != 1 or not _is_alone(tops[0], node, vocabulary):
            return False
        if _first_slot(node).field:  # its marks would stay behind
            return False
        places.append((node, tops[0]))
    by_number = {node.number: (node, top) for node, top in places}
    wanted = [by_number[number] for number in order]
    marks = [_replaced(top) for _, top in places]
    for mark, (_, top) in zip(marks, wanted, strict=True):
        mark.addprevious(top)
        mark.getparent().remove(mark)
    moved = iter([node for node, _ in wanted])
    level.nodes = [node if level.is_base(node) else next(moved) for node in level.nodes]
    return True


def _replaced(element: Any) -> Any:
    """Take an element out of its parent and leave a mark; white space after it is no text here."""
    from lxml import etree

    mark = etree.Element("mark")
    element.addprevious(mark)
    element.tail = None
    element.getparent().remove(element)
    return mark


def _insert(
    level: Level,
    text: str,
    before: Slot | Level | Anchor | None,
    after: Slot | Level | Anchor | None,
    vocabulary: Vocabulary,
) -> None:
    """Add a run in the base format where a translation has text and the source had none: after the node `before`, or else before
    the node `after`."""
    model = next(node for node in level.nodes if level.is_base(node))
    assert isinstance(model, Slot)
    for neighbour, is_after in ((before, True), (after, False)):
        tops = _tops(level, neighbour) if neighbour is not None else None
        if not tops or isinstance(neighbour, Anchor) or neighbour is None:
            continue
        top = tops[-1] if is_after else tops[0]
        if not _is_alone(top, neighbour, vocabulary):
            continue
        run = _copy_of(model.elements[0], text, vocabulary)
        if _first_slot(neighbour).field:
            top = _mark_of(top, "end" if is_after else "begin", vocabulary)
        (top.addnext if is_after else top.addprevious)(run)
        return
    # No place of its own: the text joins its neighbour.
    slots = [node for node in (before, after) if node is not None and not isinstance(node, Anchor)]
    slot = _first_slot(slots[0]) if slots else model
    joined = slot.text + text if before is not None else text + slot.text
    _set_text(slot, joined, vocabulary)


def _mark_of(top: Any, kind: str, vocabulary: Vocabulary) -> Any:
    """The run with the mark that ends or begins the field around an element."""
    mark, name = vocabulary.name("fldChar"), vocabulary.name("fldCharType")
    for sibling in top.itersiblings(preceding=kind == "begin"):
        if any(one.get(name) == kind for one in sibling.iter(mark)):
            return sibling
    return top


def _copy_of(element: Any, text: str, vocabulary: Vocabulary) -> Any:
    """A run like the one of this element, with another text."""
    from lxml import etree

    run = element.getparent()
    made = etree.Element(run.tag, nsmap=run.nsmap)
    properties = run.find(vocabulary.name(vocabulary.properties))
    if properties is not None:
        made.append(copy.deepcopy(properties))
    inner = etree.SubElement(made, element.tag)
    inner.text = text
    if vocabulary.keeps_space and text != text.strip():
        inner.set(_SPACE, "preserve")
    return made


def spread(old: Sequence[str], new: str) -> list[str]:
    """Spread a new text over as many places as the old one had, in the same proportions, cut between words.

    >>> spread(["The ", "black", " cat"], "Die schwarze Katze")
    ['Die ', 'schwarze ', 'Katze']
    """
    total = sum(map(len, old))
    cuts = [match.end() for match in re.finditer(r"\s+", new)] + [len(new)]
    parts, position, seen = [], 0, 0
    for text in old[:-1]:
        seen += len(text)
        goal = seen / max(1, total) * len(new)
        after = bisect_left(cuts, goal)  # the nearest cut is this one or the one before, but never before `position`
        before = cuts[after - 1] if after else 0
        cut = min(max(position, before), max(position, cuts[after]), key=lambda place: abs(place - goal))
        parts.append(new[position:cut] if text else "")
        position = cut if text else position
    return [*parts, new[position:]]

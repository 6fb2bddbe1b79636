"""Files of translators: XLIFF, whose empty targets are filled in, and TMX, whose units get the target language where they lack it.
Elements inside a segment follow their words; those that hold codes move as they are."""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from regard.errors import InputError
from regard.translation.documents.codes import parse_codes
from regard.translation.documents.document import Document
from regard.translation.documents.mixed import CodedText, MixedContent
from regard.translation.documents.xml import parse_xml, write_xml
from regard.translation.languages import first_subtag

# A document type that names a definition elsewhere, which is never read. One with declarations of its own is refused.
_DOCTYPE = re.compile(
    rb"""<!DOCTYPE\s+\w{1,20}\s+(?:SYSTEM|PUBLIC\s+"[^"<>\[\]]{0,200}")\s+"[^"<>\[\]]{0,200}"\s*>\s*"""
)
_DECLARATION = re.compile(rb"\s*(<\?xml\s[^?>]{0,200}\?>\s*)")
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_WORDS = ("g", "pc", "mrk", "hi", "sub")  # elements around words


def open_xliff(data: bytes, target: str) -> Document:
    """Versions 1.2 and 2. A unit with `translate="no"`, or with a target already, stays."""
    head, tree = _parse(data)
    if _name(tree) != "xliff":
        raise InputError("file must be XLIFF 1.2 or 2")
    is_2 = tree.get("version", "").startswith("2")
    units = [one for one in tree.iter() if _name(one) == ("segment" if is_2 else "trans-unit") and not _is_kept(one)]
    places: list[tuple[Any, Any]] = []  # source, and the target to fill
    for unit in units:
        source, filled = _child(unit, "source"), _child(unit, "target")
        if source is None or not _has_text(source) or (filled is not None and (_has_text(filled) or len(filled))):
            continue
        places.append((source, _target_for(unit, source, filled)))
    headers, attribute = (
        ([tree], "trgLang") if is_2 else ([one for one in tree.iter() if _name(one) == "file"], "target-language")
    )
    for header in headers:
        _set_language(header, attribute, target)
    texts = [CodedText(filled, _names(filled)) for _, filled in places]
    return _document(head, tree, texts)


def open_tmx(data: bytes, target: str) -> Document:
    """The source of a unit is in the language that the unit or the file names, or else its first one."""
    head, tree = _parse(data)
    if _name(tree) != "tmx":
        raise InputError("file must be TMX")
    header = next((one for one in tree if _name(one) == "header"), None)
    default = header.get("srclang", "") if header is not None else ""
    texts = []
    for unit in (one for one in tree.iter() if _name(one) == "tu"):
        variants = [one for one in unit if _name(one) == "tuv" and _child(one, "seg") is not None]
        wanted = unit.get("srclang", default)
        source = next((one for one in variants if _is_same(_language(one), wanted)), variants[0] if variants else None)
        if (
            source is None
            or not _has_text(_child(source, "seg"))
            or any(_is_same(_language(one), target) for one in variants)
        ):
            continue
        made = copy.deepcopy(source)
        for extra in [one for one in made if _name(one) != "seg"]:
            made.remove(extra)
        made.attrib.pop("lang", None)
        made.set(_LANG, target or "und")
        _add_after(variants[-1], made)
        segment = _child(made, "seg")
        texts.append(CodedText(segment, _names(segment)))
    return _document(head, tree, texts)


def _document(head: bytes, tree: Any, texts: Sequence[CodedText]) -> Document:
    def save(translations: Sequence[str]) -> bytes:
        for text, translation in zip(texts, translations, strict=True):
            text.fill(translation)
        return head + write_xml(tree).partition(b"\n")[2]

    return Document([text.text for text in texts], save, parse_markup=parse_codes)


def _parse(data: bytes) -> tuple[bytes, Any]:
    """The XML declaration and the document type as they are written, and the tree. UTF-16, as some tools write, becomes UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        with suppress(UnicodeError):  # what is no UTF-16 is refused by the parser
            data = re.sub(r"^\s*<\?xml\s[^?>]{0,200}\?>\s*", "", data.decode("utf-16")).encode()
    declared = _DECLARATION.match(data.removeprefix(b"\xef\xbb\xbf"))
    is_utf8 = declared is not None and re.search(rb"""encoding\s*=\s*["']utf-?8["']""", declared[1], re.IGNORECASE)
    head = declared[1] if declared is not None and is_utf8 else b'<?xml version="1.0" encoding="UTF-8"?>\n'
    if found := _DOCTYPE.search(data[:10_000]):
        return head + found[0], parse_xml(data.replace(found[0], b"", 1))
    return head, parse_xml(data)


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _has_text(element: Any) -> bool:
    return any(text.strip() for text in element.itertext())


def _child(element: Any, name: str) -> Any:
    return next((one for one in element if _name(one) == name), None)


def _names(segment: Any) -> MixedContent:
    space = segment.tag.rpartition("}")[0]
    prefix = f"{space}}}" if space else ""
    return MixedContent(frozenset(), frozenset(prefix + name for name in _WORDS), keeps_space=True)


def _is_kept(unit: Any) -> bool:
    for one in (unit, *unit.iterancestors()):
        if one.get("translate") in ("yes", "no"):
            return bool(one.get("translate") == "no")
    return False


def _target_for(unit: Any, source: Any, filled: Any) -> Any:
    """A target with a copy of the source's content, in its place after the source."""
    made = copy.deepcopy(source)
    made.tag = source.tag[: source.tag.rindex("source")] + "target"
    for name in list(made.attrib):
        if name != "{http://www.w3.org/XML/1998/namespace}space":
            del made.attrib[name]
    if filled is not None:
        made.attrib.update(filled.attrib)
        made.tail = filled.tail
        unit.replace(filled, made)
    else:
        before = _child(unit, "seg-source")
        _add_after(source if before is None else before, made)
    return made


def _add_after(element: Any, made: Any) -> None:
    """Add a sibling, with the same white space around it."""
    previous, parent, after = element.getprevious(), element.getparent(), element.tail
    before = previous.tail if previous is not None else parent.text
    element.addnext(made)
    element.tail, made.tail = (before if before and not before.strip() else after), after


def _language(variant: Any) -> str:
    return str(variant.get(_LANG) or variant.get("lang") or "")


def _is_same(one: str, other: str) -> bool:
    """Whether two codes name the same language, whatever the country."""
    return bool(one) and first_subtag(one) == first_subtag(other)


def _set_language(element: Any, attribute: str, target: str) -> None:
    given = element.get(attribute)
    if given and target and not _is_same(given, target):
        raise InputError("file must be for the target language of the model, but names another; choose another model")
    if not given and target:
        element.set(attribute, target)

"""Word and PowerPoint files: XML in a ZIP archive. The archive is checked before anything in it is parsed: number of members,
their names, unpacked size, and that no XML declares entities."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from regard.errors import InputError, InputTooLarge
from regard.translation.documents.document import Document

_MAX_MEMBERS = 5_000
_MAX_XML = 8_388_608  # bytes of all parsed members together; a tree takes far more memory than its text
_MAX_TAGS = 500_000  # likewise, for very short elements
_TEXT_PARTS = {
    "docx": re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml"),
    "pptx": re.compile(r"ppt/(slides/slide\d+|notesSlides/notesSlide\d+)\.xml"),
}
# The format allows no others; LZMA can demand gigabytes of memory.
_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Elements that separate words without being text.
_BREAKS = {"docx": ("br", "cr", "tab", "ptab"), "pptx": ("br",)}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot contain
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def unpack(data: bytes, max_bytes: int) -> dict[str, bytes]:
    """The members of an archive by name; raises `InputError` if any of them is suspicious."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > _MAX_MEMBERS:
                raise InputTooLarge(f"file must have at most {_MAX_MEMBERS} members")
            for member in members:
                _check_name(member.filename)
                if member.flag_bits & 1:
                    raise InputError("file must not be encrypted")
                if member.compress_type not in _COMPRESSION_METHODS:
                    raise _damaged()
            if len({member.filename for member in members}) < len(members):
                raise InputError("file must not have two members with the same name")
            if sum(member.file_size for member in members) > max_bytes:
                raise _too_large(max_bytes)
            return _read(archive, members, max_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError, RuntimeError):
        raise _damaged() from None


def _read(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo], max_bytes: int) -> dict[str, bytes]:
    """Unpack and count bytes: the sizes in the archive's directory may be wrong."""
    contents = {}
    left = max_bytes
    for member in members:
        with archive.open(member) as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise _too_large(max_bytes)
        contents[member.filename] = content
    return contents


def _damaged() -> InputError:
    return InputError("file must be an intact .docx or .pptx; save it again and resend it")


def _too_large(max_bytes: int) -> InputError:
    return InputTooLarge(f"file must unpack to at most {max_bytes} bytes")


def _check_name(name: str) -> None:
    parts = re.split(r"[/\\]", name)
    is_absolute = name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name)
    if not name or is_absolute or ".." in parts or "\\" in name or "\0" in name or any(ord(c) < 32 for c in name):
        raise InputError("file must not have member names that lead outside the archive")


def parse_xml(content: bytes) -> Any:
    """Parse a member, which must not declare document types or entities."""
    from lxml import etree

    # In another encoding a declaration could hide from the search below, so only UTF-8 is accepted, by the parser too.
    declared = re.match(rb"""\s*<\?xml[^>]*encoding=["']([^"']+)""", content.removeprefix(b"\xef\xbb\xbf"))
    if b"\0" in content or (declared and declared[1].upper() not in (b"UTF-8", b"US-ASCII", b"ASCII")):
        raise InputError("file must have its XML in UTF-8")
    if re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
        raise InputError("file must not have document types or entities in its XML")
    parser = etree.XMLParser(
        encoding="UTF-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=False,
    )
    try:
        return etree.fromstring(content, parser)
    except etree.XMLSyntaxError:
        raise InputError("file must have well-formed XML; save it again and resend it") from None


def open_office(data: bytes, kind: str, max_bytes: int) -> Document:
    """A text is a paragraph, or a part of one between line breaks or tabs. Its translation is spread over the same runs, so that
    each keeps its format."""
    from lxml import etree

    contents = unpack(data, max_bytes)
    names = sorted(name for name in contents if _TEXT_PARTS[kind].fullmatch(name))
    if not names or "[Content_Types].xml" not in contents:
        raise InputError(f"file must be a .{kind}")
    sizes = [(len(contents[name]), contents[name].count(b"<")) for name in names]
    if sum(size for size, _ in sizes) > _MAX_XML or sum(tags for _, tags in sizes) > _MAX_TAGS:
        raise InputTooLarge(f"file must have at most {_MAX_XML} bytes and {_MAX_TAGS} tags of text; send it in parts")
    trees = {name: parse_xml(contents[name]) for name in names}
    groups = [group for tree in trees.values() for group in _find_groups(tree, kind)]

    def save(translations: Sequence[str]) -> bytes:
        for elements, translation in zip(groups, translations, strict=True):
            parts = spread([element.text or "" for element in elements], _NOT_XML.sub("", translation))
            for element, text in zip(elements, parts, strict=True):
                element.text = text
                if kind == "docx" and text != text.strip():
                    element.set(_SPACE, "preserve")
        changed = {
            name: etree.tostring(tree, xml_declaration=True, encoding="UTF-8", standalone=True)
            for name, tree in trees.items()
        }
        return _pack({**contents, **changed})

    return Document(["".join(element.text or "" for element in elements) for elements in groups], save)


def _find_groups(tree: Any, kind: str) -> list[list[Any]]:
    """The text elements of a tree, grouped by text. Paragraphs may contain others, in text boxes; each gets its own elements only,
    in a single walk, however deep they are."""
    from lxml import etree

    namespace = _WORD if kind == "docx" else _DRAWING
    paragraph, text, stops = f"{namespace}p", f"{namespace}t", f"{namespace}tabs"
    breaks = [namespace + name for name in _BREAKS[kind]]
    paragraphs: list[list[list[Any]]] = []
    around: list[list[list[Any]]] = []  # open paragraphs, innermost last
    for event, element in etree.iterwalk(tree, events=("start", "end"), tag=[paragraph, text, *breaks]):
        if element.tag == paragraph and event == "start":
            around.append([[]])
            paragraphs.append(around[-1])
        elif element.tag == paragraph:
            around.pop()
        elif event == "end" or not around:
            continue
        elif element.tag == text:
            around[-1][-1].append(element)
        elif element.getparent().tag != stops:  # tab stops are named <tab>, too
            around[-1].append([])
    groups = [group for parts in paragraphs for group in parts]
    return [group for group in groups if any((element.text or "").strip() for element in group)]


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


def _pack(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()

"""Archives of XML: Word, PowerPoint, Excel, OpenDocument and EPUB files. One reader for all; `ARCHIVES` says which members hold
text, and what reads them.

An archive is checked before anything in it is parsed: number of members, their names, unpacked size, and that no XML declares
entities.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from regard.errors import InputError, InputTooLarge
from regard.translation.documents.document import Document, combine
from regard.translation.documents.run_nodes import DRAWING, SHEET, WORD, Vocabulary
from regard.translation.documents.runs import open_runs
from regard.translation.documents.xml import parse_xml

_MAX_MEMBERS = 5_000
# Bytes of all parsed members together, since a tree takes far more memory than its text; tags likewise, for very short elements.
# Where an archive may be larger than on a server by default, these are shares of its size.
_MAX_XML, _MAX_TAGS = 8_388_608, 500_000
_XML_SHARE, _TAGS_SHARE = 8, 134
# The formats allow no others; LZMA can demand gigabytes of memory.
_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_FIRST = "mimetype"  # must come first and uncompressed, where a format has it


@dataclass(frozen=True)
class Member:
    """Members that hold text: a pattern for their names, and what opens them."""

    names: re.Pattern[str]
    open: Callable[[bytes], Document]
    marker: bytes = b""  # only members that contain this

    @classmethod
    def of(cls, names: str, vocabulary: Vocabulary, marker: bytes = b"") -> Member:
        return cls(re.compile(names), partial(open_runs, vocabulary=vocabulary), marker)


@dataclass(frozen=True)
class Archive:
    """A format: the member that every file has, and those that hold text."""

    required: str
    members: tuple[Member, ...]


_CHARTS = r"(?:charts/chart|diagrams/(?:data|drawing)|drawings/drawing)\d+\.xml"
ARCHIVES = {
    "docx": Archive(
        "[Content_Types].xml",
        (
            Member.of(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml", WORD),
            Member.of(rf"word/{_CHARTS}", DRAWING),
        ),
    ),
    "pptx": Archive(
        "[Content_Types].xml",
        (
            Member.of(r"ppt/(slides/slide\d+|notesSlides/notesSlide\d+)\.xml", DRAWING),
            Member.of(rf"ppt/{_CHARTS}", DRAWING),
        ),
    ),
    "xlsx": Archive(
        "xl/workbook.xml",
        (
            Member.of(r"xl/(sharedStrings|comments/comment\d+|comments\d+)\.xml", SHEET),
            Member.of(r"xl/worksheets/sheet\d+\.xml", SHEET, marker=b"inlineStr"),
            Member.of(rf"xl/{_CHARTS}", DRAWING),
        ),
    ),
}


def open_archive(data: bytes, kind: str, max_bytes: int) -> Document:
    """Open a file of this kind, which may unpack to at most `max_bytes`."""
    archive = ARCHIVES[kind]
    contents = unpack(data, max_bytes, kind)
    readers = {
        name: member
        for member in archive.members
        for name in sorted(contents)
        if member.names.fullmatch(name) and member.marker in contents[name]
    }
    if archive.required not in contents or (not readers and kind != "xlsx"):
        raise InputError(f"file must be a .{kind}")
    _check_sizes([contents[name] for name in readers], max_bytes)
    kept = _column_names(contents) if kind == "xlsx" else frozenset[str]()
    opened = {name: member.open(contents[name], **({"kept": kept} if kept else {})) for name, member in readers.items()}

    def save(parts: Sequence[bytes]) -> bytes:
        return _pack({**contents, **dict(zip(opened, parts, strict=True))})

    return combine(list(opened.values()), save)


def _check_sizes(parts: Sequence[bytes], max_bytes: int) -> None:
    size, tags = max(_MAX_XML, max_bytes // _XML_SHARE), max(_MAX_TAGS, max_bytes // _TAGS_SHARE)
    if sum(map(len, parts)) > size or sum(part.count(b"<") for part in parts) > tags:
        raise InputTooLarge(f"file must have at most {size} bytes and {tags} tags of text; send it in parts")


def _column_names(contents: Mapping[str, bytes]) -> frozenset[str]:
    """The column names of the tables in a workbook: they must be the same as the text of their cells, and formulas use them."""
    names = re.compile(r"xl/tables/table\d+\.xml")
    tables = [content for name, content in contents.items() if names.fullmatch(name)]
    column = SHEET.name("tableColumn")
    return frozenset(one.get("name", "") for content in tables for one in parse_xml(content).iter(column))


# --- archives ---


def unpack(data: bytes, max_bytes: int, kind: str = "docx") -> dict[str, bytes]:
    """The members of an archive by name; raises `InputError` if any of them is suspicious."""
    damaged = InputError(f"file must be an intact .{kind}; save it again and try again")
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
                    raise damaged
            if len({member.filename for member in members}) < len(members):
                raise InputError("file must not have two members with the same name")
            if sum(member.file_size for member in members) > max_bytes:
                raise _too_large(max_bytes)
            return _read(archive, members, max_bytes)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError, RuntimeError):
        raise damaged from None


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


def _too_large(max_bytes: int) -> InputError:
    return InputTooLarge(f"file must unpack to at most {max_bytes} bytes")


def _check_name(name: str) -> None:
    parts = re.split(r"[/\\]", name)
    is_absolute = name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name)
    if not name or is_absolute or ".." in parts or "\\" in name or "\0" in name or any(ord(c) < 32 for c in name):
        raise InputError("file must not have member names that lead outside the archive")


def _pack(contents: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            method = zipfile.ZIP_STORED if name == _FIRST else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, method)
    return out.getvalue()

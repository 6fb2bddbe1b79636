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

from regard.errors import InputError, InputTooLarge
from regard.translation.documents.document import Document, combine
from regard.translation.documents.epub import open_package
from regard.translation.documents.html import open_html
from regard.translation.documents.mixed import open_mixed
from regard.translation.documents.opendocument import open_document_names
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
_MANIFESTS = ("META-INF/manifest.xml",)
_FIRST = "mimetype"  # must come first and uncompressed, where a format has it


@dataclass(frozen=True)
class Context:
    """What the members of an archive are opened with."""

    kept: frozenset[str]  # texts that are not translated
    target: str  # the target language


@dataclass(frozen=True)
class Member:
    """Members that hold text: a pattern for their names, and what opens them."""

    names: str
    open: Callable[[bytes, Context], Document]
    marker: bytes = b""  # only members that contain this

    def matches(self, name: str, content: bytes) -> bool:
        return bool(re.fullmatch(self.names, name)) and self.marker in content


@dataclass(frozen=True)
class Archive:
    """A format: the member that every file has, and those that hold text."""

    required: str
    members: tuple[Member, ...]


def _runs(vocabulary: Vocabulary) -> Callable[[bytes, Context], Document]:
    return lambda content, context: open_runs(content, vocabulary, context.kept)


def _page(content: bytes, context: Context) -> Document:
    return open_html(content, context.target, is_xml=True)


_CHARTS = r"(?:charts/chart|diagrams/(?:data|drawing)|drawings/drawing)\d+\.xml"
_OPEN_DOCUMENT = Archive(
    "content.xml",
    (
        Member(
            r"(?:[^/]+/)?content\.xml|styles\.xml", lambda content, context: open_mixed(content, open_document_names)
        ),
    ),
)
ARCHIVES = {
    "docx": Archive(
        "[Content_Types].xml",
        (
            Member(r"word/(document|header|footer|footnotes|endnotes|comments)\d*\.xml", _runs(WORD)),
            Member(rf"word/{_CHARTS}", _runs(DRAWING)),
        ),
    ),
    "pptx": Archive(
        "[Content_Types].xml",
        (
            Member(r"ppt/(slides/slide\d+|notesSlides/notesSlide\d+)\.xml", _runs(DRAWING)),
            Member(rf"ppt/{_CHARTS}", _runs(DRAWING)),
        ),
    ),
    "xlsx": Archive(
        "xl/workbook.xml",
        (
            Member(r"xl/(sharedStrings|comments/comment\d+|comments\d+)\.xml", _runs(SHEET)),
            Member(r"xl/worksheets/sheet\d+\.xml", _runs(SHEET), marker=b"inlineStr"),
            Member(rf"xl/{_CHARTS}", _runs(DRAWING)),
        ),
    ),
    "odt": _OPEN_DOCUMENT,
    "ods": _OPEN_DOCUMENT,
    "odp": _OPEN_DOCUMENT,
    "epub": Archive(
        "META-INF/container.xml",
        (
            Member(r"(?i).+\.(xhtml|html|htm|ncx)", _page),
            Member(r"(?i).+\.opf", lambda content, context: open_package(content, context.target)),
        ),
    ),
}


def open_archive(data: bytes, kind: str, max_bytes: int, target: str = "") -> Document:
    """Open a file of this kind, which may unpack to at most `max_bytes`."""
    archive = ARCHIVES[kind]
    contents = unpack(data, max_bytes, kind)
    if any(b"encryption-data" in contents.get(name, b"") for name in _MANIFESTS):
        raise InputError("file must not be encrypted")
    found = {
        name: member for member in archive.members for name in sorted(contents) if member.matches(name, contents[name])
    }
    if archive.required not in contents or (not found and kind != "xlsx"):
        raise InputError(f"file must be a .{kind}")
    _check_sizes([contents[name] for name in found], max_bytes)
    context = Context(_column_names(contents) if kind == "xlsx" else frozenset(), target)
    opened = {name: member.open(contents[name], context) for name, member in found.items()}

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

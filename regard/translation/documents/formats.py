"""The format of a document, from the extension of its file name."""

from __future__ import annotations

from regard.errors import InputError

MEDIA_TYPES = {
    "txt": "text/plain; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "htm": "text/html; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
    "po": "text/x-gettext-translation; charset=utf-8",
    "xliff": "application/xliff+xml; charset=utf-8",
    "xlf": "application/xliff+xml; charset=utf-8",
    "tmx": "application/x-tmx+xml; charset=utf-8",
    "json": "application/json; charset=utf-8",
    "yaml": "application/yaml; charset=utf-8",
    "yml": "application/yaml; charset=utf-8",
    "ipynb": "application/x-ipynb+json; charset=utf-8",
    "tex": "application/x-tex; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "epub": "application/epub+zip",
    "pdf": "application/pdf",
}


TABLES = frozenset(("csv", "tsv"))
ARCHIVE_KINDS = frozenset(("docx", "pptx", "xlsx", "odt", "ods", "odp", "epub"))
# Kinds whose translation is of another kind.
OUTPUT_KINDS = {"pdf": "txt"}
# A local file may unpack to this much; a server sets its own limit.
LOCAL_BYTES = 1 << 30


def list_kinds() -> str:
    """The file name extensions of all formats, for a message."""
    return f".{', .'.join(MEDIA_TYPES)}"


def find_kind(name: str) -> str | None:
    """The format of a file by the extension of its name, in lower case; nothing else of a name is ever used. None: unknown."""
    kind = name.rpartition(".")[2].lower()
    return kind if "." in name and kind in MEDIA_TYPES else None


def kind_of(name: str) -> str:
    """`find_kind` for a file that must be a document."""
    kind = find_kind(name)
    if kind is None:
        raise InputError(f"file must have a name that ends in one of {list_kinds()}")
    return kind


def output_kind(kind: str) -> str:
    """The kind of a translated document."""
    return OUTPUT_KINDS.get(kind, kind)


def is_printable(kind: str) -> bool:
    """Whether a document of this kind is text."""
    return kind not in ARCHIVE_KINDS

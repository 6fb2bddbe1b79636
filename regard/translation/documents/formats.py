"""The format of a document, from the extension of its file name."""

from __future__ import annotations

from regard.errors import InputError
from regard.translation.documents.catalogues import open_catalogue
from regard.translation.documents.document import Document
from regard.translation.documents.markdown import open_markdown
from regard.translation.documents.office import open_office
from regard.translation.documents.plain import open_html, open_text
from regard.translation.documents.subtitles import open_subtitles
from regard.translation.documents.tables import open_table

MEDIA_TYPES = {
    "txt": "text/plain; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "htm": "text/html; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "po": "text/x-gettext-translation; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}


def kind_of(name: str) -> str:
    """The file extension, in lower case; nothing else of a file name is ever used."""
    kind = name.rpartition(".")[2].lower()
    if "." not in name or kind not in MEDIA_TYPES:
        raise InputError(f"file must have a name that ends in one of .{', .'.join(MEDIA_TYPES)}")
    return kind


def open_document(data: bytes, kind: str, max_bytes: int, column: str | None = None) -> Document:
    """Open a document of this kind. An archive may unpack to at most `max_bytes`; `column` is for tables."""
    if column is not None and kind not in ("csv", "tsv"):
        raise InputError("column is for .csv and .tsv files only; leave it out")
    if kind in ("docx", "pptx"):
        return open_office(data, kind, max_bytes)
    if kind in ("csv", "tsv"):
        return open_table(data, "\t" if kind == "tsv" else ",", column)
    readers = {"md": open_markdown, "html": open_html, "htm": open_html, "srt": open_subtitles, "po": open_catalogue}
    return readers.get(kind, open_text)(data)

"""Opens a document of any kind. Importing this imports all readers; what kinds there are is in `formats.py`."""

from __future__ import annotations

from collections.abc import Callable

from regard.errors import InputError
from regard.translation.documents.archives import open_archive
from regard.translation.documents.catalogues import open_catalogue
from regard.translation.documents.document import Document
from regard.translation.documents.formats import ARCHIVE_KINDS, TABLES
from regard.translation.documents.html import open_html
from regard.translation.documents.interface_texts import open_json, open_notebook, open_yaml
from regard.translation.documents.markdown import open_markdown
from regard.translation.documents.pdf import open_pdf
from regard.translation.documents.plain import open_text
from regard.translation.documents.subtitles import open_subtitles
from regard.translation.documents.tables import open_table
from regard.translation.documents.tex import open_tex
from regard.translation.documents.translation_units import open_tmx, open_xliff

_READERS: dict[str, Callable[[bytes], Document]] = {
    "txt": open_text,
    "md": open_markdown,
    "srt": open_subtitles,
    "vtt": open_subtitles,
    "po": open_catalogue,
    "json": open_json,
    "yaml": open_yaml,
    "yml": open_yaml,
    "ipynb": open_notebook,
    "tex": open_tex,
    "pdf": open_pdf,
}
_WITH_LANGUAGE: dict[str, Callable[[bytes, str], Document]] = {
    "html": open_html,
    "htm": open_html,
    "xliff": open_xliff,
    "xlf": open_xliff,
    "tmx": open_tmx,
}


def open_document(data: bytes, kind: str, max_bytes: int, column: str | None = None, target: str = "") -> Document:
    """Open a document of this kind. An archive may unpack to at most `max_bytes`; `column` is for tables; `target` is the code of
    the language that it is translated into."""
    if column is not None and kind not in TABLES:
        raise InputError("column is for .csv and .tsv files only; leave it out")
    if kind in ARCHIVE_KINDS:
        return open_archive(data, kind, max_bytes, target)
    if kind in TABLES:
        return open_table(data, "\t" if kind == "tsv" else ",", column)
    if kind in _WITH_LANGUAGE:
        return _WITH_LANGUAGE[kind](data, target)
    return _READERS[kind](data)

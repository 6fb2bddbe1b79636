"""OpenDocument (LibreOffice): which elements hold text. `mixed.py` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from regard.translation.documents.mixed import MixedContent

_BASE = "urn:oasis:names:tc:opendocument:xmlns"
_TEXT, _TABLE, _OFFICE, _STYLE = (f"{{{_BASE}:{name}:1.0}}" for name in ("text", "table", "office", "style"))
_SVG = f"{{{_BASE}:svg-compatible:1.0}}"
_CELL = f"{_TABLE}table-cell"
_DELETED = f"{_TEXT}tracked-changes"
_STYLE_NAME = f"{_TEXT}style-name"
_CODE = re.compile(r"(Source|Preformatted|Verbatim|Teletype)(_20_|_)?(Text|Code|Char)?", re.IGNORECASE)


def open_document_names(tree: Any) -> MixedContent:
    parents = {
        style.get(f"{_STYLE}name"): style.get(f"{_STYLE}parent-style-name", "") for style in tree.iter(f"{_STYLE}style")
    }
    return MixedContent(
        paragraphs=frozenset((f"{_TEXT}p", f"{_TEXT}h", f"{_SVG}title", f"{_SVG}desc")),
        inline=frozenset((f"{_TEXT}span", f"{_TEXT}a")),
        breaks=frozenset((f"{_TEXT}line-break", f"{_TEXT}tab")),
        space=f"{_TEXT}s",
        count=f"{_TEXT}c",
        is_skipped=partial(_is_skipped, parents),
        is_code=partial(_is_code, parents),
    )


def _is_code(parents: Mapping[str, str], element: Any) -> bool:
    """Whether a paragraph or span has a style for code, or one derived from it."""
    style = element.get(_STYLE_NAME, "")
    return bool(_CODE.fullmatch(style) or _CODE.fullmatch(parents.get(style, "")))


def _is_skipped(parents: Mapping[str, str], paragraph: Any) -> bool:
    """Whether a paragraph is code, shows a number or the result of a formula, or is deleted text that is kept for review."""
    parent = paragraph.getparent()
    if parent is not None and parent.tag == _CELL:
        kind = parent.get(f"{_OFFICE}value-type", "string")
        return kind != "string" or parent.get(f"{_TABLE}formula") is not None
    return _is_code(parents, paragraph) or next(paragraph.iterancestors(_DELETED), None) is not None

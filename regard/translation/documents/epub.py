"""The package file of an EPUB book: its title and description are translated and its language is set. `html.py` reads the pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.translation.documents.document import Document, read_text
from regard.translation.documents.xml import check_xml

_TEXT = re.compile(r"(<(dc:(?:title|description))\b[^<>]{0,999}>)([^<>]+)(?=</\2\s*>)")
_LANGUAGE = re.compile(r"(<dc:language\b[^<>]{0,999}>)[^<>]*(?=</dc:language\s*>)")


def open_package(data: bytes, target: str) -> Document:
    check_xml(data)
    text, bom = read_text(data)
    if target:
        text = _LANGUAGE.sub(lambda found: found[1] + target, text, count=1)
    found = list(_TEXT.finditer(text))

    def save(translations: Sequence[str]) -> bytes:
        pieces, position = [], 0
        for one, translation in zip(found, translations, strict=True):
            pieces += [text[position : one.start(3)], translation.replace("&nbsp;", "&#160;")]
            position = one.end()
        return bom + "".join([*pieces, text[position:]]).encode()

    return Document([one[3] for one in found], save, is_html=True)

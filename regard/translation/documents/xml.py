"""XML inside documents, parsed without document types, entities or anything from outside."""

from __future__ import annotations

import re
from typing import Any

from regard.errors import InputError, UserError


def check_xml(content: bytes) -> None:
    """Refuse XML that declares document types or entities, or that could hide a declaration."""
    # In another encoding a declaration could hide from the search below, so only UTF-8 is accepted, by the parser too.
    declared = re.match(rb"""\s*<\?xml[^>]*encoding=["']([^"']+)""", content.removeprefix(b"\xef\xbb\xbf"))
    if b"\0" in content or (declared and declared[1].upper() not in (b"UTF-8", b"US-ASCII", b"ASCII")):
        raise InputError("file must have its XML in UTF-8")
    if re.search(rb"<!\s*(DOCTYPE|ENTITY)", content, re.IGNORECASE):
        raise InputError("file must not have document types or entities in its XML")


def parse_xml(content: bytes) -> Any:
    """The root element of checked XML."""
    try:
        from lxml import etree
    except ImportError:
        raise UserError("this format needs one more package; run: pip install 'regard[documents]'") from None

    check_xml(content)
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
        raise InputError("file must have well-formed XML; save it again and try again") from None


def write_xml(tree: Any) -> bytes:
    from lxml import etree

    written: bytes = etree.tostring(tree, xml_declaration=True, encoding="UTF-8", standalone=True)
    return written

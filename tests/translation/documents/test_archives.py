"""OpenDocument and EPUB: what is text changes, and spans, links and notes stay on their words; hostile files are refused."""

from __future__ import annotations

import io
import re
import zipfile

import pytest

from regard.errors import InputError, InputTooLarge
from regard.translation.documents.archives import ARCHIVES, unpack
from regard.translation.documents.formats import ARCHIVE_KINDS
from regard.translation.documents.readers import open_document
from tests.translation.documents.test_documents import MOST, packed, shouted

NAMES = {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "text", "table", "style", "draw")
} | {"svg": "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0", "xlink": "http://www.w3.org/1999/xlink"}
SPACES = " ".join(f'xmlns:{name}="{space}"' for name, space in NAMES.items())


def opendocument(body: str, styles: str = "", **more: bytes) -> bytes:
    content = f'<office:document-content {SPACES}><office:automatic-styles>{styles}</office:automatic-styles><office:body>{body}</office:body></office:document-content>'  # fmt: skip  # noqa: E501
    return packed({"mimetype": b"application/vnd.oasis.opendocument.text", "content.xml": content.encode(), **more})


def body_of(data: bytes) -> str:
    content = unpack(data, MOST, "odt")["content.xml"].decode()
    return content[content.index("<office:body>") + 13 : content.index("</office:body>")]


def translated(body: str, words: dict[str, str], styles: str = "") -> str:
    document = open_document(opendocument(body, styles), "odt", MOST)
    plans = document.plans("en")
    return body_of(document.save([plan.join([words[one] for one in plan.sentences]) for plan in plans]))


def span(text: str, style: str = "T1") -> str:
    return f'<text:span text:style-name="{style}">{text}</text:span>'


def test_spans_links_and_notes_follow_their_words() -> None:
    link = '<text:a xlink:href="http://x.y">{}</text:a>'
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>{}</text:p></text:note-body></text:note>"
    body = f"<text:p>{span('black')} is the cat{note.format('a note')} on {link.format('the wall')}</text:p>"
    words = {
        "black is the cat on the wall": "auf der Mauer sitzt die Katze schwarz",
        "black": "schwarz",
        "the wall": "der Mauer",
        "a note": "eine Notiz",
        "": "",
    }
    result = translated(body, words)
    assert result.startswith(f"<text:p>auf {link.format('der Mauer')} sitzt") and span("schwarz") in result
    assert re.search(rf"\w{note.format('eine Notiz')} ", result)  # after a word, as before


def test_a_paragraph_of_spans_alone_has_a_base() -> None:
    body = f"<text:p>{span('the ')}{span('black', 'T2')}{span('<text:s/>cat sat')}</text:p>"
    words = {"the black cat sat": "die Katze saß schwarz da", "black": "schwarz"}
    assert translated(body, words) == f"<text:p>{span('die Katze saß ')}{span('schwarz', 'T2')}{span(' da')}</text:p>"


def test_breaks_numbers_code_and_deleted_text() -> None:
    cell = '<table:table-cell office:value-type="{}"{}><text:p>{}</text:p></table:table-cell>'
    styles = '<style:style style:name="P9" style:parent-style-name="Preformatted_20_Text"/>'
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        "<text:p>one<text:line-break/>two<text:tab/>three</text:p>"
        f"<text:p>four {span('code', 'Source_20_Text')}</text:p><text:p text:style-name='P9'>more code</text:p>"
        + cell.format("float", ' office:value="1.5"', "one point five") + cell.format("string", "", "text")
        + cell.format("string", ' table:formula="of:=A1"', "computed")
        + "<draw:frame><svg:title>a picture</svg:title></draw:frame>"
    )  # fmt: skip
    result = body_of(shouted(opendocument(body, styles), "odt"))
    assert re.sub("<[^<>]+>", "|", result).replace("||", "|").replace("||", "|") == (
        "|deleted|ONE|TWO|THREE|FOUR |code|more code|one point five|TEXT|computed|A PICTURE|"
    )


def test_the_kind_of_an_archive_comes_first_and_uncompressed() -> None:
    saved = shouted(opendocument("<text:p>a</text:p>"), "odt")
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        first = archive.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
    assert saved[30:38] == b"mimetype"


def epub(page: str) -> bytes:
    package = '<package xmlns:dc="x"><dc:title>a book</dc:title><dc:language>en</dc:language><dc:creator>me</dc:creator></package>'
    contents = (
        "<!DOCTYPE ncx PUBLIC '-//NISO//DTD ncx 2005-1//EN' 'x'><ncx><navLabel><text>chapter</text></navLabel></ncx>"
    )
    return packed(
        {
            "mimetype": b"application/epub+zip",
            "META-INF/container.xml": b"<container/>",
            "EPUB/content.opf": package.encode(),
            "EPUB/toc.ncx": contents.encode(),
            "EPUB/a.xhtml": page.encode(),
            "EPUB/style.css": b"p { color: red }",
        }
    )


def test_the_pages_and_the_title_of_a_book_are_translated() -> None:
    page = '<?xml version="1.0"?><!DOCTYPE html><html lang="en" xml:lang="en"><p>a <b>b</b>&#160;c</p><img alt="d"/></html>'
    document = open_document(epub(page), "epub", MOST, None, "de")
    plans = document.plans("en")
    members = unpack(
        document.save([plan.join([one.upper() for one in plan.sentences]) for plan in plans]), MOST, "epub"
    )
    assert b'<html lang="de" xml:lang="de"><p>A <b>B</b>&#160;C</p><img alt="D"/></html>' in members["EPUB/a.xhtml"]
    assert b"<dc:title>A BOOK</dc:title><dc:language>de</dc:language><dc:creator>me<" in members["EPUB/content.opf"]
    assert b"<text>CHAPTER</text>" in members["EPUB/toc.ncx"] and members["EPUB/style.css"] == b"p { color: red }"


# --- hostile files ---

BOMB = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>'
XML = {
    "docx": "word/document.xml", "pptx": "ppt/slides/slide1.xml", "xlsx": "xl/sharedStrings.xml", "odt": "content.xml",
    "ods": "content.xml", "odp": "content.xml", "epub": "EPUB/content.opf",
}  # fmt: skip


def test_every_archive_is_tried() -> None:
    assert XML.keys() == ARCHIVES.keys() == ARCHIVE_KINDS


@pytest.mark.parametrize("kind", XML)
def test_hostile_archives_are_refused(kind: str) -> None:
    required = {ARCHIVES[kind].required: b"<x/>", "EPUB/a.xhtml": b"<p>a</p>"}
    with pytest.raises(InputError, match="entities"):
        open_document(packed({**required, XML[kind]: BOMB}), kind, MOST)
    with pytest.raises(InputTooLarge, match=f"at most {MOST} bytes"):
        open_document(packed({**required, "media/big": b"0" * 2 * MOST}), kind, MOST)
    with pytest.raises(InputTooLarge, match="500000 tags of text"):
        open_document(packed({**required, XML[kind]: b"<a>" * 600_000}), kind, MOST)
    with pytest.raises(InputError, match="lead outside the archive"):
        open_document(packed({**required, "../x": b""}), kind, MOST)
    with pytest.raises(InputError, match=rf"must be a \.{kind}"):
        open_document(packed({"x": b"y"}), kind, MOST)
    if kind != "epub":  # pages are no XML that is parsed
        with pytest.raises(InputError, match="well-formed"):
            open_document(packed({**required, XML[kind]: b"<a>" * 300_000}), kind, MOST)


def test_an_encrypted_document_is_refused_as_such() -> None:
    manifest = {"META-INF/manifest.xml": b"<manifest:encryption-data/>"}
    with pytest.raises(InputError, match="must not be encrypted"):
        open_document(opendocument("", **manifest), "odt", MOST)

"""The server takes every kind of document that the command line takes, and a PDF comes back as text."""

from __future__ import annotations

import io

import deepl
import pytest

from regard.translation.documents.archives import unpack
from regard.translation.documents.formats import MEDIA_TYPES
from tests.serve.server import Running, running
from tests.translation.documents.test_archives import epub, opendocument
from tests.translation.documents.test_catalogues import XLIFF_1
from tests.translation.documents.test_documents import MOST
from tests.translation.documents.test_office import workbook
from tests.translation.documents.test_tex_and_pdf import pdf_of

TMX = '<tmx version="1.4"><header srclang="src"/><body><tu><tuv xml:lang="src"><seg>a b c</seg></tuv></tu></body></tmx>'
NOTEBOOK = '{"cells": [{"cell_type": "markdown", "source": ["a b c"]}]}'
# Each with what must be in its translation, in the given member of an archive; the model reverses letters.
DOCUMENTS: dict[str, tuple[bytes, str, str]] = {
    "xlsx": (workbook(), "name", "xl/worksheets/sheet1.xml"),
    "odt": (opendocument("<text:p>a b c</text:p>"), "c b a", "content.xml"),
    "ods": (opendocument("<text:p>a b c</text:p>"), "c b a", "content.xml"),
    "odp": (opendocument("<text:p>a b c</text:p>"), "c b a", "content.xml"),
    "epub": (epub("<html><p>a b c</p></html>"), '<html lang="tgt"><p>c b a</p></html>', "EPUB/a.xhtml"),
    "vtt": (b"WEBVTT\n\n00:01.000 --> 00:02.000\na b c\n", "00:02.000\nc b a\n", ""),
    "xliff": (XLIFF_1.format(language="", first="", second="").encode(), 'target-language="tgt"', ""),
    "tmx": (TMX.encode(), '<tuv xml:lang="tgt"><seg>c b a</seg></tuv>', ""),
    "json": (b'{"a b": "a b c"}', '{"a b": "c b a"}', ""),
    "yaml": (b"a: a b c\n", "a: c b a\n", ""),
    "ipynb": (NOTEBOOK.encode(), '"source": ["c b a"]', ""),
    "tex": (b"\\emph{a b c}", "\\emph{c b a}", ""),
    "pdf": (pdf_of("a b c"), "c b a\n\n", ""),
    "html": (b'<html><img alt="a b c">', '<html lang="tgt"><img alt="c b a">', ""),
}


@pytest.fixture(scope="module")
def server():
    with running() as one:
        yield one


def test_no_kind_is_forgotten() -> None:
    elsewhere = {
        "txt",
        "md",
        "htm",
        "srt",
        "po",
        "csv",
        "tsv",
        "docx",
        "pptx",
        "xlf",
        "yml",
    }  # test_documents.py, and twins
    assert DOCUMENTS.keys() | elsewhere == MEDIA_TYPES.keys()


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_kind_is_served(server: Running, kind: str) -> None:
    data, expected, member = DOCUMENTS[kind]
    fields = {"source": "src", "target": "tgt"}
    answer = server.post("/translate_file", files={"file": (f"x.{kind}", data)}, data=fields)
    assert answer.status_code == 200, answer.text
    content = server.get(answer.json()["translatedFileUrl"]).content
    text = unpack(content, MOST, kind)[member].decode() if member else content.decode()
    assert expected in text
    assert answer.json()["translatedFileUrl"].endswith(".txt" if kind == "pdf" else f".{kind}")


def test_deepls_client_gets_the_text_of_a_pdf(server: Running) -> None:
    translator = deepl.Translator("any", server_url=server.url)
    out = io.BytesIO()
    translator.translate_document(pdf_of("a b c"), out, filename="x.pdf", target_lang="TGT", source_lang="SRC")
    assert out.getvalue() == b"c b a\n\n"

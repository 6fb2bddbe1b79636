"""Documents: what is text changes, everything else stays; and what is no document is refused before it can do harm."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import deepl
import pytest

from regard.errors import InputError
from regard.serve.document_files import DocumentFiles
from regard.serve.document_jobs import DocumentJobs
from regard.serve.web.status import as_http
from regard.translation.documents.archives import unpack
from regard.translation.documents.formats import kind_of
from regard.translation.documents.readers import open_document
from regard.translation.markup.marked_text import MarkedText
from tests.serve.server import Running, held_by, running, until

MOST = 10_000_000
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


def _loud(text: str) -> str:
    parts = re.split(r"(\\(?:x[0-9a-f]+|[0-7]+|a)(?:\[\d+m)?)", text)
    return "".join(part if number % 2 else part.upper() for number, part in enumerate(parts))


def shouted(data: bytes, kind: str, **settings: str) -> bytes:
    """The document with every text in upper case, but for the codes of a terminal."""
    document = open_document(data, kind, MOST, **settings)
    plans = document.plans("en")
    return document.save([plan.join([_loud(sentence) for sentence in plan.sentences]) for plan in plans])


def packed(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo("x")
            info.filename = name  # as it is: the constructor would tidy it up
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def docx(body: str, **more: bytes) -> bytes:
    document = (
        f'<?xml version="1.0" encoding="UTF-8"?><w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    )
    return packed(
        {
            "[Content_Types].xml": b"<Types/>",
            "word/document.xml": document.encode(),
            "word/media/image1.png": b"\x89PNG",
            **more,
        }
    )


def run(text: str, style: str = "") -> str:
    return f'<w:r><w:rPr>{style}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


# --- formats ---


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("txt", "One.\r\n\r\nTwo\n", "ONE.\r\n\r\nTWO\n"),
        ("txt", "\ufeffmark", "\ufeffMARK"),
        (
            "md",
            "---\ntitle: x\n---\n# Head\n\n- item *one*\n1. `code` and [link](http://a.b/c)\n```\ncode\n```\n\n    code\n"
            "| a | b |\n|---|---|\n> quote ![image](x.png)\n---\n[x]: http://y\n",
            "---\ntitle: x\n---\n# HEAD\n\n- ITEM *ONE*\n1. `code` AND [LINK](http://a.b/c)\n```\ncode\n```\n\n    code\n"
            "| A | B |\n|---|---|\n> QUOTE ![IMAGE](x.png)\n---\n[x]: http://y\n",
        ),
        (
            "srt",
            "1\n00:00:01,000 --> 00:00:02,000\nhello there\nyou two\n\n2\n00:00:03,000 --> 00:00:04,000\nbye\n",
            "1\n00:00:01,000 --> 00:00:02,000\nHELLO THERE\nYOU TWO\n\n2\n00:00:03,000 --> 00:00:04,000\nBYE\n",
        ),
        (
            "srt",
            "1\n00:00:01,000 --> 00:00:02,000\n<i>I was</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n- who?\n- my father\nand more\n",
            "1\n00:00:01,000 --> 00:00:02,000\n<i>I WAS</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n- WHO?\n- MY FATHER\nAND MORE\n",
        ),
        ("csv", 'id,text\r\n1,"a, ""b"""\r\n2,c\r\n', 'id,text\r\n1,"A, ""B"""\r\n2,C\r\n'),
        ("tsv", "id\ttext\n1\ta b\n", "id\ttext\n1\tA B\n"),
        ("tsv", 'id\ttext\r\n5" pipe\t"bob" said "\r\n"x" y\t\r\n', 'id\ttext\r\n5" pipe\t"BOB" SAID "\r\n"x" y\t\r\n'),
        (
            "po",
            'msgid "\\033[1mthe \\"file\\"\\x1b[0m\\a\\t"\nmsgstr ""\nmsgid "a \\\\n b"\nmsgstr ""\n',
            'msgid "\\033[1mthe \\"file\\"\\x1b[0m\\a\\t"\nmsgstr "\\033[1mTHE \\"FILE\\"\\x1b[0m\\a\\t"\n'
            'msgid "a \\\\n b"\nmsgstr "A \\\\N B"\n',
        ),
        (
            "po",
            'msgid ""\nmsgstr ""\n"Language: de\\n"\n\n#: x.c:1\nmsgid "hello"\nmsgstr ""\n\nmsgid "done"\nmsgstr "fertig"\n\n'
            'msgid ""\n"two\\n"\n"lines"\nmsgstr ""\n\nmsgid "one file"\nmsgid_plural "files"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            'msgid ""\nmsgstr ""\n"Language: de\\n"\n\n#: x.c:1\nmsgid "hello"\nmsgstr "HELLO"\n\nmsgid "done"\nmsgstr "fertig"\n\n'
            'msgid ""\n"two\\n"\n"lines"\nmsgstr "TWO\\nLINES"\n\nmsgid "one file"\nmsgid_plural "files"\nmsgstr[0] "ONE FILE"\n'
            'msgstr[1] "FILES"\n',
        ),
    ],
)
def test_text_changes_and_the_rest_stays(kind: str, before: str, after: str) -> None:
    settings = {"column": "text"} if kind in ("csv", "tsv") else {}
    assert shouted(before.encode(), kind, **settings).decode() == after


def srt(*blocks: str) -> str:
    """Blocks of subtitles, as they follow on each other, with their numbers and times."""
    return "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{block}" for n, block in enumerate(blocks, start=1))


@pytest.mark.parametrize("odd", range(7))
def test_each_line_of_subtitles_keeps_its_own_end(odd: int) -> None:
    lines = srt("one two\nthree four\n\n", "five\n").splitlines()
    before = "".join(line + ("\r\n" if number == odd else "\n") for number, line in enumerate(lines))
    assert shouted(before.encode(), "srt").decode() == before.upper()
    windows = before.replace("\r\n", "\n").replace("\n", "\r\n")
    assert shouted(windows.encode(), "srt").decode() == windows.upper()


def test_a_translation_of_fewer_lines_ends_as_its_block_did() -> None:
    document = open_document(srt("- a\n- b c\r\nd e\n\n", "f\ng").encode(), "srt", MOST)
    assert document.texts == ["- a", "- b c d e", "f g"]
    assert document.save(["-x", "y", "z"]).decode() == srt("-x\ny\n\n", "z")
    assert document.save(["-x", "", ""]).decode() == srt("-x\n\n", "")


def test_subtitles_without_an_empty_line_between_are_still_blocks() -> None:
    before = srt("one\n", "42\n", "two\nthree\n")
    assert open_document(before.encode(), "srt", MOST).texts == ["one", "42", "two three"]
    assert shouted(before.encode(), "srt").decode() == before.upper()
    unnumbered = "00:00:01,000 --> 00:00:02,000\none\n00:00:03,000 --> 00:00:04,000\ntwo"
    assert open_document(unnumbered.encode(), "srt", MOST).texts == ["one", "two"]


@pytest.mark.parametrize("tag", ['<font color="#ffff00" face="Arial Black">', "{\\fnArial Black\\an 8}"])
def test_a_line_of_subtitles_never_ends_inside_a_tag(tag: str) -> None:
    document = open_document(srt(f"{tag}one\ntwo\n").encode(), "srt", MOST)
    assert document.save([f"{tag}one two three four"]).decode() == srt(f"{tag}one two\nthree four\n")
    assert document.save([f"one two {tag}three four"]).decode() == srt(f"one two\n{tag}three four\n")
    assert document.save(["1 < 2 and 4 > 3 so"]).decode() == srt("1 < 2 and\n4 > 3 so\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{\\i1}I am at home.{\\i0}", "{\\i1}I AM AT HOME.{\\i0}"),
        ("{\\i1}I am. At home.{\\i0}", "{\\i1}I AM. AT HOME.{\\i0}"),
        ("{\\an8}<i>I am</i>", "{\\an8}<i>I AM</i>"),
        ("{\\an8\\c&Hffffff&}I am", "{\\an8\\c&Hffffff&}I AM"),
        ("{\\i1}I am", "{\\i1}I AM"),
        ("I <b>am</b> at {\\i1}home{\\i0}", "I <b>AM</b> AT {\\i1}HOME{\\i0}"),
        ("I <font color=red>am</font> at</b>", "I <font color=red>AM</font> AT</b>"),
        ("{\\an8}- I am\n{\\an8}- so am I", "{\\an8}- I AM\n{\\an8}- SO AM I"),
        ("{music} if a <b and c", "{MUSIC} IF A <B AND C"),
    ],
)
def test_tags_of_subtitles_stay_as_they_are(before: str, after: str) -> None:
    assert shouted(srt(before + "\n").encode(), "srt").decode() == srt(after + "\n")


def test_tags_of_subtitles_follow_their_words() -> None:
    (text,) = (document := open_document(srt("I {\\i1}never{\\i0} <b>said</b> that.").encode(), "srt", MOST)).texts
    page = MarkedText(text, "en", parse_markup=document.parse_markup)
    assert page.sentences == ["I never said that.", "never", "said"]
    translated = page.join(["Das habe ich nie gesagt.", "nie", "gesagt"])
    assert translated == "Das habe ich {\\i1}nie{\\i0} <b>gesagt</b>."


def test_a_column_can_be_named_by_number() -> None:
    assert shouted(b"a,b\nc,d\n", "csv", column="2") == b"a,B\nc,D\n"
    assert shouted(b"a\nb\n", "csv") == b"A\nB\n"
    for wrong in ("3", "0", "name", "²", "9" * 5000):
        with pytest.raises(InputError, match="column must be a name in the first row or a number from 1 to 2"):
            open_document(b"a,b\n", "csv", MOST, wrong)
    with pytest.raises(InputError, match="column must name the column"):
        open_document(b"a,b\n", "csv", MOST)
    with pytest.raises(InputError, match="column is for"):
        open_document(b"a,b\n", "txt", MOST, "1")


def test_word_keeps_its_runs_and_everything_that_is_no_text() -> None:
    bold = '<w:b w:val="1"/>'
    body = f"<w:p>{run('the ')}{run('black', bold)}{run(' cat')}</w:p><w:p><w:r><w:br/></w:r></w:p><w:p>{run('a &amp; b')}</w:p>"
    result = unpack(shouted(docx(body), "docx"), MOST)
    text = result["word/document.xml"].decode()
    assert result["word/media/image1.png"] == b"\x89PNG"
    assert re.findall(r"<w:t[^>]*>([^<]*)</w:t>", text) == ["THE ", "BLACK", " CAT", "A &amp; B"]
    assert bold in text and "<w:br/>" in text and f'xmlns:w="{WORD}"' in text


def test_slides_are_translated() -> None:
    slide = f'<p:sld xmlns:p="x" xmlns:a="{DRAWING}"><a:p><a:r><a:t>hello</a:t></a:r></a:p></p:sld>'
    data = packed({"[Content_Types].xml": b"<Types/>", "ppt/slides/slide1.xml": slide.encode()})
    assert b"<a:t>HELLO</a:t>" in unpack(shouted(data, "pptx"), MOST)["ppt/slides/slide1.xml"]


# --- what is refused ---

TRAVERSAL = [
    "../x", "../../etc/passwd", "word/../../x", "/etc/passwd", "//x", "\\x", "..\\x", "word\\..\\..\\x", "C:\\x", "c:/x", "C:x",
    "word/..", "..", "a/b/../../../c", "./../x", "word//../../x", "\\\\host\\share", "word/\x01x", "x\n", "\t/../x", "../",
    "word/../../../../../../tmp/x", "D:/", "a\\b", "\\..\\", "..\\..\\windows\\system32", "word/media/../../../x.png", "/", "/..",
    "/word/document.xml",
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSAL)
def test_names_that_lead_out_of_the_archive_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="names that lead outside"):
        open_document(docx("", **{name: b"x"}), "docx", MOST)


def test_an_archive_may_not_unpack_to_too_much() -> None:
    with pytest.raises(InputError, match="unpack to at most 10000000 bytes"):
        open_document(docx("", **{"word/big.bin": b"0" * 20_000_000}), "docx", MOST)


def test_an_archive_that_lies_about_its_size_is_found_out() -> None:
    data = bytearray(docx("", **{"word/big.bin": b"0" * 20_000_000}))
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (5).to_bytes(4, "little")
    with pytest.raises(InputError, match=r"must be an intact|unpack to at most"):
        open_document(bytes(data), "docx", MOST)


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>',
        '<!DOCTYPE x SYSTEM "file:///etc/passwd">',
        '<!doctype x [<!entity a SYSTEM "http://localhost/">]>',
    ],
)
def test_entities_are_refused_before_the_xml_is_parsed(head: str) -> None:
    xml = f'<?xml version="1.0"?>{head}<w:document xmlns:w="{WORD}"/>'
    with pytest.raises(InputError, match="document types or entities"):
        open_document(docx("", **{"word/document.xml": xml.encode()}), "docx", MOST)
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        hidden = xml.replace('"1.0"', f'"1.0" encoding="{encoding}"').encode(encoding)
        with pytest.raises(InputError, match="XML in UTF-8"):
            open_document(docx("", **{"word/document.xml": hidden}), "docx", MOST)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"no archive", "docx", "intact"),
        (docx("")[:200], "docx", "intact"),
        (packed({"x": b""}), "docx", "must be a .docx"),
        (docx("<w:p>"), "docx", "well-formed XML"),
        (docx("<w:p/>" * 600_000), "docx", "500000 tags"),
        (packed({f"word/{n}": b"" for n in range(6000)}), "pptx", "at most 5000 members"),
        (b"\xff\xfe", "txt", "UTF-8"),
        (b'a,"b', "csv", "quotation mark"),
        (b'msgid "x\n', "po", "quotation mark"),
        (b'msgid "' + b'\\"' * 1_000_000, "po", "quotation mark"),  # in one go, or it would take days
    ],
)
def test_what_is_no_document_is_refused_in_one_line(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        open_document(data, kind, MOST, "1" if kind == "csv" else None)
    assert as_http(refused.value).status in (400, 413)


@pytest.mark.parametrize("name", ["x", "x.exe", "docx", ".", "", "x.docx/"])
def test_unknown_endings_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"name that ends in one of \.txt, \.md"):
        kind_of(name)


# --- over HTTP ---


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("--limit", "file_bytes=100_000", "--limit", "unpacked_bytes=1_000_000") as one:
        yield one


FIELDS = {"source": "src", "target": "tgt"}


def test_emphasis_and_links_of_markdown_follow_their_words(server: Running) -> None:
    text = b"# a *b* c\n\n- a **b** c [d](http://x.y/z)\n\n> *a b* `a b` c\n"
    answer = server.post("/translate_file", files={"file": ("x.md", text)}, data=FIELDS)
    done = server.get(answer.json()["translatedFileUrl"]).content
    assert done == b"# c *b* a\n\n- [d](http://x.y/z) c **b** a\n\n> *b a* `a b` c\n"


def test_a_document_goes_up_and_its_translation_comes_down(server: Running) -> None:
    body = f"<w:p>{run('a b c')}</w:p><w:p>{run('p o')}</w:p>"
    answer = server.post("/translate_file", files={"file": ("../../x.docx", docx(body))}, data=FIELDS)
    url = answer.json()["translatedFileUrl"]
    assert re.fullmatch(rf"{re.escape(server.url)}/download_file/[0-9a-f]{{32}}\.docx", url)
    fetched = server.get(url)
    assert fetched.headers["content-disposition"] == 'attachment; filename="translated.docx"'
    text = unpack(fetched.content, MOST)["word/document.xml"].decode()
    assert re.findall(r"<w:t[^>]*>([^<]*)</w:t>", text) == ["c b a", "o p"]
    for name in ("..%2f..%2fetc%2fpasswd", "x.docx", "0" * 32 + ".docx"):
        assert server.get(f"/download_file/{name}").status_code == 404


def test_bad_uploads_are_refused(server: Running) -> None:
    def status(name: str, content: bytes, **fields: str) -> int:
        return server.post("/translate_file", files={"file": (name, content)}, data={**FIELDS, **fields}).status_code

    assert status("x.txt", b"a b") == 200
    assert status("x.exe", b"a b") == 400
    assert status("x.txt", b"a" * 100_001) == 413
    assert status("x.txt", b"a" * 300_000) == 413
    assert status("x.docx", docx("", **{"word/big.bin": b"0" * 2_000_000})) == 413
    assert status("x.docx", docx("", **{"../x": b"0"})) == 400
    assert status("x.txt", b"a", target="xx") == 400
    assert server.post("/translate_file", data=FIELDS).status_code == 415
    assert server.post("/translate_file", files={"other": ("x.txt", b"a")}, data=FIELDS).status_code == 422
    assert server.post("/translate_file", files={"file": ("x.txt", b"a")}).status_code == 422
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert server.post("/translate_file", content=b"--x\r\nbroken", headers=broken).status_code in (400, 422)
    assert server.get("/health").status_code == 200


def events(server: Running, path: str, **settings) -> list[tuple[str, dict]]:
    with (
        server.client() as client,
        client.stream("POST", path, headers={"accept": "text/event-stream"}, **settings) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.read()
        text = "".join(answer.iter_text())
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    return [(name, json.loads(data)) for name, data in found]


def test_sentences_come_as_events_and_then_the_whole_answer(server: Running) -> None:
    found = events(server, "/translate", json={**FIELDS, "q": ["a b\nc d e", "p o"]})
    *sentences, last = found
    assert last == ("result", {"translatedText": ["b a\ne d c", "o p"]})
    assert {name for name, _ in sentences} == {"sentence"}
    assert sorted((one["text"], one["sentence"], one["of"], one["translatedText"]) for _, one in sentences) == [
        (0, 0, 2, "b a"),
        (0, 1, 2, "e d c"),
        (1, 0, 1, "o p"),
    ]


def test_progress_of_a_document_comes_as_events(server: Running) -> None:
    *sentences, last = events(server, "/translate_file", files={"file": ("x.txt", b"a b\nc d\n")}, data=FIELDS)
    assert len(sentences) == 2 and last[0] == "result"
    assert server.get(last[1]["translatedFileUrl"]).content == b"b a\nd c\n"


def test_what_is_refused_is_refused_before_events_begin(server: Running) -> None:
    answer = server.post(
        "/translate", json={**FIELDS, "q": "a", "target": "xx"}, headers={"accept": "text/event-stream"}
    )
    assert answer.status_code == 400 and answer.json()["error"].startswith("target must be")


# --- DeepL's way ---


def by_client(server: Running, name: str, content: bytes, **settings: str) -> tuple[bytes, deepl.DocumentStatus]:
    """A document through DeepL's own client."""
    out = io.BytesIO()
    client = deepl.Translator(settings.pop("key", "any"), server_url=server.url)
    status = client.translate_document(content, out, target_lang="TGT", filename=name, **settings)
    return out.getvalue(), status


def test_deepls_own_client_translates_documents(server: Running, tmp_path: Path) -> None:
    (tmp_path / "in.md").write_text("# a b c\n")
    client = deepl.Translator("any", server_url=server.url)
    client.translate_document_from_filepath(tmp_path / "in.md", tmp_path / "out.md", target_lang="TGT")
    assert (tmp_path / "out.md").read_text() == "# c b a\n"
    content, status = by_client(server, "x.txt", b"a b\nc d\n", source_lang="SRC")
    assert content == b"b a\nd c\n"
    assert status.done and status.billed_characters == 8
    before = server.get("/v2/usage").json()["character_count"]
    word, _ = by_client(server, "../../x.docx", docx(f"<w:p>{run('a b c')}</w:p>"))
    assert ">c b a</w:t>" in unpack(word, MOST)["word/document.xml"].decode()
    assert server.get("/v2/usage").json()["character_count"] == before + 5


def test_a_document_that_is_none_ends_in_an_error_that_says_why(server: Running) -> None:
    with pytest.raises(deepl.DocumentTranslationException, match=r"must be an intact \.docx"):
        by_client(server, "x.docx", b"no archive")
    for fields, content, message in (
        ({"output_format": "pdf"}, b"a", "output_format must be that of the file"),
        ({"source_lang": "XX"}, b"a", "source_lang must be a language that is served into tgt: src"),
        ({}, b"a" * 100_001, "at most 100000 bytes"),
    ):
        with pytest.raises(deepl.DeepLException, match=message):
            by_client(server, "x.txt", content, **fields)
    with pytest.raises(deepl.DeepLException, match="name that ends in one of"):
        by_client(server, "x.exe", b"a")


def test_a_document_is_found_by_id_and_key_only(server: Running) -> None:
    sent = server.post("/v2/document", files={"file": ("x.txt", b"a b")}, data={"target_lang": "tgt"}).json()
    path, key = f"/v2/document/{sent['document_id']}", {"document_key": sent["document_key"]}
    until(lambda: server.post(path, json=key).json()["status"] != "translating")
    assert server.post(path, json=key).json()["status"] == "done"
    assert server.post(f"{path}/result", json=key).content == b"b a"
    assert server.post(f"{path}/result", data=key).content == b"b a"  # as a form, and again
    for wrong in ("", "x", sent["document_key"][:-1], sent["document_id"]):
        for end in ("", "/result"):
            assert server.post(path + end, json={"document_key": wrong}).status_code == 404
    for name in ("0" * 32, "..%2f..%2fetc%2fpasswd", "..", "x" * 5000):
        assert server.post(f"/v2/document/{name}", json=key).status_code in (404, 405)
    assert server.post(path, json={**key, "more": "x" * 16_384}).status_code == 413
    assert server.post(path, json={}).status_code == 422
    assert not [line for line in server.lines if sent["document_id"] in line or sent["document_key"] in line]


def test_a_document_that_is_worked_on_has_a_place_and_is_finished_before_a_stop(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with running("--limit", "file_places=1", code=held_by(hold)) as server:
        upload = {"files": {"file": ("x.txt", b"a b")}, "data": {"target_lang": "tgt"}}
        sent = server.post("/v2/document", **upload).json()
        path, key = f"/v2/document/{sent['document_id']}", {"document_key": sent["document_key"]}
        assert server.post(path, json=key).json()["status"] == "translating"
        early = server.post(f"{path}/result", json=key)
        assert early.status_code == 503 and early.headers["retry-after"]
        assert server.post("/v2/document", **upload).status_code == 429
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status_code == 503)
        assert server.post("/v2/document", **upload).status_code == 503
        assert server.post(path, json=key).json()["status"] == "translating"  # it can be asked after until the end
        hold.unlink()
        entries = [json.loads(line) for line in server.wait()]
    (document,) = [entry for entry in entries if entry["event"] == "document"]
    assert (document["status"], document["characters"]) == ("done", 3)


def test_documents_are_given_up_and_forgotten(tmp_path: Path) -> None:
    jobs = DocumentJobs(tmp_path / "documents")
    late = jobs.begin("txt", -1, 10)
    found = jobs.find(late)
    assert found is not None and (found.status, found.error) == ("error", "the document timed out; send it again")
    assert late.key not in (jobs.folder / f"{late.id}.json").read_text()
    done = jobs.begin("txt", 60, 10)
    jobs.finish(done, b"text", 4)
    assert jobs.result(done) == b"text"
    ago = time.time() - 3600
    for path in jobs.folder.iterdir():
        os.utime(path, (ago, ago))
    later = jobs.begin("txt", -3600, 10)
    assert jobs.find(done) is None and jobs.find(later) is None  # also where nothing was swept yet
    jobs.begin("txt", 60, 10)
    states = list(jobs.folder.glob("*.json"))
    assert len(states) == 2  # it, and the one that was given up just now
    assert {path.stem for path in jobs.folder.glob("*.result")} == {path.stem for path in states}


def test_what_is_translated_stays_however_many_come(tmp_path: Path) -> None:
    jobs = DocumentJobs(tmp_path / "documents")
    busy = jobs.begin("txt", 60, 10)
    for _ in range(120):
        jobs.finish(jobs.begin("txt", 60, 10), b"text", 4)
    assert jobs.find(busy) is not None
    assert len(list(jobs.folder.glob("*.result"))) == 101  # the room for it is one of them
    jobs.finish(busy, b"late", 4)
    assert jobs.result(busy) == b"late"


def test_a_file_is_not_given_out_after_its_time(tmp_path: Path) -> None:
    store = DocumentFiles(tmp_path)
    name = store.begin("txt", 10)
    store.finish(name, b"text")
    assert store.read(name) == b"text"
    ago = time.time() - 3600
    os.utime(tmp_path / name, (ago, ago))
    assert store.read(name) is None and store.read("0" * 32 + ".txt") is None


def test_a_document_that_is_swept_while_it_is_asked_for_is_not_found(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    sweeps = f"""
import pathlib, regard.serve.document_files as files
read = files.DocumentFiles.read
def swept(self, name):  # removed right before it is opened, whatever was known of it until then
    if pathlib.Path({str(gone)!r}).exists():
        (self.folder / name).unlink()
    return read(self, name)
files.DocumentFiles.read = swept
"""
    with running(code=sweeps) as server:
        upload = {"file": ("a.txt", b"a b c")}
        url = server.post("/translate_file", files=upload, data={"source": "src", "target": "tgt"}).json()
        path = url["translatedFileUrl"].removeprefix(server.url)
        assert server.get(path).content == b"c b a"
        gone.touch()
        answer = server.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "there is no such document, or it has expired; translate it again"}


def test_a_document_that_is_swept_while_it_is_read_comes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DocumentFiles(tmp_path)
    name = store.begin("txt", 10)
    store.finish(name, b"text")

    def sweep(number: int) -> os.stat_result:
        (tmp_path / name).unlink()
        return fstat(number)

    fstat = os.fstat
    monkeypatch.setattr("regard.serve.document_files.os.fstat", sweep)
    assert store.read(name) == b"text"
    monkeypatch.undo()
    assert store.read(name) is None

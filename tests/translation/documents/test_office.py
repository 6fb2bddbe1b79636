"""Word and PowerPoint files: which text belongs together, where its translation goes, and that neither takes more than a walk."""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from lxml import etree

from regard.errors import InputError
from regard.serve.web.status import as_http
from regard.translation.documents.archives import unpack
from regard.translation.documents.readers import open_document
from regard.translation.documents.run_filling import spread
from tests.serve.server import Running, running
from tests.translation.documents.test_documents import DRAWING, MOST, WORD, docx, packed, run, shouted

CODE = re.compile("\x01[0-9]+\x02|\x03")
TEXT = re.compile(r"<[wa]:t[^>]*>([^<]*)</[wa]:t>")


def texts_of(body: str) -> list[str]:
    return [CODE.sub("", text) for text in open_document(docx(body), "docx", MOST).texts]


def saved(body: str, translate: Callable[[str], str]) -> str:
    """The body of a Word file with its texts translated."""
    document = open_document(docx(body), "docx", MOST)
    plans = document.plans("en")
    translations = [
        plan.join([translate(sentence) if sentence else "" for sentence in plan.sentences]) for plan in plans
    ]
    return unpack(document.save(translations), MOST)["word/document.xml"].decode()


def slide(paragraph: str) -> bytes:
    content = f'<p:sld xmlns:p="x" xmlns:a="{DRAWING}"><a:p>{paragraph}</a:p></p:sld>'
    return packed({"[Content_Types].xml": b"<Types/>", "ppt/slides/slide1.xml": content.encode()})


# --- the runs of a text ---


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (["The ", "black", " cat"], "Die schwarze Katze", ["Die ", "schwarze ", "Katze"]),
        (["abcd"], "x y", ["x y"]),
        (["ab", "cd"], "x y", ["x ", "y"]),
        (["abc", "", "def"], "one two", ["one ", "", "two"]),
        (["", "abc"], "one two", ["", "one two"]),
        (["abc", ""], "one two", ["one two", ""]),
        (["", ""], "one two", ["", "one two"]),
        (["a", "b", "c"], "together", ["", "together", ""]),
        (["a", "b"], "abcd efgh ijkl", ["abcd ", "efgh ijkl"]),
        (["aa", "aa"], "xxx yyy z", ["xxx ", "yyy z"]),
        (["aaa", "aaa"], "aa bb cc dd ", ["aa bb ", "cc dd "]),
        (["abc", "def"], "", ["", ""]),
    ],
)
def test_a_text_is_cut_at_the_word_that_is_nearest(old: list[str], new: str, parts: list[str]) -> None:
    assert spread(old, new) == parts


def test_as_many_runs_as_words_are_no_work_for_hours() -> None:
    # To look at each word for each run would be 90,000,000,000 looks.
    assert spread(["a "] * 300_000, "b " * 300_000) == ["b "] * 300_000


def test_a_paragraph_of_very_many_runs_comes_back() -> None:
    result = saved(f"<w:p>{'<w:t>ab </w:t>' * 100_000}</w:p>", str.upper)
    assert result.count(">AB </w:t>") == 100_000


# --- what belongs together ---


def test_paragraphs_in_paragraphs_have_only_what_is_their_own() -> None:
    def box(inner: str) -> str:
        content = f"<w:p>{run('in ')}{inner}{run('side')}</w:p>"
        return f"<w:r><w:pict><w:txbxContent>{content}</w:txbxContent></w:pict></w:r>"

    body = f"<w:p>{run('out ')}{box(box(''))}{run('side')}</w:p><w:p>{run('next')}</w:p>"
    assert texts_of(body) == ["out side", "in side", "in side", "next"]
    numbers = iter("1234")
    result = saved(body, lambda text: " ".join(word + number for number in [next(numbers)] for word in text.split()))
    assert TEXT.findall(result) == ["out1 ", "in2 ", "in3 ", "side3", "side2", "side1", "next4"]


def test_text_outside_of_paragraphs_stays() -> None:
    assert texts_of(f"{run('lost')}<w:p>{run('found')}</w:p>{run('lost')}") == ["found"]


def test_every_text_is_looked_at_once_however_deep_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    walk = etree.iterwalk

    def counted(*arguments: Any, **settings: Any) -> Iterator[tuple[str, Any]]:
        nonlocal seen
        for found in walk(*arguments, **settings):
            seen += 1
            yield found

    monkeypatch.setattr(etree, "iterwalk", counted)
    depth, count = 200, 1_000
    body = "<w:p>" * depth + "<w:t>a</w:t>" * count + "</w:p>" * depth
    assert texts_of(body) == ["a" * count]
    assert seen == 2 * (depth + count)


# --- line breaks and tabs ---


@pytest.mark.parametrize("mark", ["<w:br/>", '<w:br w:type="page"/>', "<w:cr/>", "<w:tab/>", "<w:ptab/>"])
def test_words_on_both_sides_of_a_break_are_two_texts(mark: str) -> None:
    inside = f"<w:p><w:r><w:t>John Smith</w:t>{mark}<w:t>Main Street</w:t></w:r></w:p>"
    between = f"<w:p>{run('John ')}{run('Smith')}<w:r>{mark}</w:r>{run('Main Street')}</w:p>"
    names = {"John Smith": "Johann Schmied", "Main Street": "Hauptstraße"}
    assert texts_of(inside) == texts_of(between) == list(names)
    assert f"<w:t>Johann Schmied</w:t>{mark}<w:t>Hauptstraße</w:t>" in saved(inside, names.__getitem__)
    result = saved(between, names.__getitem__)
    assert TEXT.findall(result) == ["Johann ", "Schmied", "Hauptstraße"]
    assert result.index("Schmied") < result.index(mark) < result.index("Hauptstraße")


def test_breaks_at_the_ends_and_one_after_another_make_no_empty_texts() -> None:
    line = "<w:r><w:br/></w:r>"
    body = f"<w:p><w:r><w:tab/><w:br/></w:r>{run('a')}{line}{run(' ')}{line}{run('b')}{line}</w:p>"
    assert texts_of(body) == ["a", "b"]
    assert TEXT.findall(saved(body, str.upper)) == ["A", " ", "B"]


def test_the_places_that_tabs_lead_to_are_no_tabs() -> None:
    stops = '<w:pPr><w:tabs><w:tab w:val="left" w:pos="720"/></w:tabs></w:pPr>'
    assert texts_of(f"<w:p>{stops}{run('one ')}{run('text')}</w:p>") == ["one text"]
    assert texts_of(f"<w:p>{run('one ')}{stops}{run('text')}</w:p>") == ["one text"]


def test_where_a_page_was_broken_when_it_was_last_shown_is_no_break() -> None:
    assert texts_of(f"<w:p>{run('one ')}<w:r><w:lastRenderedPageBreak/><w:t>text</w:t></w:r></w:p>") == ["one text"]


def test_a_break_in_a_text_box_does_not_cut_the_paragraph_around_it() -> None:
    inner = f"<w:p>{run('a')}<w:r><w:br/></w:r>{run('b')}</w:p>"
    box = f"<w:r><w:pict><w:txbxContent>{inner}</w:txbxContent></w:pict></w:r>"
    body = f"<w:p>{run('out')}{box}{run('er')}<w:r><w:br/></w:r>{run('end')}</w:p>"
    assert texts_of(body) == ["outer", "end", "a", "b"]
    result = saved(body, {"outer": "x y", "end": "z", "a": "1", "b": "2"}.__getitem__)
    assert TEXT.findall(result) == ["x ", "1", "2", "y", "z"]


def test_spaces_around_a_break_are_kept_as_spaces() -> None:
    body = "<w:p><w:r><w:t>a</w:t><w:t>b</w:t><w:tab/><w:t>c</w:t></w:r></w:p>"
    result = saved(body, {"ab": "one two", "c": " three"}.__getitem__)
    assert '<w:t xml:space="preserve">one </w:t><w:t>two</w:t><w:tab/><w:t xml:space="preserve"> three</w:t>' in result


def test_lines_of_a_slide_are_texts_of_their_own() -> None:
    stops = '<a:pPr><a:tabLst><a:tab pos="1" algn="l"/></a:tabLst></a:pPr>'
    lines = "<a:r><a:t>one </a:t></a:r><a:r><a:t>line</a:t></a:r><a:br><a:rPr/></a:br><a:r><a:t>another</a:t></a:r>"
    data = slide(stops + lines)
    assert open_document(data, "pptx", MOST).texts == ["one line", "another"]
    result = unpack(shouted(data, "pptx"), MOST)["ppt/slides/slide1.xml"].decode()
    assert TEXT.findall(result) == ["ONE ", "LINE", "ANOTHER"] and "xml:space" not in result


# --- damage ---


def with_member(packing: int) -> bytes:
    out = io.BytesIO(docx(f"<w:p>{run('a b')}</w:p>"))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("word/more.xml", b"some text " * 100, packing)
    return out.getvalue()


def damaged(data: bytes) -> bytes:
    """The packed bytes of the last member replaced."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        last = archive.infolist()[-1]
    name, extra = struct.unpack_from("<HH", data, last.header_offset + 26)
    start = last.header_offset + 30 + int(name) + int(extra) + 9  # behind the properties that LZMA begins with
    end = start - 9 + last.compress_size
    return data[:start] + b"\xff" * (end - start) + data[end:]


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_members_are_refused_however_they_are_packed(packing: int) -> None:
    with pytest.raises(InputError, match=r"intact \.docx") as refused:
        open_document(damaged(with_member(packing)), "docx", MOST)
    assert as_http(refused.value).status == 400


def test_members_are_stored_or_deflated() -> None:
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert open_document(with_member(packing), "docx", MOST).texts == ["a b"]
    for packing in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(InputError, match="intact"):
            open_document(with_member(packing), "docx", MOST)


# --- characters ---


@pytest.mark.parametrize("wrong", ["\x00", "\x01", "\x0b", "\x1b", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_characters_that_xml_cannot_hold_are_left_out(wrong: str) -> None:
    assert TEXT.findall(saved(f"<w:p>{run('cat')}</w:p>", lambda _: f"Ka{wrong}ter")) == ["Kater"]


def test_all_other_characters_stay() -> None:
    kept = "\t\n \x7f\x85\xa0\ud7ff\ue000\ufffdß😀\U0010ffff"
    result = saved(f"<w:p>{run('cat')}</w:p>", lambda _: f"a{kept}b")
    assert etree.fromstring(result.encode()).findtext(f".//{{{WORD}}}t") == f"a{kept}b"


# --- over HTTP ---


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


def sent(server: Running, content: bytes, **fields: str) -> tuple[int, Sequence[str]]:
    """The status, and the texts of the translated file."""
    form = {"source": "src", "target": "tgt", **fields}
    answer = server.post("/translate_file", files={"file": ("x.docx", content)}, data=form)
    if answer.status_code != 200:
        return answer.status_code, []
    done = unpack(server.get(answer.json()["translatedFileUrl"]).content, MOST)
    return 200, TEXT.findall(done["word/document.xml"].decode())


def test_lines_are_translated_one_by_one(server: Running) -> None:
    assert sent(server, docx(f"<w:p>{run('a b')}<w:r><w:br/></w:r>{run('c d e')}</w:p>")) == (200, ["b a", "e d c"])


def test_a_damaged_file_is_the_clients_error_and_no_failure(server: Running) -> None:
    assert sent(server, damaged(with_member(zipfile.ZIP_LZMA))) == (400, [])


def test_a_glossary_with_a_control_character_is_no_failure(server: Running) -> None:
    assert sent(server, docx(f"<w:p>{run('a b c')}</w:p>"), glossary="b\tKa\x01ter") == (400, [])


# --- formats follow their words ---

BOLD, ITALIC = "<w:b/>", "<w:i/>"


def marked(xml: str) -> str:
    """The runs of a body as text: *bold*, _italic_, [link], # for what is no text."""
    shown = ""
    for element in etree.fromstring(xml.encode()).iter():
        name = etree.QName(element).localname
        if name == "r":
            inside = [etree.QName(one).localname for one in element.iterancestors()]
            formats = [etree.QName(one).localname for one in element.iter()]
            mark = "*" if "b" in formats else "_" if "i" in formats else ""
            text = "".join(one.text or "" for one in element.iter(f"{{{WORD}}}t"))
            if text and "hyperlink" in inside:
                text = f"[{text}]"
            shown += mark + text + mark if text else ""
            shown += "#" if {"footnoteReference", "drawing"} & set(formats) else ""
            shown += "<" if 'fldCharType="begin"' in etree.tostring(element).decode() else ""
            shown += ">" if 'fldCharType="end"' in etree.tostring(element).decode() else ""
    return shown


def link(inner: str) -> str:
    return f'<w:hyperlink w:history="1">{inner}</w:hyperlink>'


def mark_of_field(kind: str) -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


NOTE = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:footnoteReference w:id="2"/></w:r>'
FIELD = f"{mark_of_field('begin')}<w:r><w:instrText>REF x</w:instrText></w:r>{mark_of_field('separate')}"


@pytest.mark.parametrize(
    ("runs", "translations", "expected"),
    [
        (  # the bold word moves, and text gets a run of its own where there was none
            run("black", BOLD) + run(" is the cat"),
            {"black is the cat": "die Katze ist schwarz", "black": "schwarz"},
            "die Katze ist *schwarz*",
        ),
        (  # two formats change places
            run("one", BOLD) + run(" and ") + run("two", ITALIC),
            {"one and two": "zwei und eins", "one": "eins", "two": "zwei"},
            "_zwei_ und *eins*",
        ),
        (  # and so do a link and a bold word beside it
            run("see ") + link(run("this page", "<w:u/>")) + run(" now", BOLD) + run(", please do it"),
            {
                "see this page now, please do it": "bitte jetzt diese Seite ansehen",
                "this page": "diese Seite",
                " now": "jetzt",
            },
            "bitte *jetzt* [diese Seite] ansehen",
        ),
        (  # a format inside a link stays inside
            run("read ") + link(run("the ") + run("new", BOLD) + run(" book")) + run(" today or tomorrow"),
            {
                "read the new book today or tomorrow": "lies heute oder morgen das neue Buch",
                "the new book": "das neue Buch",
                "new": "neue",
            },
            "lies heute oder morgen [das ]*[neue]*[ Buch]",
        ),
        (  # a footnote mark keeps its relative place, between words
            run("first words") + NOTE + run(" then many other words"),
            {"first words then many other words": "erste Wörter dann viele andere Wörter"},
            "erste Wörter# dann viele andere Wörter",
        ),
        (  # the text of a field stays inside its marks
            run("see ") + FIELD + run("figure 2") + mark_of_field("end") + run(" below, it helps"),
            {"see figure 2 below, it helps": "unten steht Abbildung 2, sie hilft", "figure 2": "Abbildung 2"},
            "unten steht <Abbildung 2>, sie hilft",
        ),
        (  # revision marks and languages do not cut a text
            "<w:r><w:rPr><w:lang w:val='en-US'/></w:rPr><w:t xml:space='preserve'>one </w:t></w:r>" + run("two"),
            {"one two": "eins zwei"},
            "eins zwei",
        ),
        (run("all of it", BOLD), {"all of it": "alles"}, "*alles*"),
    ],
)
def test_formats_and_links_follow_their_words(runs: str, translations: dict[str, str], expected: str) -> None:
    result = saved(f"<w:p>{runs}</w:p>", translations.__getitem__)
    assert marked(result) == expected


def test_a_run_with_a_break_in_it_is_not_moved() -> None:
    body = f"<w:p><w:r><w:rPr>{BOLD}</w:rPr><w:t>a</w:t><w:br/><w:t>b</w:t></w:r>{run(' c')}</w:p>"
    words = {"a": "x", "b c": "z y", "b": "y"}
    assert TEXT.findall(saved(body, words.__getitem__)) == ["x", "z y", ""]


# --- workbooks ---


def workbook() -> bytes:
    from openpyxl import Workbook
    from openpyxl.cell.rich_text import CellRichText, TextBlock
    from openpyxl.cell.text import InlineFont
    from openpyxl.comments import Comment
    from openpyxl.worksheet.table import Table

    book = Workbook()
    sheet = book.active
    pear = CellRichText("a ", TextBlock(InlineFont(b=True), "big"), " pear")
    for row in (["name", "price"], ["red apple", 1.5], ["name", "=B2*2"], [pear, 7]):
        sheet.append(row)
    sheet.add_table(Table(displayName="Prices", ref="A1:B4"))
    sheet["A2"].comment = Comment("very cheap", "me")
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def test_the_texts_of_a_workbook_are_translated() -> None:
    from openpyxl import load_workbook

    data = workbook()
    book = load_workbook(io.BytesIO(shouted(data, "xlsx")), rich_text=True)
    values = [[cell.value for cell in row] for row in book.active.iter_rows()]
    # Names of a table's columns stay, since formulas and the table itself use them.
    assert values[:3] == [["name", "price"], ["RED APPLE", 1.5], ["name", "=B2*2"]]
    assert str(values[3][0]) == "A BIG PEAR" and values[3][0][1].font.b and values[3][1] == 7
    assert book.active["A2"].comment.text == "VERY CHEAP"
    before, after = unpack(data, MOST, "xlsx"), unpack(shouted(data, "xlsx"), MOST, "xlsx")
    assert {name for name in before if before[name] != after[name]} == {
        "xl/worksheets/sheet1.xml",
        "xl/comments/comment1.xml",
    }


def test_strings_inside_a_sheet_and_readings_of_words() -> None:
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = f'<worksheet xmlns="{space}"><c t="inlineStr"><is><t>one</t></is></c><c><v>5</v></c></worksheet>'
    strings = f'<sst xmlns="{space}"><si><t>two</t><rPh sb="0" eb="1"><t>reading</t></rPh></si></sst>'
    members = {
        "xl/workbook.xml": b"<x/>",
        "xl/worksheets/sheet1.xml": sheet.encode(),
        "xl/sharedStrings.xml": strings.encode(),
    }
    result = unpack(shouted(packed(members), "xlsx"), MOST, "xlsx")
    assert b"<is><t>ONE</t></is>" in result["xl/worksheets/sheet1.xml"]
    assert b"<t>TWO</t>" in result["xl/sharedStrings.xml"] and b"<t>reading</t>" in result["xl/sharedStrings.xml"]

"""LaTeX, of which only what a reader reads is translated, and the text of PDFs."""

from __future__ import annotations

import io
import time
import warnings
from pathlib import Path

import pytest

import regard
from regard.errors import InputError
from regard.translation.documents import pdf
from regard.translation.documents.files import translate_document
from regard.translation.documents.readers import open_document
from tests.translation.documents.test_documents import MOST, shouted

GOLDEN = str(Path(__file__).parents[2] / "golden" / "bundle-1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "\\documentclass[a4paper]{article}\n\\title{a b}\n\\author{me}\n\\begin{document}\n\\maketitle\n"
            "\\section{one}\\label{sec:one}\n\nsome words\nand \\emph{more} % not this\nhere.\n\\end{document}\nafter\n",
            "\\documentclass[a4paper]{article}\n\\title{A B}\n\\author{me}\n\\begin{document}\n\\maketitle\n"
            "\\section{ONE}\\label{sec:one}\n\nSOME WORDS AND \\emph{MORE} % not this\nHERE.\n\\end{document}\nafter\n",
        ),
        ("a \\cite[p.~2]{key} b~\\ref{x}.", "A \\cite[p.~2]{key} B~\\ref{x}."),
        ("a $x^2$ b \\(y\\) c", "A $x^2$ B \\(y\\) C"),
        ("a\n\\begin{equation}\n  x = y\n\\end{equation}\nb \\[ z \\] c $$u$$",
         "A\n\\begin{equation}\n  x = y\n\\end{equation}\nB \\[ z \\] C $$u$$"),
        ("a\\footnote{b} c \\href{http://x.y}{d e} f", "A\\footnote{B} C \\href{http://x.y}{D E} F"),
        ("\\begin{tabular}{ll}\na & b \\\\\n\\hline\nc & 5\\% \\\\\n\\end{tabular}",
         "\\begin{tabular}{ll}\nA & B \\\\\n\\hline\nC & 5\\% \\\\\n\\end{tabular}"),
        ("\\begin{verbatim}\ncode {\n\\end{verbatim}\n\\verb|code| \\begin{lstlisting}[x=y]\ncode\n\\end{lstlisting}", None),
        ("\\begin{itemize}\n  \\item one\n  \\item[x] two\n\\end{itemize}\n",
         "\\begin{itemize}\n  \\item ONE\n  \\item[x] TWO\n\\end{itemize}\n"),
        ("\\unknown[a]{b}{c} d {e f}", "\\unknown[a]{b}{c} D {E F}"),
        ("\\hypertarget{x}{%\n\\section{a}\\label{b}}", "\\hypertarget{x}{%\n\\section{A}\\label{b}}"),
        ("\\textbf{a \\emph{b} c", "\\textbf{A \\emph{B} C"),
    ],
)  # fmt: skip
def test_what_a_reader_reads_is_translated(before: str, after: str | None) -> None:
    result = shouted(before.encode(), "tex").decode()
    if after is None:  # nothing but words outside is text
        assert (result.lower() == before and "code" in result) or "z" in result
    else:
        assert result == after


@pytest.mark.parametrize(
    "mark", ["\\emph{", "{", "$", "\\[", "\\(", "\\a{", "\\a[", "\\begin{x}", "}", "%", "\\verb|", "\\", "$$"]
)
def test_unfinished_tex_takes_linear_time(mark: str) -> None:
    times = []
    for count in (4_000, 32_000):
        start = time.process_time()
        shouted((mark * count).encode(), "tex")
        times.append(time.process_time() - start)
    assert times[1] < 40 * max(times[0], 0.02)


# --- PDF ---


def pdf_of(*lines: str) -> bytes:
    """A PDF with one page of text, written by hand."""
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, io.SEEK_END)
    places = []
    for number, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj%s endobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % start)
    return out.getvalue()


def test_the_text_of_a_pdf_is_translated_and_the_loss_said(tmp_path: Path) -> None:
    data = pdf_of("A line of some length that is trans-", "lated as one.", "Next.")
    document = open_document(data, "pdf", MOST)
    content = translate_document(document, "en", lambda lines: [one.upper() for one in lines])
    assert content == b"A LINE OF SOME LENGTH THAT IS TRANSLATED AS ONE.\n\nNEXT.\n\n"
    assert document.note == "only its text is translated; the layout and the pictures are lost"
    (tmp_path / "a.pdf").write_bytes(pdf_of("a b c"))
    with pytest.warns(UserWarning, match=r"a\.pdf: only its text is translated"):
        written = regard.load(GOLDEN, device="cpu").translate_file(tmp_path / "a.pdf")
    assert written.suffix == ".txt" and written.read_text().strip() == "c b a"


def test_a_scanned_or_damaged_pdf_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in (
        (pdf_of(), "is scanned or empty; run text recognition"),
        (b"%PDF-1.4\ngarbage", "intact PDF"),
        (b"no", "must be a PDF"),
    ):
        with warnings.catch_warnings(), pytest.raises(InputError, match=message):
            open_document(data, "pdf", MOST)
    monkeypatch.setattr(pdf, "MAX_SECONDS", 0)
    with pytest.raises(InputError, match=r"can be read in 0 s|intact PDF"):
        open_document(pdf_of("a"), "pdf", MOST)

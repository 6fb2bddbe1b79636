"""The text of a PDF. Its layout is lost: lines become paragraphs again as well as can be told, and the translation is plain text.

A PDF is read in a process of its own with limits on time and memory: no list of checks would cover what a hostile one can contain.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from regard.errors import InputError, InputTooLarge, UserError
from regard.translation.documents.document import Document, from_pieces

MAX_SECONDS = 120
_MAX_MEMORY = 2 << 30  # bytes
_MAX_TEXT = 50_000_000  # characters
NOTE = "only its text is translated; the layout and the pictures are lost"
_ENCRYPTED, _MISSING = 3, 4  # exit codes of the process
_READER = """
import io, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
    resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
except (ImportError, ValueError, OSError):
    pass
try:
    from pypdf import PdfReader
    from pypdf.errors import FileNotDecryptedError
except ImportError:
    sys.exit({missing})
import logging
logging.disable(logging.CRITICAL)
reader = PdfReader(io.BytesIO(sys.stdin.buffer.read()))
if reader.is_encrypted and not reader.decrypt(""):
    sys.exit({encrypted})
left = {text}
for page in reader.pages:
    text = page.extract_text()
    left -= len(text)
    if left < 0:
        break
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\\f")
"""


def open_pdf(data: bytes) -> Document:
    if not data.lstrip()[:5] == b"%PDF-":
        raise InputError("file must be a PDF")
    pages = _extract(data).split("\f")
    paragraphs = [paragraph for page in pages for paragraph in _paragraphs(page.splitlines())]
    if not any(map(str.isalpha, "".join(paragraphs))):
        raise InputError("file must have text, but is scanned or empty; run text recognition (OCR) on it first")
    pieces = [piece for paragraph in paragraphs for piece in (paragraph, "\n\n")]
    document = from_pieces(pieces, range(0, len(pieces), 2))
    return Document(document.texts, document.save, note=NOTE)


def _extract(data: bytes) -> str:
    values = {
        "memory": _MAX_MEMORY,
        "seconds": MAX_SECONDS,
        "missing": _MISSING,
        "encrypted": _ENCRYPTED,
        "text": _MAX_TEXT,
    }
    code = _READER
    for name, value in values.items():
        code = code.replace(f"{{{name}}}", str(value))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", code], input=data, capture_output=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputTooLarge(f"file must be a PDF that can be read in {MAX_SECONDS} s; split it") from None
    if done.returncode == _MISSING:
        raise UserError("PDF needs one more package; run: pip install 'regard[documents]'")
    if done.returncode == _ENCRYPTED:
        raise InputError("file must not be encrypted")
    if done.returncode:
        raise InputError("file must be an intact PDF; save it again and try again")
    return done.stdout.decode()


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Join the lines of a page into paragraphs. A paragraph ends at an empty line, at a line that is much shorter than the
    longest, and before an item of a list.

    >>> list(_paragraphs(["This is a long line of trans-", "lated text in which", "it ends.", "", "Next", "• item"]))
    ['This is a long line of translated text in which it ends.', 'Next', '• item']
    """
    longest = max(map(len, lines), default=0)
    parts: list[str] = []  # of the current paragraph
    for number, raw in enumerate(lines):
        line = " ".join(raw.split())
        if parts and (not line or re.match(r"[•◦▪‣·–-]\s|\(?\d{1,3}[.)]\s|\(?[a-z]\)\s", line)):
            yield "".join(parts)
            parts = []
        if parts and re.search(r"\w-$", parts[-1]) and line[:1].islower():
            parts[-1] = parts[-1][:-1]
        elif parts:
            parts.append(" ")
        parts += [line] if line else []
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        ends = re.search(r"[.!?:][\"'”’)]*$", line)
        if parts and len(raw) < 0.75 * longest and (ends or not following[:1].islower()):
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)

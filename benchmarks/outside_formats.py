"""Documents for translators, subtitles and PDFs, written and read by programs that are not ours: the Translate Toolkit, webvtt-py,
LibreOffice and poppler from Debian (`translate-toolkit`, `python3-webvtt`, `poppler-utils`). For `benchmarks/documents.py`.

What they must find the same before and after:

    .po .xliff       each unit's source, context and place; and that it has a translation now
    .tmx             each unit's source and Portuguese translation
    .json .yaml      keys, and what is no text
    .vtt             the times of each cue
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
DEBIAN_PYTHON = "/usr/bin/python3"  # has the toolkit's modules
CATALOGUES = Path("/usr/lib/libreoffice/share/basic/ScriptForge/po")  # LibreOffice's own texts
KEYS = Path("/usr/share/pandoc/data/translations/en.yaml")  # Pandoc's own

_MAKE_JSON = """
import sys
from translate.storage import factory
from translate.storage.jsonl10n import JsonNestedFile
texts = JsonNestedFile()
for unit in factory.getobject(sys.argv[1]).units:
    if unit.source and not unit.isheader():
        text = texts.UnitClass()
        text.setid("messages." + (unit.getcontext() or unit.source[:12]))
        text.target = unit.source
        texts.addunit(text)
open(sys.argv[2], "wb").write(bytes(texts))
"""
_MAKE_VTT = "import sys, webvtt; webvtt.from_srt(sys.argv[1]).save(sys.argv[2])"
_READ_UNITS = """
import json, sys
from translate.storage import factory
units = [unit for unit in factory.getobject(sys.argv[1]).units if not unit.isheader() and unit.source]
is_memory = sys.argv[1].endswith(".tmx")
print(json.dumps([[str(unit.source), unit.getcontext(), str(unit.target) if is_memory else bool(unit.target)] for unit in units]))
"""
_READ_VTT = "import json, sys, webvtt; print(json.dumps([[one.start, one.end] for one in webvtt.read(sys.argv[1])]))"
_READ_YAML = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1], encoding='utf-8'))))"


def _debian(code: str, *paths: Path) -> str | None:
    """The output of a program for Debian's Python; None if it fails."""
    command = [DEBIAN_PYTHON, "-c", code, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return done.stdout if done.returncode == 0 else None


def is_installed() -> bool:
    """Whether these programs are here."""
    has_files = CATALOGUES.is_dir() and KEYS.is_file()
    has_programs = all(shutil.which(name) for name in ("po2xliff", "po2tmx", "pdftotext"))
    return has_files and has_programs and _debian("import translate, webvtt, yaml") is not None


def make(out: Path) -> list[tuple[str, Path]]:
    """The documents, each with its maker, without the PDF."""
    made = [
        ("LibreOffice's texts", Path(shutil.copy(CATALOGUES / "en.po", out / "texts.po"))),
        ("Translate Toolkit", out / "toolkit.xliff"),
        ("Translate Toolkit", out / "toolkit.tmx"),
        ("Translate Toolkit", out / "toolkit.json"),
        ("Pandoc's texts", Path(shutil.copy(KEYS, out / "texts.yaml"))),
        ("webvtt-py", out / "webvtt.vtt"),
    ]
    quiet = "--progress=none"
    subprocess.run(["po2xliff", quiet, CATALOGUES / "en.po", out / "toolkit.xliff"], check=True, capture_output=True)
    pairs = CATALOGUES / "pt.po"
    subprocess.run(["po2tmx", quiet, "-l", "pt", pairs, out / "toolkit.tmx"], check=True, capture_output=True)
    _debian(_MAKE_JSON, out / "texts.po", out / "toolkit.json")
    _debian(_MAKE_VTT, DATA / "sample.srt", out / "webvtt.vtt")
    return made


def skeleton(path: Path) -> Any:
    """What a document has besides the texts to translate; None if it does not open."""
    kind = path.suffix[1:]
    code = {"vtt": _READ_VTT, "yaml": _READ_YAML}.get(kind, _READ_UNITS)
    if kind == "json":
        return _keys(json.loads(path.read_text(encoding="utf-8")))
    read = _debian(code, path)
    if read is None:
        return None
    found = json.loads(read)
    if kind == "yaml":
        return _keys(found)
    # What is translated is not compared, but counted.
    return [[source, context] for source, context, _ in found] if kind in ("po", "xliff") else found


def untranslated(path: Path) -> int:
    """How many units have no translation."""
    return sum(not target for _, _, target in json.loads(_debian(_READ_UNITS, path) or "[]"))


def words_of_pdf(path: Path) -> list[str]:
    """The words of a PDF, as poppler reads them."""
    done = subprocess.run(["pdftotext", "-raw", path, "-"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def _keys(node: Any) -> Any:
    """Keys and what is no text."""
    if isinstance(node, dict):
        return {key: _keys(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_keys(value) for value in node]
    return "text" if isinstance(node, str) else node

"""Does a change of structure change a result? Runs two checkouts over the same work and compares what they write, byte for byte.

    python -m benchmarks.unchanged BEFORE AFTER --out DIR [--text newstest2014.en.xz ...] [--only translate,serve,train]

BEFORE and AFTER are checkouts, each with its own .venv. Both translate the given files and the 200 awkward lines of the tests,
these also with each search option, with the default engine and with torch; serve a document of every format and requests to both
HTTP APIs; train 200 seeded steps on the CPU; and resume, from its middle, the run that BEFORE trained. DIR keeps each output,
so an interrupted comparison continues where it stopped. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import print_table

ROOT = Path(__file__).parents[1]
TATOEBA = ROOT / "data" / "tatoeba"
AWKWARD = ROOT / "tests" / "awkward"
ENGINES = ("auto", "torch")  # on a CPU auto is CTranslate2, and torch for what that cannot do
STEPS = 200
SECTIONS = ("translate", "serve", "train")
OPTIONS = {
    "nbest": ["--nbest", "3"],
    "json": ["--json", "--words", "--alignment"],
    "glossary": ["--glossary", "glossary.tsv"],
    "keep": ["--keep", "weather", "--keep", "train station"],
    "prefix": ["--prefix", "Ich denke"],
    "phrase": ["--phrase", "bitte"],
    "mbr": ["--mbr", "chrf", "--beam", "6"],
    "sample": ["--sample", "--seed", "7", "--top-k", "20"],
    "no-repeat": ["--no-repeat", "3", "--coverage", "0.2"],
    "groups": ["--groups", "2", "--nbest", "2"],
}
GLOSSARY = "house\tGebäude\ncat\tKater\nweather\tWitterung\n"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


class Checkout:
    """A checkout and the folder for what it writes."""

    def __init__(self, path: Path, out: Path) -> None:
        self.path, self.out = path.resolve(), out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "glossary.tsv").write_text(GLOSSARY, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        return [str(self.path / ".venv" / "bin" / "python"), "-m", "regard", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.path)}

    def run(self, *arguments: str) -> None:
        result = subprocess.run(self.command(*arguments), cwd=self.out, env=self.environment, stderr=subprocess.PIPE)
        if result.returncode:
            raise SystemExit(f"{self.path}: regard {' '.join(arguments)}: {result.stderr.decode()[-2000:]}")

    def write(self, arguments: Sequence[str], path: Path) -> None:
        self.run(*arguments, "-o", str(path))


def once(path: Path, make: Callable[[Path], None]) -> None:
    """Make a file unless an earlier comparison has made it."""
    if not path.exists():
        part = path.with_name(f"part-{path.name}")
        for left in path.parent.glob(f"{part.name}*"):  # from an interrupted comparison
            left.unlink()
        make(part)
        part.rename(path)


# --- translating ---


def translate(checkout: Checkout, texts: Sequence[Path]) -> None:
    """Every text with both engines, then a short one with each option."""
    awkward = {"en": AWKWARD / "en.txt", "de": AWKWARD / "de.txt"}
    jobs: list[tuple[str, Path, str, Sequence[str]]] = [
        (f"awkward-{model}", awkward[model[:2]], model, ()) for model in ("en-de", "de-en")
    ]
    jobs += [(f"option-{name}", awkward["en"], "en-de", extra) for name, extra in OPTIONS.items()]
    for text in texts:
        model = "de-en" if ".de" in text.suffixes else "en-de"
        jobs.append((f"text-{text.name.split('.')[0]}-{model}", text, model, ()))
    for engine in ENGINES:
        for name, text, model, extra in jobs:
            arguments = ["translate", "-m", model, "--engine", engine, "-i", str(text), *extra]
            once(checkout.out / f"{name}-{engine}.txt", partial(checkout.write, arguments))


# --- serving ---


MARKDOWN = """---
title: The house
---
# The old house

It is *very* old, and **nobody** lives there: see [the map](map.png) or `ls -l`.

1. Open the door.
   - Do not run.

> "Who is there?" she asked.

| Room | Size |
|---|---|
| kitchen | 12.5 m |
"""
SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
<i>Where are you?</i>
I am here.

2
00:00:03,000 --> 00:00:04,000
- Go!
- No.
"""
CATALOGUE = r"""
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

#: main.c:12
#, c-format
msgid "Open %d files"
msgstr ""
"""


def documents() -> dict[str, bytes]:
    """A document of every format that the server takes."""
    plain = "The weather is nice today.\n\nWhere is the nearest train station? I am looking for number 1,234.50.\n"
    body = "".join(
        f'<w:p><w:r><w:t xml:space="preserve">{first}</w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>{second}</w:t></w:r></w:p>'
        for first, second in (("The house is ", "very old."), ("My ", "cat likes milk."))
    )
    word = f'<?xml version="1.0" encoding="UTF-8"?><w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    slide = f'<p:sld xmlns:p="x" xmlns:a="{DRAWING}"><a:p><a:r><a:t>The house is old.</a:t></a:r></a:p></p:sld>'
    page = (
        "<!doctype html><html lang='en'><head><title>My house</title><style>b {color: red}</style></head><body>"
        "<h1>The house</h1><p>The <b>old house</b> is <a href='x.html'>near the station</a>.</p>"
        "<ul><li>One cat</li><li>Two dogs &amp; a <i>bird</i></li></ul><pre>code</pre></body></html>"
    )
    return {
        "plain.txt": plain.encode(),
        "readme.md": MARKDOWN.encode(),
        "page.html": page.encode(),
        "film.srt": SUBTITLES.encode(),
        "app.po": CATALOGUE.encode(),
        "table.csv": b'id,text\n1,"The house, old and small"\n2,Good morning\n',
        "table.tsv": b"id\ttext\n1\tThe house is old\n2\tGood morning\n",
        "letter.docx": _packed({"[Content_Types].xml": "<Types/>", "word/document.xml": word}),
        "talk.pptx": _packed({"[Content_Types].xml": "<Types/>", "ppt/slides/slide1.xml": slide}),
    }


def _packed(members: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/translate", {"q": "The weather is nice today.", "source": "en", "target": "de"}),
    ("/translate", {"q": ["One.", "", "Two houses."], "source": "auto", "target": "de", "alternatives": 2}),
    ("/translate", {"q": "<p>My <b>old</b> cat</p>", "source": "en", "target": "de", "format": "html"}),
    ("/translate", {"q": "x", "source": "en", "target": "xx"}),
    ("/translate", {"source": "en"}),
    ("/detect", {"q": "Das Wetter ist heute schön."}),
    ("/v2/translate", {"text": ["Good morning!", "How are you?"], "target_lang": "DE"}),
    ("/v2/translate", {"text": ["<x>Good</x> morning"], "target_lang": "DE", "tag_handling": "xml"}),
    ("/v2/translate", {"text": ["Guten Morgen"], "source_lang": "DE", "target_lang": "EN-GB"}),
    ("/v2/translate", {"text": [], "target_lang": "DE"}),
]
PATHS = ("/languages", "/v2/languages?type=target", "/health")


@contextmanager
def server(checkout: Checkout) -> Iterator[httpx.Client]:
    process = subprocess.Popen(
        checkout.command("serve", "--port", "0"),
        cwd=checkout.out,
        env=checkout.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "listening":
                break
        else:
            raise SystemExit(f"{checkout.path}: the server did not start")
        with httpx.Client(base_url=entry["address"], timeout=300, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def serve(checkout: Checkout) -> None:
    def make(path: Path) -> None:
        with server(checkout) as client:
            replies = [_reply(client.post(url, json=fields)) for url, fields in REQUESTS]
            replies += [_reply(client.get(url)) for url in PATHS]
            for name, data in documents().items():
                fields = {"source": "en", "target": "de"} | ({"column": "text"} if name.startswith("table") else {})
                sent = client.post("/translate_file", files={"file": (name, data)}, data=fields)
                got = client.get(sent.json()["translatedFileUrl"]).content if sent.is_success else sent.content
                replies.append([name, sent.status_code, _content(got)])
        path.write_text("\n".join(json.dumps(reply, ensure_ascii=False) for reply in replies) + "\n", encoding="utf-8")

    once(checkout.out / "api.jsonl", make)


def _reply(response: httpx.Response) -> list[Any]:
    """What must not change; of a refusal not its wording."""
    content = response.json()
    return [response.request.url.path, response.status_code, content if response.is_success else sorted(content)]


def _content(data: bytes) -> Any:
    if not data.startswith(b"PK"):
        return data.decode("utf-8", "surrogateescape")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}


# --- training ---


RECIPE = f"""
[data]
source = "en"
target = "de"
root = "{TATOEBA}"
train = "train.{{en,de}}.xz"
valid = "dev.{{en,de}}.xz"
[tokenizer]
vocab_size = 8000
[model]
preset = "tiny"
norm_position = "pre"
[train]
steps = {STEPS}
batch_tokens = 1200
optimizer = "adamw"
schedule = "linear"
lr = 2e-3
ema = 0.998
log_every = 1
validate_every = {STEPS // 2}
save_every = {STEPS // 2}
validate_sentences = 20
device = "cpu"
"""


def train(checkout: Checkout, begun: Path | None = None) -> None:
    """Seeded steps on the CPU. `begun`: resume this run folder of another checkout from its middle instead."""
    name = "train" if begun is None else "resume"
    run = checkout.out / f"run-{name}"

    def make(path: Path) -> None:
        shutil.rmtree(run, ignore_errors=True)
        if begun is not None:
            shutil.copytree(begun, run)
            shutil.rmtree(run / "model")
            (run / "report.html").unlink()
            shutil.rmtree(run / "checkpoints" / f"step-{STEPS:06}")
        recipe = checkout.out / "recipe.toml"
        recipe.write_text(RECIPE, encoding="utf-8")
        checkout.run("train", str(recipe), "--out", str(run), *([] if begun is None else ["--resume"]))
        path.write_text("\n".join(_outcome(run)) + "\n", encoding="utf-8")

    once(checkout.out / f"{name}.txt", make)


def _outcome(run: Path) -> Iterator[str]:
    """Losses and the hash of the weights: what a run comes to, without its times. A resumed run has logged some steps twice."""
    steps: dict[tuple[str, int], str] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        kept = {key: record[key] for key in ("loss", "nll", "lr", "grad_norm", "bleu", "samples") if key in record}
        steps[record["kind"], record.get("step", 0)] = json.dumps(kept, ensure_ascii=False)
    yield from (
        f"{kind} {step} {record}" for (kind, step), record in sorted(steps.items()) if kind in ("train", "valid")
    )
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    config["facts"].pop("minutes")
    yield json.dumps(config, sort_keys=True)
    for name in ("model.safetensors", "tokenizer/joint.model"):
        yield f"{name} {hashlib.sha256((run / 'model' / name).read_bytes()).hexdigest()}"


# --- comparing ---


def compare(before: Path, after: Path) -> list[dict[str, Any]]:
    """A row for each file that either has written."""
    names = sorted(path.name for path in before.iterdir() if path.suffix in (".txt", ".jsonl"))
    rows = []
    for name in names:
        old = (before / name).read_bytes().splitlines()
        new = (after / name).read_bytes().splitlines() if (after / name).exists() else []
        different = sum(a != b for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new))
        rows.append({"what": name, "lines": len(old), "different": different})
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", help="left out: only BEFORE's share of the work is done")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="*", default=[TATOEBA / "test.en.xz", TATOEBA / "test.de.xz"])
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(SECTIONS))
    arguments = parser.parse_args(words)
    before = Checkout(arguments.before, arguments.out / "before")
    after = None if arguments.after is None else Checkout(arguments.after, arguments.out / "after")
    for checkout in filter(None, (before, after)):
        started = time.monotonic()
        if "translate" in arguments.only:
            translate(checkout, [text.resolve() for text in arguments.text])
        if "serve" in arguments.only:
            serve(checkout)
        if "train" in arguments.only:
            train(checkout)
            train(checkout, before.out / "run-train")
        print(f"{checkout.path}: {time.monotonic() - started:.0f} s", flush=True)
    if after is None:
        return 0
    rows = compare(before.out, after.out)
    print_table(rows)
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

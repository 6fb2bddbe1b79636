"""Files that a stranger made or a disk spoilt, and what is typed on the command line."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attacks.outcome import Tally, run_command
from regard.files import MANIFEST, write_manifest
from tests.serve.server import GOLDEN
from tests.test_hostile_bundle import change_config, change_weights
from tests.tiny import write_recipe
from tests.translation.documents.test_documents import docx

TEXT, RIGHT = "a b c", "c b a"  # the golden bundle reverses letters
HUGE = 10**12
SETTINGS: dict[str, list[Any]] = {
    "model.vocab_size": [HUGE, 0, -1, "x", None, 1.5],
    "model.encoder_layers": [10**6, 0, -1, []],
    "model.d_model": [HUGE, 0, 7, {}],
    "model.num_heads": [0, 10**9, True],
    "model.norm_eps": [float("nan"), float("inf"), -1.0],
    "model.positions": ["none", 3],
    "decode.beam": [10**9, 0, -4, "4"],
    "decode.alpha": [1e308, float("nan"), []],
    "decode.max_extra": [10**9, -1],
    "max_length": [0, -3, 10**9, None, "x"],
    "source": ["", "../x", "\x1b[2J", 7],
    "weights": ["int4", 1],
    "format": [0, 10**6, "x"],
}


def spoil_bundles(scratch: Path, count: int) -> Iterator[Tally]:
    """Bits flipped in a bundle, settings and weights that make no sense, and names that lead elsewhere."""
    flips, draw = Tally("bits flipped in a bundle"), random.Random(1)
    for number in range(count):
        folder = _copy(scratch)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = draw.choice(files)
        flip_bit(path, draw)
        done = run_command(["translate", TEXT, "-m", str(folder)])
        flips.add(f"{number} {path.name}", done.verdict(RIGHT), done.err + done.out)
    yield flips
    settings = Tally("settings of a bundle")
    for name, values in SETTINGS.items():
        for value in values:
            folder = _copy(scratch)
            change_config(folder, name, value)
            done = run_command(["translate", TEXT, "-m", str(folder)])
            settings.add(f"{name}={value!r}", done.verdict(must_refuse=True), done.err + done.out)
    yield settings
    others = Tally("weights, manifests and links of a bundle")
    for name, spoil in _SPOILT.items():
        folder = _copy(scratch)
        spoil(folder)
        for engine in ("ctranslate2", "torch"):
            done = run_command(["translate", TEXT, "-m", str(folder), "--engine", engine])
            others.add(f"{name}, {engine}", done.verdict(must_refuse=True), done.err + done.out)
    yield others


def _copy(scratch: Path) -> Path:
    folder = scratch / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(GOLDEN, folder))


def flip_bit(path: Path, draw: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    if content:
        place = draw.randrange(len(content))
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)


def _fill(value: float) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        def change(weights: dict[str, Any]) -> None:
            for tensor in weights.values():
                tensor.flat[0] = value

        change_weights(folder, change)

    return spoil


def _replace(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(content((folder / name).read_bytes()))
        if name != MANIFEST:
            write_manifest(folder)

    return spoil


def _link(name: str, target: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        if name != "config.json":
            write_manifest(folder)

    return spoil


def _manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return spoil


_SPOILT: dict[str, Callable[[Path], None]] = {
    "NaN weights": _fill(np.nan),
    "infinite weights": _fill(np.inf),
    "weights far too large": _fill(3e38),
    "a pickle": _replace("model.safetensors", lambda content: b"\x80\x04\x95\x11\x00\x00\x00\x00\x00\x00\x00}\x94."),
    "no weights": _replace("model.safetensors", lambda content: b""),
    "half of the weights": _replace("model.safetensors", lambda content: content[: len(content) // 2]),
    "trailing bytes": _replace("model.safetensors", lambda content: content + b"x"),
    "a header of a terabyte": _replace(
        "model.safetensors", lambda content: (10**12).to_bytes(8, "little") + content[8:]
    ),
    "deep JSON": _replace("config.json", lambda content: b'{"a":' * 100_000),
    "a deep manifest": _replace(MANIFEST, lambda content: b"[" * 100_000),
    "a manifest without files": _manifest(lambda manifest: manifest.update(files={})),
    "a manifest that leads out": _manifest(lambda manifest: manifest["files"].update({"../../etc/passwd": "0" * 64})),
    "a manifest with a path": _manifest(lambda manifest: manifest["files"].update({"/etc/passwd": "0" * 64})),
    "a card that is a link": _link("card.md", "/etc/passwd"),
    "a config that is a link": _link("config.json", "/etc/passwd"),
}


def fuzz_files(scratch: Path, count: int) -> Iterator[Tally]:
    """Files of each kind with random changes: one line, or a result."""
    tally, draw = Tally("fuzzed files"), random.Random(2)
    samples = _samples(scratch)
    for number in range(count):
        name, (content, command) = draw.choice(sorted(samples.items()))
        folder = scratch / "fuzzed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        done = run_command(command(folder, mutated(content, draw)))
        verdict = done.verdict()
        if name in ("config", "tokenizer") and done.code == 0 and done.out.strip() == TEXT:
            verdict = "silent"  # the source, untranslated
        tally.add(f"{number} {name}", verdict, done.err + done.out)
    yield tally


def _samples(scratch: Path) -> dict[str, tuple[bytes, Callable[[Path, bytes], list[str]]]]:
    """A file of each kind, and the command that reads it."""
    recipe = write_recipe(scratch / "recipe").read_bytes()

    def of_bundle(name: str) -> Callable[[Path, bytes], list[str]]:
        def command(folder: Path, content: bytes) -> list[str]:
            bundle = _copy(scratch)
            (bundle / name).write_bytes(content)
            if name != MANIFEST:
                write_manifest(bundle)
            return ["translate", TEXT, "-m", str(bundle)]

        return command

    def of_recipe(folder: Path, content: bytes) -> list[str]:
        path = scratch / "recipe" / "fuzzed.toml"
        path.write_bytes(content)
        return ["train", str(path), "--out", str(folder / "run"), "--dry-run"]

    def of_glossary(folder: Path, content: bytes) -> list[str]:
        (folder / "terms.tsv").write_bytes(content)
        return ["translate", TEXT, "-m", str(GOLDEN), "--glossary", str(folder / "terms.tsv")]

    def of_document(name: str) -> Callable[[Path, bytes], list[str]]:
        def command(folder: Path, content: bytes) -> list[str]:
            (folder / name).write_bytes(content)
            return ["translate", "-m", str(GOLDEN), "-i", str(folder / name), "-o", str(folder / f"out-{name}")]

        return command

    word = docx('<w:p><w:r><w:t>a b c</w:t></w:r></w:p><w:p><w:r><w:t xml:space="preserve">d e </w:t></w:r></w:p>')
    found = {
        "config": ((GOLDEN / "config.json").read_bytes(), of_bundle("config.json")),
        "manifest": ((GOLDEN / MANIFEST).read_bytes(), of_bundle(MANIFEST)),
        "tokenizer": (
            (GOLDEN / "tokenizer" / "tokenizer.json").read_bytes(),
            of_bundle("tokenizer/tokenizer.json"),
        ),
        "recipe": (recipe, of_recipe),
        "glossary": (b"a\tx\nb c\ty z\n", of_glossary),
        "docx": (word, of_document("a.docx")),
    }
    for name, text in _DOCUMENTS.items():
        found[name] = (text.encode(), of_document(name))
    return found


_DOCUMENTS = {
    "a.srt": "1\n00:00:01,000 --> 00:00:02,000\na b c\n\n2\n00:00:03,000 --> 00:00:04,000\n<i>d</i> e\n",
    "a.po": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a b c"\nmsgstr ""\n',
    "a.csv": 'one,two\na b,"c, d"\ne,f\n',
    "a.tsv": "one\ttwo\na b\tc d\n",
    "a.md": "# a b\n\n*c* `d` [e](http://x)\n\n- f\n",
    "a.html": "<p class=x>a <b>b</b> c</p><script>d</script>",
}


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Some random changes: bits, pieces removed, repeated or put elsewhere, and bytes that mean something to parsers."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if not data:
            break
        start = draw.randrange(len(data))
        end = min(len(data), start + draw.choice([1, 2, 8, 64]))
        piece = bytes(data[start:end])
        change = draw.randrange(5)
        if change == 0:
            data[start] ^= 1 << draw.randrange(8)
        elif change == 1:
            del data[start:end]
        elif change == 2:
            data[start:end] = piece * draw.choice([2, 100])
        elif change == 3:
            data[start:start] = draw.choice([b"\0", b"\xff\xfe", b'"', b"{", b"]", b"<", b"&", b"1e999", b"-1", b"\n"])
        else:
            place = draw.randrange(len(data))
            data[place:place] = piece
    return bytes(data)


def type_nonsense(scratch: Path) -> Iterator[Tally]:
    """Options and inputs that ask for too much or never come."""
    tally = Tally("the command line")
    fifo = scratch / "fifo"
    os.mkfifo(fifo)
    glossary, long_glossary = scratch / "deep.tsv", scratch / "long.tsv"
    glossary.write_text("a\t" + "[" * 50_000 + "\n")
    long_glossary.write_text("a\t" + "b " * 15_000 + "\n")
    model = ["-m", str(GOLDEN)]
    refused = [
        ["translate", TEXT, *model, "--beam", "1000000000"],
        ["translate", TEXT, *model, "--beam", "0"],
        ["translate", TEXT, *model, "--alpha", "1e308"],
        ["translate", TEXT, *model, "--alpha", "nan"],
        ["translate", TEXT, *model, "--nbest", "1000000000"],
        ["translate", "-i", str(fifo), "-o", str(scratch / "out.txt"), *model],
        ["translate", TEXT, *model, "--glossary", str(fifo)],
        ["translate", TEXT, *model, "--glossary", str(long_glossary)],
        ["translate", TEXT, *model, "--glossary", str(glossary)],
        ["translate", TEXT, "-m", str(fifo)],
        ["info", "/etc"],
        ["info", "no\x1b[2Jsuch"],
        ["serve", *model, "--port", "99999"],
        ["serve", *model, "--allow-host", "http://x"],
        ["serve", *model, "--trusted-proxy", "x"],
        ["serve", *model, "--limit", "connections=0"],
        ["train", str(fifo), "--out", str(scratch / "run")],
    ]
    for arguments in refused:
        done = run_command(arguments)
        tally.add(" ".join(arguments)[-60:], done.verdict(must_refuse=True), done.err + done.out)
    for name, text in {
        "no space": "x" * 200_000,
        "▁": "▁ a",
        "controls": "a\0\x1b[2J\u202e b",
        "🙂": "🙂" * 20_000,
    }.items():
        done = run_command(["translate", *model], stdin=text + "\n", seconds=120)
        tally.add(name, done.verdict(), done.err + done.out)
    yield tally

"""Word alignment against alignments by hand, beside a statistical aligner.

    python -m benchmarks.alignment --data DIR      # or REGARD_BENCH_DATA=DIR

DIR/alignment holds gold.de, gold.en and gold.de-en (`i-j`: German word i goes with English word j, words split at spaces);
DIR/europarl/train-00.{de,en}.xz is the text that eflomal learns from. Where eflomal is not installed, it comes from PyPI into a
virtual environment that is deleted afterwards (it is built from source, which takes a C compiler and a minute). The gold is for
measuring only: no layer, head, rule or number of Regard was chosen on it. All models see the same text, which is lower-cased and
tokenized. The alignment error rate is 1 - 2 |A and G| / (|A| + |G|): all links of this gold are sure. The benchmark fails if an
error rate is above its aim (0.22 in each direction, 0.18 symmetrised) or not below eflomal's.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.common import machine, report
from benchmarks.marked_phrases import measure_marks
from regard.bundle import find_bundle, load_bundle
from regard.generate.engines.select import make_engine
from regard.translation.alignment import align_texts
from regard.translation.terms import Span, overlaps

Links = set[tuple[int, int]]  # (German word, English word), from 0
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
_MAX_WORDS = 100  # of a sentence that eflomal learns from
_EFLOMAL = "2.0.0"
_AIMS = {"de-en": 0.22, "en-de": 0.22, "grow-diag-final-and": 0.18}


def read_gold(folder: Path) -> tuple[list[str], list[str], list[Links]]:
    """The German lines, the English lines, and their links."""
    german, english, pairs = ((folder / f"gold.{end}").read_text("utf-8").splitlines() for end in ("de", "en", "de-en"))
    return german, english, [parse_links(line) for line in pairs]


def parse_links(line: str) -> Links:
    """
    >>> sorted(parse_links("0-0 2-1"))
    [(0, 0), (2, 1)]
    """
    return {(int(one), int(other)) for one, other in (link.split("-") for link in line.split())}


def error_rate(found: Sequence[Links], gold: Sequence[Links]) -> float:
    """
    >>> error_rate([{(0, 0), (1, 2)}], [{(0, 0), (1, 1)}])
    0.5
    """
    both = sum(len(one & other) for one, other in zip(found, gold, strict=True))
    return 1 - 2 * both / (sum(map(len, found)) + sum(map(len, gold)))


def words_at(line: str, span: Span) -> list[int]:
    """The words between spaces that a span of a line touches.

    >>> words_at("eu-haushalts reden .", (3, 12)), words_at("a b c", (0, 3))
    ([0], [0, 1])
    """
    words = [match.span() for match in re.finditer(r"\S+", line)]
    return [number for number, word in enumerate(words) if overlaps(word, [span])]


def align_with_model(name: str, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
    """(source word, target word) of each pair of lines."""
    bundle = load_bundle(find_bundle(name))
    engine = make_engine(bundle, device="cpu")
    found = align_texts(engine, bundle.tokenizer, list(zip(sources, targets, strict=True)), bundle.max_length)
    return [
        {
            (i, j)
            for one, other in aligned.pairs
            for i in words_at(source, aligned.source[one])
            for j in words_at(target, aligned.target[other])
        }
        for source, target, aligned in zip(sources, targets, found, strict=True)
    ]


def find_eflomal(folder: Path) -> Path | None:
    """The program `eflomal-align`: on the path, beside this Python, or installed into `folder`; None if that fails."""
    beside = Path(sys.executable).parent
    if found := shutil.which("eflomal-align", path=os.pathsep.join([str(beside), os.environ.get("PATH", "")])):
        return Path(found)
    print(f"installing eflomal {_EFLOMAL} from PyPI for this run", flush=True)
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"eflomal=={_EFLOMAL}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"eflomal could not be installed, so its row is missing: {done.stderr.strip().splitlines()[-1:]}")
            return None
    return folder / "bin" / "eflomal-align"


def eflomal_version(program: Path) -> str:
    """The version of eflomal in the environment of this program."""
    code = "import importlib.metadata; print(importlib.metadata.version('eflomal'))"
    # Its first line names the Python that it runs in.
    python = program.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#!").strip()
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def align_with_eflomal(
    program: Path, german: Sequence[str], english: Sequence[str], text: Path, pairs: int
) -> tuple[list[Links], list[Links]]:
    """German to English and English to German, learnt from the lines themselves and `pairs` more."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("de", "en", "forward", "reverse")]
        with files[0].open("w") as left, files[1].open("w") as right:
            for one, other in (*zip(german, english, strict=True), *islice(_tokenized(text), pairs)):
                left.write(f"{one}\n")
                right.write(f"{other}\n")
        arguments = [f"{option}{path}" for option, path in zip(("-s", "-t", "-f", "-r"), files, strict=True)]
        subprocess.run([str(program), *arguments, "--model", "3"], check=True, stderr=subprocess.DEVNULL)
        first, second = (
            [parse_links(line) for line in islice(path.open(), len(german))] for path in (files[2], files[3])
        )
    return first, second


def _tokenized(text: Path) -> Iterator[tuple[str, str]]:
    with lzma.open(text / "train-00.de.xz", "rt") as left, lzma.open(text / "train-00.en.xz", "rt") as right:
        for pair in zip(left, right, strict=True):
            words = [_WORD.findall(line.lower()) for line in pair]
            if all(0 < len(side) <= _MAX_WORDS for side in words):
                yield " ".join(words[0]), " ".join(words[1])


def grow_diagonal(first: Links, second: Links) -> Links:
    """Symmetrise as Moses does by default (grow-diag-final-and): from the links of both directions to their neighbours in
    either, then to other words that have none.

    >>> sorted(grow_diagonal({(0, 0), (1, 1)}, {(0, 0), (1, 0), (3, 3)}))
    [(0, 0), (1, 0), (1, 1), (3, 3)]
    """
    links, union = first & second, first | second

    def is_free(link: tuple[int, int], both: bool) -> bool:
        ends = [all(one[side] != link[side] for one in links) for side in (0, 1)]
        return all(ends) if both else any(ends)

    grown = True
    while grown:
        grown = False
        for i, j in sorted(links):
            around = {(i + a, j + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & union - links
            for link in sorted(around):
                if is_free(link, both=False):
                    links.add(link)
                    grown = True
    for link in (*sorted(first), *sorted(second)):
        if is_free(link, both=True):
            links.add(link)
    return links


def table(name: str, first: Sequence[Links], second: Sequence[Links], gold: Sequence[Links]) -> dict[str, Any]:
    """A row of error rates from the links of both directions."""
    both = list(zip(first, second, strict=True))
    rates = {
        "de-en": error_rate(first, gold),
        "en-de": error_rate(second, gold),
        "intersection": error_rate([one & other for one, other in both], gold),
        "grow-diag-final-and": error_rate([grow_diagonal(*one) for one in both], gold),
    }
    return {"aligner": name, **{key: f"{value:.3f}" for key, value in rates.items()}}


def missed(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Which error rates of the first row are above their aim, or not below that of another row.

    >>> own = {"aligner": "own", "de-en": "0.210", "en-de": "0.230", "grow-diag-final-and": "0.100"}
    >>> missed([own, {"aligner": "other", "de-en": "0.210", "en-de": "0.300", "grow-diag-final-and": "0.200"}])
    ['en-de: 0.230 is above 0.22', 'de-en: 0.210 is not below 0.210 (other)']
    """
    own, *others = rows
    above = [f"{name}: {own[name]} is above {aim}" for name, aim in _AIMS.items() if float(own[name]) > aim]
    return above + [
        f"{name}: {own[name]} is not below {other[name]} ({other['aligner']})"
        for other in others
        for name in _AIMS
        if float(own[name]) >= float(other[name])
    ]


def _folder() -> Path | None:
    return Path(found) if (found := os.environ.get("REGARD_BENCH_DATA")) else None


def main() -> None:
    """Print the table of error rates, and how many marked phrases are put on the right words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=_folder(), help="folder of the text")
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs that eflomal learns from (default: 100000)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/alignment.json)")
    arguments = parser.parse_args()
    if arguments.data is None or not (arguments.data / "alignment" / "gold.de-en").is_file():
        if arguments.data is not None:
            sys.exit(f"{arguments.data}: must be a folder with alignment/gold.de-en in it")
        print("skipped: alignment needs hand-aligned text; name its folder with --data, or make bench DATA=DIR")
        return
    german, english, gold = read_gold(arguments.data / "alignment")
    first = align_with_model("de-en", german, english)
    second = [{(j, i) for i, j in links} for links in align_with_model("en-de", english, german)]
    rows = [table("regard, built-in models", first, second, gold)]
    facts = machine(torch.device("cpu"), ["ctranslate2"])
    with TemporaryDirectory() as folder:
        if program := find_eflomal(Path(folder)):
            facts["eflomal"] = eflomal_version(program)
            statistical = align_with_eflomal(program, german, english, arguments.data / "europarl", arguments.pairs)
            rows.append(table(f"eflomal, {arguments.pairs:,} pairs", *statistical, gold))
    facts["marked phrases"] = "{right} of {sentences} on the right words".format(**measure_marks(german, english, gold))
    report("alignment", rows, facts, arguments.out)
    if failures := missed(rows):
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()

"""Checks that a long file translates in bounded memory, and that a killed run resumes where it stopped.

    python -m benchmarks.translate_soak                      a million lines, with a very small model that reverses letters
    python -m benchmarks.translate_soak --lines 20000 --engine torch
    python -m benchmarks.translate_soak -m MODEL --source news.en

`regard translate -i FILE -o FILE` runs in a process of its own, is killed once in the middle (SIGKILL) and resumed with
--resume; its resident size is sampled every second. Before it resumes, the last line that it wrote is cut in two, as a kill
can leave it. Then the output is checked: it has one line for each input line; what was written before the kill is
unchanged, byte for byte; half of the lines are from a list, and all of those equal translations made alone; so do a sample
of the others and all lines around the kill. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from benchmarks.common import machine, print_facts, print_table, write_json
from regard.api import Model, load
from regard.bundle import find_bundle
from regard.data.corpus import read_lines
from regard.device import pick_device

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "golden" / "bundle-1"
LETTERS = "abcdefghijklmnop"
ODD = ["", "   ", " a b ", "a\u2028b", "a\x0cb", "a\x85b", "\ufeffa", "a\tb", "ä ß 日本", "\u2581 a", "</s>", "🙂"]
LONG = " ".join(LETTERS * 20)  # longer than the model was trained on, so it is split
KNOWN = 500  # lines of the list
AROUND = 50  # lines before and after the kill that are checked
NEAR = (
    0.1  # smaller score differences are near-ties; not with torch on CPUs, where a line gets the same bits in any batch
)
TENTH = 0.1  # share of the lines; memory taken until then does not count as growth


def make_lines(number: int, texts: Sequence[str], seed: int) -> Iterator[str]:
    """A random half of the lines is from the list of known lines, some of them odd; the others are new, or from `texts`."""
    draw = random.Random(seed)
    known = known_lines(texts)
    for n in range(number):
        if n % 50_000 == 1_234:
            yield LONG
        elif draw.random() < 0.5:
            yield draw.choice(known)
        else:
            yield draw.choice(texts) if texts else new_line(draw)


def known_lines(texts: Sequence[str]) -> list[str]:
    draw = random.Random(0)
    plain = [draw.choice(texts) if texts else new_line(draw) for _ in range(KNOWN - len(ODD))]
    return list(dict.fromkeys([*ODD, *plain]))


def new_line(draw: random.Random) -> str:
    return " ".join(draw.choices(LETTERS, k=draw.randint(1, 6)))


# --- the process ---


def resident(pid: int) -> int:
    """Resident bytes of a process and its children; 0 if it has ended."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += 1024 * int(line.split()[1])
        children = [c for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    except OSError:
        return total
    return total + sum(resident(int(child)) for child in children)


@dataclass
class Watched:
    """Samples of one process: seconds since its start, lines written so far, resident bytes."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    exit_code: int | None = None
    first_line: int = 0  # lines written before it started

    def growth(self, lines: int) -> int:
        """Bytes by which it grew after its first tenth of all lines: the most of the last samples less the most of those
        before it; 0 where it was too short to tell."""
        settled = [size for _, done, size in self.samples if done >= self.first_line + TENTH * lines]
        if len(settled) < 4:
            return 0
        quarter = len(settled) // 4
        return max(settled[-quarter:]) - max(settled[:quarter])


class Counter:
    """Counts the lines of a file that is being written."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, 0
        self.file: IO[bytes] | None = None

    def look(self) -> int:
        if self.file is None and self.path.exists():
            self.file = self.path.open("rb")
        if self.file is not None:
            while block := self.file.read(1 << 20):
                self.lines += block.count(b"\n")
        return self.lines


def watch(command: Sequence[str], partial: Path, kill_at: int | None, interval: float, errors: Path) -> Watched:
    """Run a command until it ends, or kill it after this many lines."""
    seen, counter = Watched(), Counter(partial)
    seen.first_line = counter.look()
    begun = time.monotonic()
    due = 0.0
    with errors.open("a") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None:
                now = time.monotonic() - begun
                lines = counter.look()
                if now >= due:
                    seen.samples.append((now, lines, resident(process.pid)))
                    due = now + interval
                if kill_at is not None and lines >= kill_at:
                    time.sleep(random.random() * 0.2)  # somewhere inside the current block
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seen.samples = [sample for sample in seen.samples if sample[2]]  # a process that has just ended has none
    seen.seconds, seen.exit_code = time.monotonic() - begun, process.returncode
    return seen


def tear(path: Path) -> None:
    """Cut the last line in two."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 2))
        if not file.read(2).startswith(b"\n"):  # else the last line is empty, and there is nothing to leave of it
            file.truncate(end - 1)


def whole_lines(path: Path) -> tuple[int, int, str]:
    """The number of complete lines in a file, their bytes, and their hash."""
    count, size, digest = 0, 0, hashlib.sha256()
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, size = count + 1, size + len(line)
                digest.update(line)
    return count, size, digest.hexdigest()


# --- checking ---


class Alone:
    """Translations of one line at a time, each made once."""

    def __init__(self, model: Model, beam: int | None, exact: bool) -> None:
        self.model, self.beam, self.exact = model, beam, exact
        self.made: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        if line not in self.made:
            self.made[line] = str(self.model.translate(line, beam=self.beam))
        return self.made[line]

    def is_near_tie(self, line: str, found: str) -> bool:
        """Whether the model scores `found` about as high as its translation made alone, so that rounding may decide."""
        if self.exact or not line.strip():
            return False
        expected = self(line)
        tokenizer, alpha = self.model.bundle.tokenizer, self.model.options.search.alpha
        scores = [
            log_prob / ((5 + len(tokenizer.encode(text, "target")) + 1) / 6) ** alpha
            for text, log_prob in zip((found, expected), self.model.score([line, line], [found, expected]), strict=True)
        ]
        return bool(scores[0] >= scores[1] - NEAR)


def check_output(
    source: Path, output: Path, alone: Alone, known: set[str], sample: set[int]
) -> tuple[dict[str, int], list[str]]:
    """Counts of lines: all, compared, near-ties, wrong; and a description of the first wrong ones."""
    counts = {"input lines": 0, "output lines": 0, "compared": 0, "near-ties": 0, "wrong": 0}
    examples: list[str] = []
    # Nothing but "\n" ends a line in either file.
    with source.open(encoding="utf-8", newline="\n") as left, output.open(encoding="utf-8", newline="\n") as right:
        for number, (line, found) in enumerate(zip_longest(left, right)):
            counts["input lines"] += line is not None
            counts["output lines"] += found is not None
            if line is None or found is None:
                continue
            text = line.removesuffix("\n")
            if text not in known and number not in sample:
                continue
            counts["compared"] += 1
            if found == (expected := alone(text)) + "\n":
                continue
            kind = "near-ties" if alone.is_near_tie(text, found.removesuffix("\n")) else "wrong"
            counts[kind] += 1
            if kind == "wrong" and len(examples) < 10:
                examples.append(f"line {number + 1}: {text[:60]!r} -> {found[:60]!r}, alone {expected[:60]!r}")
    return counts, examples


def load_model(arguments: argparse.Namespace) -> Model:
    options: dict[str, Any] = {"device": arguments.device}
    if arguments.engine:
        options["engine"] = arguments.engine
    known = inspect.signature(load).parameters
    return load(arguments.model, **{name: value for name, value in options.items() if name in known})


def at_share(runs: Sequence[Watched], share: float, lines: int) -> int | None:
    """The resident size of a process at about this many lines."""
    samples = [sample for run in runs for sample in run.samples if sample[1] > run.first_line]
    return min(samples, key=lambda sample: abs(sample[1] - share * lines))[2] if samples else None


def run(arguments: argparse.Namespace, folder: Path) -> int:
    texts = [line for line in map(str.strip, read_lines(arguments.source)) if line] if arguments.source else []
    source, output, errors = folder / "source.txt", folder / "output.txt", folder / "errors.txt"
    partial = output.with_name(output.name + ".partial")
    with source.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in make_lines(arguments.lines, texts, arguments.seed))
    bundle = find_bundle(arguments.model).resolve()
    command = [sys.executable, "-m", "regard", "translate", "-m", str(bundle), "-i", str(source)]
    command += ["-o", str(output), "--device", arguments.device]
    command += ["--engine", arguments.engine] if arguments.engine else []
    command += ["--beam", str(arguments.beam)] if arguments.beam else []
    print(" ".join(command), flush=True)

    first = watch(command, partial, int(arguments.kill_at * arguments.lines), arguments.interval, errors)
    failures = []
    if first.exit_code != -signal.SIGKILL:
        failures.append(f"the first run ended with exit code {first.exit_code} before it was killed")
        if first.exit_code:
            return finish(arguments, [first], {}, failures, errors)
        runs, kept, size, digest = [first], 0, 0, ""
    else:
        tear(partial)
        kept, size, digest = whole_lines(partial)
        print(f"killed after {first.seconds:.1f} s with {kept:,} whole lines written; goes on", flush=True)
        second = watch([*command, "--resume"], partial, None, arguments.interval, errors)
        runs = [first, second]
        if second.exit_code:
            failures.append(f"the resumed run ended with exit code {second.exit_code}")
            return finish(arguments, runs, {"lines before the kill": kept}, failures, errors)
    model = load_model(arguments)
    exact = type(model.engine).__name__ == "TorchEngine" and str(pick_device(arguments.device)) == "cpu"
    draw = random.Random(arguments.seed + 1)
    sample = set(draw.sample(range(arguments.lines), min(arguments.sample, arguments.lines)))
    sample |= {*range(max(0, kept - AROUND), kept + AROUND), *range(5), *range(arguments.lines - 5, arguments.lines)}
    known = {*known_lines(texts), *([LONG] if exact else [])}  # a line that was cut cannot be scored
    counts, examples = check_output(source, output, Alone(model, arguments.beam, exact), known, sample)
    if counts["output lines"] != counts["input lines"]:
        failures.append(f"{counts['input lines']:,} lines went in and {counts['output lines']:,} came out")
    if counts["wrong"]:
        failures.append(f"{counts['wrong']:,} of {counts['compared']:,} lines differ from translations made alone")
        failures += examples
    if counts["near-ties"] > arguments.near_ties * counts["compared"]:
        failures.append(f"{counts['near-ties']:,} of {counts['compared']:,} lines are near-ties that fell differently")
    with output.open("rb") as file:
        if kept and hashlib.sha256(file.read(size)).hexdigest() != digest:
            failures.append("what was written before the kill was changed afterwards")
    growth = max(one.growth(arguments.lines) for one in runs)
    if growth > arguments.most_growth * 2**20:
        failures.append(f"it grew by {growth / 2**20:.0f} MiB, and {arguments.most_growth} would be in order")
    found = {
        "engine": type(model.engine).__name__,
        "lines before the kill": kept,
        **counts,
        "growth MiB": growth / 2**20,
    }
    return finish(arguments, runs, found, failures, errors)


def finish(
    arguments: argparse.Namespace,
    runs: Sequence[Watched],
    found: dict[str, Any],
    failures: Sequence[str],
    errors: Path,
) -> int:
    """Print and write the results; returns the exit code."""
    seconds = sum(one.seconds for one in runs)
    facts = {
        **machine(pick_device(arguments.device), ("ctranslate2",)),
        "model": str(arguments.model),
        "lines": arguments.lines,
        "seconds": seconds,
        "lines/s": arguments.lines / seconds,
        "largest MiB": max((size for one in runs for *_, size in one.samples), default=0) / 2**20,
        **found,
        "failures": list(failures),
        "samples (s, lines, MiB)": [
            [[round(at, 1), done, round(size / 2**20, 1)] for at, done, size in one.samples] for one in runs
        ],
    }
    rows = []
    for share in (TENTH, 0.5, 1.0):
        size = at_share(runs, share, arguments.lines)
        rows.append({"lines written %": 100 * share, "resident MiB": size / 2**20 if size else None})
    print_facts({key: value for key, value in facts.items() if not isinstance(value, list)})
    print_table(rows)
    print(f"written to {write_json('translate_soak', rows, facts, arguments.out)}")
    if failures:
        print("FAILED:", *failures, sep="\n  ")
        print("last output of the command:", errors.read_text(errors="replace")[-2000:], sep="\n")
        return 1
    print("all checks passed")
    return 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--model", type=Path, default=MODEL, help=f"a bundle, run folder or built-in model (default: {MODEL})"
    )
    parser.add_argument("--source", type=Path, help="draw lines from this text instead of letters")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument(
        "--kill-at", type=float, default=0.5, help="share of the lines after which the process is killed"
    )
    parser.add_argument("--sample", type=int, default=300, help="lines to compare besides those from the list")
    parser.add_argument("--near-ties", type=float, default=0.01, help="largest share of lines that rounding may decide")
    parser.add_argument(
        "--most-growth", type=float, default=64, help="MiB by which a process may grow after a tenth of the lines"
    )
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between samples of the resident size")
    parser.add_argument("--beam", type=int, help="default: the model's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", help="engine of regard translate (default: its default)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the files here (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/translate_soak.json)")
    parsed = parser.parse_args(arguments)
    if parsed.lines < 1_000 or not 0 < parsed.kill_at < 1:
        parser.error("--lines must be at least 1000, and --kill-at a share between 0 and 1")
    return parsed


def main() -> None:
    arguments = parse()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["REGARD_CACHE"] = str(folder / "cache")
    try:
        code = run(arguments, folder)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

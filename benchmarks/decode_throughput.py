"""Decoding speed compared: Hugging Face generate, CTranslate2 and Regard's engines with the same weights, in one run.

    python -m benchmarks.decode_throughput                             a hand-made base model that copies (copying.py)
    python -m benchmarks.decode_throughput -m runs/news --source news.en     a trained model, its translations compared
    python -m benchmarks.decode_throughput -m runs/news --file         whole commands that translate a file of 3,000 lines

Sentences are sorted by length and batches are taken from all over them, so a batch has sentences of similar lengths, which
suits the peers best. "batch" is the number of sentences computed together. Hugging Face gets one batch after the other;
CTranslate2 and Regard get all of them at once and keep to that number, as in real use. Batch 1 is one call per sentence,
and "ms a sentence" is their median. Tokens are those of a contender's own translations, including the end token. "same as
HF" is the share of translations equal to Hugging Face's, in a search without length penalties. Times run from lists of ids
to lists of ids, with --file from process start to end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, print_facts, print_table, synchronize, write_json
from benchmarks.copying import copying_bundle, word_ids
from benchmarks.decode_contenders import CONTENDERS, Batches, Contender, Ids, Session, flat, release
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.config import ModelConfig
from regard.data.corpus import read_lines
from regard.device import pick_device
from regard.models.presets import PRESETS

SOURCE = Path(__file__).parents[1] / "data" / "tatoeba" / "test.en.xz"
POOL = 16_384  # sentences of the copying model, from which batches are taken
COMPARED = 32  # the batch at which translations are compared
MAX_PASSES = 50
PEER = "hf"
OURS = {
    "regard": "Regard torch is faster by",
    "regard-ct2": "Regard ctranslate2 is faster by",
    "regard-ct2-int8": "its int8 is faster by",
}
TABLE = (
    "beam",
    "batch",
    "contender",
    "output tokens/s",
    "sentences/s",
    "ms a sentence",
    "same as HF %",
    *OURS.values(),
)


def pick_batches(pool: Sequence[Ids], size: int, number: int) -> list[list[Ids]]:
    """`number` batches of `size` sentences from all over the pool, which is sorted by length; all of it if it is small."""
    ordered = sorted(pool, key=len)
    batches = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
    whole = len(ordered) // size
    if whole < number:
        return batches
    return [batches[int((n + 0.5) * whole / number)] for n in range(number)]


def read_pool(bundle: Bundle, source: Path) -> list[Ids]:
    """The ids of a file's lines, except those that Regard would split."""
    lines = [line.strip() for line in read_lines(source)]
    pool = bundle.tokenizer.encode_batch([line for line in lines if line])
    return [ids for ids in pool if 0 < len(ids) <= bundle.max_length]


# --- one cell of the table ---


def one_pass(
    session: Session, batches: Batches, size: int, beam: int, penalty: float, device: torch.device
) -> tuple[list[Ids], list[float]]:
    """Translations, and the seconds of each call: one call for all batches, or one per sentence if the batch size is 1."""
    calls = [[batch] for batch in batches] if size == 1 else [batches]
    found: list[Ids] = []
    seconds = []
    for call in calls:
        synchronize(device)
        begun = time.perf_counter()
        found += session.translate(call, size, beam, penalty)
        synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return found, seconds


def measure(
    session: Session, batches: Batches, size: int, beam: int, penalty: float, budget: float, device: torch.device
) -> tuple[dict[str, Any], list[Ids]]:
    """Warm up, then translate all batches repeatedly for `budget` seconds, at least once."""
    # A GPU warms up on all shapes, which allocates memory and captures graphs for each; a CPU on some of the shortest.
    begun = time.perf_counter()
    one_pass(session, batches if device.type == "cuda" else batches[:1], size, beam, penalty, device)
    warmup = time.perf_counter() - begun
    passes: list[list[float]] = []
    found: list[Ids] = []
    while not passes or (sum(map(sum, passes)) < budget and len(passes) < MAX_PASSES):
        found, seconds = one_pass(session, batches, size, beam, penalty, device)
        passes.append(seconds)
    typical = statistics.median(map(sum, passes))
    tokens = sum(len(ids) + 1 for ids in found)
    result: dict[str, Any] = {
        "output tokens/s": round(tokens / typical),
        "sentences/s": len(found) / typical,
        "output tokens": tokens,
        "sentences": len(found),
        "warm-up s": warmup,
        "passes, s": list(map(sum, passes)),
    }
    if size == 1:
        result["ms a sentence"] = 1e3 * statistics.median(value for seconds in passes for value in seconds)
    return result, found


def share(left: Sequence[Ids], right: Sequence[Ids]) -> float:
    """The percentage of equal sentences."""
    return 100 * sum(a == b for a, b in zip(left, right, strict=True)) / len(left)


class Table:
    """The rows so far, written after each, so that an interrupted run keeps them."""

    def __init__(self, name: str, facts: dict[str, Any], out: Path | None) -> None:
        self.name, self.facts, self.out = name, facts, out
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any], outcome: str) -> None:
        print(f"{row['contender']}{row.pop('where', '')}: {outcome}", flush=True)
        self.rows.append(row)
        self.path = write_json(self.name, self.rows, self.facts, self.out)

    def compare(self, cell: Sequence[str], figure: str, lower_is_better: bool = False) -> None:
        """Fill in how many times as fast Regard is as each of the others, among rows with the same `cell`."""
        done = [row for row in self.rows if figure in row]
        for short, column in OURS.items():
            ours = {tuple(row[name] for name in cell): row[figure] for row in done if row["short name"] == short}
            for row in done:
                value = ours.get(tuple(row[name] for name in cell))
                if value and row[figure] and not row["short name"].startswith("regard"):
                    row[column] = row[figure] / value if lower_is_better else value / row[figure]
        self.path = write_json(self.name, self.rows, self.facts, self.out)

    def show(self, columns: Sequence[str]) -> None:
        """Columns without any value are left out."""
        columns = [column for column in columns if any(column in row for row in self.rows)]
        rows = [{c: row.get(c, "failed" if "error" in row else None) for c in columns} for row in self.rows]
        if rows:
            print()
            print_table(rows)
            print(f"\nwritten to {self.path}")


class Run:
    """All cells; the contenders take turns, so a slow moment of the machine affects all of them."""

    def __init__(self, arguments: argparse.Namespace, bundle: Bundle, pool: list[Ids], table: Table) -> None:
        self.arguments, self.bundle, self.pool, self.table = arguments, bundle, pool, table
        self.device: torch.device = arguments.device
        self.sessions: dict[str, Session] = {}
        self.broken: set[str] = set()

    def all_cells(self, contenders: dict[str, Contender]) -> None:
        for size in self.arguments.batch:
            number = self.arguments.sentences if size == 1 else self.arguments.batches
            batches = pick_batches(self.pool, size, number)
            for beam in self.arguments.beam:
                expected: list[Ids] | None = None  # Hugging Face's translations
                for short, contender in contenders.items():
                    if short in self.broken or (contender.beams and beam not in contender.beams):
                        continue
                    found = self.cell(short, contender, batches, size, beam, expected)
                    expected = found if short == PEER else expected
                    self.table.compare(("beam", "batch"), "output tokens/s")

    def cell(
        self,
        short: str,
        contender: Contender,
        batches: Batches,
        size: int,
        beam: int,
        expected: list[Ids] | None,
    ) -> list[Ids] | None:
        """Measure and note it; returns translations to compare with, where this is the batch for that."""
        row: dict[str, Any] = {"short name": short, "contender": contender.name, "beam": beam, "batch": size}
        row["where"] = f", batch {size}, beam {beam}"
        compared: list[Ids] | None = None
        try:
            session = self.session(short, contender)
            penalty, budget = self.bundle.decode.alpha, self.arguments.seconds
            measured, found = measure(session, batches, size, beam, penalty, budget, self.device)
            row |= measured
            outcome = f"{row['output tokens/s']:,} output tokens/s"
            if "ms a sentence" in row:
                outcome += f", {row['ms a sentence']:.1f} ms a sentence"
            if size == self.arguments.compared:
                # Greedy search has no length penalty.
                compared = found if beam == 1 else session.translate(batches, size, beam, 0.0)
                if expected is not None:
                    row["same as HF %"] = share(compared, expected)
                    outcome += f", {row['same as HF %']:.1f}% the same as Hugging Face's"
            if self.arguments.model is None:
                row["copied right %"] = share(found, flat(batches))
                if row["copied right %"] < 95:
                    outcome += f"; BUT ONLY {row['copied right %']:.1f}% WERE COPIED RIGHT"
        except Exception as error:  # noqa: BLE001 - keep the others' figures
            traceback.print_exc()
            outcome = row["error"] = f"failed with {type(error).__name__}: {error}"[:500]
            self.sessions.pop(short, None)
            if isinstance(error, ImportError):
                self.broken.add(short)
            release(self.device)
        self.table.add(row, outcome)
        return compared

    def session(self, short: str, contender: Contender) -> Session:
        if short not in self.sessions:
            begun = time.perf_counter()
            self.sessions[short] = contender.open(self.bundle, self.device)
            print(f"{contender.name}: loaded in {time.perf_counter() - begun:.1f} s", flush=True)
        return self.sessions[short]


def summary(table: Table) -> None:
    """One line: how much faster Regard's torch engine is than Hugging Face, cell by cell."""
    column = OURS["regard"]
    cells = [
        f"{row[column]:.2f} x (batch {row['batch']}, beam {row['beam']})"
        for row in table.rows
        if row["short name"] == PEER and column in row
    ]
    if cells:
        print(f"Regard torch is faster than Hugging Face generate by {', '.join(cells)}")


def describe(config: ModelConfig) -> str:
    sizes = f"{config.encoder_layers} + {config.decoder_layers} layers, d_model {config.d_model}, d_ff {config.d_ff}"
    return f"{sizes}, {config.num_heads} heads, vocabulary {config.vocab_size:,}"


def make_facts(arguments: argparse.Namespace, bundle: Bundle) -> dict[str, Any]:
    device: torch.device = arguments.device
    return {
        **machine(device, ("transformers", "ctranslate2", "triton")),
        "cuda": torch.version.cuda or "none",
        "precision": "fp16" if device.type == "cuda" else "fp32",
        "threads": torch.get_num_threads(),
        "model": f"{arguments.model or f'{arguments.preset}, made by hand to copy'}: {describe(bundle.config)}",
        "alpha": bundle.decode.alpha,
    }


def run(arguments: argparse.Namespace, folder: Path) -> None:
    if arguments.model is not None:
        bundle = load_bundle(find_bundle(arguments.model))
    else:
        bundle = copying_bundle(ModelConfig(arguments.vocab, **PRESETS[arguments.preset]), folder / "copying")
    facts = make_facts(arguments, bundle)
    if arguments.file:
        from benchmarks.translate_file import compare_commands

        facts |= {"source": str(arguments.source), "lines": arguments.lines, "beam": arguments.beam[-1]}
        print_facts(facts)
        table = Table("translate_file", facts, arguments.out)
        compare_commands(arguments, bundle, folder, table)
        return
    pool = read_pool(bundle, arguments.source) if arguments.model else word_ids(POOL, bundle.config.vocab_size)
    lengths = sorted(map(len, pool))
    facts |= {
        "sentences": len(pool),
        "source tokens a sentence": statistics.mean(lengths),
        "source": str(arguments.source) if arguments.model else "lengths as in news text, words at random",
        "seconds a cell": arguments.seconds,
    }
    print_facts(facts)
    contenders = {}
    for short in arguments.contenders:
        if reason := CONTENDERS[short].missing(arguments.device):
            print(f"{CONTENDERS[short].name}: left out, {reason}", flush=True)
        else:
            contenders[short] = CONTENDERS[short]
    table = Table("decode_throughput", facts, arguments.out)
    Run(arguments, bundle, pool, table).all_cells(contenders)
    table.rows.sort(key=lambda row: (row["beam"], row["batch"]))
    table.show(TABLE)
    summary(table)


def numbers(text: str) -> list[int]:
    """ "1,32" -> [1, 32]"""
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be whole numbers from 1 up, with commas, but is {text!r}")
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with defaults that suit the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--model", help="a bundle, run folder or built-in model (default: one made by hand that copies)"
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="with -m: the text to translate")
    parser.add_argument("--preset", default="base", choices=PRESETS, help="shape of the copying model")
    parser.add_argument("--vocab", type=int, default=37_000, help="vocabulary of the copying model")
    parser.add_argument("--batch", type=numbers, help="default: 1,32,256,1024 on CUDA, else 1,32")
    parser.add_argument("--beam", type=numbers, default=[1, 4], help="default: 1,4")
    parser.add_argument("--batches", type=int, help="batches in a pass (default: 4 on CUDA, else 2)")
    parser.add_argument("--sentences", type=int, help="sentences in a pass of batch 1 (default: 24 on CUDA, else 12)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each cell is timed; at least one pass is")
    parser.add_argument("--contenders", help=f"some of {','.join(CONTENDERS)}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/decode_throughput.json)")
    file = parser.add_argument_group("with --file")
    file.add_argument("--file", action="store_true", help="time whole commands that translate a file; needs -m")
    file.add_argument("--lines", type=int, default=3_000, help="lines of the file; --source is repeated or truncated")
    file.add_argument("--rounds", type=int, default=2, help="times that each command is run; the fastest counts")
    file.add_argument("--peer-batch", type=int, help="the peers' batch (default: 256 on CUDA, else what suits each)")
    parsed = parser.parse_args(arguments)
    parsed.device = pick_device(parsed.device)
    on_cuda = parsed.device.type == "cuda"
    parsed.batch = parsed.batch or ([1, 32, 256, 1024] if on_cuda else [1, 32])
    parsed.batches = parsed.batches or (4 if on_cuda else 2)
    parsed.sentences = parsed.sentences or (24 if on_cuda else 12)
    parsed.peer_batch = parsed.peer_batch or (256 if on_cuda else None)
    parsed.compared = COMPARED if COMPARED in parsed.batch else max(parsed.batch)
    everybody = [name for name, it in CONTENDERS.items() if not it.optional]
    parsed.contenders = parsed.contenders.split(",") if parsed.contenders else everybody
    if unknown := [name for name in parsed.contenders if name not in CONTENDERS]:
        parser.error(f"--contenders knows {', '.join(CONTENDERS)}, but not {', '.join(unknown)}")
    if parsed.file and parsed.model is None:
        parser.error("--file translates text, so it needs a trained model: name one with -m")
    return parsed


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["REGARD_CACHE"] = str(Path(folder) / "cache")  # converted models are of no use later
        os.environ["HF_HUB_OFFLINE"] = "1"
        run(arguments, Path(folder))


if __name__ == "__main__":
    main()

"""Whole commands that translate a file: `regard translate` compared with short programs for the peers.

    python -m benchmarks.decode_throughput -m MODEL --file

The peers' programs are in this file. Each runs in a process of its own, on a model exported for it beforehand:

    python -m benchmarks.translate_file {hf,ct2} FOLDER IN OUT ...

Both sort the lines by length and work in batches. They import nothing from Regard.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from benchmarks.decode_throughput import Table
    from regard.bundle import Bundle

TABLE = ("contender", "seconds", "median s", "lines/s", "first run s", "same as HF %")
ROOT = Path(__file__).parents[1]
CPU_BATCH = {"hf": 32, "ct2": 64, "ct2-int8": 64}  # the fastest of 16 to 128 for CTranslate2, of 32 and 64 for HF


# --- the peers' programs ---


def by_length(ids: Sequence[Sequence[Any]], size: int) -> list[list[int]]:
    """The numbers of the lines, sorted by length and cut into batches."""
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def with_transformers(arguments: argparse.Namespace, lines: list[str]) -> list[str]:
    import torch
    from transformers import AutoModelForSeq2SeqLM, MarianTokenizer

    dtype = torch.float16 if arguments.device.startswith("cuda") else torch.float32
    tokenizer: Any = MarianTokenizer.from_pretrained(arguments.folder)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(arguments.folder, dtype=dtype, attn_implementation="sdpa")
    model = model.to(arguments.device).eval()
    ids = tokenizer(lines)["input_ids"]
    results = [""] * len(lines)
    beams = {"num_beams": arguments.beam}
    if arguments.beam > 1:
        beams |= {"length_penalty": arguments.alpha, "early_stopping": False}
    for batch in by_length(ids, arguments.batch):
        inputs = tokenizer.pad({"input_ids": [ids[number] for number in batch]}, return_tensors="pt").to(model.device)
        limit = inputs["input_ids"].shape[1] + arguments.max_extra
        with torch.inference_mode():
            found = model.generate(**inputs, **beams, do_sample=False, max_new_tokens=limit)
        for number, text in zip(batch, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True):
            results[number] = text
    return results


def with_ctranslate2(arguments: argparse.Namespace, lines: list[str]) -> list[str]:
    import sentencepiece

    ctranslate2: Any = importlib.import_module("ctranslate2")
    sides = [sentencepiece.SentencePieceProcessor(model_file=str(arguments.folder / f)) for f in ("source", "target")]
    translator = ctranslate2.Translator(
        str(arguments.folder),
        device=arguments.device.partition(":")[0],
        compute_type=arguments.compute_type,
        inter_threads=arguments.workers,
        intra_threads=arguments.threads,
    )
    pieces = sides[0].encode(lines, out_type=str)
    results = [""] * len(lines)
    pending: list[tuple[int, Any]] = []
    for batch in by_length(pieces, arguments.batch):
        sources = [pieces[number] for number in batch]
        limit = max(map(len, sources)) + arguments.max_extra
        found = translator.translate_batch(
            sources,
            beam_size=arguments.beam,
            length_penalty=arguments.alpha,
            max_decoding_length=max(limit, 1),
            asynchronous=True,
        )
        pending += zip(batch, found, strict=True)
    for number, result in pending:
        results[number] = sides[1].decode(result.result().hypotheses[0])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=("hf", "ct2"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--max-extra", type=int, default=50)
    parser.add_argument("--compute-type", default="float32")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    lines = arguments.input.read_text(encoding="utf-8").split("\n")[:-1]
    translate = {"hf": with_transformers, "ct2": with_ctranslate2}[arguments.program]
    arguments.output.write_text("".join(f"{line}\n" for line in translate(arguments, lines)), encoding="utf-8")


# --- comparing ---


def write_source(source: Path, lines: int, path: Path) -> None:
    """This many non-empty lines of a text, which is repeated if it has fewer."""
    from regard.data.corpus import read_lines

    text = [line.strip() for line in read_lines(source)]
    chosen = itertools.islice(itertools.cycle([line for line in text if line]), lines)
    path.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def regard_commands(
    arguments: argparse.Namespace, bundle: Bundle, folder: Path, source: Path
) -> dict[str, tuple[str, list[str]]]:
    """`regard translate` with each engine that can run here, with their names."""
    command = [sys.executable, "-m", "regard", "translate", "-i", str(source), "-o", "{out}"]
    command += ["--beam", str(arguments.beam[-1]), "--device", str(arguments.device)]
    help_text = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    model = ["-m", str(bundle.folder.resolve())]
    if "--force" in help_text:  # each round writes the same file; an earlier checkout overwrites it anyway
        command.append("--force")
    if "--engine" not in help_text:
        return {"regard": ("regard translate", [*command, *model])}
    commands = {"regard": ("regard translate --engine torch", [*command, "--engine", "torch", *model])}
    if arguments.device.type == "cpu" and importlib.util.find_spec("ctranslate2") is not None:
        command += ["--engine", "ctranslate2"]
        commands["regard-ct2"] = "regard translate --engine ctranslate2", [*command, *model]
        if "regard-ct2-int8" in arguments.contenders:
            name = "regard translate --engine ctranslate2, int8 bundle"
            commands["regard-ct2-int8"] = name, [*command, "-m", str(int8_bundle(bundle, folder))]
    return {short: named for short, named in commands.items() if short in arguments.contenders}


def int8_bundle(bundle: Bundle, folder: Path) -> Path:
    """The model as `regard export --to bundle --weights int8` writes it."""
    from regard.export import export

    if bundle.stored == "int8":
        return bundle.folder.resolve()
    export(bundle, "bundle", folder / "int8", "int8")
    return folder / "int8"


def hf_command(bundle: Bundle, folder: Path, options: list[str]) -> list[str]:
    """The model as `regard export --to transformers` writes it, also with pre-norm."""
    import torch

    from benchmarks.decode_contenders import hf_model
    from regard.export.transformers import write_tokenizer

    out = folder / "transformers"
    hf_model(bundle, torch.device("cpu")).save_pretrained(out)
    write_tokenizer(bundle, out)
    return [sys.executable, "-m", "benchmarks.translate_file", "hf", str(out), *options]


def ct2_command(bundle: Bundle, folder: Path, compute_type: str, device: torch.device, options: list[str]) -> list[str]:
    import torch

    from regard.generate.engines.ctranslate2_engine import share_cores
    from regard.generate.engines.ctranslate2_model import convert

    out = folder / "ctranslate2"
    if not out.exists():
        out.mkdir()
        convert(bundle, out, "fp32")
        (out / "source").write_bytes(bundle.tokenizer.models[0])
        (out / "target").write_bytes(bundle.tokenizer.models[-1])
    workers, threads = share_cores(torch.get_num_threads()) if device.type == "cpu" else (1, 0)
    more = ["--compute-type", compute_type, "--workers", str(workers), "--threads", str(threads)]
    return [sys.executable, "-m", "benchmarks.translate_file", "ct2", str(out), *options, *more]


def peer_commands(
    arguments: argparse.Namespace, bundle: Bundle, folder: Path, source: Path
) -> dict[str, tuple[str, list[str]]]:
    """The peers' commands with their names; one that cannot be built is skipped with a note."""
    options = [str(source), "{out}", "--device", str(arguments.device)]
    options += ["--beam", str(arguments.beam[-1]), "--alpha", str(bundle.decode.alpha)]
    options += ["--max-extra", str(bundle.decode.max_extra)]
    kinds = {"ct2": "float32", "ct2-int8": "int8"} if arguments.device.type == "cpu" else {"ct2-fp16": "float16"}
    from benchmarks.decode_contenders import CONTENDERS

    commands: dict[str, tuple[str, list[str]]] = {}
    for short in ("hf", *kinds):
        contender = CONTENDERS[short]
        if short not in arguments.contenders:
            continue
        reason = contender.missing(arguments.device)
        batch = ["--batch", str(arguments.peer_batch or CPU_BATCH[short])]
        try:
            if reason is None and short == "hf":
                commands[short] = contender.name, hf_command(bundle, folder, [*options, *batch])
            elif reason is None:
                command = ct2_command(bundle, folder, kinds[short], arguments.device, [*options, *batch])
                commands[short] = contender.name, command
        except Exception as error:  # noqa: BLE001 - keep the others' figures
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            print(f"{contender.name}: left out, {reason}", flush=True)
    return commands


def compare_commands(arguments: argparse.Namespace, bundle: Bundle, folder: Path, table: Table) -> None:
    """Run all commands `rounds` times, taking turns; the fastest run counts, and the first is reported too."""
    from benchmarks.decode_throughput import OURS

    source = folder / "source.txt"
    write_source(arguments.source, arguments.lines, source)
    commands = peer_commands(arguments, bundle, folder, source)
    commands |= regard_commands(arguments, bundle, folder, source)
    seconds: dict[str, list[float]] = {short: [] for short in commands}
    failed: dict[str, str] = {}
    for _ in range(arguments.rounds):
        for short, (name, command) in commands.items():
            out = folder / f"{short}.txt"
            out.unlink(missing_ok=True)
            begun = time.perf_counter()
            done = subprocess.run(
                [str(out) if part == "{out}" else part for part in command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                cwd=ROOT,
                check=False,
            )
            seconds[short].append(time.perf_counter() - begun)
            if done.returncode:
                failed[short] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
            print(f"{name}: {seconds[short][-1]:.1f} s {failed.get(short, '')}", flush=True)
    expected = read_output(folder / "hf.txt")
    for short, (name, _) in commands.items():
        row: dict[str, Any] = {"short name": short, "contender": name}
        if short in failed:
            table.add(row | {"error": failed[short]}, "failed")
            continue
        row |= {"seconds": min(seconds[short]), "first run s": seconds[short][0], "runs, s": seconds[short]}
        row["median s"] = statistics.median(seconds[short])
        row["lines/s"] = arguments.lines / row["seconds"]
        found = read_output(folder / f"{short}.txt")
        outcome = f"{row['seconds']:.1f} s"
        if len(found) != arguments.lines:
            outcome += f"; BUT IT WROTE {len(found):,} LINES"
        elif len(expected) == len(found) and short != "hf":
            row["same as HF %"] = 100 * sum(a == b for a, b in zip(found, expected, strict=True)) / len(found)
        table.add(row, outcome)
    table.compare((), "seconds", lower_is_better=True)
    table.show((*TABLE, *OURS.values()))


def read_output(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


if __name__ == "__main__":
    main()

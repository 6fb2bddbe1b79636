"""What the paper claims, measured: training against an LSTM and convolutions, the cost of a layer over length, dot-product against
additive attention, scaled against unscaled scores, and how far back each can look.

    python -m benchmarks.claims                                      # all sections; Tatoeba, which ships with Regard
    python -m benchmarks.claims --only translation --recipe recipes/multi30k.toml --set data.root=FOLDER --minutes 1
    python -m benchmarks.claims --only layers,scores,recall          # adds to the same JSON file
    python -m benchmarks.claims --page docs/claims.md                # no measurement: the page and its plots from the JSON file
    python -m benchmarks.claims --smoke                              # seconds, on a CPU: everything at a tiny size

Each section is a module in benchmarks/paper_claims/. Its rows are written as they are measured: after a time limit or a crash the
same command goes on with what is missing, and leaves out sections that are complete (--again measures them anew).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, print_facts
from benchmarks.paper_claims import layers, recall, scores, translation
from benchmarks.paper_claims.bench import Bench, Row, Rows
from benchmarks.paper_claims.page import write_page
from benchmarks.train_throughput import free
from regard.device import compute_dtype, pick_device
from regard.errors import RegardError, UserError
from regard.files import write_atomic
from regard.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "claims.json"
PAGE = ROOT / "docs" / "claims.md"
RECIPE = ROOT / "recipes" / "tatoeba.toml"
MINUTES = 0.4  # of training for each contender and learning rate
RECALL_SECONDS = 10.0  # likewise

# The model of section "translation", before --set: the paper's block with the norm first, since no warm-up fits half a minute.
SETTINGS = (
    "model.preset=small", "model.norm_position=pre", "model.dropout=0.1", "train.batch_tokens=12000", "train.optimizer=adamw",
    "train.schedule=linear", "train.weight_decay=0.01", "train.ema=0", "train.rdrop=0", "train.monitor=loss", "train.clip=1.0",
)  # fmt: skip
SMOKE_SETTINGS = (
    "data.train=dev.{en,de}.xz", "tokenizer.vocab_size=600", "model.d_model=16", "model.d_ff=32", "model.num_heads=2",
    "model.encoder_layers=1", "model.decoder_layers=1", "train.batch_tokens=300", "train.workers=1",
)  # fmt: skip
SECTIONS = ("translation", "layers", "scores", "recall")
SHOW: dict[str, Callable[[Sequence[Row]], None]] = {
    "translation": translation.show,
    "layers": layers.show,
    "scores": scores.show,
    "recall": recall.show,
}


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    smoke = SMOKE_SETTINGS if arguments.smoke else ()
    recipe = load_recipe(arguments.recipe, [*SETTINGS, *smoke, *arguments.set])
    # The minutes of a contender are counted here, not by the training loop.
    return replace(recipe, train=replace(recipe.train, seed=arguments.seed, device=arguments.device))


def load_results(path: Path) -> dict[str, Any]:
    """The sections that were measured before, by name."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def save_section(path: Path, name: str, rows: Sequence[Row], facts: Row, is_complete: bool) -> None:
    """Write a section's rows beside those of the other sections."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {**load_results(path), name: {"facts": facts, "complete": is_complete, "rows": rows}}
    write_atomic(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def earlier_section(arguments: argparse.Namespace, name: str, facts: Row) -> dict[str, Any]:
    """What an earlier start has measured of a section with the same settings on the same kind of machine."""
    section = load_results(arguments.out).get(name)
    if section is None or arguments.again:
        return {"rows": [], "complete": False, "facts": {}}
    differ = [key for key, value in facts.items() if key != "date" and section["facts"].get(key) != value]
    if differ:
        raise UserError(
            f"{arguments.out}: section {name} was measured with other settings ({', '.join(differ)}); use --again to measure it "
            f"anew, or another file with --out"
        )
    return {"complete": False, **section}  # earlier files do not say


def run_section(name: str, bench: Bench, arguments: argparse.Namespace) -> None:
    facts: Row = {**machine(bench.device, ("triton", "numpy", "sacrebleu")), "cuDNN": torch.backends.cudnn.version()}
    facts |= {"number format": "bf16" if bench.dtype else "fp32", "seed": bench.seed}
    begun = time.perf_counter()
    if name == "translation":
        recipe = read_recipe(arguments)
        train = ", ".join(entry.path for entry in recipe.data.train)
        facts |= {"recipe": arguments.recipe.name, "train": train, "test": str(recipe.data.test)}
        facts |= {"target tokens an update": recipe.train.batch_tokens, "minutes each": arguments.minutes}
    elif name == "recall":
        facts["seconds each"] = arguments.recall_seconds
    earlier = earlier_section(arguments, name, facts)
    if earlier["complete"]:
        print(f"{name}: measured before, on {earlier['facts']['date']} (--again measures it anew)", flush=True)
        return
    spent = earlier["facts"].get("section, s", 0.0)

    def keep(rows: Sequence[Row], is_complete: bool = False) -> None:
        facts["section, s"] = round(spent + time.perf_counter() - begun, 1)
        save_section(arguments.out, name, rows, facts, is_complete)

    if name == "translation":
        rows = translation.measure(bench, recipe, arguments.minutes, earlier["rows"], keep)
    elif name == "recall":
        rows = recall.measure(bench, arguments.recall_seconds, Rows(earlier["rows"], keep))
    else:
        rows = {"layers": layers.measure, "scores": scores.measure}[name](bench, Rows(earlier["rows"], keep))
    keep(rows, is_complete=True)
    print_facts(facts)
    SHOW[name](rows)
    print(f"\n{name}: {facts['section, s']} s; written to {arguments.out}\n", flush=True)
    free(bench.device)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas (default: %(default)s)")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="data and vocabulary of section translation")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="change the recipe")
    parser.add_argument("--minutes", type=float, help=f"for each run of section translation (default: {MINUTES})")
    parser.add_argument(
        "--recall-seconds", type=float, help=f"for each run of section recall (default: {RECALL_SECONDS:g})"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--again", action="store_true", help="measure complete sections anew")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file (default: %(default)s)")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="?",
        const=PAGE,
        help="measure nothing; write the page from --out (default: %(const)s)",
    )
    parsed = parser.parse_args(arguments)
    parsed.only = parsed.only.split(",")
    if unknown := [name for name in parsed.only if name not in SECTIONS]:
        parser.error(f"--only knows {', '.join(SECTIONS)}, but not {', '.join(unknown)}")
    parsed.minutes = parsed.minutes or (0.005 if parsed.smoke else MINUTES)
    parsed.recall_seconds = parsed.recall_seconds or (0.2 if parsed.smoke else RECALL_SECONDS)
    if min(parsed.minutes, parsed.recall_seconds) <= 0:
        parser.error("--minutes and --recall-seconds must be above 0")
    if parsed.page is not None and not parsed.out.is_file():
        parser.error(f"--page: {parsed.out} is missing; measure first, or name a file with --out")
    return parsed


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    if arguments.page is not None:
        write_page(load_results(arguments.out), arguments.page)
        print(f"written to {arguments.page}")
        return
    device = pick_device(arguments.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # as fast as fp32 gets, for contenders that stay in it
        bench = Bench(device, compute_dtype("auto", device), arguments.seed, arguments.smoke)
    else:
        bench = Bench(device, None, arguments.seed, arguments.smoke)
    try:
        for name in arguments.only:
            run_section(name, bench, arguments)
    except RegardError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

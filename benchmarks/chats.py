"""What fine-tuning on a few hundred chats does to a model that answers: 500 chats with a ship's captain (benchmarks/captain.py),
through the run of `regard train`, all weights and LoRA.

    python -m benchmarks.chats --model MODEL
    python -m benchmarks.chats --model MODEL --ways lora --epochs 1 --text novels.valid.txt

Printed for the model as it came and for each way to fine-tune it: the loss (nats a token) of held-out chats, the share of held-out
answers in the captain's form, both for questions of the kinds in training and for other kinds, five answers, and what was
forgotten: bits per byte of the beginning of a text. Answers are the likeliest token each time, at most 60 of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.captain import Chats, Message, has_form, make_chats
from benchmarks.common import machine, print_facts, print_table, write_json
from regard.api import load
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.device import pick_device
from regard.recipe import Recipe
from regard.tasks.generate import find_corpus, read, score_test_set
from regard.training.auto import choose_recipe
from regard.training.run import train
from regard.writing.options import writing_options

# The rates: a tenth of what a model of this size was trained with, and the ten times higher one that LoRA needs (Schulman, 2025).
WAYS = {
    "full": ["train.lr=1e-4"],
    "lora": ["train.lr=1e-3", "train.lora=16"],
}
SHOWN = 5  # answers
LONGEST = 60  # tokens of an answer
TEXT_BYTES = 100_000
UNTUNED = "as it came"


def write_chats(folder: Path, chats: Chats) -> dict[str, Path]:
    """A .jsonl file for each part."""
    paths = {}
    for name, part in chats._asdict().items():
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(f"{json.dumps({'messages': chat})}\n" for chat in part), encoding="utf-8")
    return paths


def recipe_of(paths: dict[str, Path], way: str, arguments: argparse.Namespace) -> Recipe:
    """What `regard train train.jsonl --init MODEL` chooses, for so many epochs."""
    given = [
        f"train.init={json.dumps(str(find_bundle(arguments.model)))}",
        f"data.valid={json.dumps(str(paths['valid']))}",
        f"train.epochs={arguments.epochs}",
        f"train.batch_tokens={arguments.batch_tokens}",
        f"train.device={arguments.device}",
        f"train.seed={arguments.seed}",
    ]
    return choose_recipe("generate", [paths["train"]], [*given, *WAYS[way], *arguments.set]).recipe


def held_out_loss(recipe: Recipe, bundle: Bundle, path: Path) -> float:
    """Nats a token of the answers."""
    scores = score_test_set(recipe, bundle, list(read(find_corpus(str(path), recipe))))
    return next(metric.score for metric in scores.metrics if metric.key == "loss")


def answers(bundle: Bundle, chats: Sequence[Sequence[Message]], device: str) -> list[str]:
    """The likeliest answer to the question of each chat."""
    writer = load(bundle.folder, device=device, engine="torch").writer
    options = writing_options(temperature=0, max_tokens=LONGEST)
    return [one.continuations[0].text for one in writer.answer([list(chat[:1]) for chat in chats], options)]


def measure(
    bundle: Bundle, recipe: Recipe, chats: Chats, paths: dict[str, Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    """A row of the table, and the answers."""
    row: dict[str, Any] = {}
    said: dict[str, str] = {}
    for part, shown in (("valid", "known kinds"), ("unseen", "new kinds")):
        asked: list[list[Message]] = getattr(chats, part)
        given = answers(bundle, asked, arguments.device)
        row[f"loss, {shown}"] = held_out_loss(recipe, bundle, paths[part])
        row[f"% in form, {shown}"] = 100 * sum(map(has_form, given)) / len(given)
        said |= {chat[0]["content"]: answer for chat, answer in zip(asked, given, strict=True)}
    if arguments.text is not None:
        text = arguments.text.read_bytes()[:TEXT_BYTES].decode("utf-8", "ignore")
        [score] = load(bundle.folder, device=arguments.device, engine="torch").score_texts([text])
        row["bits/byte of the text"] = score.bits_per_byte
    return {**row, "answers": said}


def run(arguments: argparse.Namespace) -> None:
    device = pick_device(arguments.device)
    chats = make_chats(arguments.seed, arguments.train, arguments.held_out)
    facts = {**machine(device), "model": str(arguments.model), "chats": arguments.train, "epochs": arguments.epochs}
    print_facts(facts)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        paths = write_chats(folder, chats)
        recipes = {way: recipe_of(paths, way, arguments) for way in arguments.ways}
        first = load_bundle(find_bundle(arguments.model))
        rows = [{"model": UNTUNED, **measure(first, next(iter(recipes.values())), chats, paths, arguments)}]
        for way, recipe in recipes.items():
            begun = time.perf_counter()
            tuned = train(recipe, folder / way)
            seconds = time.perf_counter() - begun
            print(f"{way}: trained in {seconds:.0f} s", flush=True)
            rows.append({"model": way, "seconds": seconds, **measure(tuned, recipe, chats, paths, arguments)})
            path = write_json("chats", rows, facts, arguments.out)  # so that an interrupted run keeps its results
    columns = dict.fromkeys(name for row in rows for name in row if name != "answers")
    print_table([{name: row.get(name) for name in columns} for row in rows])
    show_answers(rows, chats)
    print(f"\nwritten to {path}")


def show_answers(rows: Sequence[dict[str, Any]], chats: Chats) -> None:
    """The same questions, answered by each model: of known kinds and of new ones in turn."""
    asked = [chat[0]["content"] for pair in zip(chats.valid, chats.unseen, strict=False) for chat in pair]
    for question in asked[:SHOWN]:
        print(f"\n{question}")
        for row in rows:
            print(f"  {row['model']:12} {' / '.join(row['answers'][question].splitlines())}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a language model with a chat template")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    parser.add_argument("--train", type=int, default=500, help="chats to train on")
    parser.add_argument("--held-out", type=int, default=100, help="chats that are held out")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens of an update")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="as for regard train")
    parser.add_argument("--text", type=Path, help="a text, to see what was forgotten")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep chats and runs in this new folder")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/chats.json)")
    parsed = parser.parse_args(arguments)
    parsed.ways = parsed.ways.split(",")
    if unknown := [way for way in parsed.ways if way not in WAYS]:
        parser.error(f"--ways knows {', '.join(WAYS)}, but not {', '.join(unknown)}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> None:
    run(parse(arguments))


if __name__ == "__main__":
    main()

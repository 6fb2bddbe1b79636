"""English constituency parsing as text to text (section 6.3 of the paper): words in, a linearised tree out.

    python -m benchmarks.parsing prepare --words TREES.ptb.xz DIR         4,000 trees to train on, 300 to validate, the rest to test
    regard train recipes/parsing.toml --set data.root=DIR
    python -m benchmarks.parsing score DIR -m runs/parsing                labelled bracketing F1 as evalb counts it

The trees are those of GUM (Zeldes, 2017) whose texts are free. evalb leaves out a sentence whose tree has other words than the
gold tree. Here nothing is left out: `trees.restore` repairs such a tree, and the table says how many needed it. Parts of speech are
not predicted; the gold ones say what is punctuation.
"""

from __future__ import annotations

import argparse
import lzma
import time
from collections.abc import Sequence
from pathlib import Path

import regard
from benchmarks.common import machine, report
from benchmarks.trees import WORD, Tree, linearise, read_trees, restore, score, words_of
from regard.device import pick_device

SPLIT = {"train": (0, 4000), "valid": (4000, 4300), "test": (4300, None)}


def prepare(trees: Path, out: Path, with_words: bool) -> None:
    """Write NAME.words and NAME.tree for each part, and the gold trees as they are."""
    with lzma.open(trees, "rt", encoding="utf-8") as file:
        everything = read_trees(file.read())
    out.mkdir(parents=True, exist_ok=True)
    for name, (begin, end) in SPLIT.items():
        part = everything[begin:end]
        linearised = [linearise(tree, with_words) for tree in part]
        for suffix, lines in (("words", map(words_of, part)), ("tree", linearised), ("ptb", map(str, part))):
            (out / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{name}: {len(part):,} trees, {sum(len(tree.leaves()) for tree in part):,} words")


def is_whole(line: str, tree: Tree) -> bool:
    """Whether a model's line is a tree over the right number of words, with nothing to repair."""
    return line == linearise(restore(line, tree.leaves()), with_words=WORD not in line.split())


def evaluate(folder: Path, model: str, part: str, beam: int, alpha: float, out: Path | None) -> None:
    gold = read_trees((folder / f"{part}.ptb").read_text(encoding="utf-8"))
    loaded = regard.load(model)
    begun = time.perf_counter()
    lines = loaded.translate([words_of(tree) for tree in gold], beam=beam, alpha=alpha)
    seconds = time.perf_counter() - begun
    predicted = [restore(line, tree.leaves()) for line, tree in zip(lines, gold, strict=True)]
    found = score(gold, predicted)
    row = {
        "part": part,
        "trees": found.sentences,
        "recall": found.recall,
        "precision": found.precision,
        "F1": found.f1,
        "exact %": 100 * found.exact / found.sentences,
        "repaired": sum(not is_whole(line, tree) for line, tree in zip(lines, gold, strict=True)),
        "beam": beam,
        "alpha": alpha,
        "seconds": seconds,
    }
    report("parsing", [row], machine(pick_device("auto")), out)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    preparing = verbs.add_parser("prepare")
    preparing.add_argument("trees", type=Path)
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--words", action="store_true", help="words stand in the trees as they are, not as XX")
    scoring = verbs.add_parser("score")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("-m", "--model", required=True)
    scoring.add_argument("--part", choices=SPLIT, default="test")
    scoring.add_argument("--beam", type=int, default=21, help="the paper's: 21")
    scoring.add_argument("--alpha", type=float, default=0.3, help="the paper's: 0.3")
    scoring.add_argument("--out", type=Path)
    arguments = parser.parse_args(words)
    if arguments.verb == "prepare":
        prepare(arguments.trees, arguments.folder, arguments.words)
    else:
        evaluate(arguments.folder, arguments.model, arguments.part, arguments.beam, arguments.alpha, arguments.out)


if __name__ == "__main__":
    main()

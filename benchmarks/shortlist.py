"""What a lexical shortlist would gain and cost on CPUs: CTranslate2's vocabulary map, which restricts the output to likely
translations of the source tokens.

    python -m benchmarks.shortlist
    python -m benchmarks.shortlist -m MODEL --text 'train.{en,de}' --source test.en --reference test.de --lines 400

The first prints the CPU time per sentence of a copying model of the built-in student's shape, in int8 on one core, with and
without a shortlist, taking turns. A batch uses the union of its sentences' shortlists; `alone` means batches of one, so a
sentence does not depend on the others. The second learns shortlists from parallel text (`lexicon.py`), and prints how many
translations of the plain search they would have allowed, and BLEU with each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.common import machine, print_facts, print_markdown, write_json
from benchmarks.copying import copying_bundle, word_ids
from benchmarks.lexicon import Shortlist, learn
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.config import ModelConfig
from regard.data.corpus import read_lines, resolve_all
from regard.evaluate import score
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.ctranslate2_model import convert, vocabularies
from regard.generate.options import SearchOptions, forbidden_ids
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator

STUDENT = Path(__file__).parents[1] / "recipes" / "builtin" / "student.toml"
SHAPE = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers")
SIZES = ((20, 200), (50, 200), (100, 200), (100, 1_000), (100, 4_000))  # translations of each token, and common tokens
LONGEST = 80  # tokens of a training sentence, at most
SENTENCES = 96  # sentences to time


class Shortened:
    """CTranslate2's translator with its vocabulary map enabled."""

    def __init__(self, translator: Any, alone: bool) -> None:
        self.translator, self.alone = translator, alone

    def translate_batch(self, *given: Any, **fields: Any) -> Any:
        return self.translator.translate_batch(*given, **fields, use_vmap=True, max_batch_size=int(self.alone))

    def score_batch(self, *given: Any, **fields: Any) -> Any:
        return self.translator.score_batch(*given, **fields)


def make_engine(folder: Path, bundle: Bundle, batch: int, shortened: bool, alone: bool = True) -> CTranslate2Engine:
    engine = CTranslate2Engine(folder, bundle, "int8", forbidden=forbidden_ids(bundle.tokenizer), batch=batch)
    if shortened:
        engine._translator = Shortened(engine._translator, alone)
    return engine


def named(names: Sequence[str]) -> list[str]:
    """CTranslate2's map separates tokens by spaces, so no token may contain one; ids without a token do."""
    return [name.replace(" ", "_") for name in names]


def write_map(folder: Path, bundle: Bundle, shortlist: Shortlist) -> None:
    """A source token, a tab and target tokens on each line; those on the line without a source token are always allowed."""
    source, target = map(named, vocabularies(bundle.tokenizer, bundle.config.vocab_size))
    lines = ["\t" + " ".join(target[i] for i in shortlist.common.tolist())]
    for i, becomes in enumerate(shortlist.each.tolist()):
        lines.append(source[i] + "\t" + " ".join(target[n] for n in dict.fromkeys([i, *becomes])))
    (folder / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure_speed(folder: Path, rounds: int) -> list[dict[str, Any]]:
    recipe = tomllib.loads(STUDENT.read_text(encoding="utf-8"))
    shape = {name: recipe["model"][name] for name in SHAPE}
    config = ModelConfig(recipe["tokenizer"]["vocab_size"], **shape)
    bundle = copying_bundle(config, folder / "bundle")
    converted = folder / "converted"
    converted.mkdir()
    convert(bundle, converted, "int8")
    vocabulary = converted / "shared_vocabulary.json"
    vocabulary.write_text(json.dumps(named(json.loads(vocabulary.read_text(encoding="utf-8")))), encoding="utf-8")
    ids = word_ids(SENTENCES, config.vocab_size)
    draw = random.Random(1)
    each = np.array([draw.sample(range(config.vocab_size), 50) for _ in range(config.vocab_size)], dtype=np.uint32)
    shortlist = Shortlist(np.arange(400, 600, dtype=np.uint32), each)
    write_map(converted, bundle, shortlist)
    rows = []
    for beam in (4, 1):
        for batch in (1, 8, 32, 64):
            engines = {
                "whole": make_engine(converted, bundle, batch, False),
                "shared": make_engine(converted, bundle, batch, True, alone=False),
            }
            options = SearchOptions(beam=beam)
            for engine in engines.values():  # ids are looked up by the changed names
                engine._source, engine._target = named(engine._source), named(engine._target)
                engine._ids = {piece: i for i, piece in enumerate(engine._target)}
            seconds: dict[str, list[float]] = {name: [] for name in engines}
            found = {}
            for _ in range(rounds):
                for name, engine in engines.items():
                    begun = time.process_time()
                    found[name] = [hypotheses[0].ids for hypotheses in engine.translate(ids, options)]
                    seconds[name].append(time.process_time() - begun)
            whole, short = (1000 * min(seconds[name]) / len(ids) for name in engines)
            parts = [ids[n : n + batch] for n in range(0, len(ids), batch)]
            counts = [len(set().union(*map(shortlist.candidates, part))) for part in parts]
            rows.append(
                {
                    "beam": beam,
                    "batch": "1 (alone)" if batch == 1 else batch,
                    "whole vocabulary, ms a sentence": whole,
                    "shortlist, ms": short,
                    "times as fast": whole / short,
                    "pieces looked at": sum(counts) // len(counts),
                    "same translations, %": 100 * sum(a == b for a, b in zip(*found.values(), strict=True)) / len(ids),
                }
            )
            print_facts(rows[-1])
    return rows


def measure_quality(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    bundle = load_bundle(find_bundle(arguments.model))
    sources, references = (
        list(read_lines(path))[: arguments.lines or None] for path in (arguments.source, arguments.reference)
    )
    pairs = []
    for corpus in (one for spec in arguments.text for one in resolve_all(spec, Path(), bundle.source, bundle.target)):
        texts = list(zip(*corpus.pairs(), strict=True))
        sides = [bundle.tokenizer.encode_batch(side) for side in texts]
        pairs += [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= LONGEST]
    shortlist = learn(pairs[:: max(1, len(pairs) // arguments.pairs)], bundle.config.vocab_size)
    folder.mkdir(exist_ok=True)
    convert(bundle, folder, "int8")
    options = TranslationOptions(SearchOptions(beam=bundle.decode.beam, alpha=bundle.decode.alpha))
    ids = bundle.tokenizer.encode_batch([source.strip() for source in sources])

    def translate(shortened: bool) -> list[str]:
        translator = Translator(
            bundle.tokenizer, make_engine(folder, bundle, 64, shortened), options, bundle.max_length
        )
        return [result.text for result in translator.translate(sources)]

    def bleu(translations: list[str]) -> float:
        scores = score(translations, references, target_language=bundle.target, bootstrap=0, metrics=("bleu",))
        return scores.bleu

    plain = translate(False)
    said = bundle.tokenizer.encode_batch(plain)
    rows: list[dict[str, Any]] = [
        {"each": "all", "common": "all", "pieces a sentence": bundle.config.vocab_size, "pieces missed, %": 0.0}
        | {"translations allowed, %": 100.0, "BLEU": bleu(plain), "change": 0.0}
    ]
    for each, common in SIZES:
        cut = shortlist.cut(each, common)
        candidates = [cut.candidates(sentence) for sentence in ids]
        missed = [sum(piece not in some for piece in one) for some, one in zip(candidates, said, strict=True)]
        write_map(folder, bundle, cut)
        found = bleu(translate(True))
        rows.append(
            {
                "each": each,
                "common": common,
                "pieces a sentence": sum(map(len, candidates)) // len(candidates),
                "pieces missed, %": 100 * sum(missed) / sum(map(len, said)),
                "translations allowed, %": 100 * missed.count(0) / len(missed),
                "BLEU": found,
                "change": found - rows[0]["BLEU"],
            }
        )
        print_facts(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="measure quality with this model (default: measure speed)")
    parser.add_argument("--text", action="append", help="parallel text to learn from, as in a recipe")
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs to learn from, at most (default: 200000)")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--lines", type=int, default=0, help="lines of the test set (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the fastest counts (default: 3)")
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results/)")
    arguments = parser.parse_args()
    if arguments.model and not (arguments.text and arguments.source and arguments.reference):
        parser.error("-m needs --text, --source and --reference")
    os.environ["OMP_NUM_THREADS"] = "1"  # one core, where other programs disturb least
    facts = machine(torch.device("cpu"), ("ctranslate2", "sacrebleu"))
    print_facts(facts)
    with TemporaryDirectory() as folder:
        if arguments.model:
            rows = measure_quality(Path(folder) / "converted", arguments)
        else:
            rows = measure_speed(Path(folder), arguments.rounds)
    print()
    print_markdown(rows)
    print(f"\nwritten to {write_json('shortlist', rows, facts, arguments.out)}")


if __name__ == "__main__":
    main()

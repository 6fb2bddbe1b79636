"""The cost of each search option in speed, BLEU and chrF, and the effect of a glossary.

    python -m benchmarks.search_options --source test.en --reference test.de --terms-source dev.en --terms-reference dev.de
    python -m benchmarks.search_options --source test.en --reference test.de --every 3 --only sample,groups

One Markdown table with a row for each option: its time relative to the plain beam, and what it changes. With the default
engine, ctranslate2 on CPUs, some options are left to torch: the column "by torch" says which, wholly or for the lines that
need it, and the plain beam has a row with torch. The options take turns of a few lines each, so a slow moment of the
machine affects all of them; the time is the median of the turns. Ctrl-C ends it with a report of the finished turns.

The glossary has words of the test set with their most frequent translations in the text of --terms-source and
--terms-reference (Dice's coefficient), like a glossary made before the test set was seen. Without that text they come from
the test set itself, whose references then agree with them more often than they should. Terms are counted twice: as whole
words, and in any form that counts for a glossary (`regard.translation.glossary.target_text`).
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.common import machine, print_facts, print_markdown, write_json
from regard.builtin import DEFAULT
from regard.data.corpus import read_lines
from regard.device import pick_device
from regard.evaluate import score
from regard.generate.engines.torch_engine import TorchEngine
from regard.translation.glossary import Glossary, count_term, with_capital
from regard.translation.terms import find_terms as find_whole_words
from regard.translation.translation_options import TranslationOptions

LEAST_LETTERS = 5  # of glossary words: shorter ones are rarely terms
COMMON = 0.01  # a word in a larger share of the lines is a common word, not a term
LEAST_DICE = 0.5  # of two words that are translations of each other


@dataclass(frozen=True)
class Row:
    name: str
    by_torch: str  # what was left to torch
    times: float  # of the plain beam's time
    bleu: float
    chrf: float
    translations: list[str]


def options_of(own: TranslationOptions, glossary: Glossary, beam: int) -> dict[str, TranslationOptions]:
    """The options to compare, the model's default search first."""
    sampled = own.changed(1, sample=True)
    return {
        "beam": own,
        "greedy": own.changed(1),
        f"beam {2 * beam}": own.changed(2 * beam),
        "alpha 0": own.changed(alpha=0.0),
        "coverage 0.2": own.changed(coverage=0.2),
        "no-repeat 3": own.changed(no_repeat=3),
        "max-repeat 3": own.changed(max_repeat=3),
        f"groups {beam}": own.changed(groups=beam),
        "words": own.changed(words=True),
        "alignment": own.changed(alignment=True),
        "mbr chrf": own.changed(mbr="chrf"),
        "mbr bleu": own.changed(mbr="bleu"),
        f"mbr chrf, beam {2 * beam}": own.changed(2 * beam, mbr="chrf"),
        "sample": sampled,
        "sample, top-p 0.9": sampled.changed(1, top_p=0.9),
        "sample, temperature 0.5": sampled.changed(1, temperature=0.5),
        "mbr chrf of 8 samples, top-p 0.9": sampled.changed(8, top_p=0.9, mbr="chrf"),
        "glossary": own.changed(glossary=glossary),
        "glossary, greedy": own.changed(1, glossary=glossary),
        f"glossary, beam {2 * beam}": own.changed(2 * beam, glossary=glossary),
        "keep: the glossary's terms": own.changed(keep=tuple(term for term, _ in glossary.terms)),
    }


@dataclass
class Contender:
    """An option, or the plain beam with another engine or more models, and its results so far."""

    model: regard.Model
    options: TranslationOptions
    seconds: list[float] = field(default_factory=list)  # of each turn
    translations: list[str] = field(default_factory=list)

    @property
    def by_torch(self) -> str:
        if isinstance(self.model.engine, TorchEngine) or self.options.search.beyond_beam:
            return "all"
        return "lines that still lack a term" if self.options.glossary else ""

    def take_turn(self, sources: Sequence[str]) -> None:
        begun = time.perf_counter()
        found = [result.text for result in self.model.stream(sources, self.options)]
        self.seconds.append(time.perf_counter() - begun)
        self.translations += found


def take_turns(contenders: Mapping[str, Contender], sources: Sequence[str], turn: int) -> int:
    """Let all options translate all lines in turns; returns the number of lines that all have translated."""
    begun = time.monotonic()
    done = 0
    try:
        for first in range(0, len(sources), turn):
            part = sources[first : first + turn]
            for contender in contenders.values():
                contender.take_turn(part)
            done = first + len(part)
            spent = time.monotonic() - begun
            left = spent / done * (len(sources) - done)
            print(f"{done:,} of {len(sources):,} lines, {spent:.0f} s, {left:.0f} s left", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted: {done:,} of {len(sources):,} lines count", file=sys.stderr)
    if not done:
        raise SystemExit("interrupted before the first turn was over")
    return done


def row_of(name: str, contender: Contender, plain: Contender, references: Sequence[str]) -> Row:
    found = contender.translations[: len(references)]
    language = contender.model.bundle.target
    scores = score(found, references, target_language=language, bootstrap=0, metrics=("bleu", "chrf"))
    # Not strict: after an interruption some have begun one turn more.
    times = statistics.median(own / other for own, other in zip(contender.seconds, plain.seconds, strict=False))
    return Row(name, contender.by_torch, times, scores.bleu, scores.chrf, found)


def words_of(line: str) -> set[str]:
    return {word for word in re.findall(r"\w+", line) if len(word) >= LEAST_LETTERS and word.isalpha()}


def choose_terms(
    sources: Sequence[str], references: Sequence[str], tested: Sequence[str], count: int, least: int
) -> Glossary:
    """The `count` word pairs with the strongest association and at least `least` occurrences, among source words that occur in
    the test set and are not common words."""
    of_source: Counter[str] = Counter()
    of_target: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for source, target in zip(sources, references, strict=True):
        left, right = {word.lower() for word in words_of(source)}, words_of(target)
        of_source.update(left)
        of_target.update(right)
        together.update((one, other) for one in left for other in right)
    known = {word.lower() for line in tested for word in words_of(line)}
    dice = {
        (one, other): 2 * times / (of_source[one] + of_target[other])
        for (one, other), times in together.items()
        if times >= least and one in known and of_source[one] <= COMMON * len(sources)
    }
    ranked = sorted(
        (value * math.log(1 + together[pair]), *pair) for pair, value in dice.items() if value >= LEAST_DICE
    )
    terms: dict[str, str] = {}
    for _, one, other in reversed(ranked):
        if one not in terms and other not in terms.values() and len(terms) < count:
            terms[one] = other
    if not terms:
        raise SystemExit("no word pair is frequent enough to be a term; give more text with --terms-source")
    return Glossary.of(terms)


def terms_said(glossary: Glossary, sources: Sequence[str], translations: Sequence[str]) -> tuple[float, float]:
    """Of the terms in the lines, the percentages that translations contain as whole words, and in any form that counts."""
    whole = said = wanted = 0
    for source, translation in zip(sources, translations, strict=True):
        for variants in glossary.find(source):
            wanted += 1
            cases = [case for variant in variants for case in (variant, with_capital(variant))]
            whole += bool(find_whole_words(translation, cases))
            said += count_term(translation, variants) > 0
    return 100 * whole / max(1, wanted), 100 * said / max(1, wanted)


def table_of(rows: Sequence[Row], glossary: Glossary, sources: Sequence[str]) -> list[dict[str, Any]]:
    """What docs/results.md shows; shares of terms for the plain beam and with a glossary."""
    plain = rows[0]
    table: list[dict[str, Any]] = []
    for row in rows:
        about_terms = row is plain or row.name.startswith("glossary")
        whole, said = terms_said(glossary, sources, row.translations) if about_terms else (None, None)
        table.append(
            {
                "option": row.name,
                "by torch": row.by_torch,
                "time, times the plain beam's": row.times,
                "BLEU": row.bleu,
                "change": row.bleu - plain.bleu,
                "chrF2": row.chrf,
                "change of chrF2": row.chrf - plain.chrf,
                "terms as whole words, %": whole,
                "terms said, %": said,
            }
        )
    return table


def contenders_of(model: regard.Model, name: str, device: str, glossary: Glossary, only: str) -> dict[str, Contender]:
    """The plain beam and the options whose names contain one of the words in `only`."""
    compared = options_of(model.options, glossary, model.options.search.beam)
    contenders = {option: Contender(model, options) for option, options in compared.items()}
    contenders["two models"] = Contender(regard.load([name] * 2, device=device), model.options)
    if not isinstance(model.engine, TorchEngine):
        contenders["beam with torch"] = Contender(regard.load(name, device=device, engine="torch"), model.options)
    parts = only.split(",")
    return {
        option: contender
        for option, contender in contenders.items()
        if option == "beam" or any(part in option for part in parts)
    }


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--model", default=DEFAULT, help="a bundle, run folder or built-in model (default: en-de)"
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--terms-source", type=Path)
    parser.add_argument("--terms-reference", type=Path)
    parser.add_argument("--terms", type=int, default=200, help="terms in the glossary (default: 200)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use only every Nth line of the test set")
    parser.add_argument("--turn", type=int, default=150, help="lines per turn (default: 150)")
    parser.add_argument(
        "--only", default="", help="comma-separated parts of names: run only matching options, and the plain beam"
    )
    parser.add_argument("--engine", default="auto", choices=("auto", "torch"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="folder for the JSON file (default: benchmarks/results/)")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    sources = list(read_lines(arguments.source))[:: arguments.every]
    references = list(read_lines(arguments.reference))[:: arguments.every]
    terms = (
        (list(read_lines(arguments.terms_source)), list(read_lines(arguments.terms_reference)))
        if arguments.terms_source
        else (sources, references)
    )
    glossary = choose_terms(*terms, sources, arguments.terms, 3 if arguments.terms_source else 2)
    model = regard.load(arguments.model, device=arguments.device, engine=arguments.engine)
    contenders = contenders_of(model, arguments.model, arguments.device, glossary, arguments.only)
    for contender in contenders.values():
        list(contender.model.stream(sources[:8], contender.options))  # warm
    done = take_turns(contenders, sources, arguments.turn)
    sources, references = sources[:done], references[:done]
    rows = [row_of(name, contender, contenders["beam"], references) for name, contender in contenders.items()]
    whole, said = terms_said(glossary, sources, references)
    facts = {
        **machine(torch.device(pick_device(arguments.device)), ("sacrebleu", "ctranslate2")),
        "model": arguments.model,
        "lines": len(sources),
        "seconds of the plain beam": sum(contenders["beam"].seconds),
        "terms": len(glossary.terms),
        "places for terms": sum(len(glossary.find(source)) for source in sources),
        "terms that the reference has as whole words, %": whole,
        "that it says, %": said,
    }
    table = table_of(rows, glossary, sources)
    print_facts(facts)
    print()
    print_markdown(table)
    print(f"\nwritten to {write_json('search_options', table, facts, arguments.out)}")


if __name__ == "__main__":
    main()

"""What each option of the search costs in speed and changes in BLEU and chrF, and what a glossary does.

    python -m benchmarks.search_options -m MODEL --source test.en --reference test.de
    python -m benchmarks.search_options -m MODEL --source test.en --reference test.de --terms-source dev.en --terms-reference dev.de

One table: a row for each option, all with the torch engine but the last. The glossary's terms are pairs of words that go together
in the text of --terms-source and --terms-reference (Dice's coefficient), by default in the test set itself; a term is honoured
where the source has it and the translation says it, as whole words.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import regard
from benchmarks.common import machine, report
from regard.data.corpus import read_lines
from regard.decode.glossary import Glossary, words_pattern
from regard.decode.options import SearchOptions
from regard.device import pick_device
from regard.evaluate import score

LEAST_LETTERS = 5  # of a glossary's words: shorter ones are mostly not terms


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    bleu: float
    chrf: float
    translations: list[str]


def options_of(own: SearchOptions, glossary: Glossary, beam: int) -> dict[str, SearchOptions]:
    """What is compared, the model's own search first."""
    sampled = replace(own, sample=True, beam=1)
    return {
        "beam": own,
        "greedy": replace(own, beam=1),
        f"beam {2 * beam}": replace(own, beam=2 * beam),
        "alpha 0": replace(own, alpha=0.0),
        "coverage 0.2": replace(own, coverage=0.2),
        "no-repeat 3": replace(own, no_repeat=3),
        "max-repeat 3": replace(own, max_repeat=3),
        f"groups {beam}": replace(own, groups=beam),
        "words": replace(own, words=True),
        "alignment": replace(own, alignment=True),
        "mbr chrf": replace(own, mbr="chrf"),
        "mbr bleu": replace(own, mbr="bleu"),
        f"mbr chrf, beam {2 * beam}": replace(own, mbr="chrf", beam=2 * beam),
        "sample": sampled,
        "sample, top-p 0.9": replace(sampled, top_p=0.9),
        "sample, temperature 0.5": replace(sampled, temperature=0.5),
        "mbr chrf of 8 samples, top-p 0.9": replace(sampled, top_p=0.9, beam=8, mbr="chrf"),
        "glossary": replace(own, glossary=glossary),
        "glossary, greedy": replace(own, glossary=glossary, beam=1),
        f"glossary, beam {2 * beam}": replace(own, glossary=glossary, beam=2 * beam),
        "keep: the glossary's terms": replace(own, keep=tuple(term for term, _ in glossary.terms)),
    }


def measure(name: str, model: regard.Model, options: SearchOptions, sources: list[str], references: list[str]) -> Row:
    begun = time.perf_counter()
    found = [result.text for result in model.stream(sources, options)]
    seconds = time.perf_counter() - begun
    scores = score(found, references, target_language=model.bundle.target, bootstrap=0, metrics=("bleu", "chrf"))
    return Row(name, seconds, scores.bleu, scores.chrf, found)


def words_of(line: str) -> set[str]:
    return {word for word in re.findall(r"\w+", line) if len(word) >= LEAST_LETTERS and word.isalpha()}


def find_terms(sources: Sequence[str], references: Sequence[str], count: int) -> Glossary:
    """The `count` pairs of words that go together best."""
    of_source: Counter[str] = Counter()
    of_target: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for source, target in zip(sources, references, strict=True):
        left, right = {word.lower() for word in words_of(source)}, words_of(target)
        of_source.update(left)
        of_target.update(right)
        together.update((one, other) for one in left for other in right)
    ranked = sorted(
        (2 * times / (of_source[one] + of_target[other]) * math.log(1 + times), one, other)
        for (one, other), times in together.items()
        if times >= 2 and 2 * times / (of_source[one] + of_target[other]) >= 0.5
    )
    terms: dict[str, str] = {}
    for _, one, other in reversed(ranked):
        if one not in terms and other not in terms.values() and len(terms) < count:
            terms[one] = other
    if not terms:
        raise SystemExit("no words go together often enough to be terms; give more text with --terms-source")
    return Glossary.of(terms)


def share(glossary: Glossary, sources: Sequence[str], row: Row) -> float | None:
    """Of the terms that lines have, the percentage that translations say; for the plain beam and with a glossary."""
    if row.name != "beam" and not row.name.startswith("glossary"):
        return None
    said = wanted = 0
    for source, translation in zip(sources, row.translations, strict=True):
        for ways in glossary.wanted(source):
            wanted += 1
            cases = [case for way in ways for case in (way, way[:1].upper() + way[1:])]
            said += any(words_pattern([case]).search(translation) is not None for case in cases)
    return 100 * said / max(1, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--terms-source", type=Path)
    parser.add_argument("--terms-reference", type=Path)
    parser.add_argument("--terms", type=int, default=200, help="of the glossary (default: 200)")
    parser.add_argument("--lines", type=int, default=0, help="only so many of the test set (default: all)")
    parser.add_argument("--only", help="only options whose name has this in it, beside the plain beam")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/)")
    arguments = parser.parse_args()

    sources = list(read_lines(arguments.source))[: arguments.lines or None]
    references = list(read_lines(arguments.reference))[: arguments.lines or None]
    terms = (
        (list(read_lines(arguments.terms_source)), list(read_lines(arguments.terms_reference)))
        if arguments.terms_source
        else (sources, references)
    )
    glossary = find_terms(*terms, arguments.terms)
    model = regard.load(arguments.model, device=arguments.device, engine="torch")
    compared = options_of(model.options, glossary, model.options.beam)
    if arguments.only:
        compared = {name: options for name, options in compared.items() if name == "beam" or arguments.only in name}
    list(model.stream(sources[:32], model.options))  # warm
    rows = [measure(name, model, options, sources, references) for name, options in compared.items()]
    if not arguments.only:
        twice = regard.load([arguments.model] * 2, device=arguments.device)
        rows.append(measure("two models", twice, model.options, sources, references))
        if pick_device(arguments.device).type == "cpu":
            other = regard.load(arguments.model, device="cpu", engine="ctranslate2")
            rows.append(measure("beam, ctranslate2", other, model.options, sources, references))
    plain = rows[0]
    table = [
        {
            "option": row.name,
            "seconds": row.seconds,
            "times": row.seconds / plain.seconds,
            "BLEU": row.bleu,
            "BLEU change": row.bleu - plain.bleu,
            "chrF": row.chrf,
            "chrF change": row.chrf - plain.chrf,
            "terms honoured %": share(glossary, sources, row),
        }
        for row in rows
    ]
    wanted = sum(len(glossary.wanted(source)) for source in sources)
    facts = {
        **machine(torch.device(pick_device(arguments.device)), ("sacrebleu", "ctranslate2")),
        "lines": len(sources),
        "terms": len(glossary.terms),
        "places for terms": wanted,
    }
    report("search_options", table, facts, arguments.out)


if __name__ == "__main__":
    main()

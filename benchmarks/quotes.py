"""Whether quotation marks survive: how many lines with quotations have as many in their translation, and the BLEU of these lines.

    python -m benchmarks.quotes -m de-en --source newstest2014.de.xz --reference newstest2014.en.xz [--lines N]

Each line is translated as it is, and with other marks: straight, those of German books (»so«) and of English ones (“so”). BLEU
compares with references as they are. `--no-guard` shows the same without `decode.guard`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sacrebleu import corpus_bleu

import regard
from benchmarks.common import machine, report
from regard.data.corpus import read_lines
from regard.device import pick_device
from regard.translation.protect import find_spans
from regard.translation.quotes import Quotation, find_quotations, with_marks

STYLES = {"straight": '""', "low („so“)": "„“", "guillemets (»so«)": "»«", "English (“so”)": "“”"}


def quotations(line: str) -> list[Quotation]:
    return find_quotations(line, find_spans(line))


def restyled(line: str, marks: str) -> str:
    """The line with these marks around its double quotations.

    >>> restyled("“Yes,” he said.", "»«")
    '»Yes,« he said.'
    """
    doubles = [one for one in quotations(line) if one.is_double]
    places = [(place, mark) for one in doubles for place, mark in zip((one.begin, one.end), marks, strict=True)]
    return with_marks(line, {place: mark for place, mark in places if place is not None})


def row(
    name: str, model: regard.Model, lines: Sequence[str], references: Sequence[str], change: Callable[[str], str]
) -> dict[str, Any]:
    sources = [change(line) for line in lines]
    found = [result.text for result in model.stream(sources)]
    kept = sum(len(quotations(one)) == len(quotations(other)) for one, other in zip(sources, found, strict=True))
    return {
        "marks": name,
        "lines": len(lines),
        "as many": kept,
        "BLEU": f"{corpus_bleu(found, [references]).score:.2f}",
    }


def main() -> None:
    """Print a table, with a row for each kind of marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="de-en", help="the model (default: the built-in de-en)")
    parser.add_argument("--source", type=Path, required=True, metavar="FILE")
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE")
    parser.add_argument("--lines", type=int, default=10_000_000, help="at most this many lines with quotations")
    parser.add_argument("--no-guard", action="store_true", help="without decode.guard")
    parser.add_argument("--own", action="store_true", help="only with the marks that the lines have")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="JSON file for the results")
    arguments = parser.parse_args()
    pairs = zip(read_lines(arguments.source), read_lines(arguments.reference), strict=True)
    quoted = [pair for pair in pairs if quotations(pair[0])][: arguments.lines]
    lines, references = [source for source, _ in quoted], [reference for _, reference in quoted]
    model = regard.load(arguments.model, device="cpu")
    if arguments.no_guard:
        model.options = replace(model.options, guard=False)
    rows = [row("as they are", model, lines, references, str)]
    for name, marks in {} if arguments.own else STYLES.items():
        rows.append(row(name, model, lines, references, lambda line, marks=marks: restyled(line, marks)))  # type: ignore[misc]
    report("quotes", rows, machine(pick_device("cpu"), ("ctranslate2", "sacrebleu")), arguments.out)


if __name__ == "__main__":
    main()

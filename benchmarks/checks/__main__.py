"""Runs the checks of one direction with any model and prints how many pass, by kind.

    python -m benchmarks.checks -m en-de
    python -m benchmarks.checks -m runs/teacher --failures names,times

The table is that of the model's languages (benchmarks/checks/SOURCE-TARGET.tsv), unless --table names another one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.checks import FOLDER, KINDS, Check, count_passed, read_checks
from benchmarks.common import machine, print_facts, print_markdown
from regard.builtin import DEFAULT
from regard.device import pick_device


def table_of(checks: Sequence[Check], translations: Sequence[str]) -> list[dict[str, Any]]:
    counts = count_passed(checks, translations)
    every = tuple(map(sum, zip(*counts.values(), strict=True)))
    return [
        {"kind": kind, "lines": lines, "passed": passed, "%": round(100 * passed / lines, 1)}
        for kind, (passed, lines) in [*counts.items(), ("all", every)]
    ]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--model", default=DEFAULT, help="a bundle, run folder or built-in model (default: en-de)"
    )
    parser.add_argument("--from", dest="source", metavar="LANGUAGE", help="of a model for several directions")
    parser.add_argument("--to", dest="target", metavar="LANGUAGE", help="likewise")
    parser.add_argument("--table", type=Path, help="another table of checks")
    parser.add_argument("--beam", type=int)
    parser.add_argument("--engine", default="auto", choices=("auto", "torch", "ctranslate2"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--failures", nargs="?", const=",".join(KINDS), default="", metavar="KINDS", help="also print what failed"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, with every translation")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    model = regard.load(arguments.model, device=arguments.device, engine=arguments.engine)
    model = model.toward(arguments.target, arguments.source)
    checks = read_checks(arguments.table or FOLDER / f"{model.bundle.source}-{model.bundle.target}.tsv")
    translations = list(model.translate([check.source for check in checks], beam=arguments.beam))
    table = table_of(checks, translations)
    facts = {**machine(torch.device(pick_device(arguments.device)), ("ctranslate2",)), "model": arguments.model}
    results = list(zip(checks, translations, strict=True))
    if arguments.json:
        lines = [
            {"kind": check.kind, "source": check.source, "translation": text, "passed": check.passes(text)}
            for check, text in results
        ]
        print(json.dumps({"facts": facts, "table": table, "lines": lines}, ensure_ascii=False, indent=2))
        return
    print_facts(facts)
    print_markdown(table)
    for check, text in results:
        if check.kind in arguments.failures.split(",") and not check.passes(text):
            print(f"\n{check.kind}: {check.source}\n  {text}\n  must: {check.must}   must not: {check.must_not or '-'}")


if __name__ == "__main__":
    main()

"""`regard export`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.common import print_result, verb


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "export",
        run,
        "write a model for another program, or a smaller one, and compare the two",
        "Write a model for another program, or a smaller bundle. What was written is loaded there and compared with the original, "
        "token by token; where the numbers differ by more than rounding, nothing is left behind.",
    )
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help="ctranslate2, onnx, transformers, or bundle (a smaller one)"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument("--weights", metavar="TYPE", help="fp32, fp16 or int8 (default: fp32; for --to bundle, int8)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> None:
    from regard.bundle import find_bundle, load_bundle
    from regard.export import export

    bundle = load_bundle(find_bundle(arguments.model))
    report = export(bundle, arguments.to, arguments.output, arguments.weights)
    document = {
        "folder": str(report.folder),
        "to": arguments.to,
        "weights": report.weights,
        "difference": report.difference.largest,
        "mean_difference": report.difference.mean,
        "tolerance": report.tolerance,
        "notes": report.notes,
    }
    found, most = report.difference, f"{report.tolerance:.2g} would be too much"
    mean, largest = (f" ({most})", "") if report.weights == "int8" else ("", f" ({most})")
    line = (
        f"{report.folder}: written for {arguments.to}, weights in {report.weights}; log-probabilities of tokens differ from the "
        f"original's by {found.mean:.2g} on average{mean} and {found.largest:.2g} at most{largest}"
    )
    print_result(arguments, document, [line, *(f"note: {note}" for note in report.notes)])

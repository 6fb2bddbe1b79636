"""`regard export`: a model for another program, or a smaller bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.common import MODEL, add_adapter, print_result, verb


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "export",
        run,
        "write a model for another program, or a smaller bundle, and verify it",
        "Write a model for another program, or a smaller bundle. The export is loaded in that program and compared with the "
        "original, number by number; if they differ by more than rounding, the export fails and leaves nothing behind.",
    )
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help="ctranslate2, onnx, transformers, or bundle (a smaller one)"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=MODEL)
    add_adapter(parser)
    parser.add_argument(
        "--weights",
        metavar="TYPE",
        help="ctranslate2: fp32 (default), fp16, int8; bundle: int8 (default), fp16, fp32; onnx, transformers: fp32",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Write the export, and print how far its numbers are from the original's."""
    from regard.bundle import find_bundle, load_bundle
    from regard.export import export
    from regard.export.verify import NOUNS

    folder = find_bundle(arguments.model)
    if arguments.adapter is not None:
        from regard.adapter import adapted

        folder = adapted(folder, arguments.adapter)
    bundle = load_bundle(folder)
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
    difference, limit = report.difference, f" (limit {report.tolerance:.2g})"
    mean, largest = (limit, "") if report.weights == "int8" else ("", limit)
    rise = ""
    if difference.rise is not None:
        document["loss_rise"] = difference.rise
        mean, rise = "", f"; on text that it writes itself, its loss rises by {difference.rise:.2g} nats a token{limit}"
    line = (
        f"{report.folder}: written for {arguments.to}, weights in {report.weights}; {NOUNS[bundle.task]} differ from the "
        f"original by {difference.mean:.2g} on average{mean} and {difference.largest:.2g} at most{largest}{rise}"
    )
    print_result(arguments, document, [line, *(f"note: {note}" for note in report.notes)])

"""`regard import`: a bundle from a Marian model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.common import print_result, verb


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "import",
        run,
        "convert a Marian model, of Hugging Face transformers or its own .npz, to a bundle",
        "Convert a translation model in Marian's format, such as those of OPUS-MT, to a bundle: a folder of Hugging Face "
        "transformers, or Marian's own .npz file with its vocabulary beside it.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR|FILE", help="folder of the model, or its .npz")
    parser.add_argument(
        "--from",
        dest="format",
        required=True,
        choices=("transformers", "marian"),
        help="format: transformers, or marian for .npz",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder for the new bundle")
    parser.add_argument("--source", metavar="CODE", help="source language (default: read from the folder)")
    parser.add_argument("--target", metavar="CODE", help="target language (default: read from the folder)")
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read weights that are stored as a pickle, which can run any code; only for sources that you trust",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Write the bundle, and print its folder and languages."""
    languages = {"source": arguments.source, "target": arguments.target}
    if arguments.format == "marian":
        from regard.export.marian_npz import import_npz

        bundle = import_npz(arguments.folder, arguments.output, **languages)
    else:
        from regard.export.imported import import_marian

        bundle = import_marian(arguments.folder, arguments.output, **languages, allow_pickle=arguments.allow_pickle)
    document = {"folder": str(bundle.folder), "source": bundle.source, "target": bundle.target}
    print_result(arguments, document, [f"{bundle.folder}: {bundle.source} → {bundle.target}"])

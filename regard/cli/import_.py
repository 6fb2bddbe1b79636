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
        "convert a Marian model of Hugging Face transformers to a bundle",
        "Convert a translation model in Marian's format, such as those of OPUS-MT, to a bundle.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the model")
    parser.add_argument("--from", dest="format", required=True, choices=("transformers",), help="format of the folder")
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
    from regard.export.imported import import_marian

    bundle = import_marian(
        arguments.folder,
        arguments.output,
        source=arguments.source,
        target=arguments.target,
        allow_pickle=arguments.allow_pickle,
    )
    document = {"folder": str(bundle.folder), "source": bundle.source, "target": bundle.target}
    print_result(arguments, document, [f"{bundle.folder}: {bundle.source} → {bundle.target}"])

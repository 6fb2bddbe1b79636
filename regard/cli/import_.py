"""`regard import`: a bundle from a model of another program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import print_result, verb
from regard.errors import UserError
from regard.progress import counted

if TYPE_CHECKING:
    from regard.importing.transformers import Imported


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "import",
        run,
        "convert a model of transformers, Marian or llama.cpp to a bundle",
        "Convert a model of another program to a bundle. A folder of Hugging Face transformers may hold Marian (OPUS-MT), BART, "
        "T5, BERT, RoBERTa, ALBERT, GPT-2, GPT-J, Falcon, LLaMA, Mistral, Qwen2 or Cohere; its family is found by itself. Marian's "
        "own .npz has its vocabulary beside it; a .gguf file of llama.cpp must be a LLaMA. Where transformers is installed, the "
        "result is compared with the original; if they differ by more than rounding, nothing is written.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR|FILE", help="folder of the model, or its .npz or .gguf")
    parser.add_argument(
        "--from",
        dest="format",
        required=True,
        choices=("transformers", "marian", "gguf"),
        help="format: transformers, marian for .npz, or gguf",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder for the new bundle")
    parser.add_argument("--source", metavar="CODE", help="source language (default: read from the folder)")
    parser.add_argument("--target", metavar="CODE", help="target language (default: read from the folder)")
    parser.add_argument(
        "--no-compare", dest="compare", action="store_false", help="do not run the original beside the result"
    )
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read weights that are stored as a pickle, which can run any code; only for Marian, and sources that you trust",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Write the bundle, and print its folder, what was found, and how far it is from the original."""
    imported = _import(arguments)
    bundle, difference = imported.bundle, imported.difference
    document = {
        "folder": str(bundle.folder),
        "source": bundle.source,
        "target": bundle.target,
        "task": bundle.task,
        "family": imported.family,
        "architecture": imported.architecture,
        "difference": None if difference is None else difference.largest,
        "difference_in_float64": None if difference is None else difference.in_float64,
        "notes": list(imported.notes),
    }
    print_result(arguments, document, [*_lines(imported), *(f"note: {note}" for note in imported.notes)])


def _import(arguments: argparse.Namespace) -> Imported:
    languages = {"source": arguments.source, "target": arguments.target}
    if arguments.format == "gguf":
        from regard.importing.gguf import import_gguf

        if arguments.source or arguments.target:
            raise UserError(
                "--source and --target are for models that translate, but --from gguf reads language models"
            )
        return import_gguf(arguments.folder, arguments.output, compare=arguments.compare)
    from regard.importing.transformers import Imported, import_model

    if arguments.format == "marian":
        from regard.importing.marian_npz import import_npz

        return Imported(import_npz(arguments.folder, arguments.output, **languages), "Marian", "Marian")
    return import_model(
        arguments.folder,
        arguments.output,
        **languages,
        allow_pickle=arguments.allow_pickle,
        compare=arguments.compare,
    )


def _lines(imported: Imported) -> list[str]:
    bundle, difference = imported.bundle, imported.difference
    what = f"{bundle.source} → {bundle.target}" if bundle.task == "translate" else f"task {bundle.task}"
    if imported.family == "Marian":
        return [f"{bundle.folder}: {what}"]
    shape = " and ".join(f"{counted(stack.layers, 'layer')} of {side}" for side, stack in bundle.config.stacks.items())
    found = f"found {imported.family} ({imported.architecture}): {shape}, {bundle.facts['parameters']:,} parameters"
    lines = [found, f"{bundle.folder}: {what}"]
    if difference is not None:
        exact = difference.in_float64
        lines.append(
            f"compared with transformers: {difference.outputs:,} outputs differ by at most {difference.largest:.1g} of their "
            f"standard deviation{'' if exact is None else f', which is rounding: by at most {exact:.1g} in float64'}"
        )
    return lines

"""What the verbs share: the arguments about models and search, loading, printing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.api import Model


def verb(verbs: Any, name: str, run: Any, help: str, description: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description or help)
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    if several:
        parser.add_argument(
            "-m", "--model", action="append", metavar="MODEL", help="a bundle or a run folder; may come several times"
        )
    else:
        parser.add_argument("-m", "--model", metavar="MODEL", help="a bundle or a run folder")
    parser.add_argument(
        "--engine",
        default="auto",
        choices=("auto", "torch", "ctranslate2"),
        help="auto: ctranslate2 on CPUs where it is installed and knows the model, else torch (default: auto)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    parser.add_argument(
        "--batch", type=int, default=0, metavar="N", help="sentences computed together (default: by device)"
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, metavar="N", help="beam width; 1 is greedy (default: the model's, as a rule 4)"
    )
    parser.add_argument(
        "--alpha", type=float, metavar="A", help="length penalty ((5 + |Y|) / 6)^A (default: the model's, 0.6)"
    )


def load_model(arguments: argparse.Namespace) -> Model:
    from regard.bundle import find_bundle

    folder = find_bundle(arguments.model)  # before anything slow is imported: a wrong name is said at once
    batch = checked_batch(arguments)
    from regard.api import load

    return load(folder, device=arguments.device, batch=batch, engine=arguments.engine)


def checked_batch(arguments: argparse.Namespace) -> int:
    batch: int = arguments.batch
    if batch < 0:
        raise UserError(f"--batch must be at least 1, but is {batch}")
    return batch


def print_result(arguments: argparse.Namespace, document: Any, lines: Sequence[str]) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2) if arguments.json else "\n".join(lines)
    sys.stdout.write(text + "\n")


def rank_prefix() -> str:
    """Which of several processes speaks (torchrun numbers them); the first one, or one alone, needs no name."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "

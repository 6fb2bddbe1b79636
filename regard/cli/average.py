"""`regard average`: a bundle from the mean of a run's last checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from regard.cli.common import verb


def add(verbs: Any) -> None:
    parser = verb(verbs, "average", run, "average a run's last checkpoints into a model")
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="number of checkpoints (default: 5)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the new bundle")


def run(arguments: argparse.Namespace) -> None:
    """Write the bundle, and print which checkpoints went into it."""
    from regard.training.finish import average

    def report(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    bundle, used = average(arguments.run_folder, arguments.last, arguments.output, report)
    if len(used) < arguments.last:
        report(f"note: the run has only {len(used)} of the {arguments.last} checkpoints that --last asks for")
    sys.stdout.write(f"{bundle.folder}: average of {', '.join(used)}\n")

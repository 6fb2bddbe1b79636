"""One row of a sweep in a process of its own: `python -m regard.reproduce.row RECIPE.toml OUT PREPARED`. A stopped row resumes.

Its standard input is a pipe from the sweep, which never writes to it: when it closes, the sweep has ended, and the row saves and
ends, too."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from regard.errors import Interrupted, RegardError, UserError
from regard.recipe import load_recipe


def main(arguments: Sequence[str]) -> int:
    """Train the row; the exit code is that of `regard train`."""
    from regard.training.run import train

    threading.Thread(target=_end_with_sweep, daemon=True).start()
    recipe, out, prepared = (Path(each) for each in arguments)
    try:
        train(load_recipe(recipe), out, resume=True, prepared=prepared)
    except RegardError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UserError) else 130 if isinstance(error, Interrupted) else 1
    return 0


def _end_with_sweep() -> None:
    """Wait until the sweep has ended, then stop this process as the sweep stops its rows."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

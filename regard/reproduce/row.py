"""One row of a sweep in a process of its own: `python -m regard.reproduce.row RECIPE.toml OUT PREPARED`. A stopped row resumes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.errors import Interrupted, RegardError, UserError
from regard.recipe import load_recipe


def main(arguments: Sequence[str]) -> int:
    """Train the row; the exit code is that of `regard train`."""
    from regard.training.run import train

    recipe, out, prepared = (Path(each) for each in arguments)
    try:
        train(load_recipe(recipe), out, resume=True, prepared=prepared)
    except RegardError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UserError) else 130 if isinstance(error, Interrupted) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

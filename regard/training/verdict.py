"""The last line of a run: how to try the model or, if it is not worth trying, what to do instead. The task knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.bundle import Bundle
from regard.recipe import Recipe
from regard.tasks import TASKS
from regard.tasks.task import Outcome
from regard.training.finish import UNCHANGED
from regard.training.folder import RunFolder
from regard.training.metrics import best_validation
from regard.training.prepare import PreparedData


def verdict(
    recipe: Recipe, folder: RunFolder, bundle: Bundle, data: PreparedData, records: Sequence[Mapping[str, Any]]
) -> str:
    """One line for the terminal, made from the scores of the run and the records of its metrics."""
    if bundle.facts["weights"] == UNCHANGED:
        return "verdict nothing was gained: this is the model that the run started from"
    best = best_validation([record for record in records if record["kind"] == "valid"]) or {}
    return TASKS[recipe.task].verdict(
        Outcome(
            recipe,
            folder.path,
            folder.report,
            folder.resume_command,
            bundle,
            data.tokenizer,
            data.store,
            data.valid or [],
            data.test,
            records,
            best,
            data.baseline,
        )
    )

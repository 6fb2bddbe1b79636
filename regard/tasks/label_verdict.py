"""Compares a model with labels with its baseline: a warning before the run, and a verdict after it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from regard.progress import duration
from regard.recipe import Recipe
from regard.tasks.task import Outcome, Prospect

FEW = 20_000  # texts below which a model from scratch rarely beats a bag of words


def outlook(prospect: Prospect) -> list[str]:
    if prospect.recipe.train.init or prospect.records >= FEW:
        return []
    return [
        f"a model from scratch rarely beats a bag of words on {prospect.records:,.0f} texts; start from a trained encoder "
        f"({prospect.init_option} MODEL)"
    ]


def verdict(outcome: Outcome) -> str:
    """The scores of the model and its baseline, and how to try the model."""
    name = "tag" if outcome.recipe.task == "tag" else "classify"
    try_it = f'try it  regard {name} -m {shlex.quote(str(outcome.run))} "..."'
    compared = comparison(outcome.recipe, outcome.bundle.facts, outcome.best, outcome.baseline)
    return "\n".join([*compared, try_it])


def comparison(
    recipe: Recipe, facts: Mapping[str, Any], best: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[str]:
    """The first score of both on the test set, or else on the validation set, and a remedy if the baseline wins."""
    if not baseline:
        return []
    test = facts.get("test", {}).get("metrics", {})
    scores = baseline["test"] if test and baseline["test"] else baseline["valid"]
    key, simple = next(iter(scores["metrics"].items()))
    own = test[key]["score"] if test else best.get(recipe.train.monitor)
    if own is None:
        return []
    simple_score, name = float(simple["score"]), simple["name"]
    line = (
        f"scores  {name}: this model {own:.2f}, {baseline['name']} {simple_score:.2f} (trained in "
        f"{duration(baseline['seconds'])})"
    )
    if simple_score <= own:
        return [line]
    remedy = "start from a trained encoder (--init MODEL)"
    if recipe.train.init:
        remedy = "train longer, on more text, or start from a larger encoder"
    return [line, f"verdict the {baseline['name']} wins: {remedy}"]

"""The last line of a run: how to try the model or, if it does not translate, what to do instead."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from regard.bundle import Bundle
from regard.data.store import Store
from regard.recipe import Recipe
from regard.tasks.translate import too_little
from regard.training.expect import (
    ENOUGH_TO_JUDGE,
    GIST,
    USELESS,
    Amount,
    duration,
    epochs,
    other_start,
)
from regard.training.finish import UNCHANGED
from regard.training.folder import RunFolder
from regard.training.prepare import PreparedData
from regard.training.report import best_validation

Record = Mapping[str, Any]

_USELESS_PERPLEXITY = 50.0  # where nothing was translated; Tatoeba's 11 BLEU go with 51


def verdict(recipe: Recipe, folder: RunFolder, bundle: Bundle, data: PreparedData, records: Sequence[Record]) -> str:
    """One line for the terminal, made from the scores of the run and the records of its metrics."""
    if bundle.facts["weights"] == UNCHANGED:
        return "verdict nothing was gained: this is the model that the run started from"
    if recipe.task == "generate":
        return f'try it  regard generate -m {shlex.quote(str(folder.path))} "..."'
    if recipe.task != "translate":
        return f"see it  regard info -m {shlex.quote(str(folder.path))}"
    best = best_validation([record for record in records if record["kind"] == "valid"]) or {}
    found = _score(bundle, best, data, recipe)
    if found is None and (warning := too_little(recipe, len(data.store))):
        return f"verdict {warning}{other_start(recipe, [])}"
    bleu, where = found or (math.inf, "")
    perplexity = float(best.get("perplexity") or 0.0)
    if bleu < USELESS or (found is None and perplexity >= _USELESS_PERPLEXITY):
        said = f"{where} BLEU {bleu:.1f}" if found else f"validation set: perplexity {perplexity:,.0f}"
        return f"verdict {said}: this model does not translate yet. {_remedy(recipe, folder, data, records)}"
    tried = f'try it  regard translate -m {shlex.quote(str(folder.path))} "..."'
    return f"expect  {where} BLEU {bleu:.1f}: the gist is often lost\n{tried}" if bleu < GIST else tried


def _score(bundle: Bundle, best: Record, data: PreparedData, recipe: Recipe) -> tuple[float, str] | None:
    """BLEU on the test set, or of the best validation, and which of them; None if there are too few sentences to tell."""
    test = bundle.facts.get("test")
    if test and test["sentences"] >= ENOUGH_TO_JUDGE:
        return float(test["metrics"]["bleu"]["score"]), "test set:"
    if best.get("bleu") is not None and min(len(data.valid or []), recipe.train.validate_sentences) >= ENOUGH_TO_JUDGE:
        return float(best["bleu"]), "validation set:"
    return None


def _remedy(recipe: Recipe, folder: RunFolder, data: PreparedData, records: Sequence[Record]) -> str:
    """What may help: more text, more time, or another start."""
    start = "" if recipe.train.init else other_start(recipe, data.test or data.valid or [])
    if warning := too_little(recipe, len(data.store)):
        return f"{warning}{start}"
    steps = [record for record in records if record["kind"] == "train" and record.get("tokens_per_second")]
    amount = amount_trained(data.store, float(steps[-1].get("epoch") or 0.0) if steps else 0.0)
    if not recipe.train.init and amount.epochs < amount.enough_epochs and steps:
        rate = statistics.median(float(record["tokens_per_second"]) for record in steps)
        needed = duration(amount.enough_epochs * amount.tokens / rate)
        more = f"{folder.resume_command} {_longer(recipe, amount, rate)}"
        return f"{epochs(amount.epochs)} did not suffice: give it {needed} in all ({more}){start}"
    return f"{folder.report} shows sample translations: the two sides may not match, or train.lr may not fit{start}"


def amount_trained(store: Store, number: float) -> Amount:
    """The text of a store, after so many epochs."""
    pairs = sum(corpus.weight * (corpus.stop - corpus.start) for corpus in store.corpora)
    tokens = sum(
        corpus.weight * float((store["target"].lengths[corpus.start : corpus.stop] + 1).sum())
        for corpus in store.corpora
    )
    return Amount(pairs, tokens, number)


def _longer(recipe: Recipe, amount: Amount, rate: float) -> str:
    """The option that makes the run long enough, in the unit of its recipe."""
    train = recipe.train
    if train.minutes:
        return f"--minutes {max(1, round(amount.enough_epochs * amount.tokens / rate / 60))}"
    if train.epochs:
        return f"--epochs {math.ceil(amount.enough_epochs)}"
    return f"--steps {math.ceil(amount.enough_epochs * amount.tokens / train.batch_tokens)}"

"""What a plan counts with: estimates of the amount of text before it is tokenized, the length that a run needs, and the length that
a model to start from can read."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.bundle import find_bundle, read_bundle
from regard.data.corpus import RecordSource
from regard.errors import UserError
from regard.recipe import Recipe

PIECES_PER_WORD = 1.4  # roughly, with a subword vocabulary


def count_words(corpus: RecordSource, note: Callable[[str], None] = lambda text: None) -> tuple[int, int]:
    """The numbers of records and of words in their last column. Reading them checks the files; `note` is told what is ignored."""
    records, words, last = 0, 0, len(corpus.columns) - 1
    for record in corpus.records(note):
        text = record.texts[last]
        records += record.begins
        words += max(1, len(text.split()), len(text) // 12)
    return records, words


def length_option(recipe: Recipe, epochs: float, tokens: float, rate: float) -> str:
    """The option that makes a run this many epochs long, in the unit of its recipe, for an epoch of `tokens` at `rate` tokens per
    second."""
    train = recipe.train
    if train.minutes:
        return f"--minutes {max(1, round(epochs * tokens / rate / 60))}"
    if train.epochs:
        return f"--epochs {math.ceil(epochs)}"
    return f"--steps {math.ceil(epochs * tokens / train.batch_tokens)}"


def readable_length(init: str) -> int | None:
    """How many tokens the model to start from can read; None for a missing model, which is refused later."""
    try:
        bundle = read_bundle(find_bundle(init))
    except UserError:
        return None
    return min(bundle.max_length, bundle.config.longest or bundle.max_length)

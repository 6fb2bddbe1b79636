"""How much text there is, estimated before it is tokenized, and how long a run on it has to be."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.data.corpus import RecordSource
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

"""Tagging of words: parts of speech, names and other spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.data.corpus import RecordSource, Texts
from regard.data.labelled import BETWEEN, WordsCorpus, find_words
from regard.data.labelled import encode_tagged as encode_records
from regard.data.split import MOST, HeldOut
from regard.data.split import hold_out as choose_held_out
from regard.data.tables import table_suffix
from regard.data.tokenizer import Tokenizer
from regard.evaluate import Scores
from regard.files import write_atomic
from regard.recipe import MAX_SHARE, Recipe, Words
from regard.settings import HeadConfig
from regard.tasks.defaults import anchored_loss
from regard.tasks.label_notes import doubts_of_words
from regard.tasks.label_plan import plan_words as plan
from regard.tasks.label_validation import LabelValidator
from regard.tasks.label_verdict import outlook, verdict
from regard.tasks.labelled import (
    about_store,
    bag_of_words,
    begin,
    check_labels,
    clean_options,
    count,
    describe,
    fit_head,
    loss,
    made_up_batch,
    make_batches,
    measured_scores,
    num_held_out,
    read,
    root_of,
    sorted_labels,
    too_little,
    typical_length,
    validator_of,
    vocabulary_lines,
    with_labels,
)
from regard.tasks.task import Baseline, Say

__all__ = [
    "COLUMNS", "HELD_OUT", "NOUN", "about_store", "anchored_loss", "baseline", "begin", "clean_options", "complete", "count",
    "describe", "doubts", "encode_records", "examine", "find_corpora", "find_corpus", "fit_head", "hold_out", "loss",
    "made_up_batch", "make_batches", "make_validator", "measure_weights", "outlook", "plan", "read", "score_test_set",
    "too_little", "typical_length", "verdict", "vocabulary_lines", "write_held_out",
]  # fmt: skip

NOUN = WordsCorpus.noun
COLUMNS = WordsCorpus.columns
HELD_OUT = "{name}.conll"


def complete(recipe: Recipe, head: HeadConfig | None = None) -> Recipe:
    """Find the tags in the sentences. If `head` has all of them, its own are kept in their order."""
    data, labels = recipe.data, recipe.model.labels
    text, label = data.text, data.label
    first = find_words(data.train[0].path, root_of(recipe), text, label, ()).files[0]
    if table_suffix(first) == ".conllu":
        text, label = text or ("2",), label or "4"
    if not labels:
        found: dict[str, None] = {}
        for entry in data.train:
            for _, _, _, tags in find_words(entry.path, root_of(recipe), text, label, ()).sentences():
                found |= dict.fromkeys(tags)
        labels = tuple(sorted_labels(list(found)))
        check_labels(labels, str(data.train[0].path))
        if head is not None and head.kind == "tags" and set(labels) <= set(head.labels):
            labels = head.labels
    decode = recipe.decode
    if decode.words is None:
        decode = dataclasses.replace(decode, words=_how_split(find_words(str(first), Path(), text, label, ())))
    return dataclasses.replace(with_labels(recipe, labels, "one", text=text, label=label), decode=decode)


def _how_split(corpus: WordsCorpus) -> Words:
    """How the first sentences are split: "split" if punctuation marks are words of their own, "spaces" if they are attached."""
    words = [word for _, _, some, _ in islice(corpus.sentences(), 1000) for word in some]
    attached = sum(len(word) > 1 and word[-1] in ".,!?" and any(map(str.isalpha, word)) for word in words)
    alone = sum(word in (".", ",", "!", "?") for word in words)
    return "spaces" if attached > alone else "split"


def find_corpora(spec: str, recipe: Recipe, weight: float) -> list[RecordSource]:
    return [find_words(spec, root_of(recipe), recipe.data.text, recipe.data.label, recipe.model.labels, weight)]


def find_corpus(spec: str, recipe: Recipe) -> RecordSource:
    return find_corpora(spec, recipe, 1.0)[0]


def hold_out(
    corpora: Sequence[RecordSource],
    num_valid: int | float,
    num_test: int | float,
    seed: int,
    note: Say = lambda text: None,
) -> tuple[HeldOut, list[RecordSource]]:
    """Sentences, spread over the text."""
    records = list(chain.from_iterable(read(corpus) for corpus in corpora))
    valid, test = (num_held_out(number, len(records)) for number in (num_valid, num_test))
    most = 2 * MAX_SHARE if isinstance(num_valid, float) or isinstance(num_test, float) else MOST
    chosen = choose_held_out(((words,) for words, _ in records), valid, test, seed, NOUN, most=most)
    tags = {texts[0]: texts for texts in reversed(records)}  # the first of equal sentences counts
    sets = [[tags[words] for (words,) in part] for part in (chosen.valid, chosen.test)]
    return HeldOut(sets[0], sets[1], compared=1), list(corpora)


def write_held_out(folder: Path, name: str, records: Sequence[Texts], recipe: Recipe) -> None:
    word = int(recipe.data.text[0]) if recipe.data.text else 1
    tag = int(recipe.data.label) if recipe.data.label else max(2, word + 1)
    lines = []
    for words, tags in records:
        for one, number in zip(words.split(BETWEEN), tags.split(BETWEEN), strict=True):
            cells = ["_"] * max(word, tag)
            cells[word - 1], cells[tag - 1] = one, recipe.model.labels[int(number)]
            lines.append("\t".join(cells))
        lines.append("")
    write_atomic(folder / HELD_OUT.format(name=name), "\n".join(lines) + "\n")


def doubts(recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
    words = [corpus for corpus in corpora if isinstance(corpus, WordsCorpus)]
    others = {
        f"data.{name}": list(read(find_corpus(spec, recipe)))
        for name in ("valid", "test")
        if isinstance(spec := getattr(recipe.data, name), str)
    }
    return doubts_of_words(recipe, words, others)


def make_validator(recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool) -> LabelValidator:
    config = recipe.model.config(tokenizer.vocab_size)
    length = recipe.data.max_length
    return validator_of(config, length, records, tokenizer, encode_records, COLUMNS, in_training=True)


def _of_bundle(bundle: Bundle, records: Sequence[Texts]) -> LabelValidator:
    return validator_of(bundle.config, bundle.max_length, records, bundle.tokenizer, encode_records, COLUMNS)


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    return measured_scores(recipe, bundle, _of_bundle(bundle, records))[0]


def examine(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> dict[str, Any] | None:
    return measured_scores(recipe, bundle, _of_bundle(bundle, records))[1]


def baseline(
    recipe: Recipe,
    corpora: Sequence[RecordSource],
    held_out: HeldOut | None,
    valid: Sequence[Texts],
    test: Sequence[Texts],
) -> Baseline | None:
    return bag_of_words(recipe, corpora, held_out, (valid, test))


def measure_weights(
    recipe: Recipe,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    records: Sequence[Texts],
    device: torch.device,
) -> dict[str, Any]:
    return {}

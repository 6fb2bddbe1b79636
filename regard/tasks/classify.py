"""Classification of texts and of pairs of texts: one label, several labels, or a number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.data.columns import Columns, find_columns
from regard.data.corpus import RecordSource, Texts, check_corpus
from regard.data.labelled import BETWEEN, NONE, NUMBER, TableCorpus, find_files, table_sample
from regard.data.labelled import encode_labelled as encode_records
from regard.data.split import MOST, HeldOut, hold_out_by_label
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.evaluate import Scores
from regard.files import write_atomic
from regard.models.transformer import Transformer
from regard.recipe import MAX_SHARE, Recipe
from regard.settings import HeadConfig
from regard.tasks.defaults import anchored_loss
from regard.tasks.label_notes import doubts_of_texts
from regard.tasks.label_plan import plan_table as plan
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

NOUN = TableCorpus.noun
COLUMNS = TableCorpus.columns
HELD_OUT = "{name}.jsonl"


def complete(recipe: Recipe, head: HeadConfig | None = None) -> Recipe:
    """Find the columns and labels in the tables. If `head` has all the labels, its own are kept in their order."""
    data, labels = recipe.data, recipe.model.labels
    own = recipe.model.fields.get("head", {})
    path = find_files(data.train[0].path, root_of(recipe))[0]
    check_corpus(TableCorpus(str(path), (path,), Columns((), "", False, "one")))
    is_json = path.suffixes and ".jsonl" in path.suffixes[-2:]
    if labels and data.label and data.text and (data.header is not None or is_json):
        return with_labels(recipe, labels, own.get("answer", "one"))
    used = find_columns(path, table_sample(path), data.text, data.label, data.header, data.separator, own.get("answer"))
    if not labels:
        labels = tuple(_find_labels(recipe, used))
        if (
            head is not None
            and head.kind == "classes"
            and head.answer == used.answer
            and set(labels) <= set(head.labels)
        ):
            labels = head.labels
    return with_labels(
        recipe, labels, used.answer, text=used.text, label=used.label, header=used.header, separator=used.separator
    )


def _find_labels(recipe: Recipe, used: Columns) -> list[str]:
    """The labels of the training tables; of numbers, the name of their column."""
    if used.answer == "number":
        return [used.label if not used.label.isdecimal() else "score"]
    found: dict[str, None] = {}
    rows = 0
    for entry in recipe.data.train:
        corpus = TableCorpus(entry.path, find_files(entry.path, root_of(recipe)), used)
        check_corpus(corpus)
        for path, row, header in corpus.rows():
            found |= dict.fromkeys(corpus.names_in(corpus.label_cell(path, row, header)))
            rows += 1
    labels, where = sorted_labels(list(found)), f"{'column ' if used.label.isdecimal() else ''}{used.label}"
    check_labels(labels, f"{recipe.data.train[0].path}, {where}")
    if rows > 20 and len(labels) > rows / 2:
        raise UserError(
            f"{recipe.data.train[0].path}, {where}: must be labels, which most rows share, but has {len(labels):,} different "
            f"values on {rows:,} rows; name the columns with --label and --text; pairs of sentences to translate go into a recipe "
            f'([data] train = "pairs.tsv")'
        )
    return labels


def columns_of(recipe: Recipe) -> Columns:
    """The columns of a complete recipe."""
    data, head = recipe.data, recipe.model.config(1000).head_settings
    return Columns(data.text, data.label, bool(data.header), head.answer, data.separator)


def find_corpora(spec: str, recipe: Recipe, weight: float) -> list[RecordSource]:
    corpus = TableCorpus(spec, find_files(spec, root_of(recipe)), columns_of(recipe), recipe.model.labels, weight)
    check_corpus(corpus)
    return [corpus]


def find_corpus(spec: str, recipe: Recipe) -> RecordSource:
    return find_corpora(spec, recipe, 1.0)[0]


def hold_out(
    corpora: Sequence[RecordSource],
    num_valid: int | float,
    num_test: int | float,
    seed: int,
    note: Say = lambda text: None,
) -> tuple[HeldOut, list[RecordSource]]:
    """About the same share of each label."""
    records = list(chain.from_iterable(read(corpus) for corpus in corpora))
    valid, test = (num_held_out(number, len(records)) for number in (num_valid, num_test))
    most = 2 * MAX_SHARE if isinstance(num_valid, float) or isinstance(num_test, float) else MOST
    return hold_out_by_label(records, valid, test, seed, NOUN, most=most), list(corpora)


def write_held_out(folder: Path, name: str, records: Sequence[Texts], recipe: Recipe) -> None:
    """A .jsonl file with the columns of the tables."""
    lines = []
    for text, label in records:
        texts = dict(zip(recipe.data.text, text.split(BETWEEN), strict=False))
        lines.append(json.dumps({recipe.data.label: _label(label, recipe), **texts}, ensure_ascii=False) + "\n")
    write_atomic(folder / HELD_OUT.format(name=name), "".join(lines))


def _label(text: str, recipe: Recipe) -> Any:
    if text.startswith(NUMBER):
        return float(text[1:])
    names = [] if text == NONE else [recipe.model.labels[int(number)] for number in text.split()]
    return names if recipe.model.config(1000).head_settings.answer == "several" else names[0]


def doubts(recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
    first = corpora[0]
    assert isinstance(first, TableCorpus)
    said = first.used.say(first.files[0], table_sample(first.files[0]))
    others = {
        f"data.{name}": list(read(find_corpus(spec, recipe)))
        for name in ("valid", "test")
        if isinstance(spec := getattr(recipe.data, name), str)
    }
    return [said, *doubts_of_texts(recipe, corpora, others)]


def make_validator(recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool) -> LabelValidator:
    config = recipe.model.config(tokenizer.vocab_size)
    length, threshold = recipe.data.max_length, recipe.decode.threshold
    return validator_of(config, length, records, tokenizer, encode_records, COLUMNS, threshold, in_training=True)


def _of_bundle(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> LabelValidator:
    length, threshold = bundle.max_length, bundle.decode.threshold
    return validator_of(bundle.config, length, records, bundle.tokenizer, encode_records, COLUMNS, threshold)


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    return measured_scores(recipe, bundle, _of_bundle(recipe, bundle, records))[0]


def examine(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> dict[str, Any] | None:
    return measured_scores(recipe, bundle, _of_bundle(recipe, bundle, records))[1]


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
    """The best threshold for several labels, unless the recipe sets one."""
    config = recipe.model.config(tokenizer.vocab_size)
    if config.head_settings.answer != "several" or recipe.decode.threshold is not None or not records:
        return {}
    model = Transformer(config)
    model.load_state_dict(weights)
    validator = make_validator(recipe, records, tokenizer, loss_only=False)
    threshold = validator.best_threshold(validator.outputs(model.to(device), device, None))
    return {"decode": dataclasses.replace(recipe.decode, threshold=threshold)}

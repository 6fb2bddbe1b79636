"""What the tasks with labels share: completing a recipe, class weights, batches, the loss, measuring."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.clean import CleanOptions
from regard.data.corpus import RecordSource, Texts
from regard.data.encoding_workers import EncodeRecords
from regard.data.feed import Packing
from regard.data.labelled import BETWEEN
from regard.data.labelled_batch import IGNORED, LabelledBatch, LabelledPacking, LabelledTexts
from regard.data.sampler import Sampler
from regard.data.split import HeldOut
from regard.data.store import Store, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.device import pick_device
from regard.errors import UserError
from regard.evaluate import Scores
from regard.generate.engines.torch_engine import load_model
from regard.layout import SequenceLayout
from regard.models.label_loss import balanced_weights, label_loss
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.progress import counted
from regard.recipe import ModelRecipe, Recipe
from regard.tasks.bag_of_words import BagOfWords, WordTags
from regard.tasks.counting import PIECES_PER_WORD
from regard.tasks.head_fitting import fit_new_head
from regard.tasks.label_validation import LabelValidator
from regard.tasks.task import Baseline, Say
from regard.understanding.answers import has_spans

MAX_LABELS = 10_000
TYPICAL = 32  # tokens of the texts that the speed is measured with
NO_LIMIT = 1 << 62


def with_labels(recipe: Recipe, labels: Sequence[str], answer: str, **data: Any) -> Recipe:
    """The recipe with the labels of its head, with these fields of [data], and with the metric that decides."""
    head = {**recipe.model.fields.get("head", {}), "labels": list(labels), "answer": answer}
    if answer == "one":
        del head["answer"]  # the default, which older models do not name
    train = recipe.train
    if train.monitor == "score":
        first = {"one": "accuracy", "several": "f1", "number": "spearman"}[answer]
        if head.get("kind") == "tags" and has_spans(labels):
            first = "f1"
        train = dataclasses.replace(train, monitor=first)  # type: ignore[arg-type]
    if isinstance(train.class_weights, dict):
        for label in train.class_weights:
            if label not in labels:
                raise UserError(
                    f"train.class_weights: {label!r} is not one of the labels ({', '.join(labels[:8])} ...)"
                )
    if train.class_weights and answer == "number":
        raise UserError("train.class_weights needs labels, but the label is a number")
    if recipe.decode.threshold is not None and answer != "several":
        raise UserError("decode.threshold is for several labels, but a text has one here; leave it out")
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, **data),
        model=ModelRecipe(recipe.model.preset, {**recipe.model.fields, "head": head}),
        train=train,
    )


def sorted_labels(found: Sequence[str]) -> list[str]:
    """Whole numbers in numeric order, other labels in alphabetical order.

    >>> sorted_labels(["10", "9", "1"]), sorted_labels(["b", "a"])
    (['1', '9', '10'], ['a', 'b'])
    """
    numbers = all(label.lstrip("-").isdecimal() for label in found)
    return sorted(found, key=(lambda label: (int(label), label)) if numbers else None)


def check_labels(labels: Sequence[str], where: str) -> None:
    """Refuse labels that a model cannot have."""
    if len(labels) < 2:
        found = f"only one ({labels[0]})" if labels else "none"
        raise UserError(f"{where}: must have at least two different labels, but has {found}")
    if len(labels) > MAX_LABELS:
        raise UserError(
            f"{where}: must have at most {MAX_LABELS:,} different labels, but has {len(labels):,}; see --label"
        )
    for label in labels:
        if not label.isprintable():
            raise UserError(f"{where}: a label must be printable text on one line, but one is {label!r}")


def describe(recipe: Recipe) -> str:
    labels = recipe.model.labels
    head = recipe.model.fields.get("head", {})
    if head.get("answer") == "number":
        return f"{recipe.task}, a number"
    what = "tags" if head.get("kind") == "tags" else "labels"
    return f"{recipe.task}, {len(labels):,} {what}" if labels else recipe.task


def clean_options(recipe: Recipe) -> CleanOptions:
    """Nothing is dropped by its length: long texts are cut into windows later, and labels are short."""
    return CleanOptions(max_length=NO_LIMIT, max_ratio=1e9)


def read(corpus: RecordSource, note: Say = lambda text: None) -> Iterator[Texts]:
    """The records that have a text and a label."""
    empty, first = 0, 0
    for record in corpus.records(note):
        if record.texts[0].strip() and record.texts[1].strip():
            yield record.texts
        else:
            empty, first = empty + 1, first or record.number
    if empty:
        note(
            f"{corpus.name}: left out {counted(empty, 'line')} without a text or without a label, first line {first:,}"
        )


def vocabulary_lines(
    corpora: Sequence[RecordSource], held_out: HeldOut | None, done: Callable[[int], None]
) -> Iterator[str]:
    for corpus in corpora:
        for record in corpus.records():
            if held_out is None or not held_out.is_held_out(*record.texts):
                yield record.texts[0].replace(BETWEEN, " ")
            done(1)


def count(corpus: RecordSource, recipe: Recipe, note: Say) -> tuple[int, int]:
    records = tokens = 0
    for record in corpus.records(note):
        records += 1
        tokens += 2 + int(PIECES_PER_WORD * max(1, len(record.texts[0].split())))
    return records, tokens


def too_little(recipe: Recipe, num_records: float) -> str | None:
    return None


def num_held_out(wanted: int | float, count: int) -> int:
    """`wanted` as a number of records; a share of `count` is at least one record."""
    return max(1, round(wanted * count)) if isinstance(wanted, float) else wanted


# --- batches, and the loss ---


def make_texts(
    store: Store, tokenizer: Tokenizer, length: int, config: ModelConfig, in_training: bool = True
) -> LabelledTexts:
    head = config.head_settings
    return LabelledTexts(store, tokenizer, length, head.answer, len(head.labels), in_training)


def class_weights(recipe: Recipe, texts: LabelledTexts, labels: Sequence[str]) -> Tensor:
    """The weight of each class, (classes,); the mean over the data is 1."""
    wanted = recipe.train.class_weights
    counts = torch.from_numpy(texts.label_counts)
    if wanted == "balanced":
        return balanced_weights(counts, texts.answer, texts.num_records)
    weights = torch.ones(len(labels))
    if isinstance(wanted, dict):
        for label, weight in wanted.items():
            weights[labels.index(label)] = weight
        if texts.answer != "several":
            weights *= counts.sum() / (weights * counts).sum()
    return weights


def make_batches(recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool) -> tuple[Sampler, Packing]:
    assert not with_slots, "heads for labels are trained on the plain path"
    train, config = recipe.train, recipe.model.config(tokenizer.vocab_size)
    texts = make_texts(store, tokenizer, recipe.data.max_length, config)
    sampler = Sampler(texts.costs, train.batch_tokens, train.seed, texts.corpora, noun="text")
    return sampler, LabelledPacking(texts, class_weights(recipe, texts, config.head_settings.labels))


def about_store(recipe: Recipe, store: Store, tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
    texts, length = make_texts(store, tokenizer, recipe.data.max_length, config), recipe.data.max_length
    notes = []
    if texts.num_windowed:
        share = 100 * texts.num_windowed / len(store)
        what = counted(texts.num_windowed, "sentence" if texts.has_tags else "pair" if recipe.takes_pairs else "text")
        label = "" if texts.has_tags else ", each with the label of the whole"
        notes.append(f"{what} ({share:.1f}%) longer than {length} tokens: trained in windows{label} (data.max_length)")
    return notes


def begin(model: Transformer, store: Store) -> None:
    """Start a regression head at the mean of its targets, which small steps would take long to reach."""
    head = model.config.head_settings
    if head.answer == "number":
        values = np.asarray(store["label"].ids).astype("<u2").view(np.float32)
        with torch.no_grad():
            model.head.output.bias.fill_(float(values.mean()))  # type: ignore[union-attr, operator]


def fit_head(recipe: Recipe, model: Transformer, store: Store, tokenizer: Tokenizer, device: torch.device) -> None:
    if recipe.train.fit_head:
        texts = make_texts(store, tokenizer, recipe.data.max_length, model.config)
        fit_new_head(model, texts, class_weights(recipe, texts, model.config.head_settings.labels), device)


def loss(model: Transformer, batch: LabelledBatch, token_loss: TokenLoss) -> Loss:
    types = batch.types if model.config.front_settings.token_types > 1 else None
    logits = model(batch.ids, batch.layout, token_types=types)
    return label_loss(
        logits, batch.targets, model.config.head_settings.answer, batch.class_weights, token_loss.smoothing
    )


def typical_length(recipe: Recipe) -> int:
    return min(TYPICAL, recipe.data.max_length)


def made_up_batch(config: ModelConfig, tokens: int, length: int, with_slots: bool) -> tuple[Any, None, int]:
    """Texts of random ids; for tags every other token has one."""
    number, head = max(1, tokens // length), config.head_settings
    ids = torch.from_numpy(np.random.default_rng(0).integers(config.vocab_size, size=number * length))
    targets = torch.zeros(number, dtype=torch.float32 if head.answer == "number" else torch.int64)
    if head.answer == "several":
        targets = torch.zeros(number, len(head.labels))
    if head.kind == "tags":
        targets = torch.zeros(number * length, dtype=torch.int64)
        targets[1::2] = IGNORED
    layout = SequenceLayout.from_lengths([length] * number)
    batch = LabelledBatch(ids, torch.zeros_like(ids), layout, targets, torch.ones(len(head.labels)))
    return batch, None, int((targets >= 0).sum()) if head.kind == "tags" else number


# --- measuring ---


def validator_of(
    config: ModelConfig,
    length: int,
    records: Sequence[Texts],
    tokenizer: Tokenizer,
    encode: EncodeRecords,
    columns: Sequence[str],
    threshold: float | None = None,
    in_training: bool = False,
) -> LabelValidator:
    store = store_in_memory(records, tokenizer, encode, columns)
    texts = make_texts(store, tokenizer, length, config, in_training)
    found = LabelValidator(texts, records, config.head_settings.labels)
    return found if threshold is None else dataclasses.replace(found, threshold=threshold)


def bundle_outputs(bundle: Bundle, validator: LabelValidator, device: torch.device) -> Any:
    return validator.outputs(load_model(bundle).to(device), device, None)


def measured_scores(recipe: Recipe, bundle: Bundle, validator: LabelValidator) -> tuple[Scores, dict[str, Any]]:
    """The scores of a bundle, and what a report shows beside them."""
    device = pick_device(recipe.train.device)
    outputs = bundle_outputs(bundle, validator, device)
    return validator.scores(outputs), validator.examined(outputs)


def bag_of_words(
    recipe: Recipe,
    corpora: Sequence[RecordSource],
    held_out: HeldOut | None,
    sets: Sequence[Sequence[Texts]],
) -> Baseline:
    """Train and score the baseline: a bag of words or, for tags, a regression on words."""
    started = time.perf_counter()
    head = recipe.model.config(1000).head_settings
    train = [
        texts for corpus in corpora for texts in read(corpus) if held_out is None or not held_out.is_held_out(*texts)
    ]
    model: BagOfWords | WordTags
    if head.kind == "tags":
        model, name = WordTags.train(train, len(head.labels)), "regression on words"
    else:
        model, name = BagOfWords.train(train, head.answer, len(head.labels)), "bag of words"
    valid, test = (model.scores(records, head.labels) if records else None for records in sets)
    assert valid is not None
    return Baseline(name, valid, test, time.perf_counter() - started)


def root_of(recipe: Recipe) -> Path:
    return Path(recipe.data.root)

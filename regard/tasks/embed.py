"""The task `embed`: text vectors learnt from pairs that mean the same, such as a sentence and its translation, with the other pairs
of the batch as negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.corpus import Corpus, CorpusRange, RecordSource, Texts
from regard.data.encoding_workers import encode_sides as encode_records
from regard.data.feed import Packing
from regard.data.sampler import Sampler
from regard.data.split import HeldOut
from regard.data.store import Column, Store
from regard.data.text_pairs import (
    TextPairBatch,
    TextPairPacking,
    TextPairs,
    TextPairSlotBatch,
    TextPairSlots,
    fit_pair_slots,
    make_pair_batch,
    one_side,
)
from regard.data.tokenizer import Tokenizer
from regard.device import pick_device
from regard.evaluate import Scores
from regard.generate.engines.torch_engine import load_model
from regard.layout import Layout
from regard.models.contrastive import anchor_loss, contrastive_loss
from regard.models.heads import SequenceHead
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.progress import counted
from regard.recipe import Recipe, TrainRecipe
from regard.tasks import translate
from regard.tasks.counting import PIECES_PER_WORD
from regard.tasks.defaults import baseline, begin, complete, examine, fit_head, measure_weights
from regard.tasks.embed_plan import outlook, plan, too_little, verdict
from regard.tasks.retrieval import RetrievalValidator
from regard.tasks.task import LossFunction, Say
from regard.tasks.translate import (
    clean_options,
    find_corpora,
    find_corpus,
    read,
    vocabulary_lines,
    write_held_out,
)

__all__ = [
    "COLUMNS", "HELD_OUT", "NOUN", "about_store", "anchored_loss", "baseline", "begin", "clean_options", "complete", "count",
    "describe", "doubts", "encode_records", "examine", "find_corpora", "find_corpus", "fit_head", "hold_out", "loss",
    "made_up_batch", "make_batches", "make_validator", "measure_weights", "outlook", "plan", "read", "score_test_set",
    "too_little", "typical_length", "verdict", "vocabulary_lines", "write_held_out",
]  # fmt: skip

NOUN = "pair"
COLUMNS = Corpus.columns
HELD_OUT = "{name}.{{source,target}}"
SENTENCE = 20  # tokens of the texts that the speed is measured by


# --- the data ---


def hold_out(
    corpora: Sequence[RecordSource],
    num_valid: int | float,
    num_test: int | float,
    seed: int,
    note: Say = lambda text: None,
) -> tuple[HeldOut, list[RecordSource]]:
    """As for translation, but a held-out text must not be in the training text on either side: the loss treats both alike."""
    held_out, left = translate.hold_out(corpora, num_valid, num_test, seed, note)
    return replace(held_out, crosswise=True), left


def describe(recipe: Recipe) -> str:
    pairs = (f"{source} and {target}" for source, target in recipe.data.directions)
    return f"vectors of {', '.join(pairs)}"


def doubts(recipe: Recipe, corpora: Sequence[RecordSource]) -> list[str]:
    """Which side is which does not matter."""
    return []


def count(corpus: RecordSource, recipe: Recipe, note: Say) -> tuple[int, int]:
    """The tokens of both sides."""
    pairs = words = 0
    for record in corpus.records(note):
        pairs += 1
        words += sum(max(1, len(text.split()), len(text) // 12) for text in record.texts)
    return pairs, int(words * PIECES_PER_WORD) + 2 * pairs


def make_pairs(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> TextPairs:
    return TextPairs(store, recipe.data.max_length, tokenizer.opening, tokenizer.closing)


def about_store(recipe: Recipe, store: Store, tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
    """Cleaning has dropped pairs longer than `data.max_length`; in others the marks around a text may displace its last tokens."""
    pairs = make_pairs(recipe, store, tokenizer)
    if not pairs.num_cut:
        return []
    return [
        f"{counted(pairs.num_cut, 'pair')} with a text cut at its end: data.max_length = {recipe.data.max_length} includes the "
        "marks around a text"
    ]


# --- batches, and the loss ---


def make_batches(recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool) -> tuple[Sampler, Packing]:
    """Batches with pairs of all lengths; a pair costs the tokens of both texts."""
    train = recipe.train
    pairs, slots, tokens = make_pairs(recipe, store, tokenizer), None, train.batch_tokens
    if with_slots:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_pair_slots(pairs, tokens, recipe.data.max_length, train.temperature)
    sampler = Sampler(pairs.costs, tokens, train.seed, pairs.corpora, slots, noun=NOUN)
    return sampler, TextPairPacking(pairs, train.temperature, slots)


def loss(model: Transformer, batch: TextPairBatch | TextPairSlotBatch, token_loss: TokenLoss) -> Loss:
    """The contrastive loss. Negatives come from the same micro-batch, so `train.accumulate` and further processes leave each text
    fewer of them."""
    vectors = _pooled(model, batch.ids, batch.layout)
    with torch.autocast(vectors.device.type, enabled=False):  # in bf16 a cosine has two digits
        return contrastive_loss(_by_pair(vectors, batch.groups), batch.groups, batch.scale)


def _pooled(model: Transformer, ids: Tensor, layout: Layout) -> Tensor:
    """(sequences, d_model)"""
    assert isinstance(model.head, SequenceHead)
    return model.head.pooled(model.states(ids, layout), layout)


def _by_pair(vectors: Tensor, groups: Tensor) -> Tensor:
    """(sequences, d_model) -> (pairs, 2, d_model); the sequences that empty rows form come last."""
    return vectors[: groups.numel()].view(len(groups), 2, -1)


def anchored_loss(start: Transformer, side: int) -> LossFunction:
    """The contrastive loss, and how far the vectors of this side have moved away from those of `start`."""
    start.eval().requires_grad_(False)

    def anchored(model: Transformer, batch: TextPairBatch, token_loss: TokenLoss) -> Loss:
        vectors = _pooled(model, batch.ids, batch.layout)
        with torch.no_grad():
            before = _pooled(start, *one_side(batch, side))
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = _by_pair(vectors, batch.groups)
            found = contrastive_loss(vectors, batch.groups, batch.scale)
            moved = anchor_loss(vectors[:, side], before, batch.groups)
        return replace(found, total=found.total + moved)

    return anchored


def typical_length(recipe: Recipe) -> int:
    """Of both texts of a pair together."""
    return 2 * min(SENTENCE, recipe.data.max_length)


def made_up_batch(
    config: ModelConfig, tokens: int, length: int, with_slots: bool
) -> tuple[Any, TextPairSlots | None, int]:
    """Pairs of random ids, with texts of half this length."""
    number, half = max(1, tokens // length), max(1, length // 2)
    ids = np.random.default_rng(0).integers(config.vocab_size, size=2 * number * half)
    columns = {
        name: Column(part, np.arange(number + 1) * half) for name, part in zip(COLUMNS, np.split(ids, 2), strict=True)
    }
    pairs = TextPairs(Store(columns, [CorpusRange("", 1.0, 0, number)], {}), half)
    gathered, temperature = pairs.gather(np.arange(number)), TrainRecipe.temperature
    if not with_slots:
        return make_pair_batch(gathered, temperature), None, 2 * number
    slots = fit_pair_slots(pairs, number * 2 * half, half, temperature)
    return slots.pack(gathered, 2 * number), slots, 2 * number


# --- measuring, and the finished model ---


def make_validator(
    recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool
) -> RetrievalValidator:
    data = recipe.data
    names = (data.source, data.target) if len(data.directions) == 1 else ("first", "second")
    return RetrievalValidator(records, tokenizer, recipe.data.max_length, recipe.train.temperature, names)


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    device = pick_device(recipe.train.device)
    validator = make_validator(recipe, records, bundle.tokenizer, loss_only=False)
    return validator.scores(load_model(bundle).to(device), device, None)

"""Masked language modelling: predict the masked tokens of pieces of documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.arrays import Int64Array
from regard.data.corpus import CorpusRange, Texts
from regard.data.documents import encode_documents as encode_records
from regard.data.feed import Packing
from regard.data.masking import (
    MaskedBatch,
    MaskedPacking,
    MaskedSlotBatch,
    MaskedSlots,
    Masking,
    TextPieces,
    fit_masked_slots,
    make_masked_batch,
)
from regard.data.sampler import Sampler
from regard.data.store import Store, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.data.whole_words import WordTable
from regard.device import pick_device
from regard.errors import UserError
from regard.evaluate import Scores, likelihood_scores
from regard.generate.engines.torch_engine import load_model
from regard.generate.options import forbidden_ids
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.recipe import Recipe, TrainRecipe
from regard.tasks.defaults import (
    about_store,
    anchored_loss,
    baseline,
    begin,
    complete,
    examine,
    fit_head,
    measure_weights,
)
from regard.tasks.measuring import BATCH_TOKENS, sum_nll
from regard.tasks.task import Outcome, Plan, Prospect
from regard.tasks.text import (
    COLUMNS,
    HELD_OUT,
    NOUN,
    clean_options,
    count,
    describe,
    doubts,
    find_corpora,
    find_corpus,
    hold_out,
    made_up_column,
    read,
    too_little,
    vocabulary_lines,
    write_held_out,
)

__all__ = [
    "COLUMNS", "HELD_OUT", "NOUN", "about_store", "anchored_loss", "baseline", "begin", "clean_options", "complete", "count",
    "describe", "doubts", "encode_records", "examine", "find_corpora", "find_corpus", "fit_head", "hold_out", "loss",
    "made_up_batch", "make_batches", "make_validator", "measure_weights", "outlook", "plan", "read", "score_test_set",
    "too_little", "typical_length", "verdict", "vocabulary_lines", "write_held_out",
]  # fmt: skip

PIECE = 128  # tokens per piece when the speed is measured
VALIDATION_EPOCH = 2**32 - 1  # masks of validations, the same each time


def plan(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    raise UserError('no settings are chosen for the task fill; write a recipe with task = "fill" (docs/guide.md)')


def outlook(prospect: Prospect) -> list[str]:
    return []


def verdict(outcome: Outcome) -> str:
    return f"see it  regard info -m {shlex.quote(str(outcome.run))}"


def make_pieces(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> TextPieces:
    """The pieces of a store, framed as the tokenizer frames an input."""
    return TextPieces(store["text"], store.corpora, recipe.data.max_length, tokenizer.opening, tokenizer.closing)


def make_masking(recipe: Recipe, tokenizer: Tokenizer) -> Masking:
    if tokenizer.mask_id < 0:
        raise UserError(
            "the task fill needs a vocabulary with a mask token, but that of the model in train.init has none"
        )
    control = {*forbidden_ids(tokenizer), *tokenizer.opening, *tokenizer.closing, tokenizer.eos_id, tokenizer.mask_id}
    others: Int64Array = np.setdiff1d(np.arange(tokenizer.vocab_size), np.array(sorted(control)))
    words = WordTable.of(tokenizer) if recipe.train.whole_words else None
    return Masking(recipe.train.mask, tokenizer.mask_id, others, recipe.train.seed, words)


def make_batches(recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool) -> tuple[Sampler, Packing]:
    """Batches with pieces of all lengths."""
    train = recipe.train
    pieces, masking = make_pieces(recipe, store, tokenizer), make_masking(recipe, tokenizer)
    slots, tokens = None, train.batch_tokens
    if with_slots:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_masked_slots(pieces, masking, tokens, recipe.data.max_length)
    sampler = Sampler(pieces.costs, tokens, train.seed, pieces.corpora, slots, noun="piece")
    return sampler, MaskedPacking(pieces, masking, slots)


def loss(model: Transformer, batch: MaskedBatch | MaskedSlotBatch, token_loss: TokenLoss) -> Loss:
    """The loss of the masked tokens; only their states pass through the head."""
    return token_loss(model, lambda: model.hidden(batch.ids, batch.layout, rows=batch.places), batch.labels)


def typical_length(recipe: Recipe) -> int:
    return min(PIECE, recipe.data.max_length)


def made_up_batch(
    config: ModelConfig, tokens: int, length: int, with_slots: bool
) -> tuple[Any, MaskedSlots | None, int]:
    """Pieces of random ids."""
    number = max(1, tokens // length)
    pieces = TextPieces(made_up_column(config.vocab_size, number, length), [CorpusRange("", 1.0, 0, number)], length)
    masking = Masking(TrainRecipe.mask, 0, np.arange(config.vocab_size), 0)
    masked = masking.mask(pieces, np.arange(number), epoch=0)
    count = len(masked.labels)
    if not with_slots:
        return make_masked_batch(masked), None, count
    slots = fit_masked_slots(pieces, masking, number * length, length)
    return slots.pack(masked, count), slots, count


def make_validator(recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool) -> MaskedValidator:
    store = store_in_memory(records, tokenizer, encode_records, COLUMNS)
    pieces = make_pieces(recipe, store, tokenizer)
    return MaskedValidator(pieces, make_masking(recipe, tokenizer), len(records))


@dataclass
class MaskedValidator:
    """Measures the likelihood of masked tokens, the same ones each time."""

    pieces: TextPieces
    masking: Masking
    num_documents: int

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with loss (nats per masked token) and perplexity."""
        return {metric.key: metric.score for metric in self.scores(model, device, autocast).metrics}

    def scores(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> Scores:
        total, count = sum_nll(loss, model, self._batches(), device, autocast)
        return likelihood_scores(total, count, self.num_documents)

    def _batches(self) -> Iterator[MaskedBatch]:
        order = np.argsort(self.pieces.costs, kind="stable")
        ends = self.pieces.costs[order].cumsum()
        cuts = np.searchsorted(ends, np.arange(BATCH_TOKENS, int(ends[-1]), BATCH_TOKENS))
        for part in np.split(order, cuts):
            if len(part):
                yield make_masked_batch(self.masking.mask(self.pieces, part, VALIDATION_EPOCH))


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    """The likelihood of masked tokens of the test documents."""
    device = pick_device(recipe.train.device)
    validator = make_validator(recipe, records, bundle.tokenizer, loss_only=True)
    return validator.scores(load_model(bundle).to(device), device, None)

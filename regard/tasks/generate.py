"""Language modelling: predict each next token of documents in full rows; measured in nats per token and bits per byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.corpus import CorpusRange, Texts
from regard.data.documents import ChatCorpus, chat_answers
from regard.data.feed import Packing
from regard.data.rows import (
    RowPacking,
    TextBatch,
    TextRows,
    TextSlotBatch,
    TextSlots,
    fit_text_slots,
    make_text_batch,
)
from regard.data.sampler import Sampler
from regard.data.store import Store, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.device import pick_device
from regard.evaluate import Scores, likelihood_scores
from regard.generate.engines.torch_engine import load_model
from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.recipe import Recipe
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
from regard.tasks.samples import ContinuationSampler
from regard.tasks.text import (
    COLUMNS,
    HELD_OUT,
    NOUN,
    clean_options,
    count,
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
from regard.tasks.text_plan import plan
from regard.tasks.text_verdict import outlook, verdict
from regard.writing.chat_records import encode_texts as encode_records

__all__ = [
    "COLUMNS", "HELD_OUT", "NOUN", "about_store", "anchored_loss", "baseline", "begin", "clean_options", "complete", "count",
    "describe", "doubts", "encode_records", "examine", "find_corpora", "find_corpus", "fit_head", "hold_out", "loss",
    "made_up_batch", "make_batches", "make_validator", "measure_weights", "outlook", "plan", "read", "score_test_set",
    "too_little", "typical_length", "verdict", "vocabulary_lines", "write_held_out",
]  # fmt: skip


def describe(recipe: Recipe) -> str:
    return "a language model"


def typical_length(recipe: Recipe) -> int:
    return recipe.data.max_length


def make_rows(recipe: Recipe, store: Store, tokenizer: Tokenizer, seed: int | None) -> TextRows:
    """The rows of a store, as `TextRows` describes them."""
    data, start, end = recipe.data, tokenizer.document_start, tokenizer.eos_id
    learnt = store.columns.get("learnt")
    return TextRows(store["text"], store.corpora, data.max_length, start, end, data.across_documents, seed, learnt)


def make_batches(recipe: Recipe, store: Store, tokenizer: Tokenizer, with_slots: bool) -> tuple[Sampler, Packing]:
    """Batches of full rows."""
    train = recipe.train
    rows = make_rows(recipe, store, tokenizer, train.seed)
    slots, tokens = None, train.batch_tokens
    if with_slots:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_text_slots(rows, tokens, recipe.data.max_length)
    return Sampler(rows.costs, tokens, train.seed, rows.corpora, slots, noun="row"), RowPacking(rows, slots)


def loss(model: Transformer, batch: TextBatch | TextSlotBatch, token_loss: TokenLoss) -> Loss:
    """The loss of each next token."""
    return token_loss(model, lambda: model.hidden(batch.ids, batch.layout), batch.labels)


def made_up_batch(config: ModelConfig, tokens: int, length: int, with_slots: bool) -> tuple[Any, TextSlots | None, int]:
    """Full rows of random ids."""
    number = max(1, tokens // length)
    rows = TextRows(
        made_up_column(config.vocab_size, number, length - 1), [CorpusRange("", 1.0, 0, number)], length, 0, 0
    )
    gathered, count = rows.gather(np.arange(number)), number * length
    if not with_slots:
        return make_text_batch(gathered), None, count
    slots = fit_text_slots(rows, count, length)
    return slots.pack(gathered, count), slots, count


def make_validator(recipe: Recipe, records: Sequence[Texts], tokenizer: Tokenizer, loss_only: bool) -> TextValidator:
    columns = ChatCorpus.columns if records and len(records[0]) > 1 else COLUMNS
    store = store_in_memory(records, tokenizer, encode_records, columns)
    num_bytes = sum(len(chat_answers(texts).encode("utf-8", "surrogatepass")) for texts in records)
    sampler = None if loss_only else ContinuationSampler.of(records, tokenizer, recipe)
    return TextValidator(make_rows(recipe, store, tokenizer, seed=None), num_bytes, len(records), sampler)


@dataclass
class TextValidator:
    """Measures the likelihood of documents in rows that do not overlap, first tokens included, and continues some of them."""

    rows: TextRows
    num_bytes: int  # of the documents in UTF-8
    num_documents: int
    sampler: ContinuationSampler | None = None

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with loss (nats per token), perplexity, bits per byte and sample continuations."""
        scores = self.scores(model, device, autocast)
        record: dict[str, Any] = {metric.key.replace(" ", "_"): metric.score for metric in scores.metrics}
        if self.sampler is not None:
            record["samples"] = self.sampler.samples(model, device)
        return record

    def scores(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> Scores:
        total, _ = sum_nll(loss, model, self._batches(), device, autocast)
        count = sum(int((batch.labels >= 0).sum()) for batch in self._batches())  # of conversations, the answers alone
        return likelihood_scores(total, count, self.num_documents, self.num_bytes)

    def _batches(self) -> Iterator[TextBatch]:
        number = max(1, BATCH_TOKENS // int(self.rows.costs[0]))
        for start in range(0, len(self.rows.costs), number):
            yield make_text_batch(self.rows.gather(np.arange(start, min(start + number, len(self.rows.costs)))))


def score_test_set(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> Scores:
    """The likelihood of the test documents."""
    device = pick_device(recipe.train.device)
    validator = make_validator(recipe, records, bundle.tokenizer, loss_only=True)
    return validator.scores(load_model(bundle).to(device), device, None)

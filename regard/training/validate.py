"""Validation during training: loss on the validation set, and BLEU and chrF of greedy translations of part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.data.batch import make_batch
from regard.data.store import store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.evaluate import score
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions, forbidden_ids
from regard.models.loss import linear_cross_entropy
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.linear import set_row_tile
from regard.translation.protect import encode_pairs
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator

BATCH_TOKENS = 4_000
SAMPLES = 3
MAX_EXTRA = 20  # an untrained model does not know when to stop


@dataclass
class Validator:
    """Measures models on one set of pairs. Pass a copy of the model in training: translating switches its kernels."""

    pairs: Sequence[tuple[str, str]]
    tokenizer: Tokenizer
    target_language: str
    max_length: int
    sentences: int  # number to translate

    def __post_init__(self) -> None:
        self._store = store_in_memory(self.pairs, self.tokenizer, encode_pairs)
        lengths = np.maximum(self._store.src_lengths, self._store.tgt_lengths)
        # A line of thousands of tokens could need more memory than training itself.
        measured = np.flatnonzero(lengths <= self.max_length)
        if not len(measured):
            raise UserError(
                f"data.valid must have pairs within data.max_length = {self.max_length} tokens, but all {len(lengths)} are longer; "
                f"raise data.max_length, or use other pairs"
            )
        self._order = measured[np.argsort(lengths[measured], kind="stable")]
        self._ends = np.cumsum(lengths[self._order] + 1)

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with loss, perplexity, BLEU, chrF and sample translations."""
        loss = self.loss(model, device, autocast)
        record: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
        if not self.sentences:
            return record
        shown = self.pairs[: self.sentences]
        translations = self._translate(model, device, [source for source, _ in shown])
        scores = score(
            translations,
            [reference for _, reference in shown],
            target_language=self.target_language,
            bootstrap=0,
            metrics=("bleu", "chrf"),
        )
        record.update(bleu=scores.bleu, chrf=scores.chrf)
        record["samples"] = [
            {"source": source, "reference": reference, "translation": translation}
            for number in self._sample_numbers(len(shown))
            for (source, reference), translation in [(shown[number], translations[number])]
        ]
        return record

    def _sample_numbers(self, count: int) -> list[int]:
        """Sample sentences of medium length, spread over the set."""
        lengths = [len(source) for source, _ in self.pairs[:count]]
        middle = sorted(range(count), key=lambda n: abs(lengths[n] - 60))[: max(SAMPLES, count // 4)]
        return sorted(middle)[:: max(1, len(middle) // SAMPLES)][:SAMPLES]

    @torch.no_grad()
    def loss(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> float:
        """Negative log-likelihood per token, without label smoothing."""
        model.eval()
        set_kernel(model, "auto")
        set_row_tile(model, 0)
        total, count = 0.0, 0
        cuts = np.searchsorted(self._ends, np.arange(BATCH_TOKENS, int(self._ends[-1]), BATCH_TOKENS))
        for part in np.split(self._order, cuts):
            if not len(part):
                continue
            gathered = self._store.gather(part)
            batch = make_batch(*gathered, self.tokenizer.bos_id, self.tokenizer.eos_id).to(device)
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                hidden = model.hidden(batch.src, batch.src_layout, batch.tgt_in, batch.tgt_layout)
                loss = linear_cross_entropy(hidden, model.output_weight, batch.labels)
            total += float(loss.nll)
            count += loss.count
        return total / count

    def _translate(self, model: Transformer, device: torch.device, sources: Sequence[str]) -> list[str]:
        tokenizer = self.tokenizer
        engine = TorchEngine(
            model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden_ids(tokenizer), device=device
        )
        translator = Translator(
            tokenizer, engine, TranslationOptions(SearchOptions(beam=1, max_extra=MAX_EXTRA)), self.max_length
        )
        return [result.text for result in translator.translate(sources)]

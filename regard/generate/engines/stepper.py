"""The step function of a search: one model, or several of the same vocabulary whose probabilities are averaged, at work on a batch
of sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.cache import CrossCache


class Stepper:
    """Models with what they have encoded and decoded so far."""

    def __init__(
        self,
        models: Sequence[Transformer],
        ids: Sequence[Sequence[int]],
        eos_id: int,
        beam: int,
        capacity: int,
        bucket: int,
        device: torch.device,
        watch: bool = False,
    ) -> None:
        """`watch`: whether `attention` will be asked for."""
        self.models = models
        self.caches = [model.start(*encode(model, ids, eos_id, device), beam, capacity, bucket) for model in models]
        self._watched: list[CrossCache] = []
        for cache in self.caches if watch else ():
            # The last layer but one aligns best (Garg et al., 2019).
            self._watched.append(cache.layers[max(0, len(cache.layers) - 2)].cross_attention)
            self._watched[-1].is_watched = True

    def step(self, newest: Tensor) -> Tensor:
        """Newest tokens (rows,) -> logits, or with several models the log of their mean probabilities, (rows, vocab_size)."""
        found = [model.step(newest, cache) for model, cache in zip(self.models, self.caches, strict=True)]
        if len(found) == 1:
            return found[0]
        return mean_probability([torch.log_softmax(logits.float(), dim=-1) for logits in found])

    def select(self, rows: Tensor, sentences: list[int] | None) -> None:
        for cache in self.caches:
            cache.select(rows, sentences)

    def attention(self) -> Tensor:
        """(rows, longest) what the last step attended to."""
        seen = [cache.seen for cache in self._watched if cache.seen is not None]
        return torch.stack(seen).mean(dim=0)


def encode(
    model: Transformer, ids: Sequence[Sequence[int]], eos_id: int, device: torch.device
) -> tuple[Tensor, SequenceLayout]:
    """Sentences with their ends, encoded: (src_tokens, d_model)."""
    flat = torch.tensor([token for sentence in ids for token in (*sentence, eos_id)], device=device)
    layout = SequenceLayout.from_lengths([len(sentence) + 1 for sentence in ids], device)
    return model.encode(flat, layout), layout


def mean_probability(log_probs: Sequence[Tensor]) -> Tensor:
    """The log of the mean of probabilities that are given as logs; one is left as it is."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))

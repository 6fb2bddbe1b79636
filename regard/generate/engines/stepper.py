"""The step function of a search: one model, or an ensemble whose probabilities are averaged, decoding a batch of sentences. A model
with an encoder reads them as sources, one without as prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.engines.entering import start, with_end, without_end
from regard.models.transformer import Transformer
from regard.nn.cache import CrossCache


class Stepper:
    """One or more models with their decoding caches."""

    def __init__(
        self,
        models: Sequence[Transformer],
        ids: Sequence[Sequence[int]],
        eos_id: int,
        beam: int,
        capacity: int,
        bucket: int,
        device: torch.device,
        record_attention: bool = False,
    ) -> None:
        """Reads the sentences at once. `attention` needs `record_attention`."""
        self.models, self.eos_id = models, eos_id
        self.caches = [start(model, ids, eos_id, beam, capacity, bucket, device) for model in models]
        self._recorded: list[CrossCache] = []
        for cache in self.caches if record_attention else ():
            # The step that predicts a token, in the last layer but one (Garg et al., 2019): the search cannot wait for the
            # step that reads it, as `AlignmentHeads.shift` does.
            recorded = cache.layers[max(0, len(cache.layers) - 2)].cross_attention
            assert recorded is not None
            recorded.keeps_weights = True
            self._recorded.append(recorded)

    def step(self, newest: Tensor) -> Tensor:
        """Newest tokens (rows,) -> logits (rows, vocab_size); of an ensemble, the log of the mean probabilities."""
        logits = [
            with_end(model.step(without_end(newest, model, self.eos_id), cache), self.eos_id)
            for model, cache in zip(self.models, self.caches, strict=True)
        ]
        if len(logits) == 1:
            return logits[0]
        return mean_probability([torch.log_softmax(one.float(), dim=-1) for one in logits])

    def select(self, rows: Tensor, sentences: list[int] | None) -> None:
        """Keep these rows, in this order, and if given only these sentences."""
        for cache in self.caches:
            cache.select(rows, sentences)

    def attention(self) -> Tensor:
        """Cross-attention weights of the last step, (rows, longest source), averaged over the models."""
        weights = [cache.weights for cache in self._recorded if cache.weights is not None]
        return torch.stack(weights).mean(dim=0)


def mean_probability(log_probs: Sequence[Tensor]) -> Tensor:
    """The log of the mean of probabilities that are given as logs, all of one shape."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))

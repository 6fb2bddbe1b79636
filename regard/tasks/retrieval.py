"""Measures vectors of texts by retrieval: how often the text that means the same is the nearest of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.data.corpus import Texts
from regard.data.tokenizer import Tokenizer
from regard.data.windows import text_room
from regard.evaluate import Metric, Scores
from regard.generate.encoding import EncoderInput
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.models.contrastive import contrastive_loss
from regard.models.transformer import Transformer
from regard.understanding.answers import FloatArray
from regard.understanding.embedder import scaled

NAME = "retrieval accuracy"
LOSS_PAIRS = 512  # among which a pair is to be found for the loss
_CHUNK = 1024  # texts whose nearest ones are looked for at once


class RetrievalSet:
    """Pairs of texts that mean the same. A text may occur in several: then each of the others is a right answer."""

    def __init__(self, pairs: Sequence[Texts]) -> None:
        self.sides: tuple[list[str], list[str]] = tuple(list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))  # type: ignore[assignment]
        number = [{text: place for place, text in enumerate(side)} for side in self.sides]
        self.places = [(number[0][first], number[1][second]) for first, second in pairs]  # of each pair's texts
        self._right = frozenset(self.places)

    def accuracy(self, first: FloatArray, second: FloatArray) -> tuple[float, float]:
        """In percent, of the vectors of both sides: how many texts of each have a right answer as the nearest of the other."""
        there = [(row, column) in self._right for row, column in enumerate(_nearest(first, second))]
        back = [(row, column) in self._right for column, row in enumerate(_nearest(second, first))]
        return 100.0 * float(np.mean(there)), 100.0 * float(np.mean(back))

    def scores(self, first: FloatArray, second: FloatArray, loss: float | None = None) -> Scores:
        """The mean of both directions, and each of them in the signature."""
        there, back = self.accuracy(first, second)
        sizes = f"{len(self.sides[0])}x{len(self.sides[1])}"
        signature = f"texts:{sizes}|there:{there:.2f}|back:{back:.2f}"
        metrics = [Metric(NAME, (there + back) / 2, signature)]
        if loss is not None:
            metrics.append(Metric("loss", loss, f"pairs:{len(self.places)}|among:{LOSS_PAIRS}"))
        return Scores(tuple(metrics), len(self.places))


def _nearest(queries: FloatArray, texts: FloatArray) -> Iterator[int]:
    """The number of the nearest text to each query, by cosine."""
    queries, texts = scaled(queries), scaled(texts)
    for start in range(0, len(queries), _CHUNK):
        # (chunk, d_model) @ (d_model, texts)
        yield from (queries[start : start + _CHUNK] @ texts.T).argmax(axis=1).tolist()


@dataclass
class RetrievalValidator:
    """Measures models on one set of pairs."""

    pairs: Sequence[Texts]
    tokenizer: Tokenizer
    max_length: int
    temperature: float

    def __post_init__(self) -> None:
        self._set = RetrievalSet(self.pairs)
        room = text_room(self.tokenizer, self.max_length)
        self._inputs = [[EncoderInput(ids) for ids in self._framed(side, room)] for side in self._set.sides]

    def _framed(self, texts: Sequence[str], room: int) -> Iterator[list[int]]:
        """The ids of texts with what frames them; of a long text the beginning, as in training."""
        return (self.tokenizer.frame(ids[:room])[0] for ids in self.tokenizer.encode_batch(texts))

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with the loss and the retrieval accuracy."""
        scores = self.scores(model, device, autocast)
        return {"loss": scores["loss"].score, "retrieval": scores[NAME].score}

    def scores(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> Scores:
        engine = TorchEncoder(model, device=device, in_training=True, autocast=autocast)
        first, second = (np.asarray(engine.answers(side)) for side in self._inputs)
        return self._set.scores(first, second, self._loss(first, second))

    def _loss(self, first: FloatArray, second: FloatArray) -> float:
        """The mean over the texts, each among those of LOSS_PAIRS pairs."""
        places = np.array(self._set.places)
        vectors = torch.from_numpy(np.stack([first[places[:, 0]], second[places[:, 1]]], axis=1))
        groups = torch.from_numpy(places + np.array([0, len(first)]))
        scale, total = torch.tensor(1.0 / self.temperature), 0.0
        for part, own in zip(vectors.split(LOSS_PAIRS), groups.split(LOSS_PAIRS), strict=True):
            total += float(contrastive_loss(part, own, scale).nll)
        return total / (2 * len(places))

"""Measures text vectors by retrieval: how often the nearest text of the other side is one that means the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
LOSS_PAIRS = 512  # in each batch of the validation loss, whatever the training batch size
_CHUNK = 1024  # queries at a time


class RetrievalSet:
    """Pairs of texts that mean the same. Each distinct text of one side is a query, and all distinct texts of the other side are
    candidates. A text may occur in several pairs, as a sentence with several translations: then each partner is a right answer."""

    def __init__(self, pairs: Sequence[Texts], names: tuple[str, str]) -> None:
        """`names` are those of the two sides, such as languages."""
        self.names = names if names[0] != names[1] else ("first", "second")  # metrics are told apart by their names
        self.sides: tuple[list[str], list[str]] = tuple(list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))  # type: ignore[assignment]
        number = [{text: place for place, text in enumerate(side)} for side in self.sides]
        self.places = [(number[0][first], number[1][second]) for first, second in pairs]  # of each pair's texts
        self._right = frozenset(self.places)

    def accuracy(self, first: FloatArray, second: FloatArray) -> tuple[float, float]:
        """From the vectors of both sides, the percentage of the first side's texts whose nearest text of the second side is a right
        answer, and the other way round."""
        there = [(row, column) in self._right for row, column in enumerate(_nearest(first, second))]
        back = [(row, column) in self._right for column, row in enumerate(_nearest(second, first))]
        return 100.0 * float(np.mean(there)), 100.0 * float(np.mean(back))

    def scores(self, first: FloatArray, second: FloatArray, loss: float | None = None) -> Scores:
        """The mean of both directions, then each of them."""
        there, back = self.accuracy(first, second)
        (one, other), (left, right) = self.names, map(len, self.sides)
        metrics = [
            Metric(NAME, (there + back) / 2, "mean of both directions"),
            Metric(f"{one} to {other}", there, f"queries:{left}|candidates:{right}"),
            Metric(f"{other} to {one}", back, f"queries:{right}|candidates:{left}"),
        ]
        if loss is not None:
            metrics.append(Metric("loss", loss, f"pairs:{len(self.places)}|batch:{LOSS_PAIRS}"))
        return Scores(tuple(metrics), len(self.places))

    def measured(self, embed: Callable[[list[str]], FloatArray]) -> Scores:
        """The scores of a model that makes vectors of texts."""
        first, second = map(embed, self.sides)
        return self.scores(first, second)


def _nearest(queries: FloatArray, texts: FloatArray) -> Iterator[int]:
    """For each query, the place of the text with the highest cosine."""
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
    names: tuple[str, str]  # of the two sides

    def __post_init__(self) -> None:
        self._set = RetrievalSet(self.pairs, self.names)
        room = text_room(self.tokenizer, self.max_length, in_training=True)
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
        """The mean over the texts of both sides, in batches of LOSS_PAIRS pairs."""
        places = np.array(self._set.places)
        vectors = torch.from_numpy(np.stack([first[places[:, 0]], second[places[:, 1]]], axis=1))
        groups = torch.from_numpy(places + np.array([0, len(first)]))
        scale, total = torch.tensor(1.0 / self.temperature), 0.0
        for part, own in zip(vectors.split(LOSS_PAIRS), groups.split(LOSS_PAIRS), strict=True):
            total += float(contrastive_loss(part, own, scale).nll)
        return total / (2 * len(places))

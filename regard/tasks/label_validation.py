"""Measures models with labels on records: scores and, for the report, confusions, mistakes and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.accuracy import (
    LabelScore,
    Spans,
    calibration,
    score_numbers,
    score_one,
    score_several,
    score_tags,
    scores_by_label,
    scores_of_several,
    spans_by_label,
)
from regard.data.corpus import Texts
from regard.data.labelled import BETWEEN, DEFAULT_THRESHOLD
from regard.data.labelled_batch import LabelledTexts
from regard.evaluate import Scores
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.models.transformer import Transformer
from regard.understanding.answers import (
    FloatArray,
    find_spans,
    has_spans,
    join_windows,
    log_softmax,
    probabilities,
)
from regard.understanding.label_inputs import as_input

KEYS = {
    "loss": "loss", "accuracy": "accuracy", "F1": "f1", "macro F1": "macro_f1", "Spearman": "spearman", "Pearson": "pearson",
}  # fmt: skip
MISTAKES = 20  # in a report
CONFUSIONS = 20
MATRIX = 20  # most labels of a confusion matrix in a report


@dataclass
class LabelValidator:
    """Measures models on one set of records."""

    texts: LabelledTexts
    records: Sequence[Texts]
    labels: tuple[str, ...]
    threshold: float = DEFAULT_THRESHOLD

    def measure(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> dict[str, Any]:
        """A metrics record with the loss and the scores."""
        scores = self.scores(self.outputs(model, device, autocast))
        return {KEYS[metric.name]: metric.score for metric in scores.metrics}

    def outputs(self, model: Transformer, device: torch.device, autocast: torch.dtype | None) -> list[FloatArray]:
        """The logits of each record, (classes,), its windows joined; or of each of its words, (words, tags)."""
        inputs = [as_input(model.config, self.texts.framed(window)[:2]) for window in range(len(self.texts.windows))]
        engine = TorchEncoder(model, device=device, in_training=True, autocast=autocast)
        by_record: list[list[FloatArray]] = [[] for _ in range(self.texts.num_records)]
        for number, output in enumerate(engine.answers(inputs)):
            if self.texts.has_tags:
                output = output[np.array(self.texts.tags(number)) >= 0]
            by_record[self.texts.windows[number].record].append(output)
        if self.texts.has_tags:
            return [np.concatenate(parts) for parts in by_record]
        return [join_windows(parts, self.texts.answer) for parts in by_record]

    def scores(self, outputs: Sequence[FloatArray]) -> Scores:
        if self.texts.has_tags:
            return self._tag_scores(outputs)
        logits = np.stack(outputs).astype(np.float64)
        wanted = self.texts.targets.numpy()
        if self.texts.answer == "number":
            return score_numbers(logits[:, 0], wanted, float(np.mean((logits[:, 0] - wanted) ** 2)))
        if self.texts.answer == "several":
            loss = np.logaddexp(0.0, logits) - logits * wanted
            return score_several(self._chosen(outputs), wanted > 0.5, float(loss.mean()))
        log_probs = log_softmax(logits.astype(np.float32))
        loss = -log_probs[np.arange(len(wanted)), wanted].mean()
        return score_one(logits.argmax(axis=1), wanted, self.labels, float(loss))

    def _tag_scores(self, outputs: Sequence[FloatArray]) -> Scores:
        wanted = self._tags()
        losses = [
            -log_softmax(one)[np.arange(len(tags)), tags].sum() for one, tags in zip(outputs, wanted, strict=True)
        ]
        named = self._named_tags(outputs)
        spans = self._spans(*named) if has_spans(self.labels) else None
        words = sum(map(len, wanted))
        return score_tags(*named, spans, self.labels, float(sum(losses)) / max(1, words))

    def _tags(self) -> list[list[int]]:
        """The right tags of each sentence."""
        return [[int(number) for number in record[1].split(BETWEEN)] for record in self.records]

    def _named_tags(self, outputs: Sequence[FloatArray]) -> tuple[list[list[str]], list[list[str]]]:
        """The predicted and the right tags of each sentence."""
        predicted = [[self.labels[tag] for tag in output.argmax(axis=1)] for output in outputs]
        return predicted, [[self.labels[tag] for tag in tags] for tags in self._tags()]

    def _spans(self, predicted: list[list[str]], wanted: list[list[str]]) -> list[tuple[Spans, Spans]]:
        return [(find_spans(one), find_spans(other)) for one, other in zip(predicted, wanted, strict=True)]

    def by_label(self, outputs: Sequence[FloatArray]) -> list[LabelScore]:
        """How well each label is found, or each kind of span; empty for numbers."""
        if self.texts.answer == "number":
            return []
        if self.texts.has_tags and has_spans(self.labels):
            return spans_by_label(self._spans(*self._named_tags(outputs)))
        if self.texts.answer == "several":
            return scores_of_several(self._chosen(outputs), self.texts.targets.numpy() > 0.5, self.labels)
        if self.texts.has_tags:
            predicted = np.concatenate(list(outputs)).argmax(axis=1)
            return scores_by_label(predicted, np.array([tag for tags in self._tags() for tag in tags]), self.labels)
        return scores_by_label(np.stack(outputs).argmax(axis=1), self.texts.targets.numpy(), self.labels)

    def _chosen(self, outputs: Sequence[FloatArray]) -> Any:
        """(texts, labels): whether the model gives this label, where a text may have several."""
        return probabilities(np.stack(outputs), "several") >= self.threshold

    def examined(self, outputs: Sequence[FloatArray]) -> dict[str, Any]:
        """The scores of each label, confused ones, the worst mistakes and calibration, as JSON for the report."""
        if self.texts.answer == "number":
            return self._examined_numbers(outputs)
        by_label = [one.to_json() for one in self.by_label(outputs)]
        return {"by_label": by_label, **self._examined_labels(outputs)}

    def _examined_labels(self, outputs: Sequence[FloatArray]) -> dict[str, Any]:
        if self.texts.has_tags:
            logits = np.concatenate(list(outputs))
            wanted = np.array([tag for tags in self._tags() for tag in tags])
            shown = [
                f"{word} | {record[0].replace(BETWEEN, ' ')}"
                for record in self.records
                for word in record[0].split(BETWEEN)
            ]
        else:
            logits = np.stack(outputs)
            shown = [record[0].replace(BETWEEN, " | ") for record in self.records]
            wanted = self.texts.targets.numpy()
        if self.texts.answer == "several":
            return self._examined_several(logits, wanted)
        probs = probabilities(logits, "one")
        predicted = probs.argmax(axis=1)
        confidence, right = probs.max(axis=1).astype(np.float64), predicted == wanted
        bins, error = calibration(confidence, right)
        wrong = sorted(np.flatnonzero(~right).tolist(), key=lambda row: -float(confidence[row]))
        return {
            **self._confusions(predicted, wanted),
            "mistakes": [
                {
                    "text": shown[row],
                    "label": self.labels[wanted[row]],
                    "answer": self.labels[predicted[row]],
                    "probability": float(confidence[row]),
                }
                for row in wrong[:MISTAKES]
            ],
            "num_mistakes": len(wrong),
            "calibration": {"error": error, "bins": [vars(one) for one in bins]},
        }

    def _confusions(self, predicted: Any, wanted: Any) -> dict[str, Any]:
        size = len(self.labels)
        matrix = np.bincount(wanted * size + predicted, minlength=size * size).reshape(size, size)
        off = matrix.copy()
        np.fill_diagonal(off, 0)
        order = np.argsort(-off, axis=None, kind="stable")[:CONFUSIONS]
        pairs = [(int(place) // size, int(place) % size) for place in order if off.flat[place]]
        given = matrix.sum(axis=1)
        found: dict[str, Any] = {
            "confusions": [
                {"label": self.labels[a], "answer": self.labels[b], "count": int(off[a, b]), "of": int(given[a])}
                for a, b in pairs
            ]
        }
        if size <= MATRIX:
            found |= {"labels": list(self.labels), "matrix": matrix.tolist()}
        return found

    def _examined_several(self, logits: FloatArray, wanted: Any) -> dict[str, Any]:
        """Each label of each text is one answer: given or not."""
        probs = probabilities(logits, "several").astype(np.float64)
        chosen, given = probs >= self.threshold, wanted > 0.5
        sure = np.where(probs >= 0.5, probs, 1.0 - probs)
        bins, error = calibration(sure.ravel(), ((probs >= 0.5) == given).ravel())
        wrong = np.argwhere(chosen != given).tolist()
        wrong.sort(key=lambda place: -abs(float(probs[tuple(place)]) - self.threshold))
        return {
            "mistakes": [
                {
                    "text": self.records[row][0].replace(BETWEEN, " | "),
                    "label": f"{'' if given[row, column] else 'not '}{self.labels[column]}",
                    "answer": f"{'' if chosen[row, column] else 'not '}{self.labels[column]}",
                    "probability": float(probs[row, column]),
                }
                for row, column in wrong[:MISTAKES]
            ],
            "num_mistakes": len(wrong),
            "calibration": {"error": error, "bins": [vars(one) for one in bins]},
        }

    def _examined_numbers(self, outputs: Sequence[FloatArray]) -> dict[str, Any]:
        found, wanted = np.stack(outputs)[:, 0], self.texts.targets.numpy()
        worst = np.argsort(-np.abs(found - wanted), kind="stable")[:MISTAKES].tolist()
        return {
            "mistakes": [
                {
                    "text": self.records[row][0].replace(BETWEEN, " | "),
                    "label": f"{wanted[row]:.4g}",
                    "answer": f"{found[row]:.4g}",
                }
                for row in worst
            ]
        }

    def best_threshold(self, outputs: Sequence[FloatArray]) -> float:
        """The threshold with the best F1 for several labels, in steps of 0.01; of equally good ones the one nearest to 0.5."""
        logits, wanted = np.stack(outputs), self.texts.targets.numpy() > 0.5
        probs = probabilities(logits, "several")
        candidates = [number / 100 for number in range(5, 96)]
        found = [score_several(probs >= each, wanted)["F1"].score for each in candidates]
        best = [each for each, score in zip(candidates, found, strict=True) if score == max(found)]
        return min(best, key=lambda each: abs(each - DEFAULT_THRESHOLD))

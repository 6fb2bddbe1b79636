"""Labels of texts, and of pairs of texts. Long texts are read in windows, whose log-probabilities are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from regard.data.tokenizer import Tokenizer
from regard.data.windows import cut_windows, room_of
from regard.errors import UserError
from regard.understanding.answers import Classified, FloatArray, join_windows, probabilities
from regard.understanding.encoder import Input, LabelEncoder

Text = str | tuple[str, str]  # a pair is two texts
DEFAULT_THRESHOLD = 0.5


class Classifier:
    """Classifies texts with the model of a bundle."""

    def __init__(self, encoder: LabelEncoder) -> None:
        self.encoder, self.tokenizer = encoder, encoder.bundle.tokenizer
        self.head = encoder.bundle.config.head_settings

    def classify(
        self, texts: Sequence[Text], threshold: float | None = None, on_progress: Callable[[int], None] | None = None
    ) -> list[Classified]:
        """The labels of each text. `threshold` is the probability from which one of several labels is given (default: the model's).
        An empty text has none."""
        if threshold is not None and self.head.answer != "several":
            raise UserError(
                "threshold is for models with several labels, but this one gives each text one; leave it out"
            )
        if threshold is not None and not 0 < threshold < 1:
            raise UserError(f"threshold must be above 0 and below 1, but is {threshold}")
        windows = [frame_windows(self.tokenizer, text, self.encoder.max_length) for text in texts]
        outputs = iter(self.encoder.run([one for several in windows for one in several], on_progress))
        found = [[next(outputs) for _ in several] for several in windows]
        return [self._answer(text, parts, threshold) for text, parts in zip(texts, found, strict=True)]

    def _answer(self, text: Text, parts: Sequence[FloatArray], threshold: float | None) -> Classified:
        shown = text if isinstance(text, str) else "\t".join(text)
        if not parts:
            return Classified(shown, (), {}, None, 0)
        logits = join_windows(parts, self.head.answer)
        if self.head.answer == "number":
            return Classified(shown, (), {}, float(logits[0]), len(parts))
        probs = probabilities(logits, self.head.answer)
        order = np.argsort(-probs, kind="stable").tolist()
        by_label = {self.head.labels[number]: float(probs[number]) for number in order}
        if self.head.answer == "one":
            return Classified(shown, (next(iter(by_label)),), by_label, None, len(parts))
        least = threshold or self.encoder.bundle.decode.threshold or DEFAULT_THRESHOLD
        chosen = tuple(label for label, probability in by_label.items() if probability >= least)
        return Classified(shown, chosen, by_label, None, len(parts))


def frame_windows(tokenizer: Tokenizer, text: Text, length: int) -> list[Input]:
    """A text as the model reads it, in windows of at most `length` tokens; none if it is empty. Of a pair the longer text is cut,
    and the shorter one is read with each part; two long ones are cut side by side."""
    first, second = (text, None) if isinstance(text, str) else text
    ids = tokenizer.encode(first.strip())
    if second is None:
        if not ids:
            return []
        room = room_of(tokenizer, length, is_pair=False)
        return [tokenizer.frame(ids[start:stop]) for start, stop in cut_windows(len(ids), room)]
    others = tokenizer.encode(second.strip())
    if not ids or not others:
        return []
    room = room_of(tokenizer, length, is_pair=True)
    return [
        tokenizer.frame(ids[slice(*one)], others[slice(*other)])
        for one, other in pair_windows(len(ids), len(others), room)
    ]


def pair_windows(first: int, second: int, room: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The parts of two texts that are read together.

    >>> pair_windows(2, 9, 8)
    [((0, 2), (0, 4)), ((0, 2), (4, 9))]
    """
    if first + second <= room:
        return [((0, first), (0, second))]
    half = room // 2
    if first <= half:
        return [((0, first), window) for window in cut_windows(second, room - first)]
    if second <= half:
        return [(window, (0, second)) for window in cut_windows(first, room - second)]
    ones, others = cut_windows(first, half), cut_windows(second, room - half)
    count = max(len(ones), len(others))
    return [(ones[n * len(ones) // count], others[n * len(others) // count]) for n in range(count)]

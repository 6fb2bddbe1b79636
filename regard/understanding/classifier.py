"""Labels texts and pairs of texts. Long texts are read in windows, whose log-probabilities are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.bundle import Bundle
from regard.data.labelled import DEFAULT_THRESHOLD, on_one_line
from regard.data.tokenizer import Tokenizer
from regard.data.windows import cut_windows, pair_windows, text_room
from regard.errors import InputError
from regard.generate.encoding import EncoderEngine, EncoderInput, counting
from regard.progress import OnProgress
from regard.understanding.answers import Classified, FloatArray, join_windows, probabilities
from regard.understanding.label_inputs import Framed, as_input, longest_input

Text = str | tuple[str, str]  # a pair is two texts


class Classifier:
    """Classifies texts with the model of a bundle."""

    def __init__(self, bundle: Bundle, engine: EncoderEngine) -> None:
        self.bundle, self.engine, self.tokenizer = bundle, engine, bundle.tokenizer
        self.head = bundle.config.head_settings
        self.max_length = longest_input(bundle, engine)

    def classify(
        self, texts: Sequence[Text], threshold: float | None = None, on_progress: OnProgress | None = None
    ) -> list[Classified]:
        """The labels of each text; an empty text has none. A model of several labels gives those with a probability of at least
        `threshold` (default: the model's own)."""
        self.check_threshold(threshold)
        self.check_pairs(texts)
        windows = [self.read(text) for text in texts]
        inputs = [one for several in windows for one in several]
        answers = iter(self.engine.answers(inputs, counting(on_progress)))
        found = [[next(answers) for _ in several] for several in windows]
        return [self.join(text, parts, threshold) for text, parts in zip(texts, found, strict=True)]

    def split_lines(self, lines: Sequence[str]) -> list[Text]:
        """Lines as people write them: a tab separates the two texts of a pair, unless the model was trained on single texts."""
        if self.bundle.takes_pairs is False:
            return list(lines)
        texts: list[Text] = []
        for number, line in enumerate(lines, 1):
            first, tab, second = line.partition("\t")
            if self.bundle.takes_pairs and "\t" in second:
                raise InputError(
                    f"text {number:,} of {len(lines):,} must be two texts with one tab between them, but has "
                    f"{line.count(tab)} tabs"
                )
            texts.append((first, second) if tab else line)
        return texts

    def check_pairs(self, texts: Sequence[Text]) -> None:
        """Refuse pairs for a model that was trained on single texts, and single texts for one that was trained on pairs."""
        wanted = self.bundle.takes_pairs
        for number, text in enumerate(texts if wanted is not None else (), 1):
            is_pair = not isinstance(text, str)
            if is_pair == wanted or not "".join(text).strip():
                continue
            which = f"text {number:,} of {len(texts):,}" if len(texts) > 1 else "the text"
            if wanted:
                raise InputError(
                    f"{which} must be a pair, since this model was trained on pairs of texts, but is a single text; put a tab "
                    "between the two (in Python and JSON: two strings)"
                )
            raise InputError(
                f"{which} must be a single text, since this model was trained on single texts, but is a pair; join the two or "
                "leave one out"
            )

    def check_threshold(self, threshold: float | None) -> None:
        """Refuse a threshold that this model has no use for."""
        if threshold is None:
            return
        if self.head.answer != "several":
            given = "a number" if self.head.answer == "number" else "one"
            raise InputError(
                f"threshold is for models with several labels, but this one gives each text {given}; leave it out"
            )
        if not 0 < threshold < 1:
            raise InputError(f"threshold must be above 0 and below 1, but is {threshold}")

    def read(self, text: Text) -> list[EncoderInput]:
        """A text as inputs for the engine, one for each window."""
        if "imported" not in self.bundle.facts:  # as in training
            text = on_one_line(text) if isinstance(text, str) else (on_one_line(text[0]), on_one_line(text[1]))
        return [as_input(self.bundle.config, one) for one in frame_windows(self.tokenizer, text, self.max_length)]

    def join(self, text: Text, parts: Sequence[FloatArray], threshold: float | None = None) -> Classified:
        """The labels of a text, from the outputs for its windows."""
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
        least = threshold or self.bundle.decode.threshold or DEFAULT_THRESHOLD
        chosen = tuple(label for label, probability in by_label.items() if probability >= least)
        return Classified(shown, chosen, by_label, None, len(parts))


def frame_windows(tokenizer: Tokenizer, text: Text, length: int) -> list[Framed]:
    """A text or pair in windows of at most `length` tokens, special tokens included; none if a text is empty."""
    first, second = (text, None) if isinstance(text, str) else text
    ids = tokenizer.encode(first.strip())
    if second is None:
        if not ids:
            return []
        room = text_room(tokenizer, length)
        return [tokenizer.frame(ids[start:stop]) for start, stop in cut_windows(ids, room, tokenizer)]
    others = tokenizer.encode(second.strip())
    if not ids or not others:
        return []
    room = text_room(tokenizer, length, is_pair=True)
    return [
        tokenizer.frame(ids[slice(*one)], others[slice(*other)])
        for one, other in pair_windows(ids, others, room, tokenizer)
    ]

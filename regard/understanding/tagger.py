"""Tags words. Long texts are read in overlapping windows; each word is tagged in the one where it is farthest from the edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.bundle import Bundle
from regard.data.labelled import encode_word, split_words, word_prefix
from regard.data.windows import text_room
from regard.generate.encoding import EncoderEngine, EncoderInput, counting
from regard.progress import OnProgress
from regard.understanding.answers import FloatArray, Span, Tagged, find_spans, has_spans, log_softmax
from regard.understanding.label_inputs import as_input, longest_input

OVERLAP = 4  # neighbouring windows share one token in four


class WordWindow(NamedTuple):
    """A run of words that are read together, [start, stop), and the place of each word's first token in the input."""

    start: int
    stop: int
    places: list[int]
    input: EncoderInput


class WordWindows(NamedTuple):
    """The words of a text, and the windows that an engine reads."""

    text: str
    words: list[str]
    windows: list[WordWindow]


class Tagger:
    """Tags words with the model of a bundle."""

    def __init__(self, bundle: Bundle, engine: EncoderEngine) -> None:
        self.bundle, self.engine, self.tokenizer = bundle, engine, bundle.tokenizer
        self.labels = bundle.config.head_settings.labels
        self.by_spaces = bundle.decode.words == "spaces"
        self.max_length = longest_input(bundle, engine)
        self._prefix = word_prefix(self.tokenizer)

    def tag(self, texts: Sequence[str | Sequence[str]], on_progress: OnProgress | None = None) -> list[Tagged]:
        """The tags of each text: a string, which is split into words as the model's training text was, or a list of words."""
        read = self.read(texts)
        inputs = [window.input for one in read for window in one.windows]
        answers = iter(self.engine.answers(inputs, counting(on_progress)))
        return [self.join(one, [next(answers) for _ in one.windows]) for one in read]

    def read(self, texts: Sequence[str | Sequence[str]]) -> list[WordWindows]:
        """The words of each text, and its windows."""
        known: dict[str, list[int]] = {}
        read = []
        for text in texts:
            words = split_words(text, self.by_spaces) if isinstance(text, str) else list(text)
            shown = text if isinstance(text, str) else " ".join(text)
            read.append(WordWindows(shown, words, self._windows(words, known)))
        return read

    def _windows(self, words: Sequence[str], known: dict[str, list[int]]) -> list[WordWindow]:
        room = text_room(self.tokenizer, self.max_length)
        pieces = [
            encode_word(self.tokenizer, (self._prefix if place else "") + word.strip(), known)[:room]
            for place, word in enumerate(words)
        ]
        return [self._window(pieces, start, stop) for start, stop in cut_words([len(one) for one in pieces], room)]

    def _window(self, pieces: Sequence[Sequence[int]], start: int, stop: int) -> WordWindow:
        ids, places = list[int](), list[int]()
        for word in pieces[start:stop]:
            places.append(len(self.tokenizer.opening) + len(ids))
            ids += word
        return WordWindow(start, stop, places, as_input(self.bundle.config, self.tokenizer.frame(ids)))

    def join(self, read: WordWindows, outputs: Sequence[FloatArray]) -> Tagged:
        """The tags of a text, from the outputs for its windows."""
        text, words, windows = read
        tags, probabilities = [""] * len(words), [0.0] * len(words)
        margins = [-1] * len(words)
        for window, output in zip(windows, outputs, strict=True):
            log_probs = log_softmax(output[np.array(window.places)])
            for place in range(window.start, window.stop):
                before = place - window.start if window.start else len(words)
                after = window.stop - 1 - place if window.stop < len(words) else len(words)
                if (margin := min(before, after)) > margins[place]:
                    number = int(log_probs[place - window.start].argmax())
                    margins[place], tags[place] = margin, self.labels[number]
                    probabilities[place] = float(np.exp(log_probs[place - window.start, number]))
        spans: tuple[Span, ...] = ()
        if has_spans(self.labels):
            spans = tuple(Span(name, a, b, " ".join(words[a:b])) for name, a, b in find_spans(tags))
        return Tagged(text, tuple(words), tuple(tags), tuple(probabilities), spans, len(windows))


def cut_words(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Windows of words with at most `room` tokens each; neighbouring windows share about a quarter of them.

    >>> cut_words([1] * 10, room=8)
    [(0, 8), (6, 10)]
    """
    if not lengths:
        return []
    windows, start = list[tuple[int, int]](), 0
    while True:
        stop, used = start, 0
        while stop < len(lengths) and used + lengths[stop] <= room:
            used += lengths[stop]
            stop += 1
        windows.append((start, stop))
        if stop == len(lengths):
            return windows
        begin, shared = stop, 0
        while begin - 1 > start and shared + lengths[begin - 1] <= room // OVERLAP:
            begin -= 1
            shared += lengths[begin]
        start = begin

"""Makes vectors of texts: tokenizes them, cuts them into windows, and joins the vectors of a text's windows.

A text longer than the model reads is cut into windows; its vector is the mean of theirs, weighted by their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.data.windows import cut_windows, text_room
from regard.errors import InputError, UserError
from regard.generate.encoding import Answers, EncoderEngine, EncoderInput
from regard.progress import OnProgress

# Texts that are tokenized ahead of the engine and sorted by length together: at least _CHUNK, and enough for _CHUNK_BATCHES.
_CHUNK, _CHUNK_BATCHES = 2_048, 16

Vectors = NDArray[Any]  # float32, (texts, d_model)


@dataclass(frozen=True)
class TextWindows:
    """A text as inputs for an engine, one for each window."""

    inputs: tuple[EncoderInput, ...]
    weights: tuple[int, ...]  # tokens of the text in each
    num_tokens: int  # that the engine reads


class Embedder:
    """Makes vectors with one model."""

    def __init__(self, bundle: Bundle, engine: EncoderEngine) -> None:
        self.bundle, self.engine, self.tokenizer = bundle, engine, bundle.tokenizer
        self.normalize = bundle.config.head_settings.normalize
        self._opening, self._closing = self.tokenizer.opening, self.tokenizer.closing

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.bundle.config.d_model

    def embed(self, texts: Sequence[str], prompt: str | None = None, on_progress: OnProgress | None = None) -> Vectors:
        """A vector for each text, (texts, d_model). `prompt` names the model's prompt to put before each text."""
        vectors = np.empty((len(texts), self.width), np.float32)
        first = 0
        for chunk in self._read_ahead(texts, prompt):
            answers = self.engine.answers([one for text in chunk for one in text.inputs])
            vectors[first : first + len(chunk)] = self.join(chunk, answers)
            first += len(chunk)
            if on_progress is not None:
                on_progress(len(chunk))
        return vectors

    def _read_ahead(self, texts: Sequence[str], prompt: str | None) -> Iterator[list[TextWindows]]:
        """The texts in chunks; each is tokenized while the engine computes the one before."""
        size = max(_CHUNK, _CHUNK_BATCHES * self.engine.batch)
        chunks = [texts[first : first + size] for first in range(0, len(texts), size)]
        if len(chunks) < 2:
            yield from (self.read(chunk, prompt) for chunk in chunks)
            return
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self.read, chunks[0], prompt)
            for chunk in chunks[1:]:
                current, ahead = ahead, thread.submit(self.read, chunk, prompt)
                yield current.result()
            yield ahead.result()

    def read(self, texts: Sequence[str], prompt: str | None = None) -> list[TextWindows]:
        """The texts as inputs for an engine."""
        before = self.prompt_text(prompt)
        room = text_room(self.tokenizer, self.engine.max_length)
        return [
            self._windows(ids, before, room) for ids in self.tokenizer.encode_batch([before + text for text in texts])
        ]

    def read_ids(self, ids: Sequence[int]) -> TextWindows:
        """The same for a text given as token ids, without special tokens."""
        if not all(0 <= i < self.tokenizer.vocab_size for i in ids):
            raise InputError(f"token ids must be between 0 and {self.tokenizer.vocab_size - 1}")
        return self._windows(ids, "", text_room(self.tokenizer, self.engine.max_length))

    def prompt_text(self, name: str | None) -> str:
        """The text of the prompt with this name."""
        if name is None:
            return ""
        if name not in self.bundle.prompts:
            known = ", ".join(self.bundle.prompts) or "none"
            raise UserError(
                f"prompt must be one of those that {shown_name(self.bundle.folder)} has ({known}), but is {name!r}"
            )
        return self.bundle.prompts[name]

    def _windows(self, ids: Sequence[int], before: str, room: int) -> TextWindows:
        if len(ids) <= room and (self._opening or self._closing):  # most texts
            one = [*self._opening, *ids, *self._closing]
            return TextWindows((EncoderInput(one),), (max(1, len(ids)),), len(one))
        opening: list[int] = []
        if len(ids) > room and before:  # put the prompt before every window
            opening = self.tokenizer.encode(before)
            ids = ids[len(opening) :] if list(ids[: len(opening)]) == opening else ids
            room = text_room(self.tokenizer, self.engine.max_length, prompt=len(opening))
        windows = [ids[start:stop] for start, stop in cut_windows(ids, room, self.tokenizer)]
        framed = [self.tokenizer.frame([*opening, *window])[0] for window in windows]
        if not all(framed):
            raise InputError(
                "a text must not be empty: this model adds no special tokens, so nothing would be left to read"
            )
        return TextWindows(
            tuple(EncoderInput(one) for one in framed),
            tuple(max(1, len(window)) for window in windows),
            sum(map(len, framed)),
        )

    def join(self, texts: Sequence[TextWindows], answers: Answers) -> Vectors:
        """One vector for each text from those of all windows in order."""
        found: Vectors = np.asarray(answers, np.float32).reshape(-1, self.width)
        if len(found) > len(texts):
            firsts = np.cumsum([0, *(len(text.inputs) for text in texts)])[:-1]
            weights = np.array([weight for text in texts for weight in text.weights], np.float32)[:, None]
            found = np.add.reduceat(found * weights, firsts) / np.add.reduceat(weights, firsts)
        return scaled(found) if self.normalize else found


def scaled(vectors: Vectors) -> Vectors:
    """The vectors scaled to length 1; zero vectors stay zero.

    >>> scaled(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
    return found

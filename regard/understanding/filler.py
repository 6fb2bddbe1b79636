"""Fills blanks in texts with a masked language model.

A blank is written as the model's own mask token, such as [MASK] or <mask>, or as ___. Nothing else in a text becomes a control
token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regard.bounds import check_whole
from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.data.windows import text_room
from regard.errors import InputError, UserError
from regard.generate.encoding import Answer, EncoderEngine, EncoderInput, counting
from regard.progress import OnProgress

BLANK = "___"
_UNNAMED = "[MASK]"  # shown if the tokenizer has no name for its mask
_SPACE = "\u2581"
MAX_CANDIDATES = 1_000


@dataclass(frozen=True)
class Candidate:
    """A token for a blank."""

    text: str
    probability: float
    joins: bool = False  # whether it continues the word before the blank


@dataclass(frozen=True)
class Filled:
    """A text with the candidates for each of its blanks, most likely first."""

    text: str
    blanks: tuple[tuple[Candidate, ...], ...]
    filled: str  # the text with the best candidate in each blank


@dataclass(frozen=True)
class BlankText:
    """A text as inputs for an engine: a single one, or one for each blank of a long text."""

    parts: tuple[str, ...]  # the text around the blanks
    inputs: tuple[EncoderInput, ...]


class Filler:
    """Fills blanks with one model."""

    def __init__(self, bundle: Bundle, engine: EncoderEngine) -> None:
        self.bundle, self.engine, self.tokenizer = bundle, engine, bundle.tokenizer
        if self.tokenizer.mask_id < 0:
            raise UserError(
                f"{shown_name(bundle.folder)}: must have a mask token to fill blanks, but its tokenizer has none"
            )

    @property
    def mask(self) -> str:
        """How this model's mask is written in a text."""
        names = {i: name for name, i in self.tokenizer.control_names.items()}
        return names.get(self.tokenizer.mask_id, _UNNAMED)

    def fill(self, texts: Sequence[str], k: int = 5, on_progress: OnProgress | None = None) -> list[Filled]:
        """The `k` likeliest tokens for each blank of each text."""
        check_whole("k", k, 1, MAX_CANDIDATES)
        read = [self._read_one(texts, number) for number in range(len(texts))]
        inputs = [one for text in read for one in text.inputs]
        answers = iter(self.engine.answers(inputs, counting(on_progress)))
        return [self.join(text, [next(answers) for _ in text.inputs], k) for text in read]

    def _read_one(self, texts: Sequence[str], number: int) -> BlankText:
        """One of several texts; an error says which."""
        try:
            return self.read(texts[number])
        except InputError as error:
            if len(texts) == 1:
                raise
            raise InputError(f"text {number + 1:,} of {len(texts):,}: {error}") from None

    def read(self, text: str) -> BlankText:
        """Find the blanks of a text, and encode it around them."""
        parts = re.split("|".join(map(re.escape, (self.mask, BLANK))), text)
        if len(parts) < 2:
            raise InputError(f"a text to fill must have a blank, written as {self.mask} or {BLANK}, but has none")
        ids = self._encode(parts)
        places = [place for place, i in enumerate(ids) if i == self.tokenizer.mask_id]
        assert len(places) == len(parts) - 1, "no text becomes a control token"
        room = text_room(self.tokenizer, self.engine.max_length)
        if len(ids) <= room:
            return BlankText(tuple(parts), (self._input(ids, places),))
        firsts = [min(max(0, place - room // 2), len(ids) - room) for place in places]
        windows = (
            self._input(ids[first : first + room], [place - first]) for place, first in zip(places, firsts, strict=True)
        )
        return BlankText(tuple(parts), tuple(windows))

    def _encode(self, parts: Sequence[str]) -> list[int]:
        mask = self.tokenizer.mask_id
        if self.tokenizer.kind == "huggingface":
            mixed: list[str | int] = [parts[0]]
            for part in parts[1:]:
                mixed += [mask, part]
            return self.tokenizer.encode_controls(mixed)
        # As in training, a mask stands for a piece with the space before it, and nothing is put before what follows.
        *before, last = parts
        texts = [*(part.removesuffix(" ") for part in before), last]
        ids = self.tokenizer.encode(texts[0])
        for text in texts[1:]:
            ids += [mask, *self.tokenizer.encode(text, at_start=False)]
        return ids

    def _input(self, ids: Sequence[int], places: Sequence[int]) -> EncoderInput:
        before = len(self.tokenizer.opening)
        return EncoderInput(self.tokenizer.frame(ids)[0], places=[before + place for place in places])

    def join(self, text: BlankText, answers: Sequence[Answer], k: int) -> Filled:
        """The candidates for each blank, and the text with the best of them."""
        check_whole("k", k, 1, MAX_CANDIDATES)
        blanks = tuple(self._candidates(logits, k) for answer in answers for logits in answer)
        filled = text.parts[0]
        for (best, *_), part in zip(blanks, text.parts[1:], strict=True):
            filled = f"{filled.rstrip() if best.joins else filled}{best.text}{part}"
        return Filled(self.mask.join(text.parts), blanks, filled)

    def _candidates(self, logits: Answer, k: int) -> tuple[Candidate, ...]:
        logits = logits.astype(np.float64)
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        allowed = np.where(self.is_text, probabilities, -1.0)
        best = np.argsort(-allowed, kind="stable")[:k]
        return tuple(self.candidate(int(i), float(probabilities[i])) for i in best if self.is_text[i])

    def candidate(self, token: int, probability: float) -> Candidate:
        """A token as text."""
        [piece] = self.tokenizer.pieces([token])
        joins = self._marks_words and not piece.startswith(_SPACE)
        return Candidate(piece.replace(_SPACE, " ").strip() or piece, probability, joins)

    @cached_property
    def _marks_words(self) -> bool:
        """Whether the vocabulary marks the pieces that begin a word."""
        return any(piece.startswith(_SPACE) for piece in self.tokenizer.pieces(range(self.tokenizer.vocab_size)))

    def find_token(self, text: str) -> int | None:
        """The token that is this text: one that begins a word, or else one that continues it."""
        known = {piece: i for i, piece in enumerate(self.tokenizer.pieces(range(self.tokenizer.vocab_size)))}
        found = (known.get(piece) for piece in (_SPACE + text, text))
        return next((i for i in found if i is not None and self.is_text[i]), None)

    @cached_property
    def is_text(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which tokens are text: (vocab_size,)."""
        tokenizer = self.tokenizer
        special = {*tokenizer.control_names.values(), *tokenizer.tag_ids, *tokenizer.span_ids}
        special |= {tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id}
        is_text = np.zeros(self.bundle.config.vocab_size, np.bool_)
        is_text[: tokenizer.vocab_size] = True
        is_text[[i for i in special if i >= 0]] = False
        return is_text

"""Which tokens begin a word, looked up for many tokens at once: the words of `pieces.py` and, with WordPiece, those of BERT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import IntArray
from regard.data.pieces import is_punctuation, is_without_spaces
from regard.data.tokenizer import Tokenizer

BoolArray = NDArray[np.bool_]

_SPACE = "\u2581"


@dataclass(frozen=True)
class WordTable:
    """What is known of each piece of a vocabulary, (vocab_size,) each."""

    spaced: BoolArray  # begins with a space, and with it a word
    blank: BoolArray  # is nothing but a space, which belongs to what follows
    punctuation: BoolArray
    alone: BoolArray  # of a script without spaces, whose pieces are words

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordTable:
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        bare = [piece.lstrip(_SPACE) for piece in pieces]
        spaced = np.array([piece.startswith(_SPACE) for piece in pieces])
        if tokenizer.kind == "huggingface" and tokenizer.unk_id >= 0:
            spaced[tokenizer.unk_id] = True  # stands for a whole word; in other vocabularies for a character
        return cls(
            spaced,
            np.array([not text for text in bare]),
            np.array([is_punctuation(text) for text in bare]),
            np.array([is_without_spaces(text) for text in bare]),
        )

    def begins(self, ids: IntArray) -> BoolArray:
        """(tokens,) whether each token begins a word, given the one before it: `pieces.begins_word`. The first always does."""
        before, own = ids[:-1], ids[1:]
        changes = (self.punctuation[own] != self.punctuation[before]) | self.alone[own] | self.alone[before]
        found: BoolArray = np.ones(len(ids), np.bool_)
        found[1:] = self.spaced[own] | (~self.blank[before] & changes)
        return found

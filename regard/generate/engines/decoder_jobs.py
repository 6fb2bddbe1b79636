"""What a `JointDecoder` is given, and the texts that it writes. No torch here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.errors import RegardError
from regard.generate.options import SearchOptions


@dataclass(frozen=True)
class Token:
    """A token of a text."""

    id: int
    log_prob: float  # given everything before it, before temperature and the rules about what may be drawn
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens in its place, best first, if asked for


@dataclass(eq=False)
class Row:
    """One text that is written: a sample, or the likeliest text."""

    tokens: list[Token] = field(default_factory=list)
    is_done: bool = False
    end: Token | None = None  # the end token, if the model ended it

    @property
    def ended(self) -> bool:
        """Whether the model ended it."""
        return self.end is not None


@dataclass(eq=False)
class DecoderJob:
    """A prompt to continue, once for each row."""

    prompt: Sequence[int]
    options: SearchOptions  # samples, or greedy; `beam` texts of at most `max_extra` tokens
    top: int = 0  # likeliest tokens to report in each place
    limit: int = 0  # the longest text, as the model allows it
    rows: list[Row] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)
    failure: RegardError | None = None  # why it has no text

    @property
    def is_done(self) -> bool:
        """Whether all rows are done."""
        return all(row.is_done for row in self.rows)

    @property
    def cost(self) -> int:
        """Tokens that its rows may take in all."""
        return len(self.rows) * (len(self.prompt) + self.limit)

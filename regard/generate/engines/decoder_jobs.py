"""The jobs of a server's text decoder: prompts with options, the texts written for them, and which parts of prompts are read next.
Does not import torch."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from regard.generate.options import SearchOptions

READ_TOKENS = 512  # prompt tokens read per step: meanwhile the texts being written wait for their next token
PART_TOKENS = 256  # of a single prompt among them


@dataclass(frozen=True)
class Token:
    """A token of a text."""

    id: int
    log_prob: float  # given everything before it; before temperature and the rules about allowed tokens
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens in its place, best first, if requested


@dataclass(eq=False)
class Row:
    """One text being written: a sample, or the result of greedy search."""

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
    top: int = 0  # how many of the likeliest tokens to report for each place
    limit: int = 0  # tokens of the longest text, as far as the model allows
    rows: list[Row] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)
    failure: Exception | None = None  # why it failed

    @property
    def is_done(self) -> bool:
        """Whether all rows are done."""
        return all(row.is_done for row in self.rows)

    @property
    def cost(self) -> int:
        """The most tokens that all of its rows can take."""
        return len(self.rows) * (len(self.prompt) + self.limit)

    def fail(self, error: Exception) -> None:
        """End the job with this error."""
        self.failure = error
        for row in self.rows:
            row.is_done = True


class PromptPart(NamedTuple):
    """Tokens of a prompt that a step reads, `job.prompt[start:end]`. The prompt's last token belongs to no part: the step that
    writes the first token reads it."""

    job: DecoderJob
    start: int
    end: int

    @property
    def is_first(self) -> bool:
        """Whether this part begins the prompt."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this part completes the prompt."""
        return self.end == len(self.job.prompt) - 1


class ReadingQueue:
    """Prompts waiting to be read. They take turns, a part at a time, so that a long prompt delays neither short ones nor the texts
    being written. Where a prompt is cut depends on the prompt alone."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[DecoderJob, int]] = deque()  # with the number of tokens already read

    def add(self, jobs: Sequence[DecoderJob]) -> None:
        """Queue the prompts of these jobs."""
        self._waiting.extend((job, 0) for job in jobs)

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        """Forget these jobs."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] not in gone)

    def take(self) -> list[PromptPart]:
        """The parts for the next step: one of each prompt, at most `READ_TOKENS` in all."""
        taken: list[PromptPart] = []
        budget = READ_TOKENS
        while self._waiting:
            job, start = self._waiting[0]
            end = min(start + PART_TOKENS, len(job.prompt) - 1)
            if end - start > budget or any(part.job is job for part in taken):
                break
            self._waiting.popleft()
            budget -= end - start
            taken.append(PromptPart(job, start, end))
            if not taken[-1].is_last:
                self._waiting.append((job, end))
        return taken


class TextDecoder(Protocol):
    """Writes the texts of many jobs together, token by token; jobs enter and leave between two steps. Used from one thread."""

    @property
    def max_rows(self) -> int:
        """The most texts at a time."""
        ...

    @property
    def max_tokens(self) -> int:
        """The most that the costs of all jobs may add up to."""
        ...

    @property
    def num_rows(self) -> int:
        """The number of texts that the next step extends."""
        ...

    def prepare(self, job: DecoderJob) -> None:
        """Check a job and set its limit and its rows. Raises InputError if the prompt leaves no room in the model's context."""
        ...

    def enter(self, jobs: Sequence[DecoderJob]) -> None:
        """Add prepared jobs; the next steps read their prompts. A job whose prompt cannot be read fails alone."""
        ...

    def step(self) -> None:
        """Read the next parts of prompts, and add a token to every text whose prompt is complete. A text is done at its limit or
        at an end token."""
        ...

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        """Drop jobs, done or not."""
        ...

    def read(self, prompt: Sequence[int], top: int) -> list[Token]:
        """The tokens of a prompt but the first, each with its log-probability and the likeliest tokens in its place."""
        ...

"""Where the sentences of a batch stand in decoding, and which of them attend in the same shape.

The rows of a sentence, its hypotheses, always stand at the same place: its prompt is read, and each row has read as many tokens
since. Sentences may differ in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import SequenceLayout


def rounded(length: int, bucket: int) -> int:
    """The next multiple of `bucket`."""
    return -(-length // bucket) * bucket


@dataclass(frozen=True)
class StepGroup:
    """Sentences whose self-attention has the same shape in a step. None stands for all of them, in order."""

    rows: Tensor | None  # (sentences * beam,)
    tokens: Tensor | None  # (sentences * beam * count,), where the tokens of these rows lie in the packed step
    count: int  # tokens of each row in this step
    length: int  # tokens that each row has read, without its prompt and with this step
    prompt: int  # length of the group of prompts; 0: they have none
    members: list[int] | None  # which prompts of that group
    starts: list[int]  # the position of each sentence's first token in this step


class Places:
    """Where the sentences of a batch stand, shared by all layers. The rows of a sentence always stand at the same place."""

    def __init__(self, prompts: list[int], beam: int, bucket: int, device: torch.device) -> None:
        self.prompts = prompts  # tokens of each sentence's prompt
        self.beam, self.bucket, self.device = beam, bucket, device
        self.read = [0] * len(prompts)  # tokens that each of a sentence's rows has read since
        self.groups: list[StepGroup] = []  # of the step under way

    def advance(self, counts: Sequence[int] | None = None) -> tuple[Tensor, int]:
        """Begin a step of `counts[n]` tokens for each row of sentence n, or of one for every row. Returns the positions of its
        tokens, (tokens,), row by row, and an upper bound on them."""
        counts = [1] * len(self.read) if counts is None else list(counts)
        if len(counts) != len(self.read) or min(counts, default=1) < 1:
            raise ValueError(
                f"a step needs one or more tokens for each of {len(self.read)} sentences, but gets {counts}"
            )
        starts = [prompt + read for prompt, read in zip(self.prompts, self.read, strict=True)]
        self.read = [read + count for read, count in zip(self.read, counts, strict=True)]
        self.groups = self._groups(counts, starts)
        longest = max((start + count for start, count in zip(starts, counts, strict=True)), default=0)
        if len(set(starts)) == 1 and set(counts) == {1}:
            return torch.full((len(counts) * self.beam,), starts[0], device=self.device), longest
        repeated = torch.tensor([count for count in counts for _ in range(self.beam)])
        firsts = torch.tensor([start for start in starts for _ in range(self.beam)])
        steps = SequenceLayout.from_lengths(repeated.tolist())
        return (firsts.repeat_interleave(repeated) + steps.positions).to(self.device), longest

    def _groups(self, counts: Sequence[int], starts: Sequence[int]) -> list[StepGroup]:
        padded = [rounded(length, self.bucket) for length in self.prompts]
        shapes = list(zip(padded, self.read, counts, strict=True))
        if len(set(shapes)) == 1:
            prompt, length, count = shapes[0]
            return [StepGroup(None, None, count, length, prompt, None, list(starts))]
        first_tokens = [0]
        for count in counts:
            first_tokens.append(first_tokens[-1] + self.beam * count)
        groups = []
        for prompt, length, count in sorted(set(shapes)):
            chosen = [number for number, shape in enumerate(shapes) if shape == (prompt, length, count)]
            alike = [number for number, other in enumerate(padded) if other == prompt]
            rows = [number * self.beam + row for number in chosen for row in range(self.beam)]
            tokens = [first_tokens[number] + token for number in chosen for token in range(self.beam * count)]
            groups.append(
                StepGroup(
                    torch.tensor(rows, device=self.device),
                    torch.tensor(tokens, device=self.device),
                    count,
                    length,
                    prompt,
                    None if len(alike) == len(chosen) else [alike.index(number) for number in chosen],
                    [starts[number] for number in chosen],
                )
            )
        return groups

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only these sentences; the others are finished."""
        self.prompts = [self.prompts[number] for number in sentences]
        self.read = [self.read[number] for number in sentences]

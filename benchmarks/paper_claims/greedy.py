"""Greedy search for the rivals, and test sentences sorted into buckets by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.paper_claims.grid import Grid, to_grid
from regard.layout import SequenceLayout

BATCH = 256  # sentences


class GridTranslator(Protocol):
    """What a rival offers beyond training."""

    @property
    def output_weight(self) -> Tensor: ...
    def encode(self, src: Grid) -> Tensor: ...
    def decode(self, tgt: Grid, memory: Tensor, src: Grid) -> Tensor: ...
    def eval(self) -> object: ...


@torch.no_grad()
def greedy(
    model: GridTranslator,
    sources: Sequence[Sequence[int]],
    bos_id: int,
    eos_id: int,
    forbidden: Sequence[int],
    device: torch.device,
    max_extra: int,
) -> list[list[int]]:
    """The likeliest next token, until the end token or `max_extra` tokens more than the source. Each step decodes the whole prefix
    again, in fp32: slow, but the very function that was trained."""
    model.eval()
    results: list[list[int]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    for begin in range(0, len(order), BATCH):
        numbers = order[begin : begin + BATCH]
        layout = SequenceLayout.from_lengths([len(sources[n]) + 1 for n in numbers], device)
        ids = torch.tensor([token for n in numbers for token in (*sources[n], eos_id)], device=device)
        src = to_grid(ids, layout)
        memory = model.encode(src)
        limits = torch.tensor(layout.lengths, device=device) - 1 + max_extra
        tokens = torch.full((len(numbers), 1), bos_id, device=device)
        is_open = torch.ones(len(numbers), dtype=torch.bool, device=device)
        while bool(is_open.any()):
            logits = model.decode(Grid.full(tokens), memory, src)[:, -1].float() @ model.output_weight.float().t()
            logits[:, list(forbidden)] = -torch.inf
            chosen = logits.argmax(-1).where(is_open & (limits >= tokens.shape[1]), eos_id)
            tokens = torch.cat((tokens, chosen[:, None]), dim=1)
            is_open &= chosen != eos_id
        for n, row in zip(numbers, tokens[:, 1:].tolist(), strict=True):
            results[n] = row[: row.index(eos_id)]
    return results


def lengths_in_buckets(lengths: Sequence[int], count: int) -> list[tuple[str, list[int]]]:
    """Sentence numbers in up to `count` buckets of about equally many, from short to long, each named by its range. Sentences of
    the same length share a bucket.

    >>> lengths_in_buckets([3, 9, 3, 4, 3, 8], 2)
    [('3', [0, 2, 4]), ('4-9', [1, 3, 5])]
    """
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    buckets: list[list[int]] = []
    begin = 0
    for number in range(1, count + 1):
        end = max(begin, round(len(order) * number / count))
        while 0 < end < len(order) and lengths[order[end]] == lengths[order[end - 1]]:
            end += 1
        if end > begin:
            buckets.append(sorted(order[begin:end]))
        begin = end
    named = []
    for bucket in buckets:
        low, high = min(lengths[n] for n in bucket), max(lengths[n] for n in bucket)
        named.append((str(low) if low == high else f"{low}-{high}", bucket))
    return named

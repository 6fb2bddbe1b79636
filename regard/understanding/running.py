"""Runs a model that is being trained on many inputs: sorted by length, packed, in batches of about so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from regard.layout import SequenceLayout
from regard.models.heads import SequenceHead
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.linear import set_row_tile
from regard.understanding.answers import FloatArray

BATCH_TOKENS = 4_000


@torch.inference_mode()
def run_encoder(
    model: Transformer,
    inputs: Sequence[tuple[Sequence[int], Sequence[int]]],
    device: torch.device,
    autocast: torch.dtype | None = None,
    on_progress: Callable[[int], None] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    before_output: bool = False,
) -> list[FloatArray]:
    """The answer of the head to each input, ids and their types, in order: (classes,), or (tokens, tags); or, `before_output`, the
    vectors that its output layer gets. Leaves the model in evaluation mode. `on_progress` is called with the number of inputs just
    done."""
    model.eval()
    set_kernel(model, "auto")
    set_row_tile(model, 0)
    by_token = model.config.head_settings.kind == "tags"
    answers: list[FloatArray | None] = [None] * len(inputs)
    for batch in _batches([len(ids) for ids, _ in inputs], batch_tokens):
        lengths = [len(inputs[number][0]) for number in batch]
        ids = torch.tensor([i for number in batch for i in inputs[number][0]], dtype=torch.int64)
        types = None
        if model.config.front_settings.token_types > 1:
            types = torch.tensor([i for number in batch for i in inputs[number][1]], dtype=torch.int64).to(device)
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            layout = SequenceLayout.from_lengths(lengths, device)
            if before_output:
                output = model.states(ids.to(device), layout, token_types=types)
                output = model.head.pooled(output, layout) if isinstance(model.head, SequenceHead) else output
            else:
                output = model(ids.to(device), layout, token_types=types)
        rows: FloatArray = output.float().cpu().numpy()
        parts = np.split(rows, np.cumsum(lengths)[:-1]) if by_token else list(rows)
        for number, part in zip(batch, parts, strict=True):
            answers[number] = part
        if on_progress is not None:
            on_progress(len(batch))
    return [answer for answer in answers if answer is not None]


def _batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Numbers of inputs of similar length, so many tokens in each batch."""
    batches: list[list[int]] = []
    tokens = batch_tokens
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if tokens + lengths[number] > batch_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(number)
        tokens += lengths[number]
    return batches

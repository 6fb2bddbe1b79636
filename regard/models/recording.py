"""Attention weights of a model: a twin that can record them, and the cross-attention of given translations."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.attention import Recorder, set_kernel
from regard.nn.linear import RowTile, set_row_tile


def reference_copy(model: Transformer, row_tile: RowTile | None = None) -> Transformer:
    """A model that shares the weights but runs the reference kernel, which can record attention. Its linear layers work on tiles of
    `row_tile` rows: 0 for a copy that reads one text at a time; None keeps those of the model, so that what a text gets does not
    depend on the others in its batch."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    set_kernel(copied, "reference")
    if row_tile is not None:
        set_row_tile(copied, row_tile)
    return copied


def cross_attention(
    model: Transformer, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], device: torch.device
) -> list[list[Tensor]]:
    """The weights of each pair by layers, each (num_heads, tgt_len, src_len), from a model as `reference_copy` returns. `src` are
    given with their end tokens, `tgt` as the decoder reads them."""
    src_layout, tgt_layout = (SequenceLayout.from_lengths([len(ids) for ids in side], device) for side in (src, tgt))
    flat_src, flat_tgt = (torch.tensor([i for ids in side for i in ids], device=device) for side in (src, tgt))
    recorder = Recorder()
    model.decode(flat_tgt, tgt_layout, model.encode(flat_src, src_layout), src_layout, recorder)
    layers = [recorder.weights[f"decoder.{layer}.cross"] for layer in range(model.config.decoder_layers)]
    return [[layer[number] for layer in layers] for number in range(len(src))]

"""The convolutional rivals: an encoder-decoder after ConvS2S (Gehring et al., 2017) with gated linear units and attention in each
layer of the decoder, and a convolutional reader of one text, plain or dilated. ConvS2S's weight normalisation is left out, since
Adam trains it without."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.paper_claims.grid import Grid, to_grid, to_rows
from regard.layout import SequenceLayout

KERNEL = 3  # tokens that a convolution sees
MAX_POSITIONS = 1024
HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


class GatedConvolution(nn.Module):
    """A convolution and a gated linear unit: (texts, length, width) -> the same. A causal one sees no later token."""

    def __init__(self, width: int, causal: bool, dropout: float = 0.0, dilation: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, 2 * width, KERNEL, dilation=dilation)
        reach = (KERNEL - 1) * dilation
        self.padding = (reach, 0) if causal else (reach // 2, reach - reach // 2)
        if not self.convolution.weight.is_meta:
            nn.init.normal_(self.convolution.weight, std=math.sqrt(4 * (1 - dropout) / (KERNEL * width)))
            assert self.convolution.bias is not None
            nn.init.zeros_(self.convolution.bias)

    def forward(self, x: Tensor) -> Tensor:
        # (texts, length, width) -> (texts, 2 width, length) -> (texts, length, width)
        return F.glu(self.convolution(F.pad(x.transpose(1, 2), self.padding)), dim=1).transpose(1, 2)


class ConvolutionalTranslator(nn.Module):
    """A convolutional encoder-decoder. It takes packed text as `Transformer.hidden` does, so that Regard's update trains it."""

    def __init__(self, vocab_size: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)  # of source, target and output
        self.positions = nn.Embedding(MAX_POSITIONS, width)
        for table in (self.embedding, self.positions):
            if not table.weight.is_meta:
                nn.init.normal_(table.weight, std=width**-0.5)
        self.scale, self.dropout = math.sqrt(width), dropout
        self.encoder = nn.ModuleList(GatedConvolution(width, False, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(GatedConvolution(width, True, dropout) for _ in range(layers))
        self.queries = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.found = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, width)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _embed(self, ids: Tensor) -> Tensor:
        positions = self.positions.weight[: ids.shape[1]]
        return self._drop(self.embedding(ids) * self.scale + positions * self.scale)

    def encode(self, src: Grid) -> Tensor:
        """(sentences, longest) -> keys and values side by side, (sentences, longest, 2 width)."""
        embedded, holes = self._embed(src.ids), ~src.mask[..., None]
        x = embedded
        for layer in self.encoder:
            x = (x + layer(self._drop(x).masked_fill(holes, 0.0))) * HALF
        return torch.cat((x, (x + embedded) * HALF), dim=-1)

    def decode(self, tgt: Grid, memory: Tensor, src: Grid) -> Tensor:
        """(sentences, longest) and memory -> states (sentences, longest, width), all places at once."""
        keys, values = memory.chunk(2, dim=-1)
        embedded = self._embed(tgt.ids)
        x = embedded
        for layer, query, found in zip(self.decoder, self.queries, self.found, strict=True):
            read = layer(self._drop(x))
            asked = (query(read) + embedded) * HALF
            # One head: (sentences, longest, width) -> (sentences, 1, longest, width), which the fused kernels take, and back
            answer = F.scaled_dot_product_attention(
                asked[:, None],
                keys.to(asked.dtype)[:, None],
                values.to(asked.dtype)[:, None],
                attn_mask=src.mask[:, None, None],
            )[:, 0]
            x = (x + (read + found(answer)) * HALF) * HALF
        states: Tensor = self._drop(self.last(x))
        return states

    def hidden(self, src: Tensor, src_layout: SequenceLayout, tgt_in: Tensor, tgt_layout: SequenceLayout) -> Tensor:
        """Packed sentences -> the states of the target tokens, (tgt_tokens, width)."""
        grid = to_grid(src, src_layout)
        return to_rows(self.decode(to_grid(tgt_in, tgt_layout), self.encode(grid), grid), tgt_layout)


class ConvolutionalReader(nn.Module):
    """Causal convolutions over one text: (texts, length) ids -> states (texts, length, width). Dilated ones double their steps from
    layer to layer, so that the last sees 2^(layers + 1) tokens."""

    def __init__(self, vocab_size: int, width: int, layers: int, dilated: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(
            GatedConvolution(width, True, dilation=2**number if dilated else 1) for number in range(layers)
        )
        self.reach = 1 + sum((KERNEL - 1) * (2**number if dilated else 1) for number in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for layer in self.layers:
            x = (x + layer(x)) * HALF
        return x

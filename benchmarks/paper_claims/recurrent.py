"""The recurrent rivals: an LSTM encoder-decoder with attention, and an LSTM that reads one text; both on torch.nn.LSTM (cuDNN).

The translator is Google's GNMT as NVIDIA trains it: a bidirectional encoder, and a decoder whose first layer queries the encoder
and whose other layers read what was found beside its states, so that each layer of the decoder is one call of cuDNN. Attention is
scaled dot-product attention with one head (Luong's, with the paper's scale).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.paper_claims.grid import Grid, to_grid, to_rows
from regard.layout import SequenceLayout


def make_lstm(d_in: int, d_out: int, bidirectional: bool = False) -> nn.LSTM:
    """One layer; its forget gates start open, which LSTMs need to remember anything early on (Jozefowicz et al., 2015)."""
    layer = nn.LSTM(d_in, d_out, batch_first=True, bidirectional=bidirectional)
    for name, parameter in layer.named_parameters():
        if name.startswith("bias_ih"):
            with torch.no_grad():
                parameter[d_out : 2 * d_out] = 1.0
    return layer


def run_lstm(layer: nn.LSTM, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(sentences, longest, d_in) -> (sentences, longest, d_out); cuDNN leaves the padding out."""
    if len(set(lengths)) == 1:
        output: Tensor = layer(x)[0]
        return output
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    padded: Tensor = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]
    return padded


class RecurrentTranslator(nn.Module):
    """An LSTM encoder-decoder; it takes packed sentences as `Transformer.hidden` does, so that Regard's update trains it."""

    def __init__(self, vocab_size: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)  # of source, target and output
        if not self.embedding.weight.is_meta:
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.scale, self.dropout = math.sqrt(width), dropout
        self.encoder = nn.ModuleList(make_lstm(width, width // 2, bidirectional=True) for _ in range(layers))
        self.first = make_lstm(width, width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.others = nn.ModuleList(make_lstm(2 * width, width) for _ in range(layers - 1))
        self.last = nn.Linear(2 * width, width)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def _embed(self, ids: Tensor) -> Tensor:
        return self._drop(self.embedding(ids) * self.scale)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def encode(self, src: Grid) -> Tensor:
        """(sentences, longest) -> memory (sentences, longest, width)."""
        x = self._embed(src.ids)
        for number, layer in enumerate(self.encoder):
            assert isinstance(layer, nn.LSTM)
            read = self._drop(run_lstm(layer, x, src.lengths))
            x = x + read if number else read
        return x

    def decode(self, tgt: Grid, memory: Tensor, src: Grid) -> Tensor:
        """(sentences, longest) and memory -> states (sentences, longest, width), all places at once."""
        x = self._drop(run_lstm(self.first, self._embed(tgt.ids), tgt.lengths))
        query = self.query(x)
        # One head: (sentences, longest, width) -> (sentences, 1, longest, width), which the fused kernels take, and back
        found = F.scaled_dot_product_attention(
            query[:, None],
            self.key(memory)[:, None],
            memory.to(query.dtype)[:, None],
            attn_mask=src.mask[:, None, None],
        )[:, 0]
        for layer in self.others:
            assert isinstance(layer, nn.LSTM)
            x = x + self._drop(run_lstm(layer, torch.cat((x, found), dim=-1), tgt.lengths))
        states: Tensor = torch.tanh(self.last(torch.cat((x, found), dim=-1)))
        return self._drop(states)

    def hidden(self, src: Tensor, src_layout: SequenceLayout, tgt_in: Tensor, tgt_layout: SequenceLayout) -> Tensor:
        """Packed sentences -> the states of the target tokens, (tgt_tokens, width)."""
        grid = to_grid(src, src_layout)
        return to_rows(self.decode(to_grid(tgt_in, tgt_layout), self.encode(grid), grid), tgt_layout)


class RecurrentReader(nn.Module):
    """An LSTM that reads one text from left to right: (texts, length) ids -> states (texts, length, width)."""

    def __init__(self, vocab_size: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(make_lstm(width, width) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)[0]
        return x

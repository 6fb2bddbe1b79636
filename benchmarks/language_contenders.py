"""The contenders of benchmarks/language_models.py: what they train on, Hugging Face's models, and a plain model in torch.

All train the same shape in the same way: fused AdamW, gradients clipped at 1.0, weights in fp32 and products in the given
precision, dropout as the shape says but none on attention weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contenders import Update, make_updates
from benchmarks.lengths import LONGEST, make_batches
from regard.config import ModelConfig
from regard.data.arrays import Int64Array
from regard.data.corpus import CorpusRange
from regard.data.huggingface import Controls
from regard.data.masking import Masking, TextPieces
from regard.data.rows import TextRows
from regard.data.store import Column, Store
from regard.data.tokenizer import Tokenizer
from regard.families.bert import BERT
from regard.families.gpt2 import GPT2
from regard.recipe import TrainRecipe

END, OPENING, CLOSING, MASK, FIRST_WORD = 0, 1, 2, 3, 4  # ids of our own: there is no text
DOCUMENT, SPREAD = 700.0, 1.0  # tokens of a document are lognormal: their mean, and the deviation of their logarithm
IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class Shape:
    """A model and its updates."""

    family: str
    config: ModelConfig
    length: int  # tokens of a row, or of the longest sentence
    tokens: int  # in an update


def make_shape(name: str, is_tiny: bool, tokens: int) -> Shape:
    """GPT-2 of 124M parameters or BERT base; or one that a CPU trains in a moment."""
    if name == "gpt2":
        given: dict[str, Any] = {"resid_pdrop": 0.0, "attn_pdrop": 0.0}
        if is_tiny:
            given |= {"vocab_size": 211, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
        config = GPT2.config(given, "GPT2LMHeadModel")
        return Shape(name, config, config.max_positions, tokens or (256 if is_tiny else 65_536))
    given = {"attention_probs_dropout_prob": 0.0}
    if is_tiny:
        given |= {"vocab_size": 211, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        given |= {"intermediate_size": 64}
    config = BERT.config(given, "BertForMaskedLM")
    return Shape(name, config, LONGEST, tokens or (400 if is_tiny else 32_768))


def model_flops(config: ModelConfig, length: float, labels: float) -> float:
    """FLOPs that a token needs: 6 for each number of the matrices that it meets, 2 forward and 4 backward, and those of attention
    in sequences of this length. `labels` is the share of tokens that the output matrix meets. Padding, and logits that
    nothing is learnt from, are no work here: what a contender spends on them lowers its share."""
    [stack] = config.stacks.values()
    heads = stack.num_heads * stack.d_head
    matrices = stack.d_model * (2 * heads + 2 * stack.kv_heads * stack.d_head + 2 * stack.d_ff)
    attention = 12.0 * heads * length * (0.5 if stack.causal else 1.0)
    output = config.vocab_size * config.d_model + config.head_settings.transform * config.d_model**2
    return stack.layers * (6.0 * matrices + attention) + 6.0 * labels * output


# --- data ---


def words(number: int, vocab_size: int, seed: int) -> Int64Array:
    """Random ids: word n comes with a probability of about 1 / n, as in text."""
    ranks = (vocab_size - FIRST_WORD + 1.0) ** np.random.default_rng(seed).random(number)
    return np.clip(ranks.astype(np.int64) - 1 + FIRST_WORD, FIRST_WORD, vocab_size - 1)


def make_tokenizer(shape: Shape) -> Tokenizer:
    """One that only names control tokens."""
    controls = Controls(shape.config.vocab_size, start=END, end=END, stops=(END,))
    if shape.family == "bert":
        controls = replace(controls, mask=MASK, opening=(OPENING,), closing=(CLOSING,))
    return Tokenizer((), controls=controls)


def make_store(shape: Shape, updates: int) -> Store:
    """Text for this many updates: documents, or sentences as long as those of news."""
    draw = np.random.default_rng(1)
    if shape.family == "gpt2":
        number = max(2, round(updates * shape.tokens / DOCUMENT))
        centre = math.log(DOCUMENT) - SPREAD**2 / 2
        sizes = draw.lognormal(centre, SPREAD, number).round().clip(1, None).astype(np.int64)
    else:
        # Without the marks around each.
        sizes = np.concatenate([np.array(batch) - 2 for batch in sentence_lengths(shape, updates)]).clip(1, None)
        draw.shuffle(sizes)
    offsets = np.concatenate([[0], sizes.cumsum()])
    column = Column(words(int(offsets[-1]), shape.config.vocab_size, 1), offsets)
    return Store({"text": column}, [CorpusRange("random", 1.0, 0, len(sizes))], {})


def sentence_lengths(shape: Shape, updates: int) -> list[tuple[int, ...]]:
    """The lengths of the sentences of each update, similar ones together."""
    return [batch.tgt for batch in make_batches(shape.tokens, updates, 2 * updates * shape.tokens // 28)]


def text_grids(shape: Shape, number: int, device: torch.device) -> list[tuple[Tensor, ...]]:
    """Ids and labels of full rows, (rows, length) each."""
    store = make_store(shape, number + 1)
    rows = TextRows(store["text"], store.corpora, shape.length, END, END, across=True, seed=1)
    each = max(1, shape.tokens // shape.length)
    grids = []
    for first in range(number):
        gathered = rows.gather(np.arange(first * each, (first + 1) * each) % (len(rows.costs) - 1))
        grids.append(
            tuple(torch.from_numpy(ids).view(-1, shape.length).to(device) for ids in (gathered.ids, gathered.labels))
        )
    return grids


def masked_grids(shape: Shape, number: int, device: torch.device) -> tuple[list[tuple[Tensor, ...]], int]:
    """Ids, mask of attention and labels of sentences of similar lengths, each padded to the longest, (sentences, longest); and how
    many tokens they are."""
    grids, total = [], 0
    masking = Masking(TrainRecipe.mask, MASK, np.arange(FIRST_WORD, shape.config.vocab_size), 1)
    for lengths in sentence_lengths(shape, number):
        sizes = (np.array(lengths) - 2).clip(1, None)
        column = Column(words(int(sizes.sum()), shape.config.vocab_size, 2), np.concatenate([[0], sizes.cumsum()]))
        pieces = TextPieces(
            column, [CorpusRange("", 1.0, 0, len(sizes))], LONGEST, opening=(OPENING,), closing=(CLOSING,)
        )
        masked = masking.mask(pieces, np.arange(len(sizes)), epoch=0)
        places = np.arange(masked.lengths.max()) < masked.lengths[:, None]
        ids, labels = np.zeros(places.shape, np.int64), np.full(places.shape, IGNORED)
        packed = np.full(len(masked.ids), IGNORED)
        packed[masked.places] = masked.labels
        ids[places], labels[places] = masked.ids, packed
        grids.append(tuple(torch.from_numpy(one).to(device) for one in (ids, places.astype(np.int64), labels)))
        total += len(masked.ids)
    return grids, total


# --- peers ---


def hugging_face(shape: Shape, compiled: bool) -> tuple[nn.Module, Callable[..., Tensor]]:
    """A model of transformers with random weights, and its loss for a grid."""
    import transformers

    family, architecture, kind = (
        (GPT2, "GPT2LMHeadModel", "GPT2Config") if shape.family == "gpt2" else (BERT, "BertForMaskedLM", "BertConfig")
    )
    given = {**family.write(shape.config), "use_cache": False, "attn_implementation": "sdpa"}
    network: Any = getattr(transformers, architecture)(getattr(transformers, kind)(**given))

    def text_loss(ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(input_ids=ids).logits.flatten(0, 1).float(), labels.flatten())

    def masked_loss(ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        logits = network(input_ids=ids, attention_mask=mask).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)

    loss = text_loss if shape.family == "gpt2" else masked_loss
    if compiled:  # full rows have one shape, sentences have many
        return network, torch.compile(loss, dynamic=shape.family != "gpt2")
    return network, loss


class PlainBlock(nn.Module):
    """A layer of GPT-2 in plain torch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.num_heads = config.num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        # (rows, length, 3 d_model) -> three of (rows, num_heads, length, d_head)
        heads = self.qkv(self.norms[0](x)).view(rows, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        merged = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # (rows, num_heads, length, d_head) -> (rows, length, d_model)
        x = x + self.out(merged.transpose(1, 2).reshape(rows, length, width))
        added: Tensor = x + self.outer(F.gelu(self.inner(self.norms[1](x)), approximate="tanh"))
        return added


class PlainModel(nn.Module):
    """GPT-2 in plain torch, its vocabulary rounded up to a multiple of 64, as is usual where speed counts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        config = shape.config
        self.embedding = nn.Embedding(-(-config.vocab_size // 64) * 64, config.d_model)
        self.positions = nn.Embedding(shape.length, config.d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def plain_torch(shape: Shape, compiled: bool) -> tuple[nn.Module, Callable[..., Tensor]]:
    network = PlainModel(shape)
    return network, torch.compile(network) if compiled else network


PEERS: dict[str, tuple[str, Callable[[Shape, bool], tuple[nn.Module, Callable[..., Tensor]]], bool]] = {
    "hf": ("Hugging Face transformers", hugging_face, False),
    "hf-compiled": ("Hugging Face transformers, compiled", hugging_face, True),
    "torch": ("plain torch", plain_torch, False),
    "torch-compiled": ("plain torch, compiled", plain_torch, True),
}
OFFERED = {"gpt2": tuple(PEERS), "bert": ("hf", "hf-compiled")}


def peer_updates(
    name: str, shape: Shape, grids: Sequence[tuple[Tensor, ...]], device: torch.device, dtype: torch.dtype | None
) -> Update:
    """A peer's updates; number n trains on grid n."""
    _, build, compiled = PEERS[name]
    network, loss = build(shape, compiled)
    network.to(device).train()
    return make_updates(network, lambda number: loss(*grids[number]), device, dtype)

"""A hand-made model that copies its source, to measure decoding speed without a trained model.

A random model hardly ever ends its sentences. This one has any preset's shape and translates a sentence into itself, so
translations have realistic lengths, end by themselves, and are known. Half of a word's embedding is zero, which leaves the
sinusoids readable; the other half is random. The cross-attention of the last decoder layer finds the source word at the
target's position and adds it three times. All other layers compute as usual with random weights, but their outputs are
small and leave the positions alone.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lengths import Batch, corpus, sentences
from regard.bundle import Bundle, load_bundle, save_bundle
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.attention import CrossAttention
from regard.nn.block import Layer
from regard.recipe import DecodeRecipe

TOKENIZER = Path(__file__).parents[1] / "tests" / "golden" / "bundle-1" / "tokenizer"  # any: a bundle has one
FIRST_WORD = 325  # no control symbol, no byte

EMBEDDING = 2.0  # the norm of a word's embedding; the larger, the more alike is the scale of all places after a norm
ADDED = 0.1  # scale of the random layers' outputs
SHARPNESS = 40.0  # of the attention to one place
COPIES = 3.0  # how often the source word is added
LIKELY = -0.3  # mean log-probability of a correct word, as in a well-trained model


@torch.no_grad()
def copying_model(config: ModelConfig, bos_id: int, eos_id: int, seed: int = 1) -> Transformer:
    """A model of this shape (with the paper's settings only) that copies sentences of up to a few hundred words."""
    if (config.norm_position, config.positions, config.tie_embeddings) != ("post", "sinusoidal", True):
        raise ValueError(f"a copying model must have the paper's settings, but has {config}")
    torch.manual_seed(seed)
    model = Transformer(config).eval().requires_grad_(False)
    half = config.d_model // 2
    words = model.embedding.weight[:, half:-2]  # the last two dimensions are constant places: about 0 and about 1
    words -= words.mean(dim=1, keepdim=True)
    words.div_(words.norm(dim=1, keepdim=True)).mul_(EMBEDDING)
    model.embedding.weight[:, :half] = 0.0
    model.embedding.weight[:, -2:] = 0.0
    for stack in (model.encoder, model.decoder):
        for name, weight in stack.named_parameters():
            if name.endswith(("attention.out.weight", "feed_forward.outer.weight")):
                weight.mul_(ADDED)
                weight[:half] = 0.0
                weight[-2:] = 0.0
    last = model.decoder.layers[-1]
    assert isinstance(last, Layer)
    attend_to_own_place(last.cross_attention, config)
    norm: Any = last.feed_forward_residual.norm
    norm.weight *= temperature(model, bos_id, eos_id)
    return model


def attend_to_own_place(attention: CrossAttention, config: ModelConfig) -> None:
    """Queries and keys of every head are the first sinusoids, values the words, of which each head has a part."""
    d_model, half = config.d_model, config.d_model // 2
    unit = torch.eye(d_model)
    # A norm takes the mean away; what it was is seen at the dimension that would be 0.
    place = (unit[: config.head_width] - unit[-2]).repeat(config.num_heads, 1)
    attention.q.weight.copy_(SHARPNESS * place)
    keys, values = attention.kv.weight.chunk(2)
    keys.copy_(place)
    values.copy_(unit.roll(half, dims=1))
    attention.out.weight.copy_(COPIES * unit.roll(half, dims=0))
    attention.out.weight[:half] = 0.0
    attention.out.weight[-2:] = 0.0


def temperature(model: Transformer, bos_id: int, eos_id: int) -> float:
    """The scale of the logits at which correct words have log-probability LIKELY on average."""
    words = [ids[:24] for ids in word_ids(16, model.config.vocab_size, seed=2)]

    def packed(sides: list[list[int]]) -> tuple[Tensor, SequenceLayout]:
        flat = torch.tensor([i for ids in sides for i in ids])
        return flat, SequenceLayout.from_lengths([len(ids) for ids in sides])

    src, src_layout = packed([[*ids, eos_id] for ids in words])
    hidden = model.hidden(src, src_layout, *packed([[bos_id, *ids] for ids in words]))
    logits = hidden @ model.output_matrix.T
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        right = torch.log_softmax(middle * logits, dim=-1).gather(1, src[:, None])
        low, high = (middle, high) if float(right.mean()) < LIKELY else (low, middle)
    return high


def copying_bundle(config: ModelConfig, folder: Path) -> Bundle:
    """The model as a bundle. Its tokenizer, which a bundle must have, knows few of the model's words."""
    tokenizer = Tokenizer.load(TOKENIZER)
    model = copying_model(config, tokenizer.bos_id, tokenizer.eos_id)
    save_bundle(
        folder,
        model.state_dict(),
        config,
        tokenizer,
        "",
        source="copy",
        target="copy",
        decode=DecodeRecipe(),
        max_length=256,
        facts={},
    )
    return load_bundle(folder)


def word_ids(number: int, vocab_size: int, seed: int = 1) -> list[list[int]]:
    """Sentences with lengths as in news text; with the end token, a translation is as long as a target there."""
    lengths = (corpus(number, seed)[1] - 1).tolist()
    first = min(FIRST_WORD, vocab_size // 2)
    batch = Batch(tuple(lengths), tuple(lengths))
    src = sentences(batch, vocab_size - first, seed)[0] + first  # their first word is 3
    return [ids.tolist() for ids in torch.split(src, lengths)]

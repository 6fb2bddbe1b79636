"""Experiments of the walk: a tiny model trained on a toy language, and parts of a model switched off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import SequenceLayout
from regard.models.loss import linear_cross_entropy
from regard.models.transformer import Transformer
from regard.nn import block
from regard.nn.attention import Attention
from regard.nn.block import Sublayer
from regard.nn.embedding import NoPositions
from regard.recipe import TrainRecipe
from regard.training.optimizer import learning_rate, make_optimizer, set_learning_rate

# --- The toy language: its translation is the sentence backwards ---

WORDS = 12  # ids 0 to 11; 12 begins a target, 13 ends it
BEGIN, END = WORDS, WORDS + 1
LENGTH = 8  # of every sentence
# The paper's Adam. So short a run has no time for the paper's slow decay: the rate falls to zero in a straight line.
TRAIN = TrainRecipe(schedule="linear", lr=5e-3, warmup=60)
STACKS = {"encoder_layers": 2, "decoder_layers": 2}
TINY = {"vocab_size": WORDS + 2, "d_model": 32, "d_ff": 64, "num_heads": 4, **STACKS, "dropout": 0.0}


def sentences(count: int, generator: torch.Generator) -> list[list[int]]:
    """Random sentences of the toy language."""
    drawn: list[list[int]] = torch.randint(WORDS, (count, LENGTH), generator=generator).tolist()
    return drawn


def packed(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, SequenceLayout]:
    """Sequences end to end, and where each lies."""
    return torch.tensor([i for one in sequences for i in one]), SequenceLayout.from_lengths(
        [len(one) for one in sequences]
    )


@dataclass(frozen=True)
class Trained:
    """A tiny model after training."""

    model: Transformer
    losses: list[float]  # of each update, in nats a token, without smoothing
    right: float  # share of new sentences that greedy decoding translates without a mistake


def train_tiny(updates: int = 300, smoothing: float = 0.0, masked: bool = True, **settings: Any) -> Trained:
    """Train on the toy language with the paper's optimizer; the same seed each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Transformer(ModelConfig(**{**TINY, **settings}))
    if not masked:
        set_causal(model, False)
    optimizer = make_optimizer(model, TRAIN)
    generator, losses = torch.Generator().manual_seed(1), []
    for update in range(1, updates + 1):
        batch = sentences(64, generator)
        src, src_layout = packed(batch)
        tgt_in, tgt_layout = packed([[BEGIN, *reversed(one)] for one in batch])
        labels, _ = packed([[*reversed(one), END] for one in batch])
        states = model.hidden(src, src_layout, tgt_in, tgt_layout)
        loss = linear_cross_entropy(states, model.output_weight, labels, smoothing)
        set_learning_rate(optimizer, learning_rate(TRAIN, 0, update, TRAIN.warmup, update / updates, timed=False))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append(float(loss.nll) / loss.count)
    model.eval()
    new = sentences(200, torch.Generator().manual_seed(2))
    written = greedy(model, new)
    return Trained(model, losses, sum(one == other[::-1] for one, other in zip(written, new, strict=True)) / len(new))


@torch.inference_mode()
def greedy(model: Transformer, batch: Sequence[Sequence[int]]) -> list[list[int]]:
    """Translate with the likeliest token at each step, all positions anew each time: slow and plain."""
    src, src_layout = packed(batch)
    memory = model.encode(src, src_layout)
    written = [[BEGIN] for _ in batch]
    for _ in range(max(map(len, batch)) + 1):
        tgt_in, tgt_layout = packed(written)
        logits = model.logits(model.decode(tgt_in, tgt_layout, memory, src_layout))
        for one, token in zip(written, logits[tgt_layout.offsets[1:].long() - 1].argmax(dim=-1).tolist(), strict=True):
            one.append(token)
    return [one[1 : one.index(END)] if END in one else one[1:] for one in written]


# --- Parts of a model switched off ---


def set_causal(model: Transformer, causal: bool) -> None:
    """With or without the mask that hides later words from the decoder."""
    for layer in model.decoder.sequence:
        layer.self_attention.causal = causal


@contextmanager
def unmasked(model: Transformer) -> Iterator[None]:
    """The decoder sees later words, too."""
    set_causal(model, False)
    yield
    set_causal(model, True)


@contextmanager
def unscaled(model: nn.Module) -> Iterator[None]:
    """Scores are not divided by sqrt(d_k)."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    before = [attention.scale for attention in attentions]
    for attention in attentions:
        attention.scale = 1.0
    yield
    for attention, scale in zip(attentions, before, strict=True):
        attention.scale = scale


@contextmanager
def without_positions(*stacks: Any) -> Iterator[None]:
    """Nothing is added to the embeddings of these stacks."""
    before = [stack.positions for stack in stacks]
    for stack in stacks:
        stack.positions = NoPositions()
    yield
    for stack, positions in zip(stacks, before, strict=True):
        stack.positions = positions


def _norm_alone(
    x: Tensor, entering: Tensor, sublayer: Sublayer, norm: nn.Module, number: int, seeds: Tensor | None, keep_sum: bool
) -> tuple[Tensor, Tensor]:
    """`add_norm` of regard/nn/block.py without `x +`."""
    output = sublayer.residual.dropout(sublayer.run(entering, True))
    return output, norm(output)


@contextmanager
def without_residuals() -> Iterator[None]:
    """LayerNorm(Sublayer(x)) in place of LayerNorm(x + Sublayer(x))."""
    with mock.patch.object(block, "add_norm", _norm_alone):
        yield


@contextmanager
def without_heads(attention: Any, heads: Sequence[int]) -> Iterator[None]:
    """What these heads write is multiplied with zeros: their columns of W_O."""
    weight = attention.out.weight.data
    before = weight.clone()
    for head in heads:
        weight[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
    yield
    weight.copy_(before)


def all_heads_but_one(model: Transformer) -> list[Any]:
    """Only the first head of each attention writes."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    return [without_heads(attention, range(1, attention.num_heads)) for attention in attentions]

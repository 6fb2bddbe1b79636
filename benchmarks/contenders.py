"""The contenders of the training benchmarks: two peers and Regard, each as a function that builds its updates.

All train the same model on the same sentences: the paper's Transformer with one shared embedding matrix, dropout on the
embeddings and after each sub-layer and nowhere else, label smoothing 0.1, the mean loss over real target tokens, gradients
clipped at 1.0, fused AdamW, weights in fp32 and products in the given precision. The peers pad on the right and ignore
padded labels; their masks are built in every update, as in training.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.lengths import BOS, EOS, LONGEST, PAD, Batch, padded, sentences
from regard.config import ModelConfig
from regard.data.pair_slots import PairSlots
from regard.data.sampler import even_cuts
from regard.layout import SequenceLayout
from regard.models.loss import linear_cross_entropy
from regard.models.transformer import Transformer
from regard.nn.embedding import sinusoids
from regard.recipe import TrainRecipe
from regard.tasks.translate import loss
from regard.training.fast import FastPath, fast_path
from regard.training.optimizer import make_optimizer, set_learning_rate
from regard.training.update import SlotUpdate, UpdateOptions

SMOOTHING = 0.1
MARIAN = "transformers.models.marian.modeling_marian"

# Update number i trains on batch i and returns its loss without waiting for it.
Update = Callable[[int], Tensor]
Build = Callable[[ModelConfig, Sequence[Batch], torch.device, torch.dtype | None], Update]


@dataclass(frozen=True)
class Contender:
    name: str
    build: Build
    optional: bool = False  # on the CPU: only on request
    module: str = "torch"  # packages that it needs


def make_updates(
    network: nn.Module, loss: Callable[[int], Tensor], device: torch.device, dtype: torch.dtype | None
) -> Update:
    """Updates from the mean loss of a batch: forward, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device.type in ("cpu", "cuda"))

    def update(number: int) -> Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            value = loss(number)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return update


def regard_updates(
    config: ModelConfig, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype | None
) -> Update:
    """What `regard train` does on this machine: the fast path if there is one."""
    path = fast_path("auto", device, dtype)
    if path is not None:
        return slot_updates(config, batches, device, dtype, path)
    network = Transformer(config).to(device).train()
    ids = [[part.to(device) for part in sentences(batch, config.vocab_size, n)] for n, batch in enumerate(batches)]
    src_layouts = [SequenceLayout.from_lengths(batch.src, device) for batch in batches]
    tgt_layouts = [SequenceLayout.from_lengths(batch.tgt, device) for batch in batches]

    def loss(number: int) -> Tensor:
        src, tgt_in, labels = ids[number]
        # Copies without the layouts' caches, which a real run computes for every update.
        src_layout, tgt_layout = replace(src_layouts[number]), replace(tgt_layouts[number])
        hidden = network.hidden(src, src_layout, tgt_in, tgt_layout)
        result = linear_cross_entropy(hidden, network.output_weight, labels, SMOOTHING)
        return result.total / result.count

    return make_updates(network, loss, device, dtype)


def slot_updates(
    config: ModelConfig, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype | None, path: FastPath
) -> Update:
    """As many updates as there are batches, of the same sentences: all lengths mixed, in slots of one shape."""
    slots, words = slot_words(batches, config.vocab_size)
    words = [part.pin_memory() for part in words] if device.type == "cuda" else words
    network = Transformer(config).to(device).train()
    recipe = TrainRecipe(optimizer="adamw", beta2=0.999, eps=1e-8, weight_decay=0.01)  # as the peers' AdamW
    optimizer = make_optimizer(network, recipe)
    set_learning_rate(optimizer, 1e-4)
    apply = SlotUpdate(loss, network, optimizer, UpdateOptions(SMOOTHING, 1.0, dtype), slots, 1, path)

    def update(number: int) -> Tensor:
        result = apply([words[number]], 0)
        mean: Tensor = result.total / apply.batches[0].count
        return mean

    return update


def slot_words(batches: Sequence[Batch], vocab_size: int) -> tuple[PairSlots, list[Tensor]]:
    """The sentences of all batches, shuffled and cut into as many batches of about equally many target tokens."""
    pairs: list[tuple[Any, Any]] = []
    for number, batch in enumerate(batches):
        src, _, labels = (part.numpy() for part in sentences(batch, vocab_size, number))
        cuts = [np.cumsum(lengths)[:-1] for lengths in (batch.src, batch.tgt)]
        pairs += zip(np.split(src, cuts[0]), np.split(labels, cuts[1]), strict=True)
    random.Random(1).shuffle(pairs)
    bounds = [0, *even_cuts(np.array([len(tgt) for _, tgt in pairs]), len(batches)), len(pairs)]
    groups = [pairs[begin:end] for begin, end in itertools.pairwise(bounds)]
    src_tokens, tgt_tokens = (max(sum(len(pair[side]) for pair in group) for group in groups) for side in (0, 1))
    slots = PairSlots(-(-src_tokens // 128) * 128, -(-tgt_tokens // 128) * 128, max(map(len, groups)), LONGEST)
    words = []
    for group in groups:
        # Each sentence without its last token: `pack` puts the end token there.
        sides = [[pair[side][:-1] for pair in group] for side in (0, 1)]
        src_ids, tgt_ids = (np.concatenate(side) for side in sides)
        src_lengths, tgt_lengths = (np.array([len(ids) for ids in side]) for side in sides)
        count = sum(len(tgt) for _, tgt in group)
        words.append(slots.pack(src_ids, src_lengths, tgt_ids, tgt_lengths, BOS, EOS, count))
    return slots, words


def grids(config: ModelConfig, batches: Sequence[Batch], device: torch.device) -> list[tuple[Tensor, ...]]:
    """Source, target input and labels of each batch, each padded to its own longest sentence."""
    result = []
    for number, batch in enumerate(batches):
        src, tgt_in, labels = sentences(batch, config.vocab_size, number)
        targets = (padded(ids, batch.tgt).to(device) for ids in (tgt_in, labels))
        result.append((padded(src, batch.src).to(device), *targets))
    return result


def padded_loss(logits: Tensor, labels: Tensor) -> Tensor:
    # (sentences, longest, vocab_size) -> (sentences * longest, vocab_size)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)


class TorchModel(nn.Module):
    """torch.nn.Transformer with what it leaves to the user: embeddings, positions, the output matrix."""

    positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        for module in self.transformer.modules():
            # The paper has no dropout on attention weights or inside the feed-forward network; without it this is faster.
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0
        self.register_buffer("positions", sinusoids(LONGEST, config.d_model))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        scale = self.embedding.embedding_dim**0.5
        enter = [self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]]) for ids in (src, tgt)]
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device, dtype=torch.bool)
        is_padding = src == PAD
        # The target needs no padding mask: its padding is at the right, where the causal mask hides it from all tokens, and
        # without one torch takes its causal kernel.
        hidden = self.transformer(
            *enter,
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def torch_updates(
    config: ModelConfig, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype | None
) -> Update:
    network = TorchModel(config).to(device).train()
    data = grids(config, batches, device)

    def loss(number: int) -> Tensor:
        src, tgt_in, labels = data[number]
        return padded_loss(network(src, tgt_in), labels)

    return make_updates(network, loss, device, dtype)


def marian_model(config: ModelConfig) -> Any:
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(  # type: ignore[call-arg]  # it takes what every configuration takes
            vocab_size=config.vocab_size,
            decoder_vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            dropout=config.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function="relu",
            scale_embedding=True,
            init_std=config.d_model**-0.5,
            max_position_embeddings=LONGEST,  # it computes them one by one
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=PAD,
            attn_implementation="sdpa",
        )
    )


def without_layer_drop(network: Any) -> None:
    """Marian asks before every layer whether to drop it (never, by default), on which a compiled graph breaks. It asks in
    training only, so its two stacks are told that they are not in training, and the one thing they do then besides,
    dropout on the embeddings, is done on the way into the first layer. The layers themselves are left in training."""
    for stack in (network.model.encoder, network.model.decoder):
        probability = stack.dropout

        def drop(_: nn.Module, inputs: tuple[Any, ...], probability: float = probability) -> tuple[Any, ...]:
            return (F.dropout(inputs[0], probability), *inputs[1:])

        stack.training = False
        stack.layers[0].register_forward_pre_hook(drop)


def marian_updates(
    config: ModelConfig,
    batches: Sequence[Batch],
    device: torch.device,
    dtype: torch.dtype | None,
    compiled: bool = False,
) -> Update:
    network = marian_model(config).to(device).train()
    data = grids(config, batches, device)

    def forward(src: Tensor, tgt_in: Tensor, labels: Tensor) -> Tensor:
        mask = (src != PAD).long()
        output = network(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in, use_cache=False)
        return padded_loss(output.logits, labels)

    if compiled:
        without_layer_drop(network)
        forward = torch.compile(forward, dynamic=True)
    return make_updates(network, lambda number: forward(*data[number]), device, dtype)


def compiled_marian_updates(
    config: ModelConfig, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype | None
) -> Update:
    return marian_updates(config, batches, device, dtype, compiled=True)


CONTENDERS = {
    "torch": Contender("torch.nn.Transformer", torch_updates),
    "marian": Contender("Hugging Face Marian", marian_updates, module=MARIAN),
    "marian-compiled": Contender(
        "Hugging Face Marian, compiled", compiled_marian_updates, optional=True, module=MARIAN
    ),
    "regard": Contender("Regard", regard_updates),
}

"""Regard's weights in Hugging Face's MarianMTModel, the other implementation of the paper's model that people run.

Marian's sinusoids are the sines of all pairs and then the cosines; the paper interleaves them. The residual stream may
be written in any order of its dimensions as long as all that read from it and write to it agree, so the weights are
copied with those dimensions permuted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from regard.models.transformer import Transformer
from regard.nn.block import DecoderLayer, EncoderLayer, FeedForward


def marian_config(model: Transformer, bos_id: int, eos_id: int, pad_id: int, max_positions: int = 256) -> MarianConfig:
    config = model.config
    paper = (config.norm_position, config.norm, config.positions) == ("post", "layer", "sinusoidal")
    if not paper or config.kv_heads != config.num_heads or config.activation == "swiglu":
        raise ValueError(f"Marian has no such model: {config}")
    return MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        activation_function=config.activation,
        dropout=config.dropout,
        scale_embedding=True,
        max_position_embeddings=max_positions,
        share_encoder_decoder_embeddings=config.tie_embeddings,
        tie_word_embeddings=config.tie_embeddings,
        decoder_start_token_id=bos_id,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        forced_eos_token_id=None,
    )


class Copier:
    """Copies with the dimensions of the residual stream in Marian's order."""

    def __init__(self, d_model: int) -> None:
        self.order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))

    def vector(self, ours: Tensor, theirs: Tensor) -> None:
        theirs.copy_(ours[self.order])

    def rows(self, ours: Tensor, theirs: Tensor) -> None:
        """A matrix whose rows are residual vectors: embeddings, and the output matrix."""
        theirs.copy_(ours[:, self.order])

    def reader(self, weight: Tensor, bias: Tensor, theirs: nn.Linear) -> None:
        theirs.weight.copy_(weight[:, self.order])
        theirs.bias.copy_(bias)

    def writer(self, ours: nn.Linear, theirs: nn.Linear) -> None:
        theirs.weight.copy_(ours.weight[self.order])
        theirs.bias.copy_(ours.bias[self.order])

    def readers(self, ours: list[nn.Linear], theirs: list[nn.Linear]) -> None:
        """Projections that one side stores stacked and the other one by one."""
        weight, bias = torch.cat([linear.weight for linear in ours]), torch.cat([linear.bias for linear in ours])
        for part, part_bias, linear in zip(weight.chunk(len(theirs)), bias.chunk(len(theirs)), theirs, strict=True):
            self.reader(part, part_bias, linear)

    def norm(self, ours: Any, theirs: Any) -> None:
        self.vector(ours.weight, theirs.weight)
        self.vector(ours.bias, theirs.bias)

    def feed_forward(self, ours: FeedForward, theirs: Any) -> None:
        self.reader(ours.inner.weight, ours.inner.bias, theirs.fc1)
        self.writer(ours.outer, theirs.fc2)

    def self_attention(self, ours: Any, theirs: Any) -> None:
        self.readers([ours.qkv], [theirs.q_proj, theirs.k_proj, theirs.v_proj])
        self.writer(ours.out, theirs.out_proj)

    def cross_attention(self, ours: Any, theirs: Any) -> None:
        self.readers([ours.q, ours.kv], [theirs.q_proj, theirs.k_proj, theirs.v_proj])
        self.writer(ours.out, theirs.out_proj)


@torch.no_grad()
def to_marian(model: Transformer, bos_id: int, eos_id: int, pad_id: int, max_positions: int = 256) -> MarianMTModel:
    """A MarianMTModel that computes what `model` computes. Like Regard's engine, give it sources that end with
    `eos_id`."""
    theirs: Any = MarianMTModel(marian_config(model, bos_id, eos_id, pad_id, max_positions)).eval()
    copier = Copier(model.config.d_model)
    if model.config.tie_embeddings:
        copier.rows(model.embedding.weight, theirs.model.shared.weight)
    else:
        copier.rows(model.src_embedding.weight, theirs.model.encoder.embed_tokens.weight)
        copier.rows(model.tgt_embedding.weight, theirs.model.decoder.embed_tokens.weight)
        copier.rows(model.output.weight, theirs.lm_head.weight)
    for ours, other in zip(model.encoder.layers, theirs.model.encoder.layers, strict=True):
        assert isinstance(ours, EncoderLayer)
        copier.self_attention(ours.self_attention, other.self_attn)
        copier.norm(ours.self_residual.norm, other.self_attn_layer_norm)
        copier.feed_forward(ours.feed_forward, other)
        copier.norm(ours.feed_forward_residual.norm, other.final_layer_norm)
    for ours, other in zip(model.decoder.layers, theirs.model.decoder.layers, strict=True):
        assert isinstance(ours, DecoderLayer)
        copier.self_attention(ours.self_attention, other.self_attn)
        copier.norm(ours.self_residual.norm, other.self_attn_layer_norm)
        copier.cross_attention(ours.cross_attention, other.encoder_attn)
        copier.norm(ours.cross_residual.norm, other.encoder_attn_layer_norm)
        copier.feed_forward(ours.feed_forward, other)
        copier.norm(ours.feed_forward_residual.norm, other.final_layer_norm)
    assert isinstance(theirs, MarianMTModel)
    return theirs

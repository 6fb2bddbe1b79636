"""ModelConfig: every choice that determines a Transformer's weights and arithmetic. Imports no torch, so that recipes and
exporters can read it cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from regard.bounds import MAX_VOCABULARY, check_flag, check_number, check_whole
from regard.errors import UserError
from regard.escaping import shorten

NormPosition = Literal["post", "pre"]
Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "silu", "swiglu"]
Positions = Literal["sinusoidal", "learned", "rotary"]

_CHOICES = {"norm_position": NormPosition, "norm": Norm, "activation": Activation, "positions": Positions}
_LARGEST = {
    "vocab_size": MAX_VOCABULARY,
    "d_model": 65_536,
    "d_ff": 1_048_576,
    "num_heads": 4_096,
    "encoder_layers": 1_000,
    "decoder_layers": 1_000,
    "max_positions": 1_048_576,
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of an encoder-decoder Transformer. The defaults are the paper's base model.

    >>> ModelConfig(vocab_size=37_000).d_head
    64
    """

    vocab_size: int  # number of pieces
    d_model: int = 512  # width of the residual stream
    d_ff: int = 2048  # width of the feed-forward layers
    num_heads: int = 8  # attention heads
    encoder_layers: int = 6  # layers of the encoder
    decoder_layers: int = 6  # layers of the decoder
    dropout: float = 0.1  # probability of dropping an element
    # What later Transformers changed; the defaults are the paper's.
    norm_position: NormPosition = (
        "post"  # `post`: norm(x + f(x)); `pre`: x + f(norm(x)), with a norm after the last layer
    )
    norm: Norm = "layer"  # LayerNorm or RMSNorm
    activation: Activation = "relu"  # nonlinearity of the feed-forward layers; `swiglu` adds a gate
    positions: Positions = "sinusoidal"  # how positions are encoded; `rotary` (RoPE) rotates queries and keys
    num_kv_heads: int = 0  # key/value heads; 0: as many as `num_heads`; fewer: grouped-query attention
    tie_embeddings: bool = True  # share one matrix for source, target and output embeddings; false: three matrices
    output_bias: bool = False  # add a learned bias to each logit, as some imported models do
    max_positions: int = 1024  # rows of the table of learned positions; other encodings have no limit
    norm_eps: float = 1e-5  # epsilon of the norms

    def __post_init__(self) -> None:
        for name, most in _LARGEST.items():
            check_whole(f"model.{name}", getattr(self, name), 1, most)
        check_whole("model.num_kv_heads", self.num_kv_heads)
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise UserError(f"model.{name} must be one of {', '.join(get_args(choices))}, but is {shorten(value)}")
        for name in ("tie_embeddings", "output_bias"):
            check_flag(f"model.{name}", getattr(self, name))
        for name in ("dropout", "norm_eps"):
            check_number(f"model.{name}", getattr(self, name))
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"model.dropout must be at least 0 and below 1, but is {self.dropout}")
        if not 0.0 < self.norm_eps < 1.0:
            raise UserError(f"model.norm_eps must be above 0 and below 1, but is {self.norm_eps}")
        if self.d_model % self.num_heads:
            raise UserError(
                f"model.d_model must be a multiple of model.num_heads ({self.num_heads}), but is {self.d_model}"
            )
        if self.d_model % 2:
            raise UserError(
                f"model.d_model must be even (positions are pairs of sine and cosine), but is {self.d_model}"
            )
        if self.num_kv_heads < 0 or (self.num_kv_heads and self.num_heads % self.num_kv_heads):
            raise UserError(
                f"model.num_kv_heads must divide model.num_heads ({self.num_heads}), but is {self.num_kv_heads}"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise UserError(f"model.d_model / model.num_heads must be even with rotary positions, but is {self.d_head}")

    @property
    def d_head(self) -> int:
        """The width of one attention head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads, with the default resolved."""
        return self.num_kv_heads or self.num_heads

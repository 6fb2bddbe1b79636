"""The settings of a model's parts as the modules read them, everything resolved: its stacks, its front and its head. They come
from `ModelConfig`, which says what each of them means."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Side = Literal["encoder", "decoder"]
NormPosition = Literal["post", "pre"]
Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "silu", "swiglu", "gelu_tanh", "geglu", "geglu_tanh"]
Positions = Literal["sinusoidal", "learned", "rotary", "relative", "none"]
RotaryPairing = Literal["pairs", "halves"]
AttentionBias = Literal["all", "none", "qkv", "no_key"]
FrontKind = Literal["tokens"]
HeadKind = Literal["tokens", "classes", "tags", "vector", "none"]
Pooling = Literal["first", "mean", "tanh-first"]
Answer = Literal["one", "several", "number"]

GATED = ("swiglu", "geglu", "geglu_tanh")  # activations with a gate: the first matrix is twice as wide


@dataclass(frozen=True)
class StackConfig:
    """One stack with everything resolved; the fields are those of `ModelConfig`."""

    layers: int
    causal: bool  # a decoder: each position sees itself and those before it
    cross: bool  # whether its layers attend to an encoder's output, too
    d_embedding: int  # width of the embeddings that enter; d_model, unless the front has a projection
    d_model: int
    d_ff: int
    num_heads: int
    num_kv_heads: int  # never 0
    d_head: int  # never 0
    dropout: float
    attention_dropout: float
    norm_position: NormPosition
    norm: Norm
    norm_eps: float
    norm_bias: bool
    final_norm: bool
    activation: Activation
    positions: Positions
    max_positions: int
    position_offset: int
    rotary_base: float
    rotary_pairing: RotaryPairing
    rotary_dim: int  # never 0
    rotary_scaling: dict[str, Any]
    relative_buckets: int
    relative_max_distance: int
    attention_bias: AttentionBias
    feed_forward_bias: bool
    embedding_scale: bool
    embedding_norm: bool
    parallel: bool
    score_scale: float  # 0: 1 / sqrt(d_head)
    share_layers: bool

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.num_kv_heads

    @property
    def gated(self) -> bool:
        """Whether the activation has a gate."""
        return self.activation in GATED


@dataclass(frozen=True)
class FrontConfig:
    """What turns input into vectors: the embeddings of tokens."""

    kind: FrontKind = "tokens"  # what the input is
    d_embedding: int = 0  # width of the embeddings; 0: d_model; else a projection leads to d_model, as in ALBERT
    token_types: int = 0  # kinds of tokens that get a learned vector, such as BERT's two segments; 0: none


@dataclass(frozen=True)
class HeadConfig:
    """What turns the last vectors into an answer."""

    # The answer: `tokens` of the vocabulary, one of several `classes` for a sequence, `tags` for its tokens, a `vector`, or `none`.
    kind: HeadKind = "tokens"
    transform: bool = False  # a matrix, the activation and a norm before the logits, as in BERT
    logit_scale: float = 1.0  # factor of the logits
    labels: tuple[str, ...] = ()  # names of the classes or tags
    # One vector for a sequence: the `first` token's, the `mean`, or `tanh-first`, tanh of a matrix times the first, as in BERT.
    pooling: Pooling = "first"
    normalize: bool = False  # scale a `vector` to length 1, as most models of sentence-transformers do
    dropout: float = 0.0  # probability of dropping an element of what classes and tags are computed from
    # What a text has of the classes: exactly `one`, `several` or none of them, or a `number` in place of classes (one label: its
    # name). Unset, training finds it in the data.
    answer: Answer = "one"


STACK_FIELDS = tuple(f.name for f in dataclasses.fields(StackConfig))[4:]  # those that ModelConfig has, too
TABLES: dict[str, type] = {"encoder": StackConfig, "decoder": StackConfig, "front": FrontConfig, "head": HeadConfig}
# The settings of the first version of bundles, which always have them.
FIRST_SETTINGS = (
    "vocab_size", "d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout", "norm_position", "norm",
    "activation", "positions", "num_kv_heads", "tie_embeddings", "max_positions", "norm_eps",
)  # fmt: skip

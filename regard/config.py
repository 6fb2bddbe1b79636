"""ModelConfig: every choice that determines a Transformer's weights and arithmetic. Imports no torch, so that recipes and
exporters can read it cheaply.

The fields of `ModelConfig` set both stacks. What differs in one of them is in the tables `encoder` and `decoder`, and the
tables `front` and `head` say what comes before and after the stacks. The modules read the resolved settings: `encoder_stack`,
`decoder_stack`, `front_settings`, `head_settings` (regard/settings.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from regard.rules import check_model, first_unknown
from regard.settings import (
    FIRST_SETTINGS,
    STACK_FIELDS,
    Activation,
    AttentionBias,
    FrontConfig,
    HeadConfig,
    Norm,
    NormPosition,
    Positions,
    RotaryPairing,
    Side,
    StackConfig,
)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Transformer. The defaults are the paper's base model.

    >>> ModelConfig(vocab_size=37_000).head_width
    64
    """

    vocab_size: int  # number of pieces
    d_model: int = 512  # width of the residual stream
    d_ff: int = 2048  # width of the feed-forward layers
    num_heads: int = 8  # attention heads
    encoder_layers: int = 6  # layers of the encoder; 0: no encoder
    decoder_layers: int = 6  # layers of the decoder; 0: no decoder
    dropout: float = 0.1  # probability of dropping an element
    # What later Transformers changed; the defaults are the paper's.
    norm_position: NormPosition = (
        "post"  # `post`: norm(x + f(x)); `pre`: x + f(norm(x)), with a norm after the last layer
    )
    norm: Norm = "layer"  # LayerNorm or RMSNorm
    # Nonlinearity of the feed-forward layers; `gelu_tanh` is GELU's approximation by tanh; `swiglu`, `geglu` and `geglu_tanh` add a
    # gate.
    activation: Activation = "relu"
    # How positions are encoded; `rotary` (RoPE) rotates queries and keys, `relative` (T5) adds a learned number to each score.
    positions: Positions = "sinusoidal"
    num_kv_heads: int = 0  # key/value heads; 0: as many as `num_heads`; fewer: grouped-query attention; 1: multi-query
    # Share one matrix for source, target and output embeddings; false: three matrices, or two in a model of one stack.
    tie_embeddings: bool = True
    output_bias: bool = False  # add a learned bias to each logit, as some imported models do
    max_positions: int = 1024  # rows of the table of learned positions; other encodings have no limit
    norm_eps: float = 1e-5  # epsilon of the norms
    d_head: int = 0  # width of one attention head; 0: d_model / num_heads
    attention_dropout: float = 0.0  # probability of dropping an attention weight
    norm_bias: bool = True  # whether LayerNorm adds a bias
    final_norm: bool | None = None  # a norm after the last layer. Unset: with pre-norm only
    position_offset: int = 0  # rows of the table of learned positions before the one of position 0
    rotary_base: float = 10_000.0  # base of the wavelengths of rotary positions
    # Which dimensions are rotated together: `pairs` (2i, 2i + 1), or `halves` (i, i + d/2), as in LLaMA's checkpoints.
    rotary_pairing: RotaryPairing = "pairs"
    rotary_dim: int = 0  # leading dimensions of each head that are rotated; 0: all
    # Stretched wavelengths: `{ kind = "linear", factor = 2.0 }`, or LLaMA 3's `{ kind = "llama3", factor = 8.0, low_freq_factor =
    # 1.0, high_freq_factor = 4.0, original_max_positions = 8192 }`.
    rotary_scaling: dict[str, Any] = field(default_factory=dict)
    relative_buckets: int = 32  # rows of the table of relative positions: distances are sorted into so many buckets
    relative_max_distance: int = 128  # distances from this one on share a bucket
    # Which projections of attention have a bias: `all`, `none`, `qkv` (not the output), `no_key` (all but the keys).
    attention_bias: AttentionBias = "all"
    feed_forward_bias: bool = True  # whether the matrices of the feed-forward layers have biases
    embedding_scale: bool = True  # multiply embeddings by sqrt(d_model)
    embedding_norm: bool = False  # a norm on the sum of embedding and position
    parallel: bool = False  # attention and feed-forward side by side under one norm: x + f(norm(x)) + g(norm(x))
    score_scale: float = 0.0  # factor of the attention scores; 0: 1 / sqrt(d_head)
    share_layers: bool = False  # all layers of a stack have the same weights, as in ALBERT
    encoder: dict[str, Any] = field(default_factory=dict)  # settings that differ in the encoder
    decoder: dict[str, Any] = field(default_factory=dict)  # settings that differ in the decoder
    front: dict[str, Any] = field(default_factory=dict)  # what turns input into vectors
    head: dict[str, Any] = field(default_factory=dict)  # what turns the last vectors into an answer

    def __post_init__(self) -> None:
        check_model(self)

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads, with the default resolved."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """`d_head`, with the default resolved."""
        return self.d_head or self.d_model // self.num_heads

    @cached_property
    def encoder_stack(self) -> StackConfig | None:
        """The encoder's settings; None: there is no encoder."""
        return self._stack("encoder")

    @cached_property
    def decoder_stack(self) -> StackConfig | None:
        """The decoder's settings; None: there is no decoder."""
        return self._stack("decoder")

    @property
    def stacks(self) -> dict[Side, StackConfig]:
        """The stacks that there are, the encoder first."""
        both: dict[Side, StackConfig | None] = {"encoder": self.encoder_stack, "decoder": self.decoder_stack}
        return {side: stack for side, stack in both.items() if stack is not None}

    @cached_property
    def front_settings(self) -> FrontConfig:
        """The settings of the front."""
        given = FrontConfig(**self.front)
        return dataclasses.replace(given, d_embedding=given.d_embedding or self.d_model)

    @cached_property
    def head_settings(self) -> HeadConfig:
        """The settings of the head."""
        return HeadConfig(**self.head)

    @property
    def longest(self) -> int | None:
        """The longest sequence that the tables of learned positions allow; None: no limit."""
        return min(
            (stack.max_positions for stack in self.stacks.values() if stack.positions == "learned"), default=None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in a bundle's config.json. Later settings are left out where they are at their default, since earlier
        versions of Regard refuse what they do not know."""
        values = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if name in FIRST_SETTINGS or value != self.default(name)}

    def unsupported(
        self, known: Collection[str] = (), choices: Mapping[str, Collection[Any]] | None = None
    ) -> str | None:
        """The first setting that an exporter or engine does not know, as "model.parallel = True"; None: it knows them all. It knows
        those of the first version, of some of them perhaps only the `choices`; later ones, and models of one stack, only if `known`
        names them (`encoder_layers`: it may be 0)."""
        return first_unknown(self, known, choices or {})

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a setting other than vocab_size: the paper's value."""
        [found] = [f for f in dataclasses.fields(cls) if f.name == name]
        return {} if found.default is dataclasses.MISSING else found.default

    def _stack(self, side: Side) -> StackConfig | None:
        layers = self.encoder_layers if side == "encoder" else self.decoder_layers
        if not layers:
            return None
        values = {**{name: getattr(self, name) for name in STACK_FIELDS}, **getattr(self, side)}
        values["d_head"] = values["d_head"] or values["d_model"] // values["num_heads"]
        values["num_kv_heads"] = values["num_kv_heads"] or values["num_heads"]
        values["rotary_dim"] = values["rotary_dim"] or values["d_head"]
        if values["final_norm"] is None:
            values["final_norm"] = values["norm_position"] == "pre"
        is_decoder, d_embedding = side == "decoder", self.front_settings.d_embedding
        return StackConfig(layers, is_decoder, is_decoder and self.encoder_layers > 0, d_embedding, **values)


def _plain(value: Any) -> Any:
    """A value as JSON and TOML have it: tuples as lists, and a copy of a table."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value

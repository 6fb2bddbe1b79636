"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017): encoder, decoder, one shared embedding matrix.

Shape legend for the repository:

    tokens      all tokens of a packed batch, sequences end to end     src_tokens, tgt_tokens: of one side
    rows        hypotheses that one decoding step advances, sentences * beam
    d_model     width of the residual stream          d_ff      width inside the feed-forward network
    num_heads   query heads    kv_heads  key/value heads    d_head    d_model / num_heads
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import Layout, SequenceLayout
from regard.nn.attention import CrossAttention, Recorder, SelfAttention, init_attention
from regard.nn.block import DecoderLayer, EncoderLayer, FeedForward, make_norm
from regard.nn.cache import CrossCache, DecoderCache, LayerCache, SelfCache
from regard.nn.dropout import Dropout
from regard.nn.embedding import LearnedPositions, NoPositions, SinusoidalPositions
from regard.nn.linear import linear
from regard.nn.slot_cache import SlotAssignment, SlotCache, SlotLayerCache
from regard.settings import StackConfig


def make_positions(config: StackConfig) -> nn.Module:
    """The positional encoding that the config asks for."""
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model)
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return NoPositions()


class Stack(nn.Module):
    """What encoder and decoder share: embeddings scaled by sqrt(d_model), plus positions, dropout on the sum, the layers, and
    with pre-norm a final norm."""

    def __init__(self, config: StackConfig, layers: list[nn.Module]) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.positions = make_positions(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()

    def enter(self, embedded: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Embeddings (tokens, d_model) and positions (tokens,) below `longest` -> the input of the first layer."""
        entered: Tensor = self.dropout(self.positions(embedded * self.scale, positions, longest))
        return entered.to(embedded.dtype)  # the tables may be in float32


class Transformer(nn.Module):
    """An encoder-decoder over packed sequences.

    >>> model = Transformer(ModelConfig(vocab_size=100, d_model=16, d_ff=32, num_heads=2)).eval()
    >>> src, tgt = SequenceLayout.from_lengths([3, 2]), SequenceLayout.from_lengths([2, 4])
    >>> model(torch.randint(100, (5,)), src, torch.randint(100, (6,)), tgt).shape
    torch.Size([6, 100])
    """

    row_tile = 0  # see regard.nn.linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.tie_embeddings:
            self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        else:
            self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
            self.tgt_embedding = nn.Embedding(config.vocab_size, config.d_model)
            self.output = nn.Embedding(config.vocab_size, config.d_model)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None
        encoder, decoder = config.encoder_stack, config.decoder_stack
        if config.unsupported(("output_bias",)) or encoder is None or decoder is None:
            raise NotImplementedError(f"{config.unsupported(('output_bias',))} is not built yet")
        self.encoder = Stack(encoder, [EncoderLayer(encoder) for _ in range(encoder.layers)])
        self.decoder = Stack(decoder, [DecoderLayer(decoder) for _ in range(decoder.layers)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights: Glorot-uniform matrices, normal embeddings of deviation d_model^-0.5, zero biases."""
        for module in self.modules():
            if isinstance(module, (SelfAttention, CrossAttention)):
                init_attention(module)
            elif isinstance(module, FeedForward):
                # A gated layer stores two matrices in one: Glorot for each on its own.
                for block in (*torch.split(module.inner.weight, self.config.d_ff), module.outer.weight):
                    nn.init.xavier_uniform_(block)
                for projection in (module.inner, module.outer):
                    nn.init.zeros_(projection.bias)
            elif isinstance(module, (nn.Embedding, LearnedPositions)):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def embed_source(self, src: Tensor) -> Tensor:
        """(src_tokens,) -> (src_tokens, d_model), not yet scaled."""
        embedded: Tensor = (self.embedding if self.config.tie_embeddings else self.src_embedding)(src)
        return embedded

    def embed_target(self, tgt: Tensor) -> Tensor:
        """(tgt_tokens,) -> (tgt_tokens, d_model), not yet scaled."""
        embedded: Tensor = (self.embedding if self.config.tie_embeddings else self.tgt_embedding)(tgt)
        return embedded

    @property
    def output_matrix(self) -> Tensor:
        """(vocab_size, d_model): turns decoder states into logits; the embedding matrix if the two are tied."""
        return (self.embedding if self.config.tie_embeddings else self.output).weight

    @property
    def output_weight(self) -> Tensor:
        """(vocab_size, d_model), or (vocab_size, d_model + 1) with the output bias as the last column: the loss multiplies it
        with the states of `hidden`."""
        if self.output_bias is None:
            return self.output_matrix
        return torch.cat((self.output_matrix, self.output_bias[:, None]), dim=1)

    def encode(self, src: Tensor, layout: Layout, recorder: Recorder | None = None) -> Tensor:
        """Source ids (src_tokens,) -> memory (src_tokens, d_model)."""
        x = self.encoder.enter(self.embed_source(src), layout.positions, layout.max_length)
        for number, layer in enumerate(self.encoder.layers):
            x = layer(x, layout, f"encoder.{number}", recorder)
        memory: Tensor = self.encoder.final_norm(x)
        return memory

    def decode(
        self,
        tgt_in: Tensor,
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        recorder: Recorder | None = None,
    ) -> Tensor:
        """Target ids (tgt_tokens,) and memory (src_tokens, d_model) -> decoder states (tgt_tokens, d_model), all positions at
        once as in training."""
        x = self.decoder.enter(self.embed_target(tgt_in), layout.positions, layout.max_length)
        for number, layer in enumerate(self.decoder.layers):
            x = layer(x, layout, memory, memory_layout, f"decoder.{number}", recorder)
        hidden: Tensor = self.decoder.final_norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(tokens, d_model) -> (tokens, vocab_size)."""
        return linear(hidden, self.output_matrix, self.output_bias, self.row_tile)

    def hidden(self, src: Tensor, src_layout: Layout, tgt_in: Tensor, tgt_layout: Layout) -> Tensor:
        """Decoder states for the loss, (tgt_tokens, d_model). With an output bias each state ends in a 1, (tgt_tokens, d_model +
        1), to match `output_weight`."""
        states = self.decode(tgt_in, tgt_layout, self.encode(src, src_layout), src_layout)
        return states if self.output_bias is None else nn.functional.pad(states, (0, 1), value=1.0)

    def forward(self, src: Tensor, src_layout: Layout, tgt_in: Tensor, tgt_layout: Layout) -> Tensor:
        """Logits for the token that follows each token of tgt_in, (tgt_tokens, vocab_size)."""
        return self.logits(self.decode(tgt_in, tgt_layout, self.encode(src, src_layout), src_layout))

    def start(self, memory: Tensor, layout: SequenceLayout, beam: int, capacity: int, bucket: int = 8) -> DecoderCache:
        """A cache for decoding these sentences with `beam` hypotheses each; memory is (src_tokens, d_model)."""
        rows = layout.num_sequences * beam
        layers = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            # (src_tokens, 2 kv_heads, d_head) -> twice (src_tokens, kv_heads, d_head)
            k, v = layer.cross_attention.keys_values(memory).chunk(2, dim=1)
            self_cache = SelfCache(rows, k.shape[1], k.shape[2], capacity, like=k)
            layers.append(LayerCache(self_cache, CrossCache(k, v, layout, bucket)))
        return DecoderCache(layers)

    def start_slots(self, slots: int, beam: int, src_capacity: int, tgt_capacity: int) -> SlotCache:
        """An empty cache of fixed shape; `admit` puts sentences into its slots."""
        config = self.config.decoder_stack
        assert config is not None
        return SlotCache(
            config.layers, slots, beam, src_capacity, tgt_capacity, config.kv_heads, config.d_head,
            like=self.output_matrix,
        )  # fmt: skip

    def admit(self, cache: SlotCache, assignment: SlotAssignment, src: Tensor, layout: Layout) -> None:
        """Encode source ids (src_tokens,) and put the sentences into their slots of the cache."""
        memory = self.encode(src, layout)
        keys_values = []
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            keys_values.append(layer.cross_attention.keys_values(memory))
        cache.admit(assignment, layout, keys_values)

    def step(self, tokens: Tensor, cache: DecoderCache | SlotCache) -> Tensor:
        """The newest token of every row, (rows,) -> logits of the next one, (rows, vocab_size)."""
        positions, longest = cache.begin_step()
        x = self.decoder.enter(self.embed_target(tokens), positions, longest)
        layer_caches: Sequence[LayerCache | SlotLayerCache] = cache.layers
        for layer, layer_cache in zip(self.decoder.layers, layer_caches, strict=True):
            assert isinstance(layer, DecoderLayer)
            x = layer.step(x, positions, layer_cache)
        return self.logits(self.decoder.final_norm(x))

    def num_parameters(self) -> int:
        """The number of trainable parameters; a shared matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

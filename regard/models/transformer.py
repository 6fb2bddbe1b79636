"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) and what became of it: a front, an encoder, a decoder and
a head. The paper's model has both stacks and one shared embedding matrix; BERT is an encoder, GPT a decoder.

Shape legend for the repository:

    tokens      all tokens of a packed batch, sequences end to end     src_tokens, tgt_tokens: of one side
    rows        hypotheses that one decoding step advances, sentences * beam
    d_model     width of the residual stream          d_ff      width inside the feed-forward network
    num_heads   query heads    kv_heads  key/value heads    d_head    width of one head, as a rule d_model / num_heads
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import Layout, SequenceLayout
from regard.models.fronts import TokenFront
from regard.models.heads import TokenHead, make_head
from regard.models.initial import draw_weights
from regard.models.stack import Stack
from regard.nn.attention import Recorder
from regard.nn.cache import CrossCache, DecoderCache, LayerCache, SelfCache
from regard.nn.embedding import Embedding
from regard.nn.int8 import Int8Weight
from regard.nn.joint_cache import JointCache
from regard.nn.linear import RowTile, linear
from regard.nn.places import Places
from regard.nn.slot_cache import SlotCache
from regard.nn.step_cache import PromptCache, PromptCrossCache, PromptLayerCache, StepCache

AnyCache = DecoderCache | SlotCache | JointCache  # what a step reads and extends


class Transformer(nn.Module):
    """A model over packed sequences. `encoder` and `decoder` are there if the config has them.

    >>> model = Transformer(ModelConfig(vocab_size=100, d_model=16, d_ff=32, num_heads=2)).eval()
    >>> src, tgt = SequenceLayout.from_lengths([3, 2]), SequenceLayout.from_lengths([2, 4])
    >>> model(torch.randint(100, (5,)), src, torch.randint(100, (6,)), tgt).shape
    torch.Size([6, 100])
    """

    row_tile: RowTile = 0  # see regard.nn.linear
    output_int8: Int8Weight | None = None  # instead of the output matrix (`models/int8.py`)
    encoder: Stack
    decoder: Stack
    embedding: Embedding  # tied, or of one stack; else there are two
    src_embedding: Embedding
    tgt_embedding: Embedding
    output: Embedding  # the output matrix, if it is not the embedding

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        names = ["embedding"]
        if not config.tie_embeddings:
            names = ["src_embedding", "tgt_embedding", "output"] if len(config.stacks) == 2 else ["embedding", "output"]
        for name in names:
            self.add_module(name, Embedding(config.vocab_size, config.front_settings.d_embedding))
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None
        self.front = TokenFront(config.front_settings, config.d_model)
        for side, stack in config.stacks.items():
            self.add_module(side, Stack(stack, side))
        self.head = make_head(config.head_settings, list(config.stacks.values())[-1])
        draw_weights(self, config)

    @property
    def stacks(self) -> list[Stack]:
        """The stacks that there are, the encoder first."""
        return [
            stack for stack in (self._modules.get(side) for side in ("encoder", "decoder")) if isinstance(stack, Stack)
        ]

    def embed_source(self, src: Tensor) -> Tensor:
        """(src_tokens,) -> (src_tokens, d_embedding), not yet scaled."""
        embedded: Tensor = (self.src_embedding if self._has_three else self.embedding)(src)
        return embedded

    def embed_target(self, tgt: Tensor) -> Tensor:
        """(tgt_tokens,) -> (tgt_tokens, d_embedding), not yet scaled."""
        embedded: Tensor = (self.tgt_embedding if self._has_three else self.embedding)(tgt)
        return embedded

    @property
    def _has_three(self) -> bool:
        return not self.config.tie_embeddings and len(self.config.stacks) == 2

    @property
    def output_matrix(self) -> Tensor:
        """(vocab_size, d_model): turns the last states into logits; the embedding matrix if the two are tied."""
        self._token_head()
        return (self.embedding if self.config.tie_embeddings else self.output).weight

    @property
    def output_weight(self) -> Tensor:
        """(vocab_size, d_model), or (vocab_size, d_model + 1) with the output bias as the last column: the loss multiplies it
        with the states of `hidden`."""
        if self.output_bias is None:
            return self.output_matrix
        return torch.cat((self.output_matrix, self.output_bias[:, None]), dim=1)

    def _token_head(self) -> TokenHead:
        if not isinstance(self.head, TokenHead):
            raise ValueError(f"a model with a head of kind {self.config.head_settings.kind!r} has no logits of tokens")
        return self.head

    def encode(
        self, src: Tensor, layout: Layout, recorder: Recorder | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """Ids (src_tokens,), and their types if the model has some -> memory (src_tokens, d_model)."""
        return self.encode_embedded(self.embed_source(src), layout, recorder, token_types)

    def encode_embedded(
        self, embedded: Tensor, layout: Layout, recorder: Recorder | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """What `embed_source` returned, or vectors in its place -> memory (src_tokens, d_model)."""
        embedded = self.front.add_types(embedded, token_types)
        x = self.front.project(self.encoder.enter(embedded, layout.positions, layout.max_length))
        memory: Tensor = self.encoder(x, layout, recorder=recorder)
        return memory

    def decode(
        self, tgt_in: Tensor, layout: Layout, memory: Tensor | None = None, memory_layout: Layout | None = None,
        recorder: Recorder | None = None,
    ) -> Tensor:  # fmt: skip
        """Target ids (tgt_tokens,) and, if there is an encoder, memory (src_tokens, d_model) -> decoder states (tgt_tokens,
        d_model), all positions at once as in training."""
        x = self.decoder.enter(self.embed_target(tgt_in), layout.positions, layout.max_length)
        states: Tensor = self.decoder(x, layout, memory, memory_layout, recorder)
        return states

    def states(
        self, ids: Tensor, layout: Layout, tgt_in: Tensor | None = None, tgt_layout: Layout | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The last states, (tokens, d_model), of all that the model has: source and target with two stacks, else the one text."""
        if len(self.config.stacks) == 1:
            if tgt_in is not None:
                raise ValueError("a model of one stack takes one text; give ids and layout alone")
            return (
                self.encode(ids, layout, None, token_types) if self.config.encoder_layers else self.decode(ids, layout)
            )
        if tgt_in is None or tgt_layout is None:
            raise ValueError("a model of two stacks takes source and target; give tgt_in and tgt_layout, too")
        return self.decode(tgt_in, tgt_layout, self.encode(ids, layout, None, token_types), layout)

    def logits(self, states: Tensor) -> Tensor:
        """(tokens, d_model) -> (tokens, vocab_size)."""
        if self.output_int8 is not None:
            return self.output_int8(self._token_head()(states), self.output_bias)
        return linear(self._token_head()(states), self.output_matrix, self.output_bias, self.row_tile)

    def hidden(
        self, ids: Tensor, layout: Layout, tgt_in: Tensor | None = None, tgt_layout: Layout | None = None,
        token_types: Tensor | None = None, rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """States for the loss, (tokens, d_model): what `output_weight` is multiplied with. With an output bias each ends in a 1,
        (tokens, d_model + 1), to match it. With `rows`, (labels,), only those go through the head."""
        states = self.states(ids, layout, tgt_in, tgt_layout, token_types)
        states = self._token_head()(states if rows is None else states.index_select(0, rows))
        return states if self.output_bias is None else nn.functional.pad(states, (0, 1), value=1.0)

    def forward(
        self, ids: Tensor, layout: Layout, tgt_in: Tensor | None = None, tgt_layout: Layout | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """What the head says: logits for each token, (tokens, vocab_size), of a decoder for the one that follows; or classes, tags,
        vectors (`heads.py`)."""
        states = self.states(ids, layout, tgt_in, tgt_layout, token_types)
        kind = self.config.head_settings.kind
        if kind == "tokens":
            return self.logits(states)
        answer: Tensor = states if kind == "none" else self.head(states, layout)
        return answer

    def start(self, memory: Tensor, layout: SequenceLayout, beam: int, capacity: int, bucket: int = 8) -> DecoderCache:
        """A cache for decoding these sentences with `beam` hypotheses each; memory is (src_tokens, d_model)."""
        nothing = SequenceLayout.from_lengths([0] * layout.num_sequences, layout.device)
        return self.prefill(layout.positions[:0], nothing, beam, capacity, bucket, memory, layout)

    def prefill(
        self, ids: Tensor, layout: SequenceLayout, beam: int, capacity: int, bucket: int = 8,
        memory: Tensor | None = None, memory_layout: SequenceLayout | None = None,
    ) -> DecoderCache:  # fmt: skip
        """A cache that has read a prompt for each sentence, ids (tokens,), all at once and each only once for its `beam` rows;
        `capacity` tokens of each row may follow before it grows. Memory is given if there is an encoder."""
        places = Places(list(layout.lengths), beam, bucket, layout.device)
        x = self.decoder.enter(self.embed_target(ids), layout.positions, layout.max_length)
        layers = []
        for layer in self.decoder.sequence:
            attention = layer.self_attention
            cache = LayerCache(SelfCache(places, attention.kv_heads, attention.d_head, capacity, like=x))
            keep = partial(cache.self_attention.keep_prompts, layout)
            reading = PromptLayerCache(PromptCache(layout, attention.kernel, keep))
            if memory is not None and memory_layout is not None:
                # (src_tokens, 2 kv_heads, d_head) -> twice (src_tokens, kv_heads, d_head)
                k, v = layer.cross_attention.keys_values(memory).chunk(2, dim=1)
                cache.cross_attention = CrossCache(k, v, memory_layout, bucket)
                reading.cross_attention = PromptCrossCache(k, v, layout, memory_layout, attention.kernel)
            if layout.num_tokens:
                x = layer.step(x, layout.positions, reading, self.decoder.relative)
            layers.append(cache)
        return DecoderCache(layers, places)

    def step(self, tokens: Tensor, cache: AnyCache, counts: Sequence[int] | None = None) -> Tensor:
        """The newest token of every row, (rows,) -> logits of the next one, (rows, vocab_size). With counts it is several tokens:
        `counts[n]` of each row of sentence n, packed row by row, (tokens,) -> (tokens, vocab_size)."""
        return self.logits(self.decoder.final_norm(self.read(tokens, cache, counts)))

    def read(self, tokens: Tensor, cache: AnyCache, counts: Sequence[int] | None = None) -> Tensor:
        """A step that does not ask what comes next: the states after the last layer, (tokens, d_model)."""
        positions, longest = cache.begin_step(counts)
        x = self.decoder.enter(self.embed_target(tokens), positions, longest)
        layer_caches: Sequence[StepCache] = cache.layers
        for layer, layer_cache in zip(self.decoder.sequence, layer_caches, strict=True):
            x = layer.step(x, positions, layer_cache, self.decoder.relative)
        return x

    def num_parameters(self) -> int:
        """The number of trainable parameters; a shared matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

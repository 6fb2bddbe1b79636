"""A stack: layers of the same shape, what enters the first of them, and what leaves the last."""

from __future__ import annotations

import math

from torch import Tensor, nn

from regard.layout import Layout
from regard.nn.attention import Recorder
from regard.nn.block import Layer, make_norm
from regard.nn.dropout import Dropout
from regard.nn.embedding import LearnedPositions, NoPositions, SinusoidalPositions
from regard.nn.relative import RelativePositions
from regard.settings import Side, StackConfig


def make_positions(config: StackConfig) -> nn.Module:
    """The positional encoding that is added to embeddings."""
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_embedding)
    if config.positions == "learned":
        return LearnedPositions(config.d_embedding, config.max_positions, config.position_offset)
    return NoPositions()


class Stack(nn.Module):
    """An encoder or a decoder. Embeddings enter: scaled by sqrt(d_model), plus positions, a norm if configured, dropout on the sum.
    The layers follow, and with pre-norm a final norm."""

    relative: RelativePositions | None

    def __init__(self, config: StackConfig, side: Side) -> None:
        super().__init__()
        self.config, self.side = config, side
        self.scale = math.sqrt(config.d_model) if config.embedding_scale else None
        self.positions = make_positions(config)
        self.relative = RelativePositions(config) if config.positions == "relative" else None
        self.embedding_norm = make_norm(config, config.d_embedding) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(1 if config.share_layers else config.layers))
        self.final_norm = make_norm(config) if config.final_norm else nn.Identity()

    @property
    def sequence(self) -> list[Layer]:
        """The layers in the order in which they run; a shared one runs several times."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        return layers * (self.config.layers // len(layers))

    def enter(self, embedded: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Embeddings (tokens, d_model) and positions (tokens,) below `longest` -> the input of the first layer."""
        scaled = embedded if self.scale is None else embedded * self.scale
        entered: Tensor = self.dropout(self.embedding_norm(self.positions(scaled, positions, longest)))
        return entered.to(embedded.dtype)  # the tables may be in float32

    def forward(
        self, x: Tensor, layout: Layout, memory: Tensor | None = None, memory_layout: Layout | None = None,
        recorder: Recorder | None = None,
    ) -> Tensor:  # fmt: skip
        """What `enter` returned -> the output of the last layer, (tokens, d_model), all positions at once as in training."""
        layers, names = self.sequence, (f"{self.side}.{number}" for number in range(self.config.layers))
        following: list[nn.Module | None] = [None] * len(layers)
        normed: Tensor | None = None
        if layers[0].chains and self.config.final_norm:
            following = [*(layer.self_residual.norm for layer in layers[1:]), self.final_norm]
            normed = layers[0].self_residual.norm(x)
        for layer, name, norm in zip(layers, names, following, strict=True):
            x, normed = layer(x, layout, memory, memory_layout, self.relative, name, recorder, normed, norm)
        output: Tensor = self.final_norm(x) if normed is None else normed
        return output

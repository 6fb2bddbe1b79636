"""Heads: what turns the last vectors of a model into an answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layout import Layout
from regard.nn.activations import activate
from regard.nn.block import make_norm
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear
from regard.settings import HeadConfig, StackConfig


class TokenHead(nn.Module):
    """Logits of tokens. The matrix itself is the model's, since it may be the embedding; here is what comes before it: BERT's
    transform, and a scale of the logits. The paper's model has neither."""

    def __init__(self, config: HeadConfig, stack: StackConfig) -> None:
        super().__init__()
        self.scale, self.activation = config.logit_scale, stack.activation
        self.transform = Linear(stack.d_model, stack.d_embedding) if config.transform else None
        self.transform_norm = make_norm(stack, stack.d_embedding) if config.transform else None

    def forward(self, hidden: Tensor) -> Tensor:
        """(tokens, d_model) -> what the output matrix is multiplied with, (tokens, d_embedding)."""
        if self.transform is not None and self.transform_norm is not None:
            hidden = self.transform_norm(activate(self.transform(hidden), self.activation))
        return hidden if self.scale == 1.0 else hidden * self.scale


class SequenceHead(nn.Module):
    """A vector for each sequence (`vector`), and logits of classes computed from it (`classes`)."""

    def __init__(self, config: HeadConfig, stack: StackConfig) -> None:
        super().__init__()
        self.pooling, self.normalize = config.pooling, config.normalize
        self.pooler = Linear(stack.d_model, stack.d_model) if config.pooling == "tanh-first" else None
        self.dropout = Dropout(config.dropout)
        self.output = Linear(stack.d_model, len(config.labels)) if config.kind == "classes" else None

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(tokens, d_model) -> (sequences, d_model), or (sequences, classes)."""
        return self.finish(self.pooled(hidden, layout))

    def pooled(self, hidden: Tensor, layout: Layout) -> Tensor:
        """One vector for each sequence, before it is scaled or classes are computed from it."""
        pooled = pool(hidden, layout, is_mean=self.pooling == "mean")
        return pooled if self.pooler is None else torch.tanh(self.pooler(pooled))

    def finish(self, pooled: Tensor) -> Tensor:
        """The answer from what `pooled` returns."""
        if self.output is not None:
            logits: Tensor = self.output(self.dropout(pooled))
            return logits
        return F.normalize(pooled, dim=-1) if self.normalize else pooled


class TagHead(nn.Module):
    """Logits of tags for each token."""

    def __init__(self, config: HeadConfig, stack: StackConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = Linear(stack.d_model, len(config.labels))

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(tokens, d_model) -> (tokens, tags)."""
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


def pool(hidden: Tensor, layout: Layout, is_mean: bool) -> Tensor:
    """The mean of each sequence's vectors, or its first: (tokens, d_model) -> (sequences, d_model). An empty
    sequence gets zeros."""
    ids = layout.sequence_ids.long()
    ids = torch.where(ids < 0, layout.num_sequences, ids)  # empty rows of a SlotLayout go to a row that is thrown away
    counted = torch.ones_like(ids) if is_mean else (layout.positions == 0).long()
    counts = ids.new_zeros(layout.num_sequences + 1).index_add(0, ids, counted)
    share = counted / counts.clamp(min=1)[ids]
    # In bf16 the sum of many small shares would lose most of its digits.
    wide = torch.promote_types(hidden.dtype, torch.float32)
    sums = hidden.new_zeros(layout.num_sequences + 1, hidden.shape[1], dtype=wide)
    return sums.index_add(0, ids, hidden.to(wide) * share[:, None].to(wide))[:-1].to(hidden.dtype)


def make_head(config: HeadConfig, stack: StackConfig) -> nn.Module:
    """The head that the config asks for."""
    if config.kind == "tokens":
        return TokenHead(config, stack)
    if config.kind == "tags":
        return TagHead(config, stack)
    return SequenceHead(config, stack) if config.kind in ("classes", "vector") else nn.Identity()

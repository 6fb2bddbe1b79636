"""Fronts: what turns input into vectors, beside the embedding matrix, which the head may share."""

from __future__ import annotations

from torch import Tensor, nn

from regard.nn.embedding import Embedding
from regard.nn.linear import Linear
from regard.settings import FrontConfig


class TokenFront(nn.Module):
    """Token ids: a vector for each kind of token, as for BERT's segments, and a projection from embeddings that are narrower than
    the model, as in ALBERT. The paper's model has neither."""

    def __init__(self, config: FrontConfig, d_model: int) -> None:
        super().__init__()
        self.token_types = Embedding(config.token_types, config.d_embedding) if config.token_types else None
        self.projection = Linear(config.d_embedding, d_model) if config.d_embedding != d_model else None

    def add_types(self, embedded: Tensor, token_types: Tensor | None) -> Tensor:
        """Embeddings (tokens, d_embedding) plus the vectors of their types (tokens,); without types, all are of type 0."""
        if self.token_types is None:
            if token_types is not None:
                raise ValueError("token_types are given, but model.front.token_types is 0")
            return embedded
        types = self.token_types.weight[0] if token_types is None else self.token_types(token_types)
        return embedded + types

    def project(self, entered: Tensor) -> Tensor:
        """(tokens, d_embedding) -> (tokens, d_model)."""
        return entered if self.projection is None else self.projection(entered)

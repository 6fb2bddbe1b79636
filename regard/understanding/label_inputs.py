"""What classifiers and taggers share: how texts with labels reach an engine."""

from __future__ import annotations

from collections.abc import Sequence

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.generate.encoding import EncoderEngine, EncoderInput

Framed = tuple[Sequence[int], Sequence[int]]  # ids with their frame, and their types


def longest_input(bundle: Bundle, engine: EncoderEngine) -> int:
    """Tokens of an input, its frame included."""
    return min(engine.max_length, bundle.config.longest or engine.max_length)


def as_input(config: ModelConfig, framed: Framed) -> EncoderInput:
    """Only models with several token types read them."""
    ids, types = framed
    return EncoderInput(ids, types if config.front_settings.token_types > 1 else ())

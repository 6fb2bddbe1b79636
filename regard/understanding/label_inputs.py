"""What classifiers and taggers share: how texts with labels reach an engine."""

from __future__ import annotations

from collections.abc import Sequence

from regard.bundle import Bundle
from regard.generate.encoding import EncoderEngine, EncoderInput

Framed = tuple[Sequence[int], Sequence[int]]  # ids with their frame, and their types


def longest_input(bundle: Bundle, engine: EncoderEngine) -> int:
    """Tokens of an input, its frame included."""
    return min(engine.max_length, bundle.config.longest or engine.max_length)


def as_input(bundle: Bundle, framed: Framed) -> EncoderInput:
    """The types are for models that have more than one."""
    ids, types = framed
    return EncoderInput(ids, types if bundle.config.front_settings.token_types > 1 else ())

"""Bounds of numbers that come from files, commands and requests, checked before anything is built or allocated. They are far beyond
every model that Regard has seen; what they keep out is a damaged or hostile value that would fill the memory or never end."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from regard.errors import UserError
from regard.escaping import shorten

MAX_VOCABULARY = 10_000_000  # pieces
MAX_DIRECTIONS = 1_000  # of a translation model
MOST_TARGETS = 31  # target languages of a model for several directions; each has a reserved piece
MAX_WORKERS = 1_024  # processes that prepare text
MAX_BEAM = 10_000  # an engine may allow fewer: see `generate/engines/batches.py`
MAX_BATCH = 65_536  # sentences that are searched together
MAX_EXTRA = 10_000  # tokens by which an output may exceed its source
MAX_LENGTH = 100_000  # tokens of a segment
MAX_REQUIRED = 1_000  # tokens of a sentence's prefix, phrases and glossary terms
MAX_TERM = 1_000  # characters of either side of a glossary term
MAX_ALPHA = 9.0  # the length penalty of the longest output stays finite in float32: ((5 + 110,000) / 6)^9 = 2e38
MAX_PENALTY = 1_000.0  # of coverage and of diversity
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 1_000.0  # beyond them logits overflow, or all tokens are equally likely
MAX_LABEL = 100  # characters of a language label


def check_whole(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Refuse what is not a whole number between two bounds; true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, but is {shorten(value)}")
    _check_range(name, value, least, most)


def check_number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Refuse what is not a finite number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} must be a number, but is {shorten(value)}")
    if not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, but is {value}")
    _check_range(name, value, least, most)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, but is {shorten(value)}")


def check_label(name: str, value: Any) -> None:
    """Refuse what cannot be the name of a language or side: labels go into file names, pages and logs."""
    is_label = isinstance(value, str) and value not in ("", ".", "..") and not set(value) & set("/\\")
    if not is_label or not value.isprintable() or len(value) > MAX_LABEL:
        raise UserError(
            f"{name} must be a language code or a label that fits into a file name, but is {shorten(value)}"
        )


def _check_range(name: str, value: Any, least: float, most: float) -> None:
    if value < least:
        rule = "must not be negative" if least == 0 else f"must be at least {least:,}"
        raise UserError(f"{name} {rule}, but is {shorten(value)}")
    if value > most:
        raise UserError(f"{name} must be at most {most:,}, but is {shorten(value)}")

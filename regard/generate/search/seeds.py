"""The random numbers of samples. Imports no torch."""

from __future__ import annotations

import random
from collections.abc import Sequence


def sentence_rng(seed: int, src: Sequence[int]) -> random.Random:
    """The random number generator of one sentence."""
    return random.Random(f"{seed} {' '.join(map(str, src))}")

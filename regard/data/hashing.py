"""Random numbers from numbers: the same on every machine, whatever was drawn before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array, IntArray

UInt64Array = NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)  # between the numbers of neighbouring places


def mix(values: UInt64Array) -> UInt64Array:
    """Numbers whose bits all depend on all bits of the values (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniform(values: UInt64Array) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sequence_hashes(ids: IntArray, lengths: Int64Array) -> UInt64Array:
    """A number for each of some sequences, end to end: equal for equal ones, and for others hardly ever.

    >>> a, b, c = sequence_hashes(np.array([5, 6, 6, 5, 5, 6]), np.array([2, 2, 2])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    ends = lengths.cumsum()
    place = np.arange(len(ids)) - np.repeat(ends - lengths, lengths)
    mixed = mix(np.asarray(ids).astype(np.uint64) + (place.astype(np.uint64) + np.uint64(1)) * STEP)
    sums = np.concatenate([np.zeros(1, np.uint64), mixed.cumsum(dtype=np.uint64)])
    found: UInt64Array = sums[ends] - sums[ends - lengths]
    return found

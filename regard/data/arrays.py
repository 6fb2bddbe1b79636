"""Names for the integer arrays that the data modules pass around."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer[Any]]  # any width: ids come as stored, uint16 or uint32
Int64Array = NDArray[np.int64]  # indices, lengths, offsets
PairArrays = tuple[NDArray[Any], Int64Array, NDArray[Any], Int64Array]  # src ids, src lengths, tgt ids, tgt lengths

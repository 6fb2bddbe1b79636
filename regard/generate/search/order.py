"""The order of tokens, which every engine of this project follows on a CPU: likeliest first, and of equally likely ones the lower
id first. `topk` and `argpartition` promise no order among equals, nor which of them they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def likeliest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of (..., V) and their places, both (..., count), in this order; values of -inf may come in any
    order. On a GPU, if the last value occurs more often than it fits in, any of its places may be returned, not only the lowest:
    to choose, the host would have to wait for the GPU at each step."""
    if count >= values.shape[-1]:
        ordered, places = values.sort(dim=-1, descending=True, stable=True)
        return ordered, places
    # Sorting all is slow. Of the largest, those that are equal are put in order; only if the last place falls among equals, others
    # of them may have a lower id.
    best, places = values.topk(count + 1, dim=-1)
    last, after = best[..., -2], best[..., -1]
    places, by_id = places[..., :-1].sort(dim=-1)
    best, by_value = best[..., :-1].gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    places = places.gather(-1, by_value)
    if values.device.type == "cpu":
        is_cut = (after == last) & after.isfinite()
        if bool(is_cut.any()):
            places[is_cut] = values[is_cut].sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return best, places


def likeliest_places(values: NDArray[Any], count: int) -> NDArray[Any]:
    """The places of the `count` largest values of (V,), in the order of `likeliest`, with numpy."""
    if count < len(values):
        chosen = np.argpartition(values, len(values) - count)[len(values) - count :]
        last = values[chosen].min()
        if not np.isfinite(last) or np.count_nonzero(values == last) == np.count_nonzero(values[chosen] == last):
            return chosen[np.lexsort((chosen, -values[chosen]))]
    return np.argsort(-values, kind="stable")[:count]

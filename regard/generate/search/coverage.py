"""The coverage penalty of Wu et al. (2016): a finished translation loses score for source tokens that got little attention.

    cp(X; Y) = beta * sum over source tokens i of log(min(sum over target tokens j of p_ij, 1))

p_ij are the cross-attention weights of the last decoder layer but one, averaged over its heads; the source's end token does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_ATTENTION = 1e-6  # without it, a token that got none would cost infinitely much


def start_attended(lengths: Sequence[int], beam: int, device: torch.device) -> Tensor:
    """The attention that each source token has received before the first step, (units, beam, longest): none. Padding counts as
    fully attended."""
    longest = max(lengths, default=0)
    padding = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
    return padding.float()[:, None, :].expand(-1, beam, -1).contiguous()


def coverage_penalty(attended: Tensor, beta: float) -> Tensor:
    """Attention received by each source token, (..., K) -> penalties (...), which are negative or 0.

    >>> coverage_penalty(torch.tensor([2.0, 0.5]), 0.2).item()  # 0.2 * log(0.5)
    -0.13862943649291992
    """
    return beta * attended.clamp(MIN_ATTENTION, 1.0).log().sum(dim=-1)

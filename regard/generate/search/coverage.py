"""The coverage penalty of Wu et al. (2016): a finished translation loses points for source tokens that were hardly attended to.

    cp(X; Y) = beta * sum over source tokens i of log(min(sum over target tokens j of p_ij, 1))

p_ij are the cross-attention weights of the last decoder layer but one, averaged over its heads; the end of the source
does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST = 1e-6  # what was never attended to would cost infinitely much


def start_attended(lengths: Sequence[int], beam: int, device: torch.device) -> Tensor:
    """(S, B, K) what each source token has got so far: nothing; places after the end of a source have all they need."""
    longest = max(lengths, default=0)
    over = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
    return over.float()[:, None, :].expand(-1, beam, -1).contiguous()


def coverage_penalty(attended: Tensor, beta: float) -> Tensor:
    """(..., K) -> (...)

    >>> coverage_penalty(torch.tensor([2.0, 0.5]), 0.2).item()  # 0.2 * log(0.5)
    -0.13862943649291992
    """
    return beta * attended.clamp(LEAST, 1.0).log().sum(dim=-1)

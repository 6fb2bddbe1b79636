"""The loss of vectors for texts: of all texts in a batch, the one that means the same must be the nearest.

    logits = cosine(first_i, second_j) / temperature          loss = cross-entropy of j = i given i, and of i = j given j

So the other pairs of the batch are the negatives (InfoNCE; van den Oord et al., 2018), in both directions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.models.loss import Loss


def contrastive_loss(vectors: Tensor, groups: Tensor, scale: Tensor) -> Loss:
    """The sum over all pairs and both directions, from the vectors of both texts of each pair, (pairs, 2, d_model).

    Equal texts have the same number in `groups`, (pairs, 2). Pairs that share a text are no negatives of each other: another
    translation of a sentence is not wrong. A pair of -1 is empty and counts nothing. `scale` is 1 / temperature.
    """
    unit = functional.normalize(vectors.float(), dim=-1)
    # (pairs, d_model) @ (d_model, pairs): row i has the cosines of first text i
    logits = scale * (unit[:, 0] @ unit[:, 1].t())
    pairs = groups.shape[0]
    used = groups[:, 0] >= 0
    hidden = (groups[:, None] == groups[None]).any(dim=-1) | ~used[:, None] | ~used[None]
    # The pair itself always stays, of an empty one so that no row is without numbers.
    hidden &= ~torch.eye(pairs, dtype=torch.bool, device=groups.device)
    logits = logits.masked_fill(hidden, -torch.inf)
    forward, backward = torch.logsumexp(logits, dim=1), torch.logsumexp(logits, dim=0)
    total = ((forward + backward - 2.0 * logits.diagonal()) * used).sum()
    return Loss(total, total.detach(), 2 * pairs)

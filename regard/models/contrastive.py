"""The contrastive loss of text vectors: of all texts in a batch, the one that means the same must be the nearest.

    logits[i, j] = cosine(first_i, second_j) / temperature          the right column of row i is i, the right row of column j is j

The loss is the cross-entropy over rows and over columns, so the other pairs of the batch are the negatives (InfoNCE; van den Oord
et al., 2018). Divided by its count it is sentence-transformers' MultipleNegativesSymmetricRankingLoss with scale = 1 / temperature,
except where pairs share a text.

An encoder learns another language and forgets little (after Reimers and Gurevych, 2020): the vectors of the language that it knows
are also held near where they were, and so those of the other are drawn there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.models.loss import Loss

# How much a squared distance counts beside the two cross-entropies of a pair. With it the built-in encoder learnt German
# (recipes/builtin/encoder.toml); what that cost is in docs/results.md.
ANCHOR = 5.0


def contrastive_loss(vectors: Tensor, groups: Tensor, scale: Tensor) -> Loss:
    """The sum over all pairs and both directions, from the vectors of both texts of each pair, (pairs, 2, d_model).

    Equal texts have the same number in `groups`, (pairs, 2), whichever side they are on. Pairs that share a text are no negatives
    of each other: another translation of a sentence is not wrong. A pair of -1 is empty and adds nothing. `scale` is
    1 / temperature.
    """
    unit = functional.normalize(vectors.float(), dim=-1)
    # (pairs, d_model) @ (d_model, pairs): row i has the cosines of first text i
    logits = scale * (unit[:, 0] @ unit[:, 1].t())
    pairs = groups.shape[0]
    used = groups[:, 0] >= 0
    # (pairs, 1, 2, 1) == (1, pairs, 1, 2): either text of one pair and either text of the other
    shared = (groups[:, None, :, None] == groups[None, :, None]).flatten(2).any(dim=-1)
    hidden = shared | ~used[:, None] | ~used[None]
    # The diagonal stays, also that of empty pairs: a row of nothing but -inf would give NaN.
    hidden &= ~torch.eye(pairs, dtype=torch.bool, device=groups.device)
    logits = logits.masked_fill(hidden, -torch.inf)
    forward, backward = torch.logsumexp(logits, dim=1), torch.logsumexp(logits, dim=0)
    total = ((forward + backward - 2.0 * logits.diagonal()) * used).sum()
    return Loss(total, total.detach(), 2 * pairs)


def anchor_loss(vectors: Tensor, before: Tensor, groups: Tensor) -> Tensor:
    """The sum over all pairs of how far one text has moved: ANCHOR times the squared distance between its vector and that of the
    model before, both (pairs, d_model) and scaled to length 1. `groups` as above."""
    moved = functional.normalize(vectors.float(), dim=-1) - functional.normalize(before.float(), dim=-1)
    return ANCHOR * (moved.square().sum(dim=-1) * (groups[:, 0] >= 0)).sum()

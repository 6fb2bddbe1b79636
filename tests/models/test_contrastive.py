"""The contrastive loss against torch's cross-entropy, pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.models.contrastive import ANCHOR, anchor_loss, contrastive_loss

SCALE = torch.tensor(20.0)


def vectors_of(pairs: int, seed: int = 0) -> Tensor:
    return torch.randn(pairs, 2, 8, generator=torch.Generator().manual_seed(seed))


def distinct(pairs: int) -> Tensor:
    return torch.arange(2 * pairs).view(pairs, 2)


def test_the_loss_is_the_symmetric_cross_entropy_over_scaled_cosines() -> None:
    # sentence-transformers' MultipleNegativesSymmetricRankingLoss, as documented: scores = cos_sim(a, b) * scale, and the mean of
    # CrossEntropyLoss(scores, range(n)) and CrossEntropyLoss(scores.T, range(n)).
    vectors = vectors_of(7).requires_grad_()
    scores = functional.cosine_similarity(vectors[:, None, 0], vectors[None, :, 1], dim=-1) * 20.0
    right = torch.arange(7)
    wanted = (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.t(), right)) / 2
    loss = contrastive_loss(vectors, distinct(7), SCALE)
    assert loss.count == 14 and float(loss.total.detach()) / loss.count == pytest.approx(float(wanted.detach()))
    assert float(loss.nll) == float(loss.total.detach()) and not loss.nll.requires_grad
    found, expected = (torch.autograd.grad(one, vectors)[0] for one in (loss.total / loss.count, wanted))
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("shared", ["first", "second", "across", "both"])
def test_pairs_that_share_a_text_are_no_negatives_of_each_other(shared: str) -> None:
    vectors, groups = vectors_of(5), distinct(5)
    # Pairs 1 and 3 share a text. Across: the first text of pair 1 is the second of pair 3, as in a chain of paraphrases.
    for left, right in {"first": [(0, 0)], "second": [(1, 1)], "across": [(0, 1)], "both": [(0, 0), (1, 1)]}[shared]:
        vectors[3, right], groups[3, right] = vectors[1, left], groups[1, left]
    unit = functional.normalize(vectors, dim=-1)
    logits = 20.0 * unit[:, 0] @ unit[:, 1].t()
    total = 0.0
    for n in range(5):
        others = [m for m in range(5) if {n, m} != {1, 3}]  # n itself included
        total += float(logits[n, others].logsumexp(0) + logits[others, n].logsumexp(0) - 2 * logits[n, n])
    assert float(contrastive_loss(vectors, groups, SCALE).total) == pytest.approx(total, rel=1e-5)


def test_empty_pairs_add_nothing_and_are_no_negatives() -> None:
    vectors = vectors_of(6)
    vectors[4] = 0.0
    vectors.requires_grad_()
    groups = distinct(6)
    groups[4:] = -1
    loss = contrastive_loss(vectors, groups, SCALE)
    alone = contrastive_loss(vectors[:4], groups[:4], SCALE)
    assert float(loss.total.detach()) == pytest.approx(float(alone.total.detach()))
    gradient = torch.autograd.grad(loss.total, vectors)[0]
    assert gradient.isfinite().all() and not gradient[4:].any() and gradient[:4].any()
    nothing = contrastive_loss(vectors, torch.full_like(groups, -1), SCALE)
    assert float(nothing.total.detach()) == 0.0
    assert not torch.autograd.grad(nothing.total, vectors)[0].any()


def test_an_anchor_is_the_squared_distance_of_unit_vectors() -> None:
    # sentence-transformers' MSELoss, as documented: the mean over all numbers of both vectors.
    vectors, before, groups = vectors_of(6)[:, 0].requires_grad_(), 3.0 * vectors_of(6, seed=1)[:, 0], distinct(6)
    unit, held = functional.normalize(vectors, dim=-1), functional.normalize(before, dim=-1)
    found = anchor_loss(vectors, before, groups)
    assert float(found.detach()) == pytest.approx(ANCHOR * 6 * 8 * float(functional.mse_loss(unit, held).detach()))
    assert float(found.detach()) == pytest.approx(
        ANCHOR * float((2 - 2 * (unit * held).sum(-1)).sum().detach()), rel=1e-5
    )
    groups[4:] = -1  # empty pairs
    alone = anchor_loss(vectors[:4], before[:4], groups[:4])
    assert float(anchor_loss(vectors, before, groups).detach()) == pytest.approx(float(alone.detach()))
    assert float(anchor_loss(5.0 * held, before, distinct(6))) == pytest.approx(0.0, abs=1e-6)

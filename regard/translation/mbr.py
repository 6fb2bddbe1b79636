"""Minimum Bayes risk reranking (Kumar and Byrne, 2004): of several translations the one most similar to all the others by a metric
such as chrF, which need not be the likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]  # (translation, reference) -> score


def by_expected_utility(texts: Sequence[str], utility: Utility, weights: Sequence[float] = ()) -> list[int]:
    """The indices of translations, best first by expected utility, with each translation as the reference in turn, weighted by
    `weights`; without them, as for samples, all weigh the same. Ties keep their order.

    >>> by_expected_utility(["x", "ab", "abc"], lambda one, other: len(set(one) & set(other)))
    [2, 1, 0]
    >>> by_expected_utility(["x", "ab", "abc"], lambda one, other: len(set(one) & set(other)), [8.0, 1.0, 1.0])
    [0, 2, 1]
    """
    known: dict[tuple[str, str], float] = {}

    def worth(one: str, other: str) -> float:
        if (one, other) not in known:
            known[one, other] = utility(one, other)
        return known[one, other]

    weights = weights or [1.0] * len(texts)
    totals = [sum(weight * worth(one, other) for other, weight in zip(texts, weights, strict=True)) for one in texts]
    return sorted(range(len(texts)), key=lambda place: (-totals[place], place))

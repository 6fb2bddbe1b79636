"""Minimum Bayes risk (Kumar and Byrne, 2004): of several translations the one that is most like all the others, by a measure
such as chrF. What is most like is not what is likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]  # of a translation, if the other text were the right one


def by_expected_utility(texts: Sequence[str], utility: Utility, weights: Sequence[float] = ()) -> list[int]:
    """The places of translations, best first: by what each is worth on average, if any of them were right, each as likely as its
    weight says. Without weights, as with samples, all are as likely. Equals stay in their order.

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

"""Minimum Bayes risk (Kumar and Byrne, 2004): of several translations the one that is most like all the others, by a measure
such as chrF. What is most like is not what is likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]  # of a translation, if the other text were the right one


def by_expected_utility(texts: Sequence[str], utility: Utility) -> list[int]:
    """The places of translations, best first: by what each is worth on average, if any of the others were right. Equals stay in
    their order. A text that is there twice counts twice.

    >>> by_expected_utility(["x", "ab", "abc"], lambda one, other: len(set(one) & set(other)))
    [1, 2, 0]
    """
    known: dict[tuple[str, str], float] = {}

    def worth(one: str, other: str) -> float:
        if (one, other) not in known:
            known[one, other] = utility(one, other)
        return known[one, other]

    totals = [sum(worth(one, other) for n, other in enumerate(texts) if n != m) for m, one in enumerate(texts)]
    return sorted(range(len(texts)), key=lambda place: (-totals[place], place))

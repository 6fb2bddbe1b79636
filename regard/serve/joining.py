"""Results joined from what the batcher found. Where a translation has lost a word that must be kept, joining it takes more
searches. They go through the batcher, too: so they are counted, take turns with all others, and are given up with their request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from regard.generate.options import Constraints, Engine, Finished, Hypothesis, Matrix, SearchOptions
from regard.translation.constraints import TextConstraints
from regard.translation.reading import Part
from regard.translation.translator import Result, Translator

Known = TypeVar("Known")
Run = Callable[[Callable[[], list[Result]]], Awaitable[list[Result]]]
RunSearch = Callable[[Sequence[Sequence[int]], SearchOptions, Sequence[Constraints]], Awaitable[list[list[Hypothesis]]]]


class Wanted(Exception):
    """A search that is not known yet."""

    def __init__(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, constraints: Sequence[Constraints]
    ) -> None:
        super().__init__()
        self.ids, self.options, self.constraints = ids, options, constraints


class KnownEngine:
    """An engine that knows what was found before, in the order in which it was asked for, and does not search itself. What it is
    asked for must be the same each time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch, self.parallel, self.takes_phrases = engine.batch, engine.parallel, engine.takes_phrases
        self.found: list[list[list[Hypothesis]]] = []
        self._scores: list[list[list[float]]] = []
        self._attention: list[list[Matrix]] = []
        self.rewind()

    def rewind(self) -> None:
        self._searched = self._scored = self._attended = 0

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        finished: Finished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        if self._searched == len(self.found):
            raise Wanted(ids, options, constraints)
        self._searched += 1
        return self.found[self._searched - 1]

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        self._scored += 1
        return _nth(self._scores, self._scored, lambda: self.engine.score(src, tgt))

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        self._attended += 1
        return _nth(self._attention, self._attended, lambda: self.engine.attention(src, tgt))

    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        return self.engine.stream(src, options, constraint)

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        return self.engine.next_log_probs(src, prefix)


def _nth(known: list[Known], number: int, compute: Callable[[], Known]) -> Known:
    if number > len(known):
        known.append(compute())
    return known[number - 1]


def without_searching(translator: Translator) -> Translator:
    """The same translator, which raises Wanted where joining would take another search."""
    known = KnownEngine(translator.engine)
    return Translator(translator.tokenizer, known, translator.options, translator.max_length, translator.utility)


async def join(
    translator: Translator,
    sentences: Sequence[str],
    cut: Sequence[Sequence[Part]],
    found: Sequence[Sequence[Hypothesis]],
    text_constraints: Sequence[TextConstraints],
    run: Run,
    search: RunSearch,
) -> list[Result]:
    """`run` does the work somewhere, `search` finds what is wanted meanwhile."""
    joiner = without_searching(translator)
    known = joiner.engine
    assert isinstance(known, KnownEngine)
    while True:
        try:
            return await run(lambda: joiner.join(sentences, cut, found, text_constraints))
        except Wanted as wanted:
            known.found.append(await search(wanted.ids, wanted.options, wanted.constraints))
            known.rewind()

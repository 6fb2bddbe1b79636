"""Sentences through a model: text, tokens, batcher, text again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from regard.generate.options import Constraints, Hypothesis
from regard.serve.joining import Wanted, join, without_searching
from regard.serve.search import PLAIN, SearchRequest, constraints_of
from regard.serve.served_model import ServedModel
from regard.translation.constraints import TextConstraints
from regard.translation.reading import Part
from regard.translation.translator import Result, Translator

# So little text is prepared at once; more goes to a thread, so that others are answered meanwhile.
INLINE_CHARACTERS = 500
_PORTION = 4  # sentences whose translations mbr weighs in one go: some tens of milliseconds each


async def translate_sentences(
    served: ServedModel,
    sentences: Sequence[str],
    alternatives: int = 0,
    on_sentence: Callable[[int, str], None] | None = None,
    search: SearchRequest = PLAIN,
) -> list[list[str]]:
    """The translations of sentences, best first. `on_sentence` hears of each sentence as it is finished."""
    results = await search_sentences(served, sentences, alternatives, on_sentence, search=search)
    return [[way.text for way in result.translations] for result in results]


async def search_sentences(
    served: ServedModel,
    sentences: Sequence[str],
    alternatives: int = 0,
    on_sentence: Callable[[int, str], None] | None = None,
    words: bool = False,
    search: SearchRequest = PLAIN,
) -> list[Result]:
    """Sentences through the batcher; `on_sentence` is called as each is finished. `words`: score each word."""

    def prepare() -> tuple[Translator, list[list[Part]], list[list[int]], list[Constraints]]:
        translator = served.translator_for(search, alternatives)
        cut = translator.reader.cut(sentences)
        ids = translator.reader.encode([part.text for parts in cut for part in parts])
        return translator, cut, ids, constraints_of(translator, search, cut, served.limits.sentence_terms)

    is_short = search.is_plain and sum(map(len, sentences)) <= INLINE_CHARACTERS
    translator, cut, ids, constraints = prepare() if is_short else await asyncio.to_thread(prepare)
    text_constraints = [search.text_constraints] * len(sentences) if search.text_constraints is not None else []
    telling = _Telling(translator, sentences, cut, text_constraints, on_sentence) if on_sentence is not None else None
    found = telling.hear_from_a_thread() if telling is not None else None
    hypotheses = await served.search(ids, translator.options.of_engine, constraints, found)

    async def run(work: Callable[[], list[Result]]) -> list[Result]:
        if words:  # something is computed for this
            return await served.threads.run(work)
        return work() if is_short else await asyncio.to_thread(work)

    # What mbr chooses is chosen afterwards, in portions.
    options = dataclasses.replace(translator.options, words=words, mbr="")
    joiner = Translator(translator.tokenizer, translator.engine, options, translator.max_length)
    results = await join(joiner, sentences, cut, hypotheses, text_constraints, run, served.search)
    if translator.options.mbr:
        portions = [results[first : first + _PORTION] for first in range(0, len(results), _PORTION)]
        results = [one for portion in await served.threads.run_each(translator.choose, portions) for one in portion]
    if telling is not None:
        telling.rest(results)
    return results


class _Telling:
    """Tells of each sentence as soon as all its parts are found, but of those whose joining takes more than a moment when all are
    joined."""

    def __init__(
        self,
        translator: Translator,
        sentences: Sequence[str],
        cut: Sequence[Sequence[Part]],
        text_constraints: Sequence[TextConstraints],
        on_sentence: Callable[[int, str], None],
    ) -> None:
        self._translator, self._sentences, self._cut, self._text_constraints, self._on_sentence = (
            translator,
            sentences,
            cut,
            text_constraints,
            on_sentence,
        )
        self._owners = [number for number, parts in enumerate(cut) for _ in parts]  # the sentence of each part
        self._firsts = dict(reversed([(owner, part) for part, owner in enumerate(self._owners)]))
        self._left = [len(parts) for parts in cut]  # parts of each sentence that are not found yet
        self._found: dict[int, list[Hypothesis]] = {}
        self._late: list[int] = []

    def hear_from_a_thread(self) -> Callable[[int, list[Hypothesis]], None]:
        loop = asyncio.get_running_loop()

        def found(part: int, ways: list[Hypothesis]) -> None:
            loop.call_soon_threadsafe(self._hear, part, ways)

        return found

    def _hear(self, part: int, ways: list[Hypothesis]) -> None:
        self._found[part] = ways
        number = self._owners[part]
        self._left[number] -= 1
        if self._left[number]:
            return
        if self._translator.options.mbr:
            self._late.append(number)
            return
        mine = range(self._firsts[number], self._firsts[number] + len(self._cut[number]))
        try:
            (result,) = without_searching(self._translator).join(
                [self._sentences[number]],
                [self._cut[number]],
                [self._found[one] for one in mine],
                self._text_constraints[number : number + 1],
            )
        except Wanted:
            self._late.append(number)
            return
        self._on_sentence(number, result.text)

    def rest(self, results: Sequence[Result]) -> None:
        for number in self._late:
            self._on_sentence(number, results[number].text)

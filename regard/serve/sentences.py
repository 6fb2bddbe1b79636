"""Sentences through a model: text, tokens, batcher, text again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from regard.decode.options import Hypothesis, Wish
from regard.decode.text import Part, Result, Translator
from regard.serve.joining import Wanted, join, without_searching
from regard.serve.search import PLAIN, Search, wishes_of
from regard.serve.served import Served

# So little text is prepared at once; more goes to a thread, so that others are answered meanwhile.
INLINE_CHARACTERS = 500
_PORTION = 4  # sentences whose translations mbr weighs in one go: some tens of milliseconds each


async def translate_sentences(
    served: Served,
    sentences: Sequence[str],
    alternatives: int = 0,
    told: Callable[[int, str], None] | None = None,
    search: Search = PLAIN,
) -> list[list[str]]:
    """The translations of sentences, best first. `told` hears of each sentence as it is finished."""
    results = await search_sentences(served, sentences, alternatives, told, search=search)
    return [[way.text for way in result.translations] for result in results]


async def search_sentences(
    served: Served,
    sentences: Sequence[str],
    alternatives: int = 0,
    told: Callable[[int, str], None] | None = None,
    words: bool = False,
    search: Search = PLAIN,
) -> list[Result]:
    """Sentences through the batcher. `told` hears of each as it is finished; `words`: with how sure the model is of each word."""

    def prepare() -> tuple[Translator, list[list[Part]], list[list[int]], list[Wish]]:
        translator = served.translator_for(search, alternatives)
        cut = translator.cut(sentences)
        ids = translator.encode([part.text for parts in cut for part in parts])
        return translator, cut, ids, wishes_of(translator, search, cut, served.limits.sentence_terms)

    is_short = search.is_plain and sum(map(len, sentences)) <= INLINE_CHARACTERS
    translator, cut, ids, wishes = prepare() if is_short else await asyncio.to_thread(prepare)
    asks = [search.ask] * len(sentences) if search.ask is not None else []
    loop = asyncio.get_running_loop()
    owners = [number for number, parts in enumerate(cut) for _ in parts]  # the sentence of each part
    firsts = dict(reversed([(owner, part) for part, owner in enumerate(owners)]))
    left = [len(parts) for parts in cut]  # parts of each sentence that are not found yet
    parts_found: dict[int, list[Hypothesis]] = {}
    late: list[int] = []  # sentences that are told of when all are joined: it takes more than a moment

    def hear(part: int, ways: list[Hypothesis]) -> None:
        parts_found[part] = ways
        number = owners[part]
        left[number] -= 1
        if told is None or left[number]:
            return
        mine = range(firsts[number], firsts[number] + len(cut[number]))
        if translator.options.mbr:
            late.append(number)
            return
        try:
            (result,) = without_searching(translator).join(
                [sentences[number]], [cut[number]], [parts_found[one] for one in mine], asks[number : number + 1]
            )
        except Wanted:
            late.append(number)
            return
        told(number, result.text)

    def found(part: int, ways: list[Hypothesis]) -> None:
        loop.call_soon_threadsafe(hear, part, ways)

    hypotheses = await served.search(ids, translator.options.of_engine, wishes, found if told else None)

    async def run(work: Callable[[], list[Result]]) -> list[Result]:
        if words:  # something is computed for this
            return await served.apart.run(work)
        return work() if is_short else await asyncio.to_thread(work)

    # What mbr chooses is chosen afterwards, in portions.
    options = dataclasses.replace(translator.options, words=words, mbr="")
    joiner = Translator(translator.tokenizer, translator.engine, options, translator.max_length)
    results = await join(joiner, sentences, cut, hypotheses, asks, run, served.search)
    if translator.options.mbr:
        portions = [results[first : first + _PORTION] for first in range(0, len(results), _PORTION)]
        results = [one for portion in await served.apart.run_each(translator.choose, portions) for one in portion]
    if told is not None:
        for number in late:
            told(number, results[number].text)
    return results

"""Results that take more searches to be joined: these go where all searches go, and the results are those of a translator that
searches by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import regard
from regard.generate.options import Constraints, Hypothesis, SearchOptions
from regard.serve.joining import Wanted, join, without_searching
from regard.translation.translator import Result, Translator
from tests.serve.server import GOLDEN

LINES = ["a Regard b c", "a b c", "Regard and so on, p o n m", "d Regard e Regard f"]


@pytest.mark.parametrize("words", [False, True])
def test_lost_words_are_searched_around_by_the_batcher(words: bool) -> None:
    model = regard.load(GOLDEN, engine="ctranslate2")
    options = replace(model.search_options(keep=["Regard"]), words=words)
    translator = Translator(model.bundle.tokenizer, model.engine, options, model.max_length)
    expected = translator.translate(LINES)
    cut = translator.reader.cut(LINES)
    found = model.engine.translate(
        translator.reader.encode([part.text for parts in cut for part in parts]), options.of_engine
    )
    searched: list[int] = []
    runs: list[Callable[[], list[Result]]] = []

    async def search(
        ids: Sequence[Sequence[int]], how: SearchOptions, constraints: Sequence[Constraints]
    ) -> list[list[Hypothesis]]:
        searched.append(len(ids))
        return model.engine.translate(ids, how, None, constraints)

    async def run(work: Callable[[], list[Result]]) -> list[Result]:
        runs.append(work)
        return work()

    joined = asyncio.run(join(translator, LINES, cut, found, [], run, search))
    assert [[way.text for way in one.translations] for one in joined] == [
        [way.text for way in one.translations] for one in expected
    ]
    assert [one.translations[0].words for one in joined] == [one.translations[0].words for one in expected]
    assert all("Regard" in one.text for one in joined if "Regard" in one.source)
    assert searched and len(runs) == len(searched) + 1
    with pytest.raises(Wanted):
        without_searching(translator).join(LINES, cut, found)

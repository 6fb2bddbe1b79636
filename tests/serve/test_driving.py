"""The text side driven by a server: the searches that it asks for go where all searches go, and the results are those of a
translator that drives it directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

import regard
from regard.generate.options import Hypothesis
from regard.serve.batched_sentences import drive_batched
from regard.serve.refusal import Busy
from regard.translation.queries import Returned, SearchQuery, result_without_engine, run_search
from regard.translation.results import Result
from regard.translation.translator import Translator
from tests.serve.server import GOLDEN

LINES = ["a Regard b c", "a b c", "Regard and so on, p o n m", "d Regard e Regard f"]
Step = SearchQuery | Returned[list[Result]]


def golden(words: bool) -> Translator:
    model = regard.load(GOLDEN, engine="ctranslate2")
    options = replace(model.search_options(keep=["Regard"]), words=words)
    return Translator(model.bundle.tokenizer, model.engine, options, model.max_length)


@pytest.mark.parametrize("words", [False, True])
def test_lost_words_are_searched_around_by_the_batcher(words: bool) -> None:
    translator = golden(words)
    side, engine = translator.text_side, translator.engine
    expected = translator.translate(LINES)
    segmented = side.segment(LINES)
    hypotheses = run_search(engine, side.first_search(segmented))
    searched: list[int] = []
    runs: list[Callable[[], Step]] = []

    async def search(query: SearchQuery) -> list[list[Hypothesis]]:
        searched.append(len(query.ids))
        return run_search(engine, query)

    async def run(work: Callable[[], Step]) -> Step:
        runs.append(work)
        return work()

    found = asyncio.run(drive_batched(side.finish(segmented, hypotheses), engine, run, search))
    assert [[one.text for one in result.translations] for result in found] == [
        [one.text for one in result.translations] for result in expected
    ]
    assert [result.translations[0].words for result in found] == [result.translations[0].words for result in expected]
    assert all("Regard" in result.text for result in found if "Regard" in result.source)
    assert searched and len(runs) == len(searched) + 1  # nothing is worked out twice


def test_a_sentence_is_finished_without_an_engine_unless_it_takes_another_search() -> None:
    side, engine = golden(False).text_side, golden(False).engine
    segmented = side.segment(LINES)
    hypotheses = run_search(engine, side.first_search(segmented))
    early = [
        result_without_engine(side.finish(segmented.line(number), hypotheses[number : number + 1]))
        for number in range(len(LINES))
    ]
    assert early[1] is not None and early[1][0].text == "c b a"
    assert [result is None for result in early] == [True, False, True, True]
    assert result_without_engine(side.finish(segmented, hypotheses)) is None


def test_words_are_asked_of_an_engine() -> None:
    side, engine = golden(True).text_side, golden(True).engine
    segmented = side.segment(["a b c"])
    task = side.finish(segmented, run_search(engine, side.first_search(segmented)))
    assert result_without_engine(task) is None


def test_a_refused_search_ends_the_task() -> None:
    """A queue that is full, or a client that left, at a later search of a sentence."""
    side, engine = golden(False).text_side, golden(False).engine
    segmented = side.segment(LINES)
    task = side.finish(segmented, run_search(engine, side.first_search(segmented)))
    steps: list[Step] = []

    async def search(query: SearchQuery) -> list[list[Hypothesis]]:
        raise Busy("too much is waiting", 3)

    async def run(work: Callable[[], Step]) -> Step:
        steps.append(work())
        return steps[-1]

    with pytest.raises(Busy):
        asyncio.run(drive_batched(task, engine, run, search))
    assert len(steps) == 1

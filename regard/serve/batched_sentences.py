"""Sentences through a model: the text side, driven with searches in shared batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from regard.generate.options import Engine, Hypothesis
from regard.serve.search import PLAIN, SearchRequest, first_search
from regard.serve.served_model import ServedModel
from regard.translation.queries import Returned, SearchQuery, TextTask, advance, result_without_engine
from regard.translation.results import Result
from regard.translation.text_side import SegmentedLines, TextSide

T = TypeVar("T")
Run = Callable[[Callable[[], SearchQuery | Returned[T]]], Awaitable[SearchQuery | Returned[T]]]
RunSearch = Callable[[SearchQuery], Awaitable[list[list[Hypothesis]]]]

# Up to this much text is prepared at once; more goes to a thread, so that others are answered meanwhile.
INLINE_CHARACTERS = 500
_PORTION = 4  # sentences that mbr reranks in one go: some tens of milliseconds each


async def translate_sentences(
    served: ServedModel,
    sentences: Sequence[str],
    alternatives: int = 0,
    on_sentence: Callable[[int, str], None] | None = None,
    search: SearchRequest = PLAIN,
) -> list[list[str]]:
    """The translations of each sentence, best first. `on_sentence` is called with its number and best translation as each is
    finished."""
    results = await search_sentences(served, sentences, alternatives, on_sentence, search=search)
    return [[translation.text for translation in result.translations] for result in results]


async def search_sentences(
    served: ServedModel,
    sentences: Sequence[str],
    alternatives: int = 0,
    on_sentence: Callable[[int, str], None] | None = None,
    words: bool = False,
    search: SearchRequest = PLAIN,
) -> list[Result]:
    """Like `translate_sentences`, but returns scores; with `words`, also each word's log-probability."""

    def prepare() -> tuple[TextSide, SegmentedLines, SearchQuery]:
        side = served.text_side_for(search, alternatives, words)
        own = search.text_constraints
        segmented = side.segment(sentences, [own] * len(sentences) if own is not None else ())
        return side, segmented, first_search(side, search, segmented, served.limits)

    is_short = search.is_plain and sum(map(len, sentences)) <= INLINE_CHARACTERS
    side, segmented, query = prepare() if is_short else await asyncio.to_thread(prepare)
    early = _EarlyResults(side, segmented, on_sentence) if on_sentence is not None else None
    hypotheses = await served.search(query, early.from_thread() if early is not None else None)

    async def run(work: Callable[[], SearchQuery | Returned[T]]) -> SearchQuery | Returned[T]:
        if words:  # the engine scores them
            return await served.threads.run(work)
        return work() if is_short else await asyncio.to_thread(work)

    results = await drive_batched(side.finish(segmented, hypotheses), served.engine, run, served.search)
    if side.options.mbr:
        portions = [results[first : first + _PORTION] for first in range(0, len(results), _PORTION)]
        results = [one for portion in await served.threads.run_each(side.rerank, portions) for one in portion]
    if early is not None:
        early.report_rest(results)
    return results


async def drive_batched(task: TextTask[T], engine: Engine, run: Run[T], search: RunSearch) -> T:
    """Run a task of the text side to its end: its own work through `run`, its searches through `search`, which counts them, shares
    batches with other requests and cancels them with this one."""
    step = await run(partial(advance, task, None, engine))
    while not isinstance(step, Returned):
        hypotheses = await search(step)
        step = await run(partial(advance, task, hypotheses, engine))
    return step.value


class _EarlyResults:
    """Reports each sentence as soon as all its segments are found; at the end those that take more searches or reranking."""

    def __init__(self, side: TextSide, segmented: SegmentedLines, on_sentence: Callable[[int, str], None]) -> None:
        self._side, self._segmented, self._on_sentence = side, segmented, on_sentence
        self._owners = [number for number, own in enumerate(segmented.segments) for _ in own]  # of each segment
        self._found: list[dict[int, list[Hypothesis]]] = [{} for _ in segmented.lines]  # by segment
        self._late = [number for number, own in enumerate(segmented.segments) if not own]  # copied

    def from_thread(self) -> Callable[[int, list[Hypothesis]], None]:
        """A function that a thread may call with the hypotheses of each segment."""
        loop = asyncio.get_running_loop()

        def found(segment: int, hypotheses: list[Hypothesis]) -> None:
            loop.call_soon_threadsafe(self._add, segment, hypotheses)

        return found

    def _add(self, segment: int, hypotheses: list[Hypothesis]) -> None:
        number = self._owners[segment]
        own = self._found[number]
        own[segment] = hypotheses
        if len(own) < len(self._segmented.segments[number]):
            return
        results = None
        if not self._side.options.mbr:
            task = self._side.finish(self._segmented.line(number), [own[one] for one in sorted(own)])
            results = result_without_engine(task)
        if results is None:
            self._late.append(number)
        else:
            self._on_sentence(number, results[0].text)

    def report_rest(self, results: Sequence[Result]) -> None:
        """Report the sentences that were not finished early."""
        for number in self._late:
            self._on_sentence(number, results[number].text)

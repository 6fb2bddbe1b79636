"""Sentences through a model: the text side, driven with searches in shared batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from regard.errors import InputTooLarge
from regard.generate.options import Constraints, Engine, Hypothesis
from regard.serve.batching import beam_weight, sentence_tokens
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
_PORTION_CHARACTERS = 2_000
_PORTION = 4  # sentences that mbr reranks in one go: some tens of milliseconds each


async def search_sentences(
    served: ServedModel,
    sentences: Sequence[str],
    alternatives: int = 0,
    on_sentence: Callable[[int, str], None] | None = None,
    words: bool = False,
    search: SearchRequest = PLAIN,
    most_tokens: int | None = None,
) -> list[Result]:
    """The result of each sentence; with `words`, also each word's log-probability. `on_sentence` is called with the number of a
    sentence and its best translation as each is finished; `most_tokens` is for documents, which have a limit of their own."""
    is_short = search.is_plain and sum(map(len, sentences)) <= INLINE_CHARACTERS
    text = _Text(served, search, sentences, most_tokens or served.limits.tokens)
    if is_short:
        side = served.text_side_for(search, alternatives, words)
        parts = [text.prepare(side, (0, len(sentences)))]
    else:
        side = await served.texts.run(served.text_side_for, search, alternatives, words)
        parts = await served.texts.run_each(partial(text.prepare, side), portions_of(sentences))
    segmented, query = text.joined(parts)
    early = _EarlyResults(side, segmented, on_sentence) if on_sentence is not None else None
    hypotheses = await served.search(query, early.from_thread() if early is not None else None)

    async def run(work: Callable[[], SearchQuery | Returned[T]]) -> SearchQuery | Returned[T]:
        if words:  # the engine scores them
            return await served.threads.run(work)
        return work() if is_short else await served.texts.run(work)

    found = iter(hypotheses)
    tasks = [side.finish(own, list(islice(found, sum(map(len, own.segments))))) for own, _ in parts]
    results = [one for some in await _drive_all(tasks, served, run, together=not words) for one in some]
    if side.options.mbr:
        portions = [results[first : first + _PORTION] for first in range(0, len(results), _PORTION)]
        results = [one for portion in await served.threads.run_each(side.rerank, portions) for one in portion]
    if early is not None:
        early.report_rest(results)
    return results


def portions_of(sentences: Sequence[str], most: int = _PORTION_CHARACTERS) -> list[tuple[int, int]]:
    """Sentences in portions of about `most` characters, as ranges: other clients take turns between two portions.

    >>> portions_of(["a", 3_000 * "b", "c"])
    [(0, 2), (2, 3)]
    """
    portions, first, characters = [], 0, 0
    for number, sentence in enumerate(sentences):
        characters += len(sentence)
        if characters >= most:
            portions.append((first, number + 1))
            first, characters = number + 1, 0
    return [*portions, (first, len(sentences))] if first < len(sentences) or not portions else portions


class _Text:
    """The sentences of a request on their way to the model."""

    def __init__(self, served: ServedModel, search: SearchRequest, sentences: Sequence[str], most_tokens: int) -> None:
        self._served, self._search, self._sentences = served, search, sentences
        self._most, self._tokens = most_tokens, 0

    def prepare(self, side: TextSide, portion: tuple[int, int]) -> tuple[SegmentedLines, SearchQuery]:
        """Some of the sentences in segments, with their search. Raises InputTooLarge as soon as there are too many tokens."""
        lines, own = self._sentences[slice(*portion)], self._search.text_constraints
        segmented = side.segment(lines, [own] * len(lines) if own is not None else ())
        query = first_search(side, self._search, segmented, self._served.limits)
        constraints: Sequence[Constraints | None] = query.constraints or [None] * len(query.ids)
        weight = beam_weight(query.options.beam, self._served.text_side.options.search.beam)
        self._tokens += weight * sum(map(sentence_tokens, query.ids, constraints))
        if self._tokens > self._most:
            raise InputTooLarge(
                f"this would take more than {self._most} tokens, as the model reads the text; those of wider beams, glossary "
                "terms and phrases count several times; send parts"
            )
        return segmented, query

    def joined(self, parts: Sequence[tuple[SegmentedLines, SearchQuery]]) -> tuple[SegmentedLines, SearchQuery]:
        """All portions as one."""
        segmented = SegmentedLines(
            self._sentences,
            [segments for own, _ in parts for segments in own.segments],
            [constraint for own, _ in parts for constraint in own.constraints],
        )
        constraints: list[Constraints] = []
        if any(query.constraints for _, query in parts):
            constraints = [one for _, query in parts for one in (query.constraints or [Constraints()] * len(query.ids))]
        ids = [one for _, query in parts for one in query.ids]
        return segmented, SearchQuery(ids, parts[0][1].options, constraints)


async def _drive_all(
    tasks: Sequence[TextTask[list[Result]]], served: ServedModel, run: Run[list[Result]], together: bool
) -> list[list[Result]]:
    """Run the tasks of all portions to their ends; `together`, so that what they search again shares batches."""
    if not together or len(tasks) == 1:
        return [await drive_batched(task, served.engine, run, served.search) for task in tasks]
    running = [asyncio.ensure_future(drive_batched(task, served.engine, run, served.search)) for task in tasks]
    try:
        return await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()


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

"""What the text side asks of an engine. It never calls one: its work is a generator that yields queries and is sent their answers,
so that a command runs them directly and a server runs the searches in shared batches. No torch here.

    task:    yields SearchQuery -> is sent hypotheses -> ... -> returns its result
    drive:   advance to the next search, run it, send what it found, until the task returns
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from regard.generate.options import Constraints, Engine, Hypothesis, Matrix, OnFinished, SearchOptions

T = TypeVar("T")


@dataclass(frozen=True)
class SearchQuery:
    """Asks for the hypotheses of each sentence, best first."""

    ids: Sequence[Sequence[int]]  # source tokens of each sentence
    options: SearchOptions
    constraints: Sequence[Constraints] = ()  # one for each sentence, or none at all


@dataclass(frozen=True)
class ScoreQuery:
    """Asks for the log-probability of each token of given translations, the end token last."""

    src: Sequence[Sequence[int]]
    tgt: Sequence[Sequence[int]]


@dataclass(frozen=True)
class AttentionQuery:
    """Asks for the attention of given translations to their sources, each (target tokens, source tokens)."""

    src: Sequence[Sequence[int]]
    tgt: Sequence[Sequence[int]]


EngineQuery = SearchQuery | ScoreQuery | AttentionQuery
TextTask = Generator[EngineQuery, Any, T]  # a piece of the text side's work with the result T


@dataclass(frozen=True)
class Returned(Generic[T]):
    """The end of a task."""

    value: T


def search(query: SearchQuery) -> TextTask[list[list[Hypothesis]]]:
    """Ask for a search from inside a task."""
    hypotheses: list[list[Hypothesis]] = yield query
    return hypotheses


def score(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> TextTask[list[list[float]]]:
    """Ask for scores from inside a task."""
    scores: list[list[float]] = yield ScoreQuery(src, tgt)
    return scores


def attention(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> TextTask[list[Matrix]]:
    """Ask for attention from inside a task."""
    weights: list[Matrix] = yield AttentionQuery(src, tgt)
    return weights


def run_search(engine: Engine, query: SearchQuery, on_finished: OnFinished | None = None) -> list[list[Hypothesis]]:
    """Answer a search with an engine."""
    if query.constraints:
        return engine.translate(query.ids, query.options, on_finished, query.constraints)
    return engine.translate(query.ids, query.options, on_finished)


def advance(task: TextTask[T], answer: Any, engine: Engine) -> SearchQuery | Returned[T]:
    """Send a task the answer that it waits for (None at its beginning) and run it up to its next search or its end. Scores and
    attention are computed on the way."""
    while True:
        try:
            query = task.send(answer)
        except StopIteration as end:
            return Returned(end.value)
        if isinstance(query, SearchQuery):
            return query
        compute = engine.score if isinstance(query, ScoreQuery) else engine.attention
        answer = compute(query.src, query.tgt)


def drive(task: TextTask[T], engine: Engine, on_finished: OnFinished | None = None) -> T:
    """Run a task to its end with an engine; `on_finished` is called for the sentences of its first search."""
    step = advance(task, None, engine)
    while not isinstance(step, Returned):
        hypotheses = run_search(engine, step, on_finished)
        on_finished = None
        step = advance(task, hypotheses, engine)
    return step.value


def result_without_engine(task: TextTask[T]) -> T | None:
    """The result of a task that asks nothing of an engine; None for one that does, which ends here."""
    try:
        next(task)
    except StopIteration as end:
        result: T = end.value
        return result
    task.close()
    return None

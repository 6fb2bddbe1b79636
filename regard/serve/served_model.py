"""A model that is served: loaded, with the threads around it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from regard.bundle import Bundle
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.select import make_engine
from regard.generate.options import Engine
from regard.serve.batching import Batcher, Hypotheses, Observe, OnHypotheses, QueueFull
from regard.serve.fairness import CLIENT, FairShares
from regard.serve.limits import Limits
from regard.serve.refusal import Busy, refusing
from regard.serve.search import SearchRequest
from regard.serve.thread_pool import PATIENCE, ThreadPool
from regard.translation.queries import SearchQuery
from regard.translation.text_side import TextSide
from regard.translation.translation_options import TranslationOptions

_THREADS = 2  # per model, for work that does not go through the batcher


def name_of(bundle: Bundle) -> str:
    """What measurements call a translation model."""
    return "+".join(f"{source}-{target}" for source, target in bundle.pairs)


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with the threads around it."""

    bundle: Bundle
    engine: Engine
    text_side: TextSide  # with the model's own options
    batcher: Batcher
    threads: ThreadPool  # for work that does not go through the batcher
    slow: Batcher | None = None  # for searches that CTranslate2 leaves to torch: the others do not wait for them
    limits: Limits = field(default_factory=Limits)
    # For the text around searches. One thread, since Python computes with one at a time.
    texts: ThreadPool = field(default_factory=lambda: ThreadPool("texts", 1))

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        limits: Limits,
        *,
        engine: str = "auto",
        device: str = "auto",
        batch: int = 0,
        shared: bool = True,
        observe: Callable[[str], Observe] | None = None,
        shares: FairShares | None = None,
    ) -> ServedModel:
        """Make an engine for a bundle, and its batchers. `observe` makes the observer of batches for a language pair; `shares` are
        those of all models of a process."""
        made = make_engine(bundle, engine, device, batch)
        options = TranslationOptions.of(bundle)

        shares = shares or FairShares()

        def around(threads: int, is_slow: bool = False) -> Batcher:
            return Batcher(
                made,
                queue_tokens=limits.queue_tokens,
                batch_tokens=limits.batch_tokens,
                window=limits.window_ms / 1000,
                shared=shared,
                observe=observe(name_of(bundle)) if observe else None,
                beam=options.search.beam,
                threads=threads,
                shares=shares,
                is_slow=is_slow,
            )

        slow = None
        if isinstance(made, CTranslate2Engine):
            made.is_quiet = True
            slow = None if made.strict else around(1, is_slow=True)
        side = TextSide(bundle.tokenizer, options, bundle.max_length, takes_phrases=made.takes_phrases)
        threads = ThreadPool("requests for words", _THREADS, limits.word_places, shares)
        return cls(bundle, made, side, around(0), threads, slow, limits, ThreadPool("texts", 1, shares=shares))

    @property
    def name(self) -> str:
        """The directions, such as "en-fr+fr-en"."""
        return name_of(self.bundle)

    def of_each_direction(self) -> list[ServedModel]:
        """The model once for each direction, with the same engine and threads."""
        found = []
        for pair in self.bundle.pairs:
            bundle = self.bundle.toward(*pair)
            side = self.text_side.with_options(TranslationOptions.of(bundle))
            found.append(dataclasses.replace(self, bundle=bundle, text_side=side))
        return found

    @property
    def does_all(self) -> bool:
        """Whether every option and constraint is supported."""
        return self.engine.takes_phrases or self.slow is not None

    @property
    def batchers(self) -> list[Batcher]:
        """All batchers of this model."""
        return [self.batcher] if self.slow is None else [self.batcher, self.slow]

    def text_side_for(self, search: SearchRequest, alternatives: int = 0, words: bool = False) -> TextSide:
        """The text side with the options of a request; `words`: with the words of translations."""
        if not search.is_plain:
            side = search.text_side(self.text_side, self.does_all, alternatives)
        else:
            side = self.text_side.with_options(self.text_side.options.changed(nbest=alternatives + 1))
        if not words:
            return side
        return side.with_options(dataclasses.replace(side.options, words=True), side.utility)

    async def search(self, query: SearchQuery, on_hypotheses: OnHypotheses | None = None) -> list[Hypotheses]:
        """Search with the batcher that is responsible for a query; `on_hypotheses` is called as each sentence is finished."""
        is_slow = bool(query.options.beyond_beam) or any(constraint.phrases for constraint in query.constraints)
        batcher = self.slow if self.slow is not None and is_slow else self.batcher
        try:
            future = batcher.submit(query.ids, query.options, on_hypotheses, query.constraints, CLIENT.get())
        except QueueFull as full:
            raise Busy(str(full), full.seconds) from None
        with refusing("what is wanted of the search"):
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Stop the threads. Requests have already been drained; running work gets a few seconds."""
        for batcher in self.batchers:
            batcher.close(PATIENCE)
        self.threads.close()
        self.texts.close()

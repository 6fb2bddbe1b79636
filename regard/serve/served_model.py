"""A model that is served: loaded, with the threads around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regard.bundle import Bundle, find_bundle, load_bundle
from regard.errors import UserError
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.select import make_engine
from regard.generate.options import Constraints, SearchOptions
from regard.serve.batching import Batcher, Hypotheses, Observe, OnHypotheses, QueueFull
from regard.serve.limits import Limits
from regard.serve.refusal import Busy, refusing
from regard.serve.search import SearchRequest
from regard.serve.thread_pool import PATIENCE, ThreadPool
from regard.translation.translator import Translator

_THREADS = 2  # of a model, for what goes past the batcher


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with the threads around it."""

    bundle: Bundle
    translator: Translator
    batcher: Batcher
    threads: ThreadPool  # for what goes past the batcher
    slow: Batcher | None = None  # for what CTranslate2 leaves to torch, so that the others do not wait for it
    limits: Limits = field(default_factory=Limits)

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
    ) -> ServedModel:
        made = make_engine(bundle, engine, device, batch)
        options = SearchOptions.of(bundle)

        def around(threads: int) -> Batcher:
            return Batcher(
                made,
                queue_tokens=limits.queue_tokens,
                batch_tokens=limits.batch_tokens,
                window=limits.window_ms / 1000,
                shared=shared,
                observe=observe(f"{bundle.source}-{bundle.target}") if observe else None,
                beam=options.beam,
                threads=threads,
            )

        slow = None
        if isinstance(made, CTranslate2Engine):
            made.is_quiet = True
            slow = None if made.strict else around(1)
        translator = Translator(bundle.tokenizer, made, options, bundle.max_length)
        threads = ThreadPool("requests for words", _THREADS, limits.word_places)
        return cls(bundle, translator, around(0), threads, slow, limits)

    @property
    def does_all(self) -> bool:
        """Whether all that a client may ask for can be done."""
        return self.translator.engine.takes_phrases or self.slow is not None

    @property
    def batchers(self) -> list[Batcher]:
        return [self.batcher] if self.slow is None else [self.batcher, self.slow]

    def translator_for(self, search: SearchRequest, alternatives: int = 0) -> Translator:
        if search.is_plain:
            own = self.translator
            options = own.options.changed(None, None, alternatives + 1)
            return Translator(own.tokenizer, own.engine, options, own.max_length)
        return search.translator(self.translator, self.bundle, self.does_all, alternatives)

    async def search(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        constraints: Sequence[Constraints] = (),
        found: OnHypotheses | None = None,
    ) -> list[Hypotheses]:
        """What the batcher finds whose business these sentences are."""
        is_slow = bool(options.beyond_beam) or any(constraint.phrases for constraint in constraints)
        batcher = self.slow if self.slow is not None and is_slow else self.batcher
        try:
            future = batcher.submit(ids, options, found, constraints)
        except QueueFull as full:
            raise Busy(str(full), full.seconds) from None
        with refusing("what is wanted of the search"):
            return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Stop the threads. Clients were waited for before; what is still computed is given a little time."""
        for batcher in self.batchers:
            batcher.close(PATIENCE)
        self.threads.close()


def find_bundles(models: Sequence[str]) -> list[Bundle]:
    """The bundles of these names, one for each pair of languages; checked before anything slow is done."""
    if not models:
        raise UserError("no model is named; name bundles or run folders: regard serve -m runs/en-de -m runs/de-en")
    found: dict[tuple[str, str], Bundle] = {}
    for model in models:
        bundle = load_bundle(find_bundle(model))
        pair = bundle.source, bundle.target
        if pair in found:
            raise UserError(
                f"{bundle.folder} and {found[pair].folder} both translate {' to '.join(pair)}; serve one of them"
            )
        found[pair] = bundle
    return list(found.values())

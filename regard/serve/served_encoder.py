"""A model without a decoder that is served: it embeds, classifies or tags texts, or fills blanks. Sequences of all requests share
batches, as the sentences of translations do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from regard.bundle import Bundle
from regard.errors import InputTooLarge
from regard.generate.encoding import Answer, Answers, EncoderEngine, EncoderInput
from regard.generate.engines.select import make_encoder
from regard.generate.options import SearchOptions
from regard.serve.batched_sentences import INLINE_CHARACTERS
from regard.serve.batching import Batcher, Observe, QueueFull
from regard.serve.fairness import CLIENT, FairShares
from regard.serve.limits import Limits
from regard.serve.refusal import Busy, refusing
from regard.serve.thread_pool import PATIENCE, ThreadPool
from regard.understanding.answers import Classified, Tagged
from regard.understanding.classifier import Classifier, Text
from regard.understanding.embedder import Embedder, Vectors
from regard.understanding.filler import Filled, Filler
from regard.understanding.tagger import Tagger

TextSide = Embedder | Filler | Classifier | Tagger
_TEXT_SIDES: dict[str, type[TextSide]] = {"embed": Embedder, "fill": Filler, "classify": Classifier, "tag": Tagger}
TASKS = tuple(_TEXT_SIDES)  # that are served
_OPTIONS = SearchOptions(beam=1)  # nothing is searched, so all requests are alike
_Output = TypeVar("_Output")


class _BatchedEncoder:
    """An encoder as the batcher runs engines."""

    def __init__(self, engine: EncoderEngine) -> None:
        self.engine, self.batch, self.parallel = engine, engine.batch, engine.parallel

    def translate(self, inputs: Sequence[EncoderInput], *_: Any) -> Answers:
        """The answers to a batch."""
        return self.engine.answers(inputs)


@dataclass(frozen=True)
class ServedEncoder:
    """A loaded encoder with the threads around it."""

    name: str  # what clients call it
    bundle: Bundle
    text_side: TextSide
    batcher: Batcher
    texts: ThreadPool  # for tokenizing
    limits: Limits

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        name: str,
        limits: Limits,
        *,
        engine: str = "auto",
        device: str = "auto",
        batch: int = 0,
        observe: Observe | None = None,
        shares: FairShares | None = None,
    ) -> ServedEncoder:
        """Make an engine for a bundle, and its batcher. `shares` are those of all models of a process."""
        made, shares = make_encoder(bundle, engine, device, batch), shares or FairShares()
        batcher = Batcher(
            cast(Any, _BatchedEncoder(made)),
            queue_tokens=limits.queue_tokens,
            batch_tokens=limits.batch_tokens,
            window=limits.window_ms / 1000,
            observe=observe,
            beam=_OPTIONS.beam,
            shares=shares,
        )
        return cls(
            name, bundle, _TEXT_SIDES[bundle.task](bundle, made), batcher, ThreadPool("texts", 1, shares=shares), limits
        )

    @property
    def num_texts(self) -> tuple[int, ...]:
        """How many texts are read at once or, of vectors, compared."""
        if self.bundle.task == "embed":
            return 1, 2
        if self.bundle.task != "classify":
            return (1,)
        return {None: (1, 2), False: (1,), True: (2,)}[self.bundle.takes_pairs]

    async def embed(self, texts: Sequence[str | Sequence[int]]) -> tuple[Vectors, int]:
        """The vectors of texts or token ids, (texts, d_model), and how many tokens were read."""
        side = self.text_side
        assert isinstance(side, Embedder)

        def read(some: Sequence[str | Sequence[int]]) -> list[Any]:
            found = iter(side.read([one for one in some if isinstance(one, str)]))
            return [next(found) if isinstance(one, str) else side.read_ids(one) for one in some]

        windows = await self._in_thread(read, texts)
        answers = await self._answers([one for text in windows for one in text.inputs])
        return side.join(windows, answers), sum(text.num_tokens for text in windows)

    async def fill(self, texts: Sequence[str], k: int) -> list[Filled]:
        """What may stand in the blanks of texts."""
        side = self.text_side
        assert isinstance(side, Filler)
        read = await self._in_thread(lambda some: [side.read(one) for one in some], texts)
        answers = iter(await self._answers([one for text in read for one in text.inputs]))
        return [side.join(text, [next(answers) for _ in text.inputs], k) for text in read]

    async def classify(self, texts: Sequence[Text], threshold: float | None = None) -> list[Classified]:
        """The labels of texts, or of pairs of texts."""
        side = self.text_side
        assert isinstance(side, Classifier)
        side.check_threshold(threshold)
        side.check_pairs(texts)
        read = await self._in_thread(lambda some: [side.read(one) for one in some], texts)
        answers = iter(await self._answers([one for windows in read for one in windows]))
        parts = [[next(answers) for _ in windows] for windows in read]
        return await self._in_thread(
            lambda some: [side.join(text, own, threshold) for text, own in zip(some, parts, strict=True)], texts
        )

    async def tag(self, texts: Sequence[str]) -> list[Tagged]:
        """The words of texts, with their tags."""
        side = self.text_side
        assert isinstance(side, Tagger)
        read = await self._in_thread(side.read, texts)
        answers = iter(await self._answers([window.input for one in read for window in one.windows]))
        return await self._in_thread(
            lambda _: [side.join(one, [next(answers) for _ in one.windows]) for one in read], texts
        )

    async def _in_thread(self, work: Callable[[Sequence[Any]], _Output], texts: Sequence[Any]) -> _Output:
        """What `work` makes of texts: in a thread, unless it takes no time."""
        with refusing("reading the texts"):
            if sum(map(_size, texts)) <= INLINE_CHARACTERS:
                return work(texts)
            return await self.texts.run(work, texts)

    async def _answers(self, inputs: Sequence[EncoderInput]) -> list[Answer]:
        if not inputs:  # all texts are empty
            return []
        tokens = sum(len(one.ids) for one in inputs)
        if tokens > self.limits.tokens:
            raise InputTooLarge(
                f"the texts of a request may have at most {self.limits.tokens} tokens, but have {tokens}; send parts"
            )
        try:
            future = self.batcher.submit(cast(Any, inputs), _OPTIONS, client=CLIENT.get())
        except QueueFull as full:
            raise Busy(str(full), full.seconds) from None
        with refusing("encoding"):
            return cast("list[Answer]", await asyncio.wrap_future(future))

    def close(self) -> None:
        """Stop the threads. Requests have already been drained; running work gets a few seconds."""
        self.batcher.close(PATIENCE)
        self.texts.close()


def _size(text: str | Sequence[Any]) -> int:
    """The characters of a text or of a pair of texts, or the number of token ids."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)

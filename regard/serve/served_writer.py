"""A language model that is served: loaded, with the threads around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from regard.bundle import Bundle
from regard.errors import RegardError
from regard.generate.engines.decoder_jobs import TextDecoder, Token
from regard.generate.engines.select import make_served_engine
from regard.serve.batching import Observe, QueueFull
from regard.serve.fairness import CLIENT, FairShares
from regard.serve.limits import Limits
from regard.serve.refusal import Busy, refusing
from regard.serve.thread_pool import PATIENCE, ThreadPool
from regard.serve.writing_batch import Piece, WritingBatcher, WritingJob
from regard.writing.options import WritingOptions
from regard.writing.writer import Writer

if TYPE_CHECKING:
    from regard.generate.engines.torch_engine import TorchEngine


class WrittenPiece(NamedTuple):
    """A piece of a text that is written for a request."""

    prompt: int  # the number of its prompt
    piece: Piece


@dataclass(frozen=True)
class ServedWriter:
    """A loaded language model with the threads around it."""

    name: str  # what clients call it
    bundle: Bundle
    engine: TorchEngine
    how: str  # it computes: precision, texts at a time, memory
    writer: Writer
    batcher: WritingBatcher
    reader: ThreadPool  # for prompts that are scored
    texts: ThreadPool  # for tokenizing and chat templates
    context: int  # tokens of a prompt and what follows

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        name: str,
        limits: Limits,
        *,
        engine: str = "auto",
        device: str = "auto",
        observe: Observe | None = None,
        shares: FairShares | None = None,
    ) -> ServedWriter:
        """Make an engine for a bundle, and its batcher. `shares` are those of all models of a process."""
        made, shares = make_served_engine(bundle, engine, device), shares or FairShares()
        decoder, how = _decoder(made, limits)
        batcher = WritingBatcher(decoder, bundle.tokenizer, limits, shares, observe)
        reader = ThreadPool("requests for words", 1, limits.word_places, shares)
        texts = ThreadPool("texts", 1, shares=shares)
        return cls(name, bundle, made, how, Writer(bundle.tokenizer, made), batcher, reader, texts, bundle.max_length)

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self.bundle.tokenizer.chat is not None

    def score(self, prompt: Sequence[int], top: int) -> list[Token]:
        """The tokens of a prompt but the first, each with its log-probability and the likeliest in its place."""
        return self.batcher.decoder.read(prompt, top)

    async def write(
        self, prompts: Sequence[Sequence[int]], options: WritingOptions, top: int = 0, is_streamed: bool = False
    ) -> AsyncGenerator[WrittenPiece]:
        """The texts that follow these prompts, piece by piece as they come, `options.search.nbest` for each. They end when nobody
        listens any more."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
        jobs: list[WritingJob] = []
        client = CLIENT.get()
        try:
            for number, prompt in enumerate(prompts):

                def on_piece(piece: Piece | Exception, number: int = number) -> None:
                    loop.call_soon_threadsafe(queue.put_nowait, (number, piece))

                try:
                    with refusing("writing"):
                        jobs.append(
                            self.batcher.submit(
                                prompt, options, on_piece, top=top, is_streamed=is_streamed, client=client
                            )
                        )
                except QueueFull as full:
                    raise Busy(str(full), full.seconds) from None
            left = len(prompts) * options.search.nbest
            while left:
                number, piece = await queue.get()
                if isinstance(piece, Exception):
                    raise RegardError("writing has failed") from piece
                left -= piece.reason is not None
                yield WrittenPiece(number, piece)
        finally:
            for job in jobs:
                self.batcher.cancel(job)

    def close(self) -> None:
        """Stop the threads. Requests have already been drained; running work gets a few seconds."""
        self.batcher.close(PATIENCE)
        self.reader.close()
        self.texts.close()


def _decoder(engine: TorchEngine, limits: Limits) -> tuple[TextDecoder, str]:
    """What writes for all clients: slots on a GPU, else a batch that texts join; and what to say of it."""
    if engine.slots is not None:
        from regard.generate.engines.slot_text_decoder import SlotTextDecoder

        slots = SlotTextDecoder(engine, limits.rows, limits.tokens, limits.cache_bytes)
        size = f"{slots.max_rows} slots of {slots.capacity} tokens, {slots.cache_bytes / 1e9:.2f} GB taken"
        return slots, f"{engine.device.type} {engine.precision}, {size}"
    from regard.generate.engines.joint_decoder import JointDecoder

    joint = JointDecoder(engine, limits.cache_bytes)
    size = f"{limits.rows} texts, {joint.max_tokens * engine.bytes_per_token / 1e9:.2f} GB at most"
    return joint, f"{engine.device.type} {engine.precision}, {size}"

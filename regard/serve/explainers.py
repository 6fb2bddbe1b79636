"""Explanations for a server: one at a time, in their own thread. The first one loads torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from regard.explain.page import page_data
from regard.generate.options import SearchOptions
from regard.serve.refusal import refusing
from regard.serve.served_encoder import ServedEncoder
from regard.serve.served_model import ServedModel
from regard.serve.served_writer import ServedWriter
from regard.serve.thread_pool import ThreadPool
from regard.understanding.classifier import Text

if TYPE_CHECKING:
    from regard.explain.encoder_explainer import EncoderExplainer
    from regard.explain.explainer import Explainer
    from regard.explain.text_attention import TextAttention


class Explainers:
    """Creates the explainer of a model on first use."""

    def __init__(self, places: int) -> None:
        self._made: dict[tuple[str, str], Explainer] = {}
        self._of_texts: dict[str, TextAttention] = {}
        self._of_encoders: dict[str, EncoderExplainer] = {}
        self._threads = ThreadPool("explanations", 1, places)

    async def explain(self, served: ServedModel, text: str, translation: str | None, prefix: str | None) -> bytes:
        """The page's data as JSON. A request whose client leaves while it waits never starts."""
        return await self._threads.run(self._work, served, text, translation, prefix)

    async def explain_encoder(self, served: ServedEncoder, text: Text, options: dict[str, Any]) -> bytes:
        """The page's data about a text that a model without a decoder reads, as JSON."""
        return await self._threads.run(self._read, served, text, options)

    async def attention(self, writer: ServedWriter, text: str) -> bytes:
        """The attention of a language model within a text, as JSON."""
        return await self._threads.run(self._look, writer, text)

    def _look(self, writer: ServedWriter, text: str) -> bytes:
        with refusing("attention"):
            if writer.name not in self._of_texts:
                from regard.explain.text_attention import TextAttention

                self._of_texts[writer.name] = TextAttention(writer.bundle, writer.engine)
            found = self._of_texts[writer.name].of(writer.writer.prompt_ids(text))
        return json.dumps(found, separators=(",", ":")).encode("ascii")

    def _read(self, served: ServedEncoder, text: Text, options: dict[str, Any]) -> bytes:
        with refusing("an explanation"):
            if served.name not in self._of_encoders:
                from regard.explain.encoder_explainer import EncoderExplainer

                self._of_encoders[served.name] = EncoderExplainer(served.bundle, served.text_side.engine)
            found = self._of_encoders[served.name].explain(text, **options)
        return json.dumps(page_data(found), separators=(",", ":")).encode("ascii")

    def _work(self, served: ServedModel, text: str, translation: str | None, prefix: str | None) -> bytes:
        options = SearchOptions.of(served.bundle)
        with refusing("an explanation"):
            found = self._explainer(served).explain(text, options, target=translation, prefix=prefix)
        return json.dumps(page_data(found), separators=(",", ":")).encode("ascii")

    def _explainer(self, served: ServedModel) -> Explainer:
        pair = served.bundle.source, served.bundle.target
        if pair not in self._made:
            from regard.explain.explainer import Explainer

            same = (one for one in self._made.values() if one.bundle.folder == served.bundle.folder)
            first = next(same, None)
            self._made[pair] = Explainer(served.bundle, None if first is None else first.engine)
        return self._made[pair]

"""Explanations for a server: one at a time, in their own thread. The first one loads torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from regard.explain.page import page_data
from regard.generate.options import SearchOptions
from regard.serve.refusal import refusing
from regard.serve.served_model import ServedModel
from regard.serve.thread_pool import ThreadPool

if TYPE_CHECKING:
    from regard.explain.explainer import Explainer


class Explainers:
    """Creates the explainer of a model on first use."""

    def __init__(self, places: int) -> None:
        self._made: dict[tuple[str, str], Explainer] = {}
        self._threads = ThreadPool("explanations", 1, places)

    async def explain(self, served: ServedModel, text: str, translation: str | None, prefix: str | None) -> bytes:
        """The page's data as JSON. A request whose client leaves while it waits never starts."""
        return await self._threads.run(self._work, served, text, translation, prefix)

    def _work(self, served: ServedModel, text: str, translation: str | None, prefix: str | None) -> bytes:
        options = SearchOptions.of(served.bundle)
        with refusing("an explanation"):
            found = self._explainer(served).explain(text, options, target=translation, prefix=prefix)
        return json.dumps(page_data(found), separators=(",", ":")).encode("ascii")

    def _explainer(self, served: ServedModel) -> Explainer:
        pair = served.bundle.source, served.bundle.target
        if pair not in self._made:
            from regard.explain.explainer import Explainer

            self._made[pair] = Explainer(served.bundle)
        return self._made[pair]

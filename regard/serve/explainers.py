"""Explanations for a server: one at a time, in a thread of their own. They need torch, which is loaded for the first of them."""

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
    """Makes an explainer for a model when it is first asked for."""

    def __init__(self, places: int) -> None:
        self._made: dict[tuple[str, str], Explainer] = {}
        self._apart = ThreadPool("explanations", 1, places)

    async def explain(self, served: ServedModel, text: str, translation: str | None, prefix: str | None) -> bytes:
        """The page's data as JSON. A request that still waits when its client goes away is never begun."""
        return await self._apart.run(self._work, served, text, translation, prefix)

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

"""The Python API: `regard.load(...)` gives a Model that translates, scores and explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from regard.bundle import Bundle, find_bundle, load_bundle
from regard.decode.engines import make_engine
from regard.decode.options import Done, SearchOptions
from regard.decode.text import Result, Translator
from regard.explain.explanation import EXAMPLE, Explanation

if TYPE_CHECKING:
    from regard.explain.explainer import Explainer


class Model:
    """A trained translation model.

    >>> model = load("tests/golden/bundle-1")  # a very small one: it reverses letters
    >>> model.translate(["a b c", "p o n m"])
    ['c b a', 'm n o p']
    """

    def __init__(self, bundle: Bundle, *, device: str = "auto", batch: int = 0, engine: str = "auto") -> None:
        self.bundle = bundle
        self.options = SearchOptions(**dataclasses.asdict(bundle.decode))
        self.engine = make_engine(bundle, engine, device, batch)

    def translate(
        self, text: str | Sequence[str], *, beam: int | None = None, alpha: float | None = None
    ) -> str | list[str]:
        """Translate one sentence or a list of them; options that are not given are the model's own."""
        lines = [text] if isinstance(text, str) else list(text)
        results = self._translator(self.search_options(beam, alpha, 1)).translate(lines)
        texts = [result.text for result in results]
        return texts[0] if isinstance(text, str) else texts

    def nbest(
        self, text: Sequence[str], n: int, *, beam: int | None = None, alpha: float | None = None
    ) -> list[Result]:
        """The n best translations of every sentence, with their scores."""
        if isinstance(text, str):
            raise TypeError("`text` must be a list of sentences, but is one string")
        return self._translator(self.search_options(beam, alpha, n)).translate(list(text))

    @property
    def chunk(self) -> int:
        """Lines to hold at a time: so many batches that the engine can sort them by length, and that their end costs little."""
        return max(1024, 32 * self.engine.batch)

    def stream(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        chunk: int = 0,
        done: Done | None = None,
    ) -> Iterator[Result]:
        """Translate any number of lines in order, holding only `chunk` of them at a time (0: `Model.chunk`)."""
        return self._translator(options or self.options).stream(lines, chunk or self.chunk, done)

    def score(self, src: Sequence[str], tgt: Sequence[str]) -> list[float]:
        """The natural log-probability of each given translation, its end included."""
        if isinstance(src, str) or isinstance(tgt, str):
            raise TypeError("`src` and `tgt` must be lists of sentences, but one is a string")
        if len(src) != len(tgt):
            raise ValueError(f"`src` and `tgt` must be of one length, but have {len(src)} and {len(tgt)} sentences")
        return [sum(tokens) for tokens in self._translator(self.options).score(src, tgt)]

    def explain(
        self,
        text: str = EXAMPLE,
        *,
        target: str | None = None,
        prefix: str | None = None,
        force: Mapping[int, str] | None = None,
        beam: int | None = None,
        alpha: float | None = None,
        top: int = 8,
    ) -> Explanation:
        """Look into the translation of one sentence: attention, candidates, the beam, saliency. A notebook shows it as a page.

        `target` is a translation to look at instead of the model's own. `prefix` is what the translation begins with, `force` says
        which word stands at which place, counted from 1; the rest is searched for. In fp32 on the CPU, whatever the engine.

        >>> load("tests/golden/bundle-1").explain("a b c", force={1: "b"}).target.words[0]
        'b'
        """
        options = self.search_options(beam, alpha, 1)
        return self._explainer.explain(text, options, target=target, prefix=prefix, force=force, top=top)

    @cached_property
    def _explainer(self) -> Explainer:
        from regard.explain.explainer import Explainer

        return Explainer(self.bundle)

    def _translator(self, options: SearchOptions) -> Translator:
        return Translator(self.bundle.tokenizer, self.engine, options, self.bundle.max_length)

    def search_options(self, beam: int | None, alpha: float | None, nbest: int | None) -> SearchOptions:
        """The model's own options with these changes; the beam is at least as wide as `nbest`."""
        return self.options.changed(beam, alpha, nbest)


def load(model: str | Path, *, device: str = "auto", batch: int = 0, engine: str = "auto") -> Model:
    """Load a bundle or the model of a run folder. `engine` is auto, torch or ctranslate2: see `regard.decode.engines`."""
    return Model(load_bundle(find_bundle(model)), device=device, batch=batch, engine=engine)

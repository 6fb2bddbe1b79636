"""The Python API: `regard.load(...)` gives a Model that translates, scores and explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from regard.bundle import Bundle, find_bundle, load_bundle
from regard.decode.alternatives import Alternative, find_alternatives
from regard.decode.engines import make_engine
from regard.decode.options import Done, SearchOptions
from regard.decode.text import Ask, Result, Translator
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
        self,
        text: str | Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        prefix: str | Sequence[str] | None = None,
    ) -> str | list[str]:
        """Translate one sentence or a list of them; options that are not given are the model's own.

        A translation begins with its `prefix`, one for all or one for each sentence, and the rest is searched for. The last word
        of a prefix may go on, unless a space follows it.

        >>> load("tests/golden/bundle-1").translate("a b c", prefix="b ")[:2]
        'b '
        """
        lines = [text] if isinstance(text, str) else list(text)
        options = self.search_options(beam, alpha, 1)
        results = self._translator(options).translate(lines, asks=_asks(lines, prefix))
        texts = [result.text for result in results]
        return texts[0] if isinstance(text, str) else texts

    def nbest(
        self,
        text: Sequence[str],
        n: int,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        prefix: str | Sequence[str] | None = None,
        words: bool = False,
    ) -> list[Result]:
        """The n best translations of every sentence, with their scores; with `words` also with the log-probability of each word."""
        if isinstance(text, str):
            raise TypeError("`text` must be a list of sentences, but is one string")
        lines = list(text)
        options = dataclasses.replace(self.search_options(beam, alpha, n), words=words)
        return self._translator(options).translate(lines, asks=_asks(lines, prefix))

    def alternatives(self, text: str, prefix: str = "", *, k: int = 8) -> list[Alternative]:
        """The likeliest words right after `prefix`, which is the beginning of a translation of this sentence, with their
        probabilities.

        >>> [word.word for word in load("tests/golden/bundle-1").alternatives("a b c", "c b", k=2)][0]
        'a'
        """
        return find_alternatives(self._translator(self.options), text, prefix, k)

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


def _asks(lines: Sequence[str], prefix: str | Sequence[str] | None) -> list[Ask]:
    """What was asked of each line."""
    if prefix is None:
        return []
    prefixes = [prefix] * len(lines) if isinstance(prefix, str) else list(prefix)
    if len(prefixes) != len(lines):
        raise ValueError(f"`prefix` must be one for each of {len(lines)} sentences, but there are {len(prefixes)}")
    return [Ask(prefix) for prefix in prefixes]


def load(model: str | Path, *, device: str = "auto", batch: int = 0, engine: str = "auto") -> Model:
    """Load a bundle or the model of a run folder. `engine` is auto, torch or ctranslate2: see `regard.decode.engines`."""
    return Model(load_bundle(find_bundle(model)), device=device, batch=batch, engine=engine)

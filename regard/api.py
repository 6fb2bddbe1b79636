"""The Python API: `regard.load(...)` gives a Model that translates, scores and explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.bundle import Bundle, find_bundle, load_bundle
from regard.errors import UserError
from regard.evaluate import sentence_scorer
from regard.explain.explanation import EXAMPLE, Explanation
from regard.generate.engines.select import make_engine
from regard.generate.options import Done, SearchOptions
from regard.translation.alternatives import Alternative, find_alternatives
from regard.translation.constraints import Ask
from regard.translation.glossary import Glossary
from regard.translation.translator import Result, Translator

if TYPE_CHECKING:
    from regard.explain.explainer import Explainer


class Model:
    """A trained translation model.

    >>> model = load("tests/golden/bundle-1")  # a very small one: it reverses letters
    >>> model.translate(["a b c", "p o n m"])
    ['c b a', 'm n o p']
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        batch: int = 0,
        engine: str = "auto",
        others: Sequence[Bundle] = (),
    ) -> None:
        """`others` are models of the same vocabulary that translate together with this one."""
        self.bundle = bundle
        self.options = SearchOptions.of(bundle)
        self.engine = make_engine(bundle, engine, device, batch, others)
        self.max_length = min(one.max_length for one in (bundle, *others))

    def __repr__(self) -> str:
        return f"<regard.Model {self.bundle.source} → {self.bundle.target}, {type(self.engine).__name__}>"

    def translate(
        self,
        text: str | Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        prefix: str | Sequence[str] | None = None,
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
        **search: Any,
    ) -> str | list[str]:
        """Translate one sentence or a list of them; options that are not given are the model's own.

        A translation begins with its `prefix`, one for all or one for each sentence, and the rest is searched for. The last word
        of a prefix may go on, unless a space follows it. `phrases` must appear, as whole words: a list for all sentences, or a list
        of lists. All fields of `SearchOptions` may be given: `sample=True, seed=3`, `glossary={"cat": "Katze"}`, `keep=["Regard"]`.

        >>> load("tests/golden/bundle-1").translate("a b c", prefix="b ")[:2]
        'b '
        """
        if "nbest" in search:
            raise UserError("translate gives one translation of each sentence; for several call nbest")
        lines = [text] if isinstance(text, str) else list(text)
        options = self.search_options(beam, alpha, 1, **search)
        results = self._translator(options).translate(lines, asks=_asks(lines, prefix, phrases))
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
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
        **search: Any,
    ) -> list[Result]:
        """The n best translations of every sentence, with their scores; with `words=True` also with the log-probability of each
        word, with `alignment=True` with the source words that they come from. Else as `translate`."""
        if isinstance(text, str):
            raise TypeError("`text` must be a list of sentences, but is one string")
        lines = list(text)
        options = self.search_options(beam, alpha, n, **search)
        return self._translator(options).translate(lines, asks=_asks(lines, prefix, phrases))

    def follow(
        self,
        text: str,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        prefix: str | None = None,
        phrases: Sequence[str] | None = None,
        **search: Any,
    ) -> Iterator[str]:
        """One text's translation as it grows: beginnings that the search can no longer change, and in the end all of it.

        >>> [*load("tests/golden/bundle-1", engine="torch").follow("a b c")][-1]
        'c b a'
        """
        options = self.search_options(beam, alpha, 1, **search)
        [ask] = _asks([text], prefix, phrases) or [Ask()]
        return self.follow_line(text, options, ask)

    def follow_line(self, text: str, options: SearchOptions, ask: Ask | None = None) -> Iterator[str]:
        """As `follow`, with options at hand."""
        return self._translator(options).follow(text, ask or Ask())

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
        ask: Ask | None = None,
    ) -> Iterator[Result]:
        """Translate any number of lines in order, holding only `chunk` of them at a time (0: `Model.chunk`); `ask` is what is
        wanted of each."""
        return self._translator(options or self.options).stream(lines, chunk or self.chunk, done, ask)

    def score(self, src: Sequence[str], tgt: Sequence[str]) -> list[float]:
        """The natural log-probability of each given translation, its end included."""
        return [sum(tokens) for tokens in self.token_scores(src, tgt)]

    def token_scores(self, src: Sequence[str], tgt: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of given translations, the end's last."""
        if isinstance(src, str) or isinstance(tgt, str):
            raise TypeError("`src` and `tgt` must be lists of sentences, but one is a string")
        if len(src) != len(tgt):
            raise ValueError(f"`src` and `tgt` must be of one length, but have {len(src)} and {len(tgt)} sentences")
        return self._translator(self.options).score(src, tgt)

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

        return Explainer(self.bundle, self.engine)

    def _translator(self, options: SearchOptions) -> Translator:
        utility = sentence_scorer(options.mbr, self.bundle.target) if options.mbr else None
        return Translator(self.bundle.tokenizer, self.engine, options, self.max_length, utility)

    def search_options(
        self, beam: int | None = None, alpha: float | None = None, nbest: int | None = None, **search: Any
    ) -> SearchOptions:
        """The model's own options with these changes; the beam is at least as wide as `nbest`. A glossary may be a mapping or the
        path of a file."""
        glossary = search.get("glossary")
        if isinstance(glossary, Mapping):
            search["glossary"] = Glossary.of(glossary)
        elif isinstance(glossary, (str, Path)):
            search["glossary"] = Glossary.read(Path(glossary))
        if "keep" in search:
            keep = search["keep"]
            search["keep"] = (keep,) if isinstance(keep, str) else tuple(keep)
        return self.options.changed(beam, alpha, nbest, **search)


def _asks(
    lines: Sequence[str],
    prefix: str | Sequence[str] | None,
    phrases: Sequence[str] | Sequence[Sequence[str]] | None,
) -> list[Ask]:
    """What was asked of each line; nothing where nothing was."""
    if prefix is None and phrases is None:
        return []
    if isinstance(phrases, str):
        raise TypeError("`phrases` must be a list of phrases, but is one string")
    prefixes = [prefix or ""] * len(lines) if isinstance(prefix, str | None) else list(prefix)
    common = [phrase for phrase in phrases or () if isinstance(phrase, str)]
    by_line = [tuple(some) for some in phrases or () if not isinstance(some, str)] or [tuple(common)] * len(lines)
    if common and len(common) != len(phrases or ()):
        raise TypeError("`phrases` must be a list of phrases for all sentences or a list of lists, but is a mixture")
    for name, values in (("prefix", prefixes), ("phrases", by_line)):
        if len(values) != len(lines):
            raise ValueError(f"`{name}` must be one for each of {len(lines)} sentences, but there are {len(values)}")
    return [Ask(prefix, some) for prefix, some in zip(prefixes, by_line, strict=True)]


def load(
    model: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "auto",
    batch: int = 0,
    engine: str = "auto",
) -> Model:
    """Load a bundle, the model of a run folder or a built-in one (the default). `engine` is auto, torch or ctranslate2: see
    `generate/engines/select.py`. Several models that share a vocabulary form an ensemble, which averages their probabilities."""
    names = [model] if model is None or isinstance(model, (str, Path)) else list(model)
    if not names:
        raise UserError("no model is named in the list; name one or several, or give none at all for the built-in one")
    first, *others = [load_bundle(find_bundle(name)) for name in names]
    return Model(first, device=device, batch=batch, engine=engine, others=others)

"""The Python API: `regard.load(...)` returns a Model that translates, continues, labels or embeds texts, fills blanks, scores and
explains; `regard.load_index(...)` an index to search."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from regard.arguments import check_path, check_text, check_texts
from regard.builtin import builtin_models, shown_name
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.data.corpus import check_file
from regard.errors import RegardError, UserError
from regard.evaluate import sentence_scorer
from regard.explain.encoder_explanation import check_task
from regard.explain.explanation import EXAMPLE
from regard.files import write_atomic
from regard.generate.encoding import EncoderEngine
from regard.generate.engines.onnx_text_engine import OnnxTextEngine
from regard.generate.engines.select import make_encoder, make_engine, make_text_engine
from regard.generate.options import Engine, SearchOptions
from regard.progress import OnProgress, progress_if
from regard.translation.alignment import TextAlignment, align_texts
from regard.translation.alternatives import Alternative, find_alternatives
from regard.translation.constraints import TextConstraints
from regard.translation.directions import Direction, choose_direction, shown
from regard.translation.documents.files import Languages, check_target, sample_of_file, translate_local
from regard.translation.documents.formats import find_kind, output_kind
from regard.translation.glossary import Glossary
from regard.translation.results import Result, unmet_note
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from regard.understanding.answers import Classified, Tagged
from regard.understanding.classifier import Classifier, Text
from regard.understanding.embedder import Embedder, Vectors
from regard.understanding.filler import Filled, Filler
from regard.understanding.index import Index
from regard.understanding.tagger import Tagger
from regard.writing.options import WritingOptions, writing_options
from regard.writing.scoring import TextScore, TextScorer
from regard.writing.writer import Chat, Writer, Written

if TYPE_CHECKING:
    from regard.explain.encoder_explainer import EncoderExplainer
    from regard.explain.explainer import Explainer

_USABLE = ("translate", "generate", "fill", "embed", "classify", "tag")  # tasks whose models a Model runs

_LOG = logging.getLogger("regard")


class Model:
    """A trained model, or an ensemble of translation models; `regard.load` makes one. What it can do depends on its task.

    >>> model = load("tests/golden/bundle-1")  # a tiny model that reverses letters
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
        """`others` are models with the same vocabulary; together they form an ensemble. `batch=0` leaves the size to the engine."""
        self.bundle = bundle
        self.options = TranslationOptions.of(bundle)
        self.engine: Engine
        if bundle.task == "generate":
            continuing = make_text_engine(bundle, engine, device, batch)
            self.engine = cast(Engine, continuing)  # only what all engines have is used of it
            self.writer = Writer(bundle.tokenizer, continuing)
        elif bundle.task in ("fill", "embed", "classify", "tag"):
            encoder = make_encoder(bundle, engine, device, batch)
            self.engine = cast(Engine, encoder)
            if bundle.task == "fill":
                self.filler = Filler(bundle, encoder)
            elif bundle.task == "embed":
                self.embedder = Embedder(bundle, encoder)
            elif bundle.task == "classify":
                self.classifier = Classifier(bundle, encoder)
            else:
                self.tagger = Tagger(bundle, encoder)
        else:
            self.engine = make_engine(bundle, engine, device, batch, others)
        self.max_length = min(one.max_length for one in (bundle, *others))
        self._models = 1 + len(others)
        self._is_chosen = len(bundle.pairs) == 1  # the direction
        # As `toward` returns them, so that each loads once what it needs.
        self._by_direction: dict[Direction, Model] = {}
        _LOG.info("loaded %r", self)

    def __repr__(self) -> str:
        ensemble = f", ensemble of {self._models} models" if self._models > 1 else ""
        what = self.bundle.task if self.bundle.task != "translate" else shown([(self.source, self.target)])
        what = what if self._is_chosen else self.bundle.languages
        return f"<regard.Model {what} ({self.bundle.folder.name}){ensemble}, {type(self.engine).__name__}>"

    @property
    def source(self) -> str:
        """The source language, such as "en"; of several directions that of the first, unless `toward` chose another."""
        return self.bundle.source

    @property
    def target(self) -> str:
        """The target language, such as "de"."""
        return self.bundle.target

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Source and target language of every direction."""
        self._needs("translate")
        return self.bundle.pairs

    def toward(self, target: str | None = None, source: str | None = None, sample: Iterable[str] = ()) -> Model:
        """The model for one of its directions, with the same weights in memory. A language that is not named is found by the texts
        in `sample`.

        >>> load("tests/golden/bundle-1").toward("tgt").target
        'tgt'
        """
        return self._toward(sample, target, source, is_all=False)

    def toward_texts(self, texts: Iterable[str], target: str | None = None, source: str | None = None) -> Model:
        """`toward` by all texts that are to be translated; for blank ones, which every direction leaves as they are, the first."""
        return self._toward(texts, target, source, is_all=True)

    def _toward(self, texts: Iterable[str], target: str | None, source: str | None, *, is_all: bool) -> Model:
        self._needs("translate")
        if self._is_chosen and target is None and source is None:
            return self
        pair = choose_direction(self.bundle.pairs, source, target, texts, is_all=is_all)
        if self._is_chosen and pair == (self.source, self.target):
            return self
        if pair not in self._by_direction:
            chosen = copy.copy(self)
            vars(chosen).pop("_explainer", None)
            chosen.bundle, chosen._is_chosen = self.bundle.toward(*pair), True
            chosen.options, chosen._by_direction = TranslationOptions.of(chosen.bundle), {}
            self._by_direction[pair] = chosen
        return self._by_direction[pair]

    def translate(
        self,
        text: str | Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        prefix: str | Sequence[str] | None = None,
        phrases: Sequence[str] | Sequence[Sequence[str]] | None = None,
        target: str | Sequence[str] | None = None,
        source: str | None = None,
        progress: bool = False,
        **search: Any,
    ) -> str | list[str]:
        """Translate a text (returns a string) or a list of texts (returns a list). Options default to the model's settings.
        `progress` shows a progress bar on standard error.

        With a model for several directions, `target` names the target language, one for all texts or one for each; without it the
        language of the texts decides.

        `prefix` is a forced prefix, one for all texts or one for each; the search may extend its last word unless it ends in a
        space. `phrases` must appear as whole words: a list for all texts, or a list of lists. Where the guard leaves a text
        untranslated, these may be missing: a warning says so (with `nbest`, `Result.unmet`, too). `search` stands for all other
        options: `sample=True, seed=3`, `glossary={"cat": "Katze"}`, `keep=["Regard"]`.

        >>> load("tests/golden/bundle-1").translate("a b c", prefix="b ")[:2]
        'b '
        """
        if "nbest" in search:
            raise UserError("translate returns one translation per sentence; call `nbest` for more")
        lines = [text] if isinstance(text, str) else check_texts("text", text, alternative="a string or ")
        options = self.search_options(beam, alpha, 1, **search)
        constraints = _text_constraints(lines, prefix, phrases)
        with progress_if(progress, "translating", len(lines)) as done:
            results = self._translate(lines, options, constraints, target, source, done)
        if said := unmet_note(results):
            warnings.warn(said, stacklevel=2)
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
        target: str | Sequence[str] | None = None,
        source: str | None = None,
        progress: bool = False,
        **search: Any,
    ) -> list[Result]:
        """The `n` best translations of each sentence with their scores. `words=True` adds the log-probability of each word,
        `alignment=True` the source words that it is aligned to. Other options as for `translate`."""
        lines = check_texts("text", text, of="sentences")
        if not isinstance(n, int):
            raise TypeError(f"`n` must be a whole number, but is {n!r}")
        options = self.search_options(beam, alpha, n, **search)
        constraints = _text_constraints(lines, prefix, phrases)
        with progress_if(progress, "translating", len(lines)) as done:
            return self._translate(lines, options, constraints, target, source, done)

    def _translate(
        self,
        lines: Sequence[str],
        options: TranslationOptions,
        constraints: Sequence[TextConstraints],
        target: str | Sequence[str] | None,
        source: str | None,
        on_progress: OnProgress | None,
    ) -> list[Result]:
        """Results in order; lines with the same target are translated together."""
        if target is None or isinstance(target, str):
            model = self.toward_texts(lines, target, source)
            return model._translator(options).translate(lines, on_progress, constraints)
        targets = check_texts("target", target, alternative="a string or ", of="languages")
        if len(targets) != len(lines):
            raise ValueError(f"`target` must have one entry for each of {len(lines)} sentences, but has {len(targets)}")
        found: dict[int, Result] = {}
        for one in dict.fromkeys(targets):
            numbers = [number for number, other in enumerate(targets) if other == one]
            mine, own = [lines[n] for n in numbers], [constraints[n] for n in numbers] if constraints else []
            results = self._translate(mine, options, own, one, source, on_progress)
            found |= zip(numbers, results, strict=True)
        return [found[number] for number in range(len(lines))]

    def translate_file(
        self,
        source: str | Path,
        target: str | Path | None = None,
        *,
        column: str | None = None,
        force: bool = False,
        on_progress: OnProgress | None = None,
        progress: bool = False,
        beam: int | None = None,
        alpha: float | None = None,
        **search: Any,
    ) -> Path:
        """Translate a document, such as a .docx, .html or .srt, and return the path of the translation.

        `target` defaults to the name of the source with the target language in it, letter.de.docx for letter.docx. An existing file
        is overwritten only with `force`, the source never. `column` is for .csv and .tsv. `on_progress` is called with the number
        of sentences newly finished; `progress` shows a progress bar. `search` takes the search options of `translate`. A model of
        several directions takes the one whose source language the document is in, and for a document without text the first.
        """
        source = check_path("source", source)
        target = None if target is None else check_path("target", target)
        check_file(source)
        kind = find_kind(source.name)
        if not self._is_chosen:
            # It is read again below, since its texts may depend on the target language: in a TMX file they are those without a
            # translation into it.
            model = self.toward_texts(sample_of_file(source, column))
            given = {"column": column, "force": force, "on_progress": on_progress, "progress": progress, **search}
            return model.translate_file(source, target, beam=beam, alpha=alpha, **given)
        if target is None:
            ending = f".{output_kind(kind)}" if kind else source.suffix
            target = source.with_name(f"{source.stem}.{self.bundle.target}{ending}")
        check_target(source, Path(target), force, option="")
        if "nbest" in search:
            raise UserError("translate_file writes one translation per sentence; leave out nbest")
        options = self.search_options(beam, alpha, 1, **search)

        results: list[Result] = []

        def translate(sentences: list[str]) -> list[str]:
            with progress_if(progress, "translating", len(sentences), "sentences", on_progress) as done:
                found = list(self.stream(sentences, options, on_progress=done))
            results.extend(result for result in found if result.unmet)
            return [result.text for result in found]

        languages = Languages(self.bundle.source, self.bundle.target)
        content, note = translate_local(source, languages, translate, column, self.align)
        for said in filter(None, (note, unmet_note(results))):
            warnings.warn(f"{source}: {said}", stacklevel=2)
        write_atomic(Path(target), content)
        return Path(target)

    def generate(self, prompt: str | Sequence[str] = "", *, progress: bool = False, **options: Any) -> str | list[str]:
        """Continue a prompt (returns what follows it, a string) or a list of prompts (returns a list). With nothing else asked for,
        it is a sample at temperature 0.8 of at most 200 tokens.

        `options` are `max_tokens`, `temperature` (0: the likeliest token each time), `top_k`, `top_p`, `min_p`, `seed`,
        `repetition_penalty`, `no_repeat`, `max_repeat`, `prefix` (how it begins), `stop` (texts before which it ends), `phrases`
        (what must appear), or `beam` with `alpha` for beam search.
        """
        if "n" in options:
            raise UserError("generate returns one continuation per prompt; call `continuations` for more")
        written = self.continuations(prompt, progress=progress, **options)
        texts = [one.continuations[0].text for one in written]
        return texts[0] if isinstance(prompt, str) else texts

    def continuations(
        self, prompt: str | Sequence[str] = "", *, progress: bool = False, **options: Any
    ) -> list[Written]:
        """`n` continuations of each prompt, with the reason why each ended and its log-probability; `token_log_probs=True` adds
        that of each token. Other options as for `generate`."""
        self._needs("generate")
        prompts = [prompt] if isinstance(prompt, str) else check_texts("prompt", prompt, alternative="a string or ")
        chosen = writing_options(**options)
        with progress_if(progress, "writing", len(prompts), "prompts") as done:
            return self.writer.write(prompts, chosen, lambda numbers: done(len(numbers)) if done else None)

    def chat(self, messages: Chat, **options: Any) -> str:
        """The answer to a conversation: a list of messages, each with `role` (system, user or assistant) and `content`, or the one
        message of a user. It is rendered with the model's own chat template; what a message says stays text, also where it names a
        control token. Options as for `generate`; `follow_chat` yields the answer as it grows."""
        self._needs("generate")
        return self.writer.answer([messages], _one_text(options, "chat"))[0].continuations[0].text

    def follow_chat(self, messages: Chat, **options: Any) -> Iterator[str]:
        """Yield the answer to a conversation as it grows: each string extends the one before, and the last is complete."""
        self._needs("generate")
        return self.writer.follow_answer(messages, _one_text(options, "follow_chat"))

    def score_texts(
        self, texts: Sequence[str], *, stride: int | None = None, progress: bool = False
    ) -> list[TextScore]:
        """How likely each text is to a language model: log-probability, nats a token, bits per byte, perplexity. Texts beyond the
        model's context are read in windows, with `stride` new tokens in each (default: half a window). On a CPU load the model with
        `engine="torch"` for its full precision."""
        given = check_texts("texts", texts)
        with progress_if(progress, "scoring", len(given), "texts") as done:
            return self.text_scorer(stride).score(given, done)

    def text_scorer(self, stride: int | None = None) -> TextScorer:
        """What scores texts, pairs and answers."""
        self._needs("generate")
        engine = self.writer.engine
        engine = engine.scorer if isinstance(engine, OnnxTextEngine) else engine
        return TextScorer(self.bundle.tokenizer, engine, self.bundle.max_length, stride)

    def embed(self, text: str | Sequence[str], *, prompt: str | None = None, progress: bool = False) -> Vectors:
        """The vector of a text, (d_model,), or of each of a list of texts, (texts, d_model). A text longer than the model reads is
        cut into windows, whose vectors are joined. `prompt` is the name of what the model puts before each text, such as "query",
        if it has prompts."""
        self._needs("embed")
        texts = [text] if isinstance(text, str) else check_texts("text", text, alternative="a string or ")
        with progress_if(progress, "embedding", len(texts), "texts") as done:
            vectors = self.embedder.embed(texts, prompt, done)
        return vectors[0] if isinstance(text, str) else vectors

    def fill(self, text: str | Sequence[str], k: int = 5, *, progress: bool = False) -> Filled | list[Filled]:
        """The `k` likeliest tokens for each blank of a text, or of each of a list of texts. A blank is written as the model's own
        mask token, such as [MASK], or as ___."""
        self._needs("fill")
        texts = [text] if isinstance(text, str) else check_texts("text", text, alternative="a string or ")
        with progress_if(progress, "filling", len(texts), "texts") as done:
            filled = self.filler.fill(texts, k, done)
        return filled[0] if isinstance(text, str) else filled

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, text: Text, *, threshold: float | None = None, progress: bool = False
    ) -> Classified: ...

    @overload
    def classify(
        self, text: Sequence[Text], *, threshold: float | None = None, progress: bool = False
    ) -> list[Classified]: ...

    def classify(
        self, text: Text | Sequence[Text], *, threshold: float | None = None, progress: bool = False
    ) -> Classified | list[Classified]:
        """The labels of a text, or of each of a list of texts, with the probability of every label; a pair of texts is a tuple. Of
        several labels those from `threshold` on (default: the model's). Long texts are read in windows, whose log-probabilities are
        averaged."""
        self._needs("classify")
        is_one = isinstance(text, str) or (isinstance(text, tuple) and len(text) == 2 and _is_pair(text))
        texts = cast(Sequence[Text], [text] if is_one else text)
        for number, one in enumerate(texts):
            if not isinstance(one, str) and not _is_pair(one):
                raise TypeError(
                    f"`text` must be a string, a pair of strings or a list of them, but text {number} is {one!r}"
                )
        with progress_if(progress, "classifying", None, "windows") as done:
            found = self.classifier.classify(texts, threshold, done)
        return found[0] if is_one else found

    @overload
    def tag(self, text: str, *, progress: bool = False) -> Tagged: ...  # type: ignore[overload-overlap]

    @overload
    def tag(self, text: Sequence[str | Sequence[str]], *, progress: bool = False) -> list[Tagged]: ...

    def tag(self, text: str | Sequence[str | Sequence[str]], *, progress: bool = False) -> Tagged | list[Tagged]:
        """The words of a text with their tags and, of B- and I- tags, the spans; or of each of a list of texts. A text is a
        string or a list of words, as the model's training text has them."""
        self._needs("tag")
        texts = [text] if isinstance(text, str) else list(text)
        for number, one in enumerate(texts):
            if not isinstance(one, str):
                check_texts(f"text[{number}]", one, of="words")
        with progress_if(progress, "tagging", None, "windows") as done:
            found = self.tagger.tag(texts, done)
        return found[0] if isinstance(text, str) else found

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[TextAlignment]:
        """Which words of each text go with which words of its translation, by this model or from elsewhere."""
        model = self.toward_texts(source for source, _ in pairs)
        return align_texts(model.engine, model.bundle.tokenizer, pairs, model.bundle.max_length, model.bundle.target)

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
        """Yield the translation of one text, or what follows a prompt, as it grows: each string extends the one before, and the
        last is complete. The search can no longer change what has been yielded. A language model takes the options of `generate`.

        >>> [*load("tests/golden/bundle-1", engine="torch").follow("a b c")][-1]
        'c b a'
        """
        check_text("text", text)
        if self.bundle.task == "generate":
            given = {"beam": beam, "alpha": alpha, "prefix": prefix, "phrases": phrases, **search}
            given = {name: value for name, value in given.items() if value is not None}
            return self.writer.follow(text, _one_text(given, "follow"))
        options = self.search_options(beam, alpha, 1, **search)
        [constraints] = _text_constraints([text], prefix, phrases) or [TextConstraints()]
        return self.follow_line(text, options, constraints)

    def follow_line(
        self, text: str, options: TranslationOptions, constraints: TextConstraints | None = None
    ) -> Iterator[str]:
        """`follow` with finished `TranslationOptions`."""
        return self.toward_texts([text])._translator(options).follow(text, constraints or TextConstraints())

    def alternatives(self, text: str, prefix: str = "", *, k: int = 8, least: float | None = None) -> list[Alternative]:
        """The likeliest next words after `prefix`, the beginning of a translation of `text`, at most `k`, with their probabilities.
        Only words with which the whole translation is at least `least` times as likely as the best one (default: 0.075; 0: the
        `k` likeliest words in any case).

        >>> [word.word for word in load("tests/golden/bundle-1").alternatives("a b c", "c b", k=2)][0]
        'a'
        """
        check_text("text", text)
        check_text("prefix", prefix)
        side = self.toward(sample=[text])._translator(self.options).text_side
        return find_alternatives(side, self.engine, text, prefix, k, least)

    @property
    def chunk(self) -> int:
        """Lines to translate at a time: enough batches for sorting by length to pay, and for the last, short one not to matter."""
        return max(1024, 32 * self.engine.batch)

    def stream(
        self,
        lines: Iterable[str],
        options: TranslationOptions | SearchOptions | None = None,
        chunk: int = 0,
        on_progress: OnProgress | None = None,
        constraints: TextConstraints | None = None,
        steps: int = 1,
    ) -> Iterator[Result]:
        """Translate any number of lines in order, with at most `chunk` of them in memory (0: `Model.chunk`); `constraints` hold for
        every line. `on_progress` gets `steps` units for a line, part by part."""
        translator = self._translator(options or self.options)
        return translator.stream(lines, chunk or self.chunk, on_progress, constraints, steps)

    def score(self, src: Sequence[str], tgt: Sequence[str]) -> list[float]:
        """The natural log-probability of each given translation, end token included."""
        return [sum(tokens) for tokens in self.token_scores(src, tgt)]

    def token_scores(self, src: Sequence[str], tgt: Sequence[str]) -> list[list[float]]:
        """The natural log-probability of each token of the given translations; the last is the end token's."""
        src, tgt = check_texts("src", src, of="sentences"), check_texts("tgt", tgt, of="sentences")
        if len(src) != len(tgt):
            raise ValueError(f"`src` and `tgt` must have the same length, but have {len(src)} and {len(tgt)} sentences")
        # A blank text needs a direction here: unlike its translation, its score depends on it. No texts need none.
        model = self.toward(sample=src) if src else self.toward_texts(src)
        scored = model._translator(self.options).score(src, tgt)
        for number, tokens in enumerate(scored, 1):
            if not all(map(math.isfinite, tokens)):
                raise RegardError(
                    f"{shown_name(self.bundle.folder)}: the model's outputs for pair {number:,} are not finite, so it has no score"
                )
        return scored

    def explain(
        self,
        text: Text = EXAMPLE,
        *,
        target: str | None = None,
        prefix: str | None = None,
        force: Mapping[int, str] | None = None,
        beam: int | None = None,
        alpha: float | None = None,
        label: str | None = None,
        token: str | None = None,
        at: int | None = None,
        window: int | None = None,
        top: int = 8,
    ) -> Any:
        """How a translation (`Explanation`), or what an encoder says about a text (`EncoderExplanation`), came about. A notebook
        shows the result as a page. `top` is the number of candidates at each place. Always fp32 on the CPU.

        Of a translation: attention, candidates, beam and saliency. `target` is a translation to explain instead of the model's,
        `prefix` forces how it begins, `force` maps positions, counting from 1, to forced words.

        Of labels, tags and blanks: attention, probabilities, and which words decided. `label` is the label or tag, `token` the
        token to explain instead of the likeliest; `at` the word or blank, counting from 1; `window` the part of a long text. Of
        vectors: attention and, of a pair of texts, which words make them similar. A pair of texts is a tuple.

        >>> load("tests/golden/bundle-1").explain("a b c", force={1: "b"}).target.words[0]
        'b'
        """
        given = {
            "target": target, "prefix": prefix, "force": force, "beam": beam, "alpha": alpha, "label": label, "token": token,
            "at": at, "window": window,
        }  # fmt: skip
        check_task(self.bundle.task, [name for name, value in given.items() if value is not None])
        if self.bundle.task != "translate":
            if not _is_pair(text):
                check_text("text", text)
            return self._encoder_explainer.explain(text, label=label, token=token, at=at, window=window, top=top)
        check_text("text", text)
        options = self.search_options(beam, alpha, 1).search
        return self.toward(sample=[cast(str, text)])._explainer.explain(
            cast(str, text), options, target=target, prefix=prefix, force=force, top=top
        )

    @cached_property
    def _explainer(self) -> Explainer:
        from regard.explain.explainer import Explainer

        return Explainer(self.bundle, self.engine)

    @cached_property
    def _encoder_explainer(self) -> EncoderExplainer:
        from regard.explain.encoder_explainer import EncoderExplainer

        return EncoderExplainer(self.bundle, cast(EncoderEngine, self.engine))

    def _needs(self, task: str) -> None:
        """Refuse what only models of another task do."""
        if self.bundle.task != task:
            raise UserError(
                f"{shown_name(self.bundle.folder)}: must be a model for the task {task}, but is one for the task "
                f"{self.bundle.task}; load another"
            )

    def _translator(self, options: TranslationOptions | SearchOptions) -> Translator:
        self._needs("translate")
        if not self._is_chosen:
            raise UserError(f"the model translates {self.bundle.languages}; choose one with `toward`")
        if isinstance(options, SearchOptions):  # nothing is asked of the text side
            options = TranslationOptions(options)
        options = replace(options, languages=(self.source, self.target))
        utility = sentence_scorer(options.mbr, self.bundle.target) if options.mbr else None
        return Translator(self.bundle.tokenizer, self.engine, options, self.max_length, utility)

    def search_options(
        self, beam: int | None = None, alpha: float | None = None, nbest: int | None = None, **search: Any
    ) -> TranslationOptions:
        """The model's options with these changes; the beam is widened to `nbest`. `glossary` is a mapping or the path of a
        file."""
        self._needs("translate")
        glossary = search.get("glossary")
        if isinstance(glossary, Mapping):
            search["glossary"] = Glossary.of(glossary)
        elif isinstance(glossary, (str, Path)):
            search["glossary"] = Glossary.read(Path(glossary))
        elif glossary is not None and not isinstance(glossary, Glossary):
            raise TypeError(f"`glossary` must be a mapping or the path of a file, but is {glossary!r}")
        if "keep" in search:
            keep = search["keep"]
            search["keep"] = (keep,) if isinstance(keep, str) else tuple(keep)
        return self.options.changed(beam, alpha, nbest, **search)


def _is_pair(text: object) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(one, str) for one in text)


def _one_text(options: Mapping[str, Any], method: str) -> WritingOptions:
    """The options of a method that gives one text."""
    if several := {"n", "token_log_probs"} & set(options):
        raise UserError(f"{method} gives one text; leave out {min(several)}, or call `continuations`")
    return writing_options(**options)


def _text_constraints(
    lines: Sequence[str],
    prefix: str | Sequence[str] | None,
    phrases: Sequence[str] | Sequence[Sequence[str]] | None,
) -> list[TextConstraints]:
    """The constraints of each line; an empty list if there are none."""
    if prefix is None and phrases is None:
        return []
    if isinstance(phrases, str):
        raise TypeError("`phrases` must be a list of phrases, but is one string")
    prefixes = (
        [prefix or ""] * len(lines)
        if isinstance(prefix, str | None)
        else check_texts("prefix", prefix, alternative="a string or ")
    )
    common = [phrase for phrase in phrases or () if isinstance(phrase, str)]
    by_line = [tuple(some) for some in phrases or () if not isinstance(some, str)] or [tuple(common)] * len(lines)
    if common and len(common) != len(phrases or ()):
        raise TypeError(
            "`phrases` must be a list of phrases for all sentences or a list of lists, but is a mixture of both"
        )
    for name, values in (("prefix", prefixes), ("phrases", by_line)):
        if len(values) != len(lines):
            raise ValueError(f"`{name}` must have one entry for each of {len(lines)} sentences, but has {len(values)}")
    return [TextConstraints(prefix, some) for prefix, some in zip(prefixes, by_line, strict=True)]


def load(
    model: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "auto",
    batch: int = 0,
    engine: str = "auto",
    task: str | None = None,
    adapter: str | Path | None = None,
) -> Model:
    """Load a bundle, the model of a run folder or a built-in model (default: "en-de").

    A list of models with the same vocabulary forms an ensemble, which averages their probabilities. `engine` is "auto", "torch",
    "torch-int8", "ctranslate2", "ctranslate2-fp32" or "onnxruntime" (see `generate/engines/select.py`); `batch` is the number of
    sentences per batch, 0 for the engine's default.
    With `task`, a model for another task is refused. `adapter` is a folder with what LoRA changed of this model, by Regard or by
    peft, or the run that made it.
    """
    if model is not None and not isinstance(model, (str, Path, Sequence)):
        raise TypeError(f"`model` must be a path, the name of a built-in model or a list of them, but is {model!r}")
    names = [model] if model is None or isinstance(model, (str, Path)) else list(model)
    if not names:
        raise UserError("`model` must name at least one model, but is an empty list; leave it out for the built-in one")
    task = task or ("translate" if len(names) > 1 else None)
    folders = [find_bundle(name, task) for name in names]
    if adapter is not None:
        if len(folders) > 1:
            raise UserError("`adapter` goes with one model, but there are several; leave it out, or name one model")
        from regard.adapter import adapted

        folders = [adapted(folders[0], check_path("adapter", adapter))]
    first, *others = [load_bundle(folder, task) for folder in folders]
    if first.task not in _USABLE:
        raise UserError(
            f"{shown_name(first.folder)}: must be a model for {' or '.join(_USABLE)}, but is one for the task {first.task}, which "
            f"cannot be used yet"
        )
    return Model(first, device=device, batch=batch, engine=engine, others=others)


def load_index(
    folder: str | Path, model: str | Path | None = None, *, device: str = "auto", engine: str = "auto"
) -> Index:
    """Open an index that `regard embed FOLDER` made, with the model that made it (`model` says where that is, if it was moved).

    regard.load_index("docs.index").search("how do I change a limit?")[0].text
    """
    index = Index(check_path("folder", folder))
    # A built-in model by its path: the working folder may hold a folder of the same name.
    named = model or builtin_models().get(index.model, index.model)
    try:
        bundle = load_bundle(find_bundle(named), "embed")
    except UserError as error:
        if model is not None:
            raise
        raise UserError(f"{folder}: needs the model that made it; name it with -m ({error})") from None
    index.check_model(bundle)  # before the engine is made
    return Index(index.folder, Model(bundle, device=device, engine=engine).embedder)

"""The served models, and the path of a request: find the model, split into sentences, translate in batches, join."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from regard.errors import InputError, InputTooLarge
from regard.serve.alignments import SentenceCollector, align, align_sentences
from regard.serve.batched_sentences import INLINE_CHARACTERS, portions_of, search_sentences
from regard.serve.batching import Batcher
from regard.serve.fairness import FairShares
from regard.serve.limits import Limits
from regard.serve.refusal import LanguageError
from regard.serve.search import PLAIN, SearchRequest
from regard.serve.served_encoder import ServedEncoder
from regard.serve.served_model import ServedModel
from regard.serve.served_writer import ServedWriter
from regard.serve.thread_pool import ThreadPool
from regard.serve.writing_batch import WritingBatcher
from regard.translation.alignment import TextAlignment
from regard.translation.detection import Detected, detect, find_other_language, match_detected, sample_of
from regard.translation.documents.document import Plan, join_plans
from regard.translation.documents.readers import open_document
from regard.translation.languages import language_name, match_code
from regard.translation.markup.elements import MarkupParser
from regard.translation.markup.marked_text import MarkedText, parse_plain
from regard.translation.markup.tags import Xml
from regard.translation.results import Result, Unmet
from regard.translation.sentences import Split, split_text

_USUAL_BEAM = 4  # a request with a wider beam may have less text
_PORTION = 16  # texts that are joined in one go
_DOCUMENT_THREADS = 2  # besides the one that parses them
_CLEAR, _CONTEXT = (
    90,
    1_000,
)  # per cent: a language that is clear from the text itself; characters of the context that are read


@dataclass(frozen=True)
class TranslateRequest:
    """What a client asks for."""

    texts: Sequence[str]
    source: str | None  # None: detect it
    target: str
    is_html: bool = False
    alternatives: int = 0
    by_sentence: bool = True
    joins_lines: bool | None = None  # whether a line break counts as a space; None: in HTML only
    alignments: bool = False  # of words, for the best translation
    xml: Xml | None = None  # the texts are XML
    parse_markup: MarkupParser | None = None  # a parser, if the texts have other markup
    search: SearchRequest = PLAIN
    context: str = ""  # text around the texts; it helps to detect the language of short ones

    @property
    def characters(self) -> int:
        """The characters that count towards limits and rates."""
        return sum(map(len, self.texts)) + len(self.texts) * self.search.characters


@dataclass(frozen=True)
class Answer:
    """The translations of one text, best first, and its source language."""

    translations: list[str]
    source: str
    detected: Detected | None
    alignment: TextAlignment | None = None
    unmet: Sequence[Unmet] = ()  # what was asked for and is not in the translation
    other: Detected | None = None  # the language of the text, if it clearly is not `source`


class Prepared(NamedTuple):
    """A text of a request in sentences, and the model that translates it."""

    served: ServedModel
    detected: Detected | None
    other: Detected | None  # the language of the text, if it clearly is not the model's
    plan: Plan


@dataclass(frozen=True)
class SentenceProgress:
    """A sentence is finished."""

    text: int  # the number of its text in the request
    sentence: int  # its number in that text
    of: int  # sentences in that text
    translation: str
    total: int  # sentences that the model was given for this request


OnSentence = Callable[[SentenceProgress], None]


class TranslatedPlan(NamedTuple):
    """The translations of a plan's text, all different, best first, and what the best one lacks of what was asked for."""

    texts: list[str]
    unmet: list[Unmet]


class TranslatedFile(NamedTuple):
    """A translated document."""

    content: bytes
    characters: int  # of text in the original
    unmet: list[Unmet]  # what was asked for and is not in the translation


class Service:
    """All served models."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        shares: FairShares | None = None,
        writers: Sequence[ServedWriter] = (),
        encoders: Sequence[ServedEncoder] = (),
    ) -> None:
        """`shares` are those of the models, `writers` are language models, `encoders` models without a decoder."""
        self.limits, shares = limits, shares or FairShares()
        # Documents may take long, even after their clients are gone, so they get threads of their own. Only one thread parses
        # them: a parsed document takes many times the memory of its file.
        self._reading = ThreadPool("documents", 1, shares=shares)
        self._documents = ThreadPool("documents", _DOCUMENT_THREADS, shares=shares)
        self.texts = ThreadPool("texts", 1, shares=shares)
        self.models = list(models)
        every = (one for model in models for one in model.of_each_direction())
        self.pairs = {(one.bundle.source, one.bundle.target): one for one in every}
        self.writers = {writer.name: writer for writer in writers}
        self.encoders = {encoder.name: encoder for encoder in encoders}

    @property
    def names_of_models(self) -> list[str]:
        """All models by name: pairs of languages, then language models, then encoders."""
        pairs = (f"{source}-{target}" for source, target in sorted(self.pairs))
        return [*pairs, *sorted(self.writers), *sorted(self.encoders)]

    @property
    def batchers(self) -> list[Batcher | WritingBatcher]:
        """The batchers of all models."""
        of_models = [batcher for served in self.models for batcher in served.batchers]
        return [*of_models, *(one.batcher for one in self.named)]

    @property
    def named(self) -> list[ServedWriter | ServedEncoder]:
        """The models that clients call by name."""
        return [*self.writers.values(), *self.encoders.values()]

    # --- languages ---

    @property
    def sources(self) -> list[str]:
        """The language codes that can be translated from."""
        return sorted({source for source, _ in self.pairs})

    @property
    def targets(self) -> list[str]:
        """The language codes that can be translated into."""
        return sorted({target for _, target in self.pairs})

    def targets_of(self, source: str) -> list[str]:
        """The language codes that `source` can be translated into."""
        return sorted(target for one, target in self.pairs if one == source)

    def names(self) -> dict[str, str]:
        """Language codes -> English names."""
        return {code: language_name(code) for code in sorted({*self.sources, *self.targets})}

    def find(self, source: str, target: str) -> ServedModel:
        """The model from one language to another, both as a client writes them."""
        self._check_any()
        to = match_code(target, self.targets)
        if to is None:
            raise LanguageError("target", f"must be a language that is served: {', '.join(self.targets)}")
        sources = [one for one, other in self.pairs if other == to]
        from_ = match_code(source, sources)
        if from_ is None:
            raise LanguageError("source", f"must be a language that is served into {to}: {', '.join(sorted(sources))}")
        return self.pairs[from_, to]

    def detect_for(self, text: str, target: str, context: str = "") -> tuple[ServedModel, Detected]:
        """The model for a text of unknown language. If only one model fits the target, it is used whatever the language, with a
        confidence of 0 if another one was detected. The context counts only for a text whose language is not clear."""
        self._check_any()
        to = match_code(target, self.targets)
        if to is None:
            raise LanguageError("target", f"must be a language that is served: {', '.join(self.targets)}")
        sources = [one for one, other in self.pairs if other == to]
        found = detect(text)
        if context and (found is None or found[1] < _CLEAR):
            found = detect(f"{text}\n{context[:_CONTEXT]}")
        code = match_detected(found[0], sources) if found else None
        if code is None:
            if len(sources) > 1:
                raise LanguageError(
                    "source",
                    f"was not recognised as a language that is served into {to}; name it: {', '.join(sorted(sources))}",
                )
            code = sources[0]
            return self.pairs[code, to], Detected(code, 0.0)
        assert found is not None
        return self.pairs[code, to], Detected(code, found[1])

    def _check_any(self) -> None:
        if not self.pairs:
            raise InputError("no translation model is served here; start the server with one: regard serve -m MODEL")

    # --- translating ---

    def check(self, request: TranslateRequest) -> None:
        """Raise InputError for what exceeds the limits."""
        limits = self.limits
        if len(request.texts) > limits.texts:
            raise InputError(f"there may be at most {limits.texts} texts in a request; send the rest in another")
        if request.characters > limits.characters:
            raise InputTooLarge(f"the texts of a request may have at most {limits.characters} characters; send parts")
        if not 0 <= request.alternatives <= limits.alternatives:
            raise InputError(f"alternatives must be between 0 and {limits.alternatives}")
        if request.alignments and request.is_html:
            raise InputError("alignments go with format text only; leave them out, or send text")
        request.search.check(limits, request.alternatives)
        if request.search.is_of_one_sentence and (request.is_html or request.xml is not None):
            raise InputError("prefix and phrases go with plain text only; leave them out, or send text")
        widest = request.search.widest
        if request.characters * widest > limits.characters * _USUAL_BEAM:
            most = limits.characters * _USUAL_BEAM // widest
            raise InputTooLarge(f"with this beam the texts may have at most {most} characters; send parts")

    async def translate(self, request: TranslateRequest, on_sentence: OnSentence | None = None) -> list[Answer]:
        """An answer for each text; `on_sentence` is called as sentences are finished."""
        self.check(request)
        collector = SentenceCollector(on_sentence)
        if request.alignments:
            on_sentence = collector
        if sum(map(len, request.texts)) <= INLINE_CHARACTERS and request.source is not None:
            prepared = self._prepare(request)
        else:
            prepared = await self._prepare_in(self.texts, request)
        translations: dict[int, TranslatedPlan] = {}
        for served in {id(one.served): one.served for one in prepared}.values():
            mine = [number for number, one in enumerate(prepared) if one.served is served]
            plans = [prepared[number].plan for number in mine]
            translated = await self.translate_plans(
                served, plans, request.alternatives, _renumbered(on_sentence, mine), request.search
            )
            translations |= zip(mine, translated, strict=True)
        answers = [
            Answer(
                translations[number].texts,
                one.served.bundle.source,
                one.detected,
                unmet=translations[number].unmet,
                other=one.other,
            )
            for number, one in enumerate(prepared)
        ]
        if not request.alignments:
            return answers
        return [
            dataclasses.replace(
                answer, alignment=await align(one.served, one.plan, collector.translations(number, one.plan))
            )
            for number, (answer, one) in enumerate(zip(answers, prepared, strict=True))
            if isinstance(one.plan, Split)
        ]

    async def _prepare_in(self, pool: ThreadPool, request: TranslateRequest) -> list[Prepared]:
        """Prepare the texts in portions, between which a pool serves others."""
        portions = [request.texts[slice(*portion)] for portion in portions_of(request.texts)]
        parts = await pool.run_each(
            self._prepare, [dataclasses.replace(request, texts=portion) for portion in portions]
        )
        return [one for part in parts for one in part]

    def _prepare(self, request: TranslateRequest) -> list[Prepared]:
        models: list[tuple[ServedModel, Detected | None]] = []
        if request.source is None:
            models += [self.detect_for(text, request.target, request.context) for text in request.texts]
        else:
            models += [(self.find(request.source, request.target), None)] * len(request.texts)
        prepared = []
        for text, (served, detected) in zip(request.texts, models, strict=True):
            plan = _plan(request, text, served.bundle.source)
            prepared.append(Prepared(served, detected, self.other_language(served, plan), plan))
        return prepared

    def other_language(self, served: ServedModel, plan: Plan) -> Detected | None:
        """The language of a text, if it clearly is not the one that the model reads; with the code under which it is served, if it
        is."""
        bundle = served.bundle
        found = find_other_language(sample_of(plan.sentences), bundle.source, bundle.target)
        if found is None:
            return None
        own = match_detected(found.language, {source for source, _ in self.pairs})
        return Detected(own or found.language, found.confidence)

    async def translate_plans(
        self,
        served: ServedModel,
        plans: Sequence[Plan],
        alternatives: int = 0,
        on_sentence: OnSentence | None = None,
        search: SearchRequest = PLAIN,
        most_tokens: int | None = None,
    ) -> list[TranslatedPlan]:
        """The translations of each plan's text. `most_tokens` is for documents."""
        sentences = [sentence for plan in plans for sentence in plan.sentences]
        places = [(text, n) for text, plan in enumerate(plans) for n in range(len(plan.sentences))]

        def report(number: int, translation: str) -> None:
            text, n = places[number]
            assert on_sentence is not None
            on_sentence(SentenceProgress(text, n, len(plans[text].sentences), translation, len(sentences)))

        found = iter(
            await search_sentences(
                served,
                sentences,
                alternatives,
                report if on_sentence else None,
                search=search,
                most_tokens=most_tokens,
            )
        )
        results = [list(islice(found, len(plan.sentences))) for plan in plans]
        planned = [(plan, _versions(some)) for plan, some in zip(plans, results, strict=True)]
        is_short = sum(map(len, sentences)) <= INLINE_CHARACTERS
        pairs = _to_align(planned) if is_short else await self.texts.run(_to_align, planned)
        # Not among the alignments that clients ask for, where it could be refused.
        aligned = iter(await align_sentences(served, pairs, self.texts)) if pairs else None

        def join(some: Sequence[PlannedText]) -> list[list[str]]:
            return [_join(plan, versions, aligned) for plan, versions in some]

        if is_short:
            joined = join(planned)
        else:
            portions = [planned[first : first + _PORTION] for first in range(0, len(planned), _PORTION)]
            joined = [texts for some in await self.texts.run_each(join, portions) for texts in some]
        return [TranslatedPlan(texts, _unmet(some)) for texts, some in zip(joined, results, strict=True)]

    async def translate_file(
        self,
        data: bytes,
        kind: str,
        source: str | None,
        target: str,
        column: str | None = None,
        on_sentence: OnSentence | None = None,
        search: SearchRequest = PLAIN,
    ) -> TranslatedFile:
        """Translate a document."""
        limits = self.limits
        search.check(limits)
        document = await self._reading.run(open_document, data, kind, limits.unpacked_bytes, column, target)
        characters = sum(map(len, document.texts))
        if characters > limits.file_characters:
            raise InputTooLarge(f"file may have at most {limits.file_characters} characters of text; send it in parts")
        if source is None:  # one language for the whole document
            sample = " ".join(document.texts)[:5_000]
            served, _ = await self._documents.run(self.detect_for, sample, target)
        else:
            served = self.find(source, target)
        plans = await self._documents.run(document.plans, served.bundle.source)
        most = limits.file_tokens
        translations = await self.translate_plans(served, plans, 0, on_sentence, search, most) if plans else []
        content = await self._documents.run(document.save, [one.texts[0] for one in translations])
        unmet = list(dict.fromkeys(lost for one in translations for lost in one.unmet))
        return TranslatedFile(content, characters, unmet)

    @property
    def abandoned_documents(self) -> int:
        """Documents that are still being processed although their requests have ended."""
        return self._reading.abandoned + self._documents.abandoned

    @property
    def is_alive(self) -> bool:
        """Whether all threads that translate or write are running."""
        return all(batcher.is_alive for batcher in self.batchers)

    def close(self) -> None:
        """Stop the threads."""
        for served in self.models:
            served.close()
        for one in self.named:
            one.close()
        self._reading.close()
        self._documents.close()
        self.texts.close()


PlannedText = tuple[Plan, list[list[str]]]  # a text, and for each version the translations of its sentences


def _plan(request: TranslateRequest, text: str, language: str) -> Plan:
    """A text of the request in sentences, with the parser that its markup needs."""
    by_sentence = request.by_sentence and not request.search.is_of_one_sentence
    if request.search.is_of_one_sentence:
        check_one_line(text)
    joins = request.is_html if request.joins_lines is None else request.joins_lines
    if request.is_html or request.xml is not None:
        return MarkedText(text, language, by_sentence=by_sentence, joins_lines=joins, xml=request.xml)
    if request.parse_markup is not None:
        return MarkedText(text, language, by_sentence=by_sentence, parse_markup=request.parse_markup)
    if joins:
        return MarkedText(text, language, by_sentence=by_sentence, joins_lines=True, parse_markup=parse_plain)
    return split_text(text, language, by_sentence=by_sentence)


def _unmet(results: Sequence[Result]) -> list[Unmet]:
    return list(dict.fromkeys(one for result in results for one in result.unmet))


def _versions(results: Sequence[Result]) -> list[list[str]]:
    """From the translations of each sentence to those of the whole: the best of all, the second best, and so on."""
    translations = [[translation.text for translation in result.translations] for result in results]
    count = max(map(len, translations), default=1)
    return [[own[min(rank, len(own) - 1)] for own in translations] for rank in range(count)]


def _to_align(planned: Sequence[PlannedText]) -> list[tuple[str, str]]:
    """The sentences whose elements are placed by alignment, with their translations, in the order in which `_join` needs them."""
    return [
        pair
        for plan, versions in planned
        if isinstance(plan, MarkedText)
        for own in versions
        for pair in plan.to_align(own)
    ]


def _join(plan: Plan, versions: Sequence[Sequence[str]], aligned: Iterator[TextAlignment] | None) -> list[str]:
    """The translations of a text, all different. `aligned` continues with the alignments of this text."""
    texts = join_plans(
        [plan] * len(versions), versions, None if aligned is None else lambda pairs: list(islice(aligned, len(pairs)))
    )
    return list(dict.fromkeys(texts))


def _renumbered(on_sentence: OnSentence | None, numbers: Sequence[int]) -> OnSentence | None:
    """A callback for some texts of a request, which reports them by their numbers in the whole request."""
    if on_sentence is None:
        return None
    return lambda progress: on_sentence(dataclasses.replace(progress, text=numbers[progress.text]))


def check_one_line(text: str) -> None:
    """Raise InputError for a text with line breaks."""
    if len(text.splitlines()) > 1:
        raise InputError("with prefix or phrases a text must be one sentence without line breaks")

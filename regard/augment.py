"""Training text made with a model: distillation and back-translation.

    distill          text in the model's source language -> the text, and the model's translation as its target side
    back-translate   text in the model's source language -> the model's translation as the source side, and the text

The corpus is streamed in chunks. What a chunk came to is on disk before the next but one begins, with the place in the input,
so that an interrupted run goes on where it was; chunks are cut at the same lines again, so that it ends with the same files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from regard.api import Model
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.data.clean import EMPTY, RATIO, REPETITION, CleanAccount, CleanOptions, is_empty, is_loop, length_fault
from regard.data.corpus import Corpus, brace_labels, has_tabs, name_files, read_lines, resolve_all
from regard.data.language import other_language
from regard.data.tokenizer import Tokenizer
from regard.data.writer import CorpusWriter
from regard.decode.options import SearchOptions
from regard.decode.text import Result
from regard.errors import Interrupted, UserError
from regard.files import MANIFEST, sha256
from regard.progress import progress

Way = Literal["distill", "back-translate"]
Choose = Literal["best", "bleu", "chrf"]

MAX_RATIO = 4.0  # what training keeps by default, too
_CHUNK = 1_024  # lines at least between two savings
_BATCHES = 32  # of the engine in a chunk, so that its lines can be sorted by length and its end costs little


class Row(NamedTuple):
    """A line of the input: where it stands, what is to be translated, and a translation by people where there is one."""

    where: str
    number: int
    text: str
    reference: str | None


@dataclass(frozen=True)
class Filter:
    """Which translations are fit to learn from."""

    max_ratio: float = MAX_RATIO  # of the longer side to the shorter one, in tokens
    keep_all: bool = False  # every line of the input becomes a pair, also an empty one

    def __post_init__(self) -> None:
        if not self.max_ratio >= 1:  # nor is it not a number
            raise UserError(f"--max-ratio must be at least 1, but is {self.max_ratio:g}")

    def fault(self, text: str, translation: str, text_ids: Sequence[int], translation_ids: Sequence[int]) -> str | None:
        """Why a pair is dropped, or None when it is kept."""
        if self.keep_all:
            return None
        if is_empty(text, translation):
            return EMPTY
        longest = max(len(text_ids), len(translation_ids))  # too long for training is for training to say
        if length_fault(len(text_ids), len(translation_ids), CleanOptions(longest, self.max_ratio)):
            return RATIO
        return REPETITION if is_loop(text_ids, translation_ids) else None


@dataclass(frozen=True)
class Augmented:
    """What was made."""

    way: Way
    output: str  # as a recipe names it
    files: list[Path]
    source: str  # languages of the new corpus
    target: str
    model: Path
    account: CleanAccount = field(default_factory=CleanAccount)

    def lines(self) -> list[str]:
        """What was dropped, then the one line that says what there is now."""
        made = self.target if self.way == "distill" else self.source
        pairs = f"{self.account.kept:,} pair{'' if self.account.kept == 1 else 's'}"
        side = f"{made} translated by {self.model}"
        return [*self.account.lines(), f"{self.output}: {pairs}, {self.source} → {self.target}, {side}"]

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.way,
            "output": self.output,
            "files": [str(path) for path in self.files],
            "source": self.source,
            "target": self.target,
            "model": str(self.model),
            **self.account.to_json(),
        }


def augment_corpus(
    model: str | Path,
    inputs: str | Sequence[str],
    output: str,
    *,
    way: Way,
    beam: int | None = None,
    alpha: float | None = None,
    nbest: int | None = None,
    choose: Choose = "best",
    max_ratio: float = MAX_RATIO,
    keep_all: bool = False,
    engine: str = "auto",
    device: str = "auto",
    batch: int = 0,
    resume: bool = False,
) -> Augmented:
    """Make a parallel corpus with a model.

    `inputs` and `output` are written as in a recipe that trains on the result: "news.{en,de}.xz", "news.tsv"; an input may also be
    a file in the one language that the model reads. `choose` takes, of the `nbest` translations, the one nearest to the reference.
    Everything that can be wrong is looked at before the model is loaded.
    """
    if way not in get_args(Way):
        raise UserError(f"way must be one of {', '.join(get_args(Way))}, but is {way!r}")
    bundle = load_bundle(find_bundle(model))
    source, target = (bundle.source, bundle.target) if way == "distill" else (bundle.target, bundle.source)
    specs = [inputs] if isinstance(inputs, str) else list(inputs)
    _check_labels(output, bundle, way, (source, target))
    texts = [text for spec in specs for text in _find_texts(spec, bundle, way, (source, target))]
    options = _search_options(bundle, beam, alpha, nbest, choose, texts)
    result = Augmented(way, output, name_files(output, source, target), source, target, bundle.folder)
    maker = _Maker(bundle.tokenizer, way, Filter(max_ratio, keep_all), _chooser(choose, bundle.target))
    writer = CorpusWriter(result.files, _settings(bundle, texts, options, choose, maker), resume)
    total = _count(texts) if writer.saved is None else int(writer.saved["total"])
    with writer:
        if not writer.is_complete:
            loaded = Model(bundle, device=device, batch=batch, engine=engine)
            _translate(loaded, options, texts, total, maker, writer)
        assert writer.saved is not None
        account = CleanAccount.from_json(writer.saved["account"])
        if not account.kept:
            writer.discard()
            raise _nothing_kept(account)
        _finish(writer)
    return dataclasses.replace(result, account=account)


# --- what comes in ---


@dataclass(frozen=True)
class _Text:
    """Files of text in the model's source language, with its translation beside it or alone."""

    corpus: Corpus
    is_alone: bool
    side: int  # of the pair, that is in the model's source language

    def rows(self) -> Iterator[Row]:
        if self.is_alone:
            for number, line in enumerate(read_lines(self.corpus.source), 1):
                yield Row(str(self.corpus.source), number, line, None)
        else:
            for number, pair in enumerate(self.corpus.pairs(), 1):
                yield Row(self.corpus.name, number, pair[self.side], pair[1 - self.side])


def _find_texts(spec: str, bundle: Bundle, way: Way, languages: tuple[str, str]) -> list[_Text]:
    _check_labels(spec, bundle, way, languages)
    texts = []
    for corpus in resolve_all(spec, Path(), *languages):
        is_alone = corpus.target is None and not has_tabs(corpus.name)
        for path in corpus.files:
            if not path.is_file():
                raise UserError(
                    f"{path}: must be a plain file, since it is read twice: to count its lines, then to translate them"
                )
        if is_alone:
            _check_alone(corpus.source, bundle)
        texts.append(_Text(corpus, is_alone, 0 if way == "distill" else 1))
    return texts


def _check_labels(spec: str, bundle: Bundle, way: Way, languages: tuple[str, str]) -> None:
    """Refuse a corpus in other languages than those that the model reads and writes, or with its sides the other way round."""
    source, target = languages
    for labels in brace_labels(spec):
        if labels != languages:
            held = ",".join(labels)
            rule = f"a model {bundle.source} → {bundle.target} can {way} only {{{source},{target}}}, source side first"
            turned = f", or take a model {bundle.target} → {bundle.source}" if labels == (target, source) else ""
            raise UserError(f"{spec!r}: {rule}, but the braces hold {{{held}}}; write {{{source},{target}}}{turned}")


def _check_alone(path: Path, bundle: Bundle) -> None:
    """Refuse text that is surely not in the model's source language, or not in one language only."""
    if said := other_language(path, bundle.source, bundle.target):
        raise UserError(
            f"{path}: must be in {bundle.source}, which the model translates into {bundle.target}, but its name says {said}; "
            f"take a model that translates from {said}, or rename the file"
        )
    if "\t" in next(read_lines(path), ""):
        raise UserError(
            f"{path}, line 1: holds a tab; if the lines are source<TAB>target, name the file NAME.tsv, else take the tab out"
        )


def _search_options(
    bundle: Bundle, beam: int | None, alpha: float | None, nbest: int | None, choose: Choose, texts: Sequence[_Text]
) -> SearchOptions:
    if choose not in get_args(Choose):
        raise UserError(f"--choose must be one of {', '.join(get_args(Choose))}, but is {choose!r}")
    own = SearchOptions(**dataclasses.asdict(bundle.decode))
    if choose == "best":
        if nbest is not None:
            raise UserError(
                "--nbest says among how many translations --choose bleu or --choose chrf chooses; add one of them"
            )
        return own.changed(beam, alpha, 1)
    for text in texts:
        if text.is_alone:
            raise UserError(
                f"--choose {choose} needs references, but {text.corpus.source} is text in one language; leave it out"
            )
    options = own.changed(beam, alpha, nbest if nbest is not None else beam or own.beam)
    if options.nbest < 2:
        raise UserError(
            f"--choose {choose} needs at least 2 translations to choose from, but --nbest is {options.nbest}"
        )
    return options


def _settings(
    bundle: Bundle, texts: Sequence[_Text], options: SearchOptions, choose: Choose, maker: _Maker
) -> dict[str, Any]:
    """What the result depends on; engine and device may change between two sittings."""
    files = [path for text in texts for path in text.corpus.files]
    return {
        "way": maker.way,
        "model": sha256(bundle.folder / MANIFEST),
        "input": [[path.name, path.stat().st_size] for path in files],
        **dataclasses.asdict(options),
        "choose": choose,
        **dataclasses.asdict(maker.filter),
    }


def _count(texts: Sequence[_Text]) -> int:
    """The lines, all of them read once: a broken one is found now and not in some hours."""
    total = 0
    with progress("reading", None) as done:
        for _ in chain.from_iterable(text.rows() for text in texts):
            total += 1
            done(1)
    if total == 0:
        raise UserError(f"{texts[0].corpus.source}: must hold at least one line, but is empty")
    return total


# --- what goes out ---


Chooser = Callable[[Result, str | None], str]


def _chooser(choose: Choose, language: str) -> Chooser:
    """Which of a line's translations is taken: the model's best, or the one nearest to what people wrote."""
    if choose == "best":
        return lambda result, reference: result.text
    from regard.evaluate import sentence_scorer

    score = sentence_scorer(choose, language)

    def nearest(result: Result, reference: str | None) -> str:
        assert reference is not None
        # Of equals the first: the one that the model finds likelier.
        return max((way.text for way in result.translations), key=lambda text: score(text, reference))

    return nearest


@dataclass(frozen=True)
class _Maker:
    """Makes pairs of lines and their translations."""

    tokenizer: Tokenizer
    way: Way
    filter: Filter
    choose: Chooser

    def pairs(self, rows: Sequence[Row], results: Sequence[Result], account: CleanAccount) -> list[tuple[str, str]]:
        """The pairs that are kept, in order; the account hears of them and of the others."""
        chosen = [self.choose(result, row.reference) for row, result in zip(rows, results, strict=True)]
        text_ids = self.tokenizer.encode_batch([row.text.strip() for row in rows], "source")
        chosen_ids = self.tokenizer.encode_batch([text.strip() for text in chosen], "target")
        kept = []
        for row, translation, row_ids, ids in zip(rows, chosen, text_ids, chosen_ids, strict=True):
            pair = (row.text, translation) if self.way == "distill" else (translation, row.text)
            fault = self.filter.fault(row.text, translation, row_ids, ids)
            if fault is None:
                kept.append(pair)
                account.keep()
            else:
                account.drop(fault, row.where, row.number, *pair)
        return kept


def _translate(
    model: Model, options: SearchOptions, texts: Sequence[_Text], total: int, maker: _Maker, writer: CorpusWriter
) -> None:
    """Translate what is not yet written. Choosing, filtering and writing a chunk goes on beside the translation of the next."""
    saved = writer.saved or {"lines": 0, "account": CleanAccount().to_json(), "chunk": 0}
    lines, account = int(saved["lines"]), CleanAccount.from_json(saved["account"])
    size = int(saved["chunk"]) or max(_CHUNK, _BATCHES * model.engine.batch)

    def write(rows: list[Row], results: list[Result]) -> None:
        nonlocal lines
        pairs = maker.pairs(rows, results, account)
        lines += len(rows)
        writer.append(pairs, {"lines": lines, "total": total, "chunk": size, "account": account.to_json()})

    rows = islice(chain.from_iterable(text.rows() for text in texts), lines, None)
    try:
        with progress("translating", total, before=lines) as done, ThreadPoolExecutor(1) as thread:
            writing: Future[None] | None = None
            while block := list(islice(rows, size)):
                results = list(model.stream([row.text for row in block], options, size, done))
                if writing is not None:
                    writing.result()
                writing = thread.submit(write, block, results)
            if writing is not None:
                writing.result()
    except KeyboardInterrupt:
        raise _stopped(writer.saved, total) from None
    if lines != total:
        raise UserError(f"the input had {total:,} lines when they were counted, but now has {lines:,}; start anew")


def _stopped(saved: dict[str, Any] | None, total: int) -> Interrupted:
    if saved is None:
        return Interrupted("stopped before anything was written")
    return Interrupted(
        f"stopped after {saved['lines']:,} of {total:,} lines, which are saved; go on with the same command and --resume"
    )


def _nothing_kept(account: CleanAccount) -> UserError:
    """A corpus without a pair is of no use to anyone; most likely the model is not for this text."""
    reasons = "; ".join(
        f"{reason}: {count:,}, first {account.examples[reason]}" for reason, count in account.dropped.items()
    )
    return UserError(
        f"none of {account.read:,} translations is fit to learn from ({reasons}); take a model that knows such text, "
        f"or look at all that it says with --keep-all"
    )


def _finish(writer: CorpusWriter) -> None:
    try:
        with progress("compressing", writer.bytes_to_compress, "bytes") as done:
            writer.finish(done)
    except KeyboardInterrupt:
        raise Interrupted("all lines are translated and saved; give the files their names with --resume") from None

"""Training text made from other text: distillation and back-translation with a model, noise without one.

    distill          text in the model's source language -> pairs of the text and the model's translation of it
    back-translate   text in the model's source language -> pairs of the model's translation and the text
    noise            a parallel corpus -> its pairs as people really type them

All of them write in chunks through `regard.data.chunks`, and a resumed run gives identical files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from regard.api import Model
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.data.chunks import (
    Row,
    Text,
    count_rows,
    finish_corpus,
    input_files,
    rows_of,
    windows_of,
    write_chunks,
)
from regard.data.clean import EMPTY, RATIO, REPETITION, CleanAccount, CleanOptions, is_empty, length_fault
from regard.data.corpus import Pair, brace_labels, name_files, read_lines, resolve_all
from regard.data.tokenizer import Tokenizer
from regard.data.writer import CorpusWriter
from regard.errors import UserError
from regard.files import MANIFEST, sha256
from regard.parallel.crew import Crew, Work, join_crew
from regard.progress import OnProgress
from regard.translation.languages import other_language
from regard.translation.noise import JOINED, KINDS, Kind, NoiseAccount, make_kinds, noise
from regard.translation.repetition import is_loop
from regard.translation.results import Result
from regard.translation.translation_options import TranslationOptions

Method = Literal["distill", "back-translate"]
Choose = Literal["best", "bleu", "chrf"]

MAX_RATIO = 4.0  # the default in training, too
_NOISE_CHUNK = 16_384  # lines per chunk when no model is involved


@dataclass(frozen=True)
class Filter:
    """Which translations are fit to learn from."""

    max_ratio: float = MAX_RATIO  # of the longer side to the shorter one, in tokens
    keep_all: bool = False  # every line of the input becomes a pair, even an empty one

    def __post_init__(self) -> None:
        if not self.max_ratio >= 1:  # also rejects NaN
            raise UserError(f"--max-ratio must be at least 1, but is {self.max_ratio:g}")

    def fault(self, text: str, translation: str, text_ids: Sequence[int], translation_ids: Sequence[int]) -> str | None:
        """Why a pair is dropped; None when it is kept."""
        if self.keep_all:
            return None
        if is_empty(text, translation):
            return EMPTY
        longest = max(len(text_ids), len(translation_ids))  # no limit here: training drops what is too long for it
        if length_fault((len(text_ids), len(translation_ids)), CleanOptions(longest, self.max_ratio)):
            return RATIO
        return REPETITION if is_loop(text_ids, translation_ids) else None


@dataclass(frozen=True)
class Augmented:
    """A corpus that was made, and how."""

    way: Method | Literal["noise"]
    output: str  # as a recipe names it
    files: list[Path]
    source: str  # languages of the new corpus
    target: str
    model: Path | None = None  # None for noise, which has a seed instead
    seed: int | None = None
    account: CleanAccount | NoiseAccount = field(default_factory=CleanAccount)

    def lines(self) -> list[str]:
        """What was dropped, then one line about the new corpus."""
        translated = self.source if self.way == "back-translate" else self.target
        pairs = f"{self.account.kept:,} pair{'' if self.account.kept == 1 else 's'}"
        how = f"noise, seed {self.seed}" if self.model is None else f"{translated} translated by {self.model}"
        return [*self.account.lines(), f"{self.output}: {pairs}, {self.source} → {self.target}, {how}"]

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.way,
            "output": self.output,
            "files": [str(path) for path in self.files],
            "source": self.source,
            "target": self.target,
            **({"seed": self.seed} if self.model is None else {"model": str(self.model)}),
            **self.account.to_json(),
        }


def augment_corpus(
    model: str | Path,
    inputs: str | Sequence[str],
    output: str,
    *,
    way: Method,
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
    """Make a parallel corpus with a model: `way` is "distill" or "back-translate".

    `inputs` and `output` are written as in a recipe that trains on the result: "news.{en,de}.xz", "news.tsv"; an input may also be
    a file in the model's source language. `choose` "bleu" or "chrf" picks the translation closest to the reference among the
    `nbest`. All arguments are checked before the model is loaded.
    """
    if way not in get_args(Method):
        raise UserError(
            f"way must be one of {', '.join(get_args(Method))}, but is {way!r}; noise is made by noise_corpus"
        )
    check = partial(_Job.checked, model, inputs, output, way, beam, alpha, nbest, choose, Filter(max_ratio, keep_all))
    with join_crew(device, engine) as crew:

        def load(bundle: Bundle) -> Model:
            model = Model(bundle, device=crew.device, batch=batch, engine=engine)
            return model.toward(bundle.target, bundle.source)

        opened = crew.run_on_first(lambda: _open(check, resume))
        if opened is not None:
            return _augment(opened, load, crew)
        job = check()
        crew.help(lambda: _work(load(job.bundle), job))
        return job.result


@dataclass(frozen=True)
class _Job:
    """A corpus to be made with a model, once the arguments are checked."""

    bundle: Bundle
    texts: Sequence[Text]
    options: TranslationOptions
    maker: _Maker
    result: Augmented
    settings: dict[str, Any]

    @classmethod
    def checked(
        cls,
        model: str | Path,
        inputs: str | Sequence[str],
        output: str,
        method: Method,
        beam: int | None,
        alpha: float | None,
        nbest: int | None,
        choose: Choose,
        filter: Filter,
    ) -> _Job:
        bundle = _of_labels(load_bundle(find_bundle(model), "translate"), output, method)
        source, target = (bundle.source, bundle.target) if method == "distill" else (bundle.target, bundle.source)
        specs = [inputs] if isinstance(inputs, str) else list(inputs)
        _check_labels(output, bundle, method, (source, target))
        texts = [text for spec in specs for text in _find_texts(spec, bundle, method, (source, target))]
        options = _search_options(bundle, beam, alpha, nbest, choose, texts)
        result = Augmented(method, output, name_files(output, source, target), source, target, bundle.folder)
        maker = _Maker(bundle.tokenizer, method, filter, _chooser(choose, bundle.target))
        return cls(bundle, texts, options, maker, result, _settings(bundle, texts, options, choose, maker))


def _open(check: Callable[[], _Job], resume: bool) -> tuple[_Job, CorpusWriter, int]:
    """The job, the writer of its output, and its number of lines."""
    job = check()
    writer = CorpusWriter(job.result.files, job.settings, resume)
    return job, writer, _count_once(job.texts, writer)


def _augment(opened: tuple[_Job, CorpusWriter, int], load: Callable[[Bundle], Model], crew: Crew) -> Augmented:
    """Make the corpus, as the only process or the first of several, which is the one that writes."""
    job, writer, total = opened
    account = CleanAccount() if writer.saved is None else CleanAccount.from_json(writer.saved["account"])

    def make() -> None:
        _translate(crew.load(lambda: load(job.bundle)), job, total, account, writer, crew)

    _write_corpus(writer, account, make, lambda: _nothing_kept(account))
    return dataclasses.replace(job.result, account=account)


def _count_once(texts: Sequence[Text], writer: CorpusWriter) -> int:
    """The number of lines of the input, which a resumed run has saved."""
    return count_rows(texts) if writer.saved is None else int(writer.saved["total"])


def _write_corpus(
    writer: CorpusWriter,
    account: CleanAccount | NoiseAccount,
    make: Callable[[], None],
    nothing_kept: Callable[[], UserError],
) -> None:
    """Make the pairs unless they are complete, and finish the files; a corpus without pairs is an error and leaves nothing."""
    with writer:
        if not writer.is_complete:
            make()
        if not account.kept:
            writer.discard()
            raise nothing_kept()
        finish_corpus(writer)


# --- input ---


def _find_texts(spec: str, bundle: Bundle, method: Method, languages: tuple[str, str]) -> list[Text]:
    _check_labels(spec, bundle, method, languages)
    texts = [Text(corpus, 0 if method == "distill" else 1) for corpus in resolve_all(spec, Path(), *languages)]
    for text in texts:
        if text.is_monolingual:
            _check_monolingual(text.corpus.source, bundle)
    return texts


def _of_labels(bundle: Bundle, output: str, method: Method) -> Bundle:
    """The model for the direction that the labels of the new corpus name."""
    if len(bundle.pairs) == 1:
        return bundle
    labels = brace_labels(output)
    if not labels:
        raise UserError(
            f"{output!r}: must name its languages as {{source,target}}, since the model translates {bundle.languages}"
        )
    return bundle.toward(*(labels[0] if method == "distill" else reversed(labels[0])))


def _check_labels(spec: str, bundle: Bundle, method: Method, languages: tuple[str, str]) -> None:
    """Refuse a corpus in languages that are not the model's, or with its sides swapped."""
    source, target = languages
    for labels in brace_labels(spec):
        if labels != languages:
            held = ",".join(labels)
            rule = (
                f"a model {bundle.source} → {bundle.target} can {method} only {{{source},{target}}}, source side first"
            )
            turned = f", or take a model {bundle.target} → {bundle.source}" if labels == (target, source) else ""
            raise UserError(f"{spec!r}: {rule}, but the braces hold {{{held}}}; write {{{source},{target}}}{turned}")


def _check_monolingual(path: Path, bundle: Bundle) -> None:
    """Refuse text whose name says another language than the model's source, or that has two columns."""
    if named := other_language(path, bundle.source, bundle.target):
        raise UserError(
            f"{path}: must be in {bundle.source}, which the model translates into {bundle.target}, but its name says {named}; "
            f"use a model that translates from {named}, or rename the file"
        )
    if "\t" in next(read_lines(path), ""):
        raise UserError(
            f"{path}, line 1: holds a tab; if the lines are source<TAB>target, name the file NAME.tsv, else remove the tab"
        )


def _search_options(
    bundle: Bundle, beam: int | None, alpha: float | None, nbest: int | None, choose: Choose, texts: Sequence[Text]
) -> TranslationOptions:
    if choose not in get_args(Choose):
        raise UserError(f"--choose must be one of {', '.join(get_args(Choose))}, but is {choose!r}")
    # Without the guard, which would hide what the filter looks for.
    own = dataclasses.replace(TranslationOptions.of(bundle), guard=False)
    if choose == "best":
        if nbest is not None:
            raise UserError(
                "--nbest is the number of translations that --choose bleu or --choose chrf choose from; add one of them"
            )
        return own.changed(beam, alpha, 1)
    for text in texts:
        if text.is_monolingual:
            raise UserError(
                f"--choose {choose} needs references, but {text.corpus.source} is monolingual; leave it out"
            )
    options = own.changed(beam, alpha, nbest if nbest is not None else beam or own.search.beam)
    if options.search.nbest < 2:
        raise UserError(
            f"--choose {choose} needs at least 2 translations to choose from, but --nbest is {options.search.nbest}"
        )
    return options


def _settings(
    bundle: Bundle, texts: Sequence[Text], options: TranslationOptions, choose: Choose, maker: _Maker
) -> dict[str, Any]:
    """What the result depends on. Engine and device may change when a run is resumed."""
    return {
        "way": maker.method,
        "model": sha256(bundle.folder / MANIFEST),
        "input": input_files(texts),
        **{name: getattr(options.search, name) for name in ("beam", "alpha", "max_extra", "nbest")},
        "guard": options.guard,
        "choose": choose,
        **dataclasses.asdict(maker.filter),
    }


# --- output ---


Chooser = Callable[[Result, str | None], str]


def _chooser(choose: Choose, language: str) -> Chooser:
    """Picks one of a line's translations: the model's best, or the one closest to the reference."""
    if choose == "best":
        return lambda result, reference: result.text
    from regard.evaluate import sentence_scorer

    score = sentence_scorer(choose, language)

    def closest(result: Result, reference: str | None) -> str:
        assert reference is not None
        # `max` returns the first of equals, the one the model scored higher.
        return max((translation.text for translation in result.translations), key=lambda text: score(text, reference))

    return closest


@dataclass(frozen=True)
class _Maker:
    """Makes pairs from lines and their translations."""

    tokenizer: Tokenizer
    method: Method
    filter: Filter
    choose: Chooser

    def chosen(self, rows: Sequence[Row], results: Sequence[Result]) -> list[str]:
        return [self.choose(result, row.reference) for row, result in zip(rows, results, strict=True)]

    def pairs(self, rows: Sequence[Row], chosen: Sequence[str], account: CleanAccount) -> list[Pair]:
        """The pairs that are kept, in order; kept and dropped ones are counted in `account`."""
        text_ids = self.tokenizer.encode_batch([row.text.strip() for row in rows], "source")
        chosen_ids = self.tokenizer.encode_batch([text.strip() for text in chosen], "target")
        kept = []
        for row, translation, row_ids, ids in zip(rows, chosen, text_ids, chosen_ids, strict=True):
            pair = (row.text, translation) if self.method == "distill" else (translation, row.text)
            fault = self.filter.fault(row.text, translation, row_ids, ids)
            if fault is None:
                kept.append(pair)
                account.keep()
            else:
                account.drop(fault, row.where, row.number, *pair)
        return kept


def _translate(model: Model, job: _Job, total: int, account: CleanAccount, writer: CorpusWriter, crew: Crew) -> None:
    """Translate what is not written yet. While a chunk is translated, the pairs of the one before are filtered."""
    maker, work = job.maker, _work(model, job)

    def translate(rows: list[Row], done: OnProgress) -> Callable[[], list[Pair]]:
        if crew.size > 1:
            chosen = crew.share(rows, work, done)
            return lambda: maker.pairs(rows, chosen, account)
        results = _results(model, job, rows, done)
        return lambda: maker.pairs(rows, maker.chosen(rows, results), account)

    write_chunks(rows_of(job.texts), total, writer, account, translate, model.chunk * crew.size, "translating")


def _work(model: Model, job: _Job) -> Work:
    """What each process does with its share of a chunk: translate, and choose."""

    def work(rows: list[Any], done: OnProgress) -> list[str]:
        own = [Row(*row) for row in rows]
        return job.maker.chosen(own, _results(model, job, own, done))

    return work


def _results(model: Model, job: _Job, rows: Sequence[Row], done: OnProgress) -> list[Result]:
    # In one go: chunks keep the size of the run that is resumed, which may have had another engine.
    return list(model.stream([row.text for row in rows], job.options, len(rows), done))


def _nothing_kept(account: CleanAccount) -> UserError:
    """The error for a corpus without a single pair: most likely the model is not for this text."""
    dropped = account.to_json()["dropped"]
    reasons = "; ".join(f"{reason}: {drop['count']:,}, first {drop['first']}" for reason, drop in dropped.items())
    return UserError(
        f"none of {account.read:,} translations is fit to learn from ({reasons}); use a model trained on such text, "
        f"or see all its translations with --keep-all"
    )


# --- noise ---


def noise_corpus(
    inputs: str | Sequence[str],
    output: str,
    *,
    kinds: Sequence[str] = KINDS,
    seed: int = 1,
    source: str | None = None,
    target: str | None = None,
    resume: bool = False,
) -> Augmented:
    """Make a corpus of another one's pairs as people really type them; needs no model.

    Corpora are named as in a recipe. Every pair gets one of `kinds`, drawn from the seed and its line number, so the result is
    the same on every machine. `source` and `target` are needed if no corpus names the languages in braces.
    """
    specs = [inputs] if isinstance(inputs, str) else list(inputs)
    languages = _languages([*specs, output], source, target)
    made_by = make_kinds(_check_kinds(kinds), *languages)
    texts = [text for spec in specs for text in _find_pairs(spec, languages)]
    result = Augmented("noise", output, name_files(output, *languages), *languages, seed=seed)
    settings = {
        "way": "noise",
        "input": input_files(texts),
        "seed": seed,
        "kinds": list(made_by),
        "languages": list(languages),
    }
    writer = CorpusWriter(result.files, settings, resume)
    total = _count_once(texts, writer)
    new_account = NoiseAccount(dict.fromkeys(made_by, 0))
    account = new_account if writer.saved is None else NoiseAccount.from_json(writer.saved["account"])

    def nothing_kept() -> UserError:
        tried = ", ".join(made_by)
        return UserError(f"none of {total:,} pairs is changed by {tried} (first {account.first}); use other --kinds")

    _write_corpus(writer, account, lambda: _add_noise(texts, total, made_by, seed, account, writer), nothing_kept)
    return dataclasses.replace(result, account=account)


def _add_noise(
    texts: Sequence[Text], total: int, kinds: dict[str, Kind], seed: int, account: NoiseAccount, writer: CorpusWriter
) -> None:
    """Add noise to what is not written yet, a chunk while the next one is read."""

    def pairs(windows: list[tuple[int, list[Row]]], done: OnProgress) -> list[Pair]:
        kept = []
        for number, rows in windows:
            neighbours = [(row.text, row.reference or "") for row in rows]
            made = noise(neighbours, number, seed, kinds)
            if made is None:
                account.skip(rows[0].where, rows[0].number, *neighbours[0])
            else:
                account.keep(made[0])
                kept.append(made[1])
        done(len(windows))
        return kept

    numbered = enumerate(windows_of(texts, JOINED), 1)
    write_chunks(numbered, total, writer, account, lambda *given: partial(pairs, *given), _NOISE_CHUNK, "noising")


def _languages(specs: Sequence[str], source: str | None, target: str | None) -> tuple[str, str]:
    """The languages given by --source and --target or by braces, which must all agree."""
    if (source is None) != (target is None) or (source is not None and source == target):
        raise UserError(f"--source and --target must be two languages, but are {source} and {target}")
    options = [("--source and --target", source, target)] if source and target else []
    given = options + [(repr(spec), *labels) for spec in specs for labels in brace_labels(spec)]
    if not given:
        raise UserError(
            f"{specs[0]!r}: its name does not give the languages; add --source and --target, as in --source en --target de"
        )
    first, *languages = given[0]
    for where, *labels in given:
        if labels != languages:
            raise UserError(
                f"{where}: must be in the languages of {first}, {{{','.join(languages)}}}, source side first, "
                f"but is in {{{','.join(labels)}}}; make a corpus for each direction"
            )
    return languages[0], languages[1]


def _check_kinds(kinds: Sequence[str]) -> Sequence[str]:
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--kinds must be among {', '.join(KINDS)}, but one is {kind!r}")
    if not kinds:
        raise UserError(f"--kinds must name at least one of {', '.join(KINDS)}")
    return kinds


def _find_pairs(spec: str, languages: tuple[str, str]) -> list[Text]:
    texts = [Text(corpus) for corpus in resolve_all(spec, Path(), *languages)]
    for text in texts:
        if text.is_monolingual:
            raise UserError(
                f"{text.corpus.source}: noise needs both sides; name two files as NAME.{{{','.join(languages)}}}, "
                "or one of source<TAB>target lines as NAME.tsv"
            )
    return texts

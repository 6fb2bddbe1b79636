"""`regard evaluate`: scores of a model or of a file of translations, and comparison of two systems; text vectors by retrieval;
language models on minimal pairs and multiple choice."""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.builtin import DEFAULT
from regard.cli.common import (
    ENSEMBLE,
    add_adapter,
    add_all_search,
    add_model,
    given_constraints,
    given_search,
    load_model,
    naming_options,
    print_result,
    verb,
)
from regard.cli.languages import add_direction, given_direction
from regard.cli.score import add_stride, open_scorer
from regard.errors import UserError
from regard.escaping import escape
from regard.files import check_new_file, check_overwrite, is_same_file, write_atomic

if TYPE_CHECKING:
    from regard.api import Model

_NEEDS = {  # by the task of the model
    "translate": "--source FILE and --reference FILE",
    "embed": "--source FILE and --reference FILE, whose lines mean the same",
    "generate": "--pairs FILE or --choices FILE",
    "classify": "TABLE, a file of texts with their labels",
    "tag": "TABLE, a file of words with their tags",
}
_RESAMPLES = 1000
_ENGINE = ("--engine", "--device", "--batch")


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "evaluate",
        run,
        "score a model or a file with BLEU, chrF and TER; compare two systems",
        "Score a model's translations of --source, or a file of translations, against --reference; or a model of text vectors by "
        "how often the nearest line of --reference is the one beside it (or beside an equal line), and the other way round; or "
        "a language model on minimal pairs (--pairs) or multiple choice (--choices); or a model with labels on a table.",
    )
    parser.add_argument(
        "table",
        nargs="?",
        type=Path,
        metavar="TABLE",
        help="score a model with labels on a table, or on words with tags",
    )
    add_model(parser, several=ENSEMBLE)
    add_adapter(parser)
    parser.add_argument("--hypothesis", type=Path, metavar="FILE", help="score this file instead of a model")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the translations of a second system")
    parser.add_argument("--source", type=Path, metavar="FILE", help="text to translate with the model")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="reference translations")
    parser.add_argument("--target-language", metavar="CODE", help="selects sacreBLEU's tokenizer for zh, ja and ko")
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help=f"resamples for confidence intervals; 0 disables (default: {_RESAMPLES})",
    )
    texts = parser.add_argument_group("language models")
    texts.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="minimal pairs: lines of JSON with sentence_good, sentence_bad and UID, as in BLiMP",
    )
    texts.add_argument(
        "--choices",
        type=Path,
        metavar="FILE",
        help="multiple choice: lines of JSON with question (or context), choices and answer, a number from 0",
    )
    add_stride(texts)
    add_direction(parser)
    labels = parser.add_argument_group("models with labels")
    labels.add_argument(
        "--text", metavar="COLUMN[,COLUMN]", help="the column of TABLE with the text, or two, by name or number"
    )
    labels.add_argument("--label", metavar="COLUMN", help="the column of TABLE with the label or tag")
    add_all_search(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the model's translations to FILE")
    parser.add_argument("--force", action="store_true", help="overwrite an existing FILE")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the scores of what the arguments name: a table, test sets of a language model, translations or vectors."""
    if arguments.table:
        _evaluate_labels(arguments)
        return
    if arguments.text or arguments.label:
        raise UserError("--text and --label are columns of TABLE, but there is none; name it")
    if arguments.pairs or arguments.choices:
        _evaluate_texts(arguments)
        return
    if arguments.stride is not None:
        raise UserError("--stride is for --pairs and --choices; leave it out")
    if arguments.reference is None or not (arguments.hypothesis or arguments.source):
        raise _lacking(arguments)
    _evaluate_lines(arguments)


def _evaluate_lines(arguments: argparse.Namespace) -> None:
    """Print the scores of --hypothesis, or of the model's translations of --source, or a comparison with --against; or how well the
    model's vectors find --reference."""
    from regard.data.corpus import read_lines
    from regard.evaluate import compare, score

    if arguments.hypothesis:
        fitting = ("--hypothesis", "--reference", "--against", "--target-language", "--bootstrap")
        if given := _others(arguments, *fitting):
            raise UserError(f"--hypothesis is scored as it is; leave out {given}, or leave out --hypothesis")
    bootstrap = _RESAMPLES if arguments.bootstrap is None else arguments.bootstrap
    if arguments.output is not None:
        check_new_file(arguments.output)
        for given_file in (arguments.source, arguments.reference, arguments.against):
            if given_file is not None and is_same_file(given_file, arguments.output):
                raise UserError(f"-o {arguments.output}: must not be one of the input files; name another")
        check_overwrite(arguments.output, arguments.force)
    references = list(read_lines(arguments.reference))
    language = arguments.target_language
    if arguments.hypothesis:
        hypotheses, name = list(read_lines(arguments.hypothesis)), str(arguments.hypothesis)
    else:
        sources = list(read_lines(arguments.source))
        check_pairs(arguments, sources, references)
        if arguments.model and any(_task_of(name) == "embed" for name in arguments.model):
            _evaluate_vectors(arguments, sources, references)
            return
        if arguments.model and len(arguments.model) > 1:
            _explain_ensemble(arguments)
        model = load_model(arguments, sample=sources)
        language = language or model.bundle.target
        hypotheses, name = translate_all(model, sources, arguments), " + ".join(arguments.model or [DEFAULT])
        if arguments.output:
            write_atomic(arguments.output, "".join(f"{line}\n" for line in hypotheses))
    if arguments.against:
        other = list(read_lines(arguments.against))
        names = (name, str(arguments.against), str(arguments.reference))
        comparison = compare(hypotheses, other, references, target_language=language, bootstrap=bootstrap, names=names)
        print_result(arguments, comparison.to_json(), comparison.lines())
        return
    scores = score(
        hypotheses,
        references,
        target_language=language,
        bootstrap=bootstrap,
        names=(name, str(arguments.reference)),
    )
    print_result(arguments, scores.to_json(), scores.lines())


def _others(arguments: argparse.Namespace, *fitting: str) -> str:
    """The options that were given apart from the fitting ones, as a person reads them. All count that some way of evaluating does
    not read; --json is for all."""
    options: dict[str, Any] = {
        "-m": arguments.model, "--adapter": arguments.adapter, "--device": _unless(arguments.device, "auto"),
        "--engine": _unless(arguments.engine, "auto"), "--batch": _unless(arguments.batch, 0), "--source": arguments.source,
        "--hypothesis": arguments.hypothesis, "--reference": arguments.reference, "--against": arguments.against,
        "-o": arguments.output, "--force": _unless(arguments.force, False), "--target-language": arguments.target_language,
        "--bootstrap": arguments.bootstrap, "--pairs": arguments.pairs, "--choices": arguments.choices,
        "--stride": arguments.stride, "--text": arguments.text, "--label": arguments.label, **given_direction(arguments),
        "--beam": arguments.beam, "--alpha": arguments.alpha, "--prefix": arguments.prefix, "--phrase": arguments.phrases,
        **{f"--{name.replace('_', '-')}": value for name, value in given_search(arguments).items()},
    }  # fmt: skip
    return " and ".join(name for name, value in options.items() if value is not None and name not in fitting)


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _lacking(arguments: argparse.Namespace) -> UserError:
    """What to say where a file is missing: what the model's task needs or, without a model, every task."""
    if not arguments.model:
        return UserError(
            "evaluate needs --reference FILE with --source FILE or --hypothesis FILE; or with -m a model of another task: "
            "--pairs FILE or --choices FILE with a language model, TABLE with a model with labels"
        )
    name = arguments.model[0]
    task = _task_of(name)
    if task not in _NEEDS:
        return UserError(f"evaluate does not score models for the task {task}, such as {name}; name another with -m")
    return UserError(f"evaluate needs {_NEEDS[task]}, since {name} is a model for the task {task}")


def _task_of(name: str) -> str:
    from regard.bundle import find_bundle, read_bundle

    return read_bundle(find_bundle(name)).task


def _evaluate_labels(arguments: argparse.Namespace) -> None:
    """Print the scores of a model with labels."""
    if given := _others(arguments, "-m", "--device", "--text", "--label"):
        raise UserError(f"TABLE is for a model with labels; leave out {given}")
    if not arguments.model or len(arguments.model) != 1:
        raise UserError("evaluate TABLE needs one model with labels; name it with -m")
    from regard.bundle import find_bundle, load_bundle
    from regard.tasks.label_evaluation import evaluate_table, label_lines

    bundle = load_bundle(find_bundle(arguments.model[0]))
    text = [name.strip() for name in arguments.text.split(",")] if arguments.text else []
    scores, by_label, said = evaluate_table(bundle, arguments.table, text, arguments.label or "", arguments.device)
    for note in said:
        sys.stderr.write(f"{escape(note)}\n")
    document = {**scores.to_json(), "labels": [one.to_json() for one in by_label]}
    print_result(arguments, document, [*scores.lines(), *label_lines(by_label)])


def _evaluate_vectors(arguments: argparse.Namespace, sources: list[str], references: list[str]) -> None:
    """Print how often the nearest text of the other file is one that means the same."""
    if len(arguments.model) > 1:
        raise UserError("evaluate takes one model of text vectors at a time; name one with -m")
    if given := _others(arguments, "-m", *_ENGINE, "--source", "--reference"):
        raise UserError(f"{arguments.model[0]} makes vectors, and does not translate; leave out {given}")
    from regard.tasks.retrieval import RetrievalSet

    pairs = list(zip(sources, references, strict=True))
    filled = [(source, reference) for source, reference in pairs if source.strip() and reference.strip()]
    if not filled:
        raise UserError(f"{arguments.source}: must have at least one line with text beside text, but has none")
    if left_out := len(pairs) - len(filled):
        sys.stderr.write(f"note: {left_out:,} of {len(pairs):,} pairs left out, since a side is empty\n")
    texts = RetrievalSet(filled, (arguments.source.name, arguments.reference.name))
    model = load_model(arguments, task="embed")
    scores = texts.measured(partial(model.embed, progress=True))
    print_result(arguments, scores.to_json(), scores.lines())


def _evaluate_texts(arguments: argparse.Namespace) -> None:
    """Print the accuracy of a language model."""
    from regard.data.test_sets import read_choices, read_pairs
    from regard.evaluate import aligned
    from regard.progress import progress
    from regard.writing.scoring import Accuracy, Choice, MinimalPair, score_choices, score_pairs

    if given := _others(arguments, "-m", "--adapter", *_ENGINE, "--pairs", "--choices", "--stride"):
        raise UserError(f"--pairs and --choices are for a language model; leave out {given}")
    if arguments.pairs and arguments.choices:
        raise UserError("evaluate takes --pairs or --choices, but got both; leave one out")
    if arguments.pairs:
        pairs = [MinimalPair(*one) for one in read_pairs(arguments.pairs)]
        scorer = open_scorer(arguments)
        with progress("scoring", 2 * len(pairs), "sentences") as done:
            found = score_pairs(scorer, pairs, done)
        whole = Accuracy(sum(one.correct for one in found.values()), len(pairs))
        document: dict[str, Any] = {"all": whole.to_json(), "paradigms": {n: one.to_json() for n, one in found.items()}}
        rows = [*found.items()] if len(found) > 1 else []
        rows.append(("all", whole))
    else:
        questions = [Choice(*one) for one in read_choices(arguments.choices)]
        scorer = open_scorer(arguments)
        with progress("scoring", sum(len(one.choices) for one in questions), "answers") as done:
            by_metric = score_choices(scorer, questions, done)
        document = {name: one.to_json() for name, one in by_metric.items()}
        rows = list(by_metric.items())
    table = [("", "accuracy %", "standard error", "right", "of")]
    table += [
        (name, f"{one.percent:.2f}", f"{one.error:.2f}", f"{one.correct:,}", f"{one.count:,}") for name, one in rows
    ]
    print_result(arguments, document, aligned(table))


def check_pairs(arguments: argparse.Namespace, sources: list[str], references: list[str]) -> None:
    """Refuse --source and --reference of different lengths."""
    if len(sources) != len(references):
        raise UserError(
            f"{arguments.source} has {len(sources):,} lines, but {arguments.reference} has {len(references):,}: "
            f"line N of one must translate line N of the other"
        )


def _explain_ensemble(arguments: argparse.Namespace) -> None:
    """People repeat -m to compare models; say what it does, before a different vocabulary is refused."""
    models = " ".join(f"-m {shlex.quote(name)}" for name in arguments.model)
    files = f"--source {shlex.quote(str(arguments.source))} --reference {shlex.quote(str(arguments.reference))}"
    line = (
        f"note: {len(arguments.model)} models form an ensemble, which translates as one system; to compare them: "
        f"regard compare {models} {files}"
    )
    sys.stderr.write(f"{escape(line)}\n")


def translate_all(
    model: Model, sources: list[str], arguments: argparse.Namespace, description: str = "translating"
) -> list[str]:
    """The best translation of each line, with progress."""
    from regard.progress import progress

    with naming_options():
        options = model.search_options(arguments.beam, arguments.alpha, 1, **given_search(arguments))
    with progress(description, len(sources)) as done:
        return [
            result.text
            for result in model.stream(sources, options, on_progress=done, constraints=given_constraints(arguments))
        ]

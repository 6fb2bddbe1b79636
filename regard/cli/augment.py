"""`regard augment`: a new parallel corpus, made by a model or by adding noise to another corpus."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_model, add_search, checked_batch, print_result, verb
from regard.errors import UserError
from regard.parallel.processes import first_reports, process_info

if TYPE_CHECKING:
    from regard.augment import Augmented


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "augment",
        run,
        "make training text: distillation, back-translation, noise",
        "Make a parallel corpus with a model, or with --noise from another corpus. Name corpora as in a recipe, in quotes: "
        "'news.{en,de}.xz' is two files, 'news.tsv' is one file with a tab between source and target.",
    )
    method = parser.add_mutually_exclusive_group(required=True)
    method.add_argument(
        "--distill",
        dest="method",
        action="store_const",
        const="distill",
        help="translate the source side; the translations become the target side",
    )
    method.add_argument(
        "--back-translate",
        dest="method",
        action="store_const",
        const="back-translate",
        help="translate the target side with a target-to-source model; the translations become the source side",
    )
    method.add_argument(
        "--noise",
        dest="method",
        action="store_const",
        const="noise",
        help="rewrite a parallel corpus as people type: no capitals, typos, ...; needs no model",
    )
    add_model(parser)
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        nargs="+",
        required=True,
        metavar="CORPUS",
        help="a parallel corpus, or a file in the language that the model reads; repeatable, and * ? [abc] match file names",
    )
    parser.add_argument("-o", "--output", nargs="+", required=True, metavar="CORPUS", help="the new corpus")
    add_search(parser)
    parser.add_argument(
        "--choose",
        default="best",
        choices=("best", "bleu", "chrf"),
        help="which translation to take: the best by the model's score, or the one of the N best closest to the reference by "
        "sentence BLEU or chrF (default: best)",
    )
    parser.add_argument(
        "--nbest", type=int, metavar="N", help="candidates for --choose bleu or chrf (default: the beam width)"
    )
    parser.add_argument(
        "--max-ratio",
        type=float,
        metavar="R",
        help="drop pairs in which one side has more than R times the tokens of the other (default: 4)",
    )
    parser.add_argument(
        "--keep-all", action="store_true", help="drop nothing: line N of the output comes from line N of the input"
    )
    _add_noise(parser)
    parser.add_argument("--resume", action="store_true", help="continue after the last saved line, if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_noise(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --noise")
    group.add_argument(
        "--kinds",
        metavar="A,B,...",
        help="kinds of noise: lower, upper, title, unpunctuated, bare, typos, quoted, join, copy, spacing (default: all)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="random seed (default: 1)")
    group.add_argument("--source", metavar="CODE", help="source language, if the file names have no {src,tgt}")
    group.add_argument("--target", metavar="CODE", help="target language, if the file names have no {src,tgt}")


# Options of one method only, with their defaults.
_FOR_MODELS = {
    "-m": None, "--engine": "auto", "--device": "auto", "--batch": 0, "--beam": None, "--alpha": None, "--choose": "best",
    "--nbest": None, "--max-ratio": None, "--keep-all": False,
}  # fmt: skip
_FOR_NOISE = {"--kinds": None, "--seed": None, "--source": None, "--target": None}


def run(arguments: argparse.Namespace) -> None:
    """Write the new corpus, and print what was made and dropped."""
    with first_reports():
        make = (_make_noise if arguments.method == "noise" else _make_with_model)(arguments)
    made = make()
    if process_info().is_first:
        print_result(arguments, made.to_json(), made.lines())


def _refuse(arguments: argparse.Namespace, options: Mapping[str, Any], why: str) -> None:
    for option, default in options.items():
        name = "model" if option == "-m" else option.strip("-").replace("-", "_")
        if getattr(arguments, name) != default:
            raise UserError(f"{why}; leave out {option}")


def _make_noise(arguments: argparse.Namespace) -> Callable[[], Augmented]:
    if process_info().size > 1:
        raise UserError("augment --noise runs in one process; start it without torchrun")
    _refuse(arguments, _FOR_MODELS, "--noise needs no model")
    from regard.augment import noise_corpus
    from regard.translation.noise import KINDS

    return partial(
        noise_corpus,
        [_one_corpus("-i", names) for names in arguments.input],
        _one_corpus("-o", arguments.output),
        kinds=KINDS if arguments.kinds is None else [kind.strip() for kind in arguments.kinds.split(",")],
        seed=1 if arguments.seed is None else arguments.seed,
        source=arguments.source,
        target=arguments.target,
        resume=arguments.resume,
    )


def _make_with_model(arguments: argparse.Namespace) -> Callable[[], Augmented]:
    _refuse(arguments, _FOR_NOISE, f"--{arguments.method} adds no noise")
    from regard.bundle import find_bundle

    if arguments.keep_all and arguments.max_ratio is not None:
        raise UserError("--keep-all drops nothing; leave out --max-ratio")
    folder = find_bundle(arguments.model)
    from regard.augment import MAX_RATIO, augment_corpus

    return partial(
        augment_corpus,
        folder,
        [_one_corpus("-i", names) for names in arguments.input],
        _one_corpus("-o", arguments.output),
        way=arguments.method,
        beam=arguments.beam,
        alpha=arguments.alpha,
        nbest=arguments.nbest,
        choose=arguments.choose,
        max_ratio=MAX_RATIO if arguments.max_ratio is None else arguments.max_ratio,
        keep_all=arguments.keep_all,
        engine=arguments.engine,
        device=arguments.device,
        batch=checked_batch(arguments),
        resume=arguments.resume,
    )


def _one_corpus(option: str, names: Sequence[str]) -> str:
    """The one name given; without quotes the shell expands NAME.{en,de} to two."""
    if len(names) > 1:
        raise UserError(
            f"{option} takes one corpus, but got {len(names)} names, {names[0]} and {names[1]} first; quote it so that the "
            f"shell does not expand it: {option} 'NAME.{{en,de}}'"
        )
    return names[0]

"""`regard augment`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_model, add_search, checked_batch, print_result, verb
from regard.errors import UserError
from regard.parallel.processes import first_speaks, own_place

if TYPE_CHECKING:
    from regard.augment import Augmented


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "augment",
        run,
        "make training text: distillation, back-translation, noise",
        "Make a parallel corpus with a model, or with --noise from another one. Corpora are written as in the recipe that trains "
        "on the new one, in quotes: 'news.{en,de}.xz' is two files, 'news.tsv' one with tabs.",
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument(
        "--distill",
        dest="way",
        action="store_const",
        const="distill",
        help="the model's translation of the source side becomes the target side",
    )
    way.add_argument(
        "--back-translate",
        dest="way",
        action="store_const",
        const="back-translate",
        help="the model's translation of the target side becomes the source side; the model goes from target to source",
    )
    way.add_argument(
        "--noise",
        dest="way",
        action="store_const",
        const="noise",
        help="the pairs of a parallel corpus as people really type: without capitals, with typing errors, ...; needs no model",
    )
    add_model(parser)
    parser.add_argument(
        "-i",
        "--input",
        action="append",
        nargs="+",
        required=True,
        metavar="CORPUS",
        help="what it is made from: a corpus, or for a model a file in the one language; may be given several times, and * ? [abc] "
        "stand for what they match",
    )
    parser.add_argument("-o", "--output", nargs="+", required=True, metavar="CORPUS", help="the new corpus")
    add_search(parser)
    parser.add_argument(
        "--choose",
        default="best",
        choices=("best", "bleu", "chrf"),
        help="which translation is taken: the model's best, or of the N best the one nearest to the reference, by the sentence's "
        "BLEU or chrF (default: best)",
    )
    parser.add_argument("--nbest", type=int, metavar="N", help="with --choose bleu or chrf (default: the beam)")
    parser.add_argument(
        "--max-ratio",
        type=float,
        metavar="R",
        help="drop pairs with one side more than R times as long as the other, in tokens (default: 4)",
    )
    parser.add_argument(
        "--keep-all", action="store_true", help="drop nothing: line N of the new corpus comes from line N of the input"
    )
    _add_noise(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last line that was saved, if there is one"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _add_noise(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --noise")
    group.add_argument(
        "--kinds",
        metavar="A,B,...",
        help="of noise: lower, upper, title, unpunctuated, typos, join, copy, spacing (default: all)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="another seed, another noise (default: 1)")
    group.add_argument("--source", metavar="CODE", help="language of the source side, where no braces say it")
    group.add_argument("--target", metavar="CODE", help="language of the target side, where no braces say it")


# What the ways of augment do not share, with the values that nobody has given.
_FOR_MODELS = {
    "-m": None, "--engine": "auto", "--device": "auto", "--batch": 0, "--beam": None, "--alpha": None, "--choose": "best",
    "--nbest": None, "--max-ratio": None, "--keep-all": False,
}  # fmt: skip
_FOR_NOISE = {"--kinds": None, "--seed": None, "--source": None, "--target": None}


def run(arguments: argparse.Namespace) -> None:
    with first_speaks():
        make = (_make_noise if arguments.way == "noise" else _make_with_model)(arguments)
    made = make()
    if own_place().is_first:  # of several processes the first one speaks
        print_result(arguments, made.to_json(), made.lines())


def _refuse(arguments: argparse.Namespace, options: Mapping[str, Any], why: str) -> None:
    for option, default in options.items():
        name = "model" if option == "-m" else option.strip("-").replace("-", "_")
        if getattr(arguments, name) != default:
            raise UserError(f"{why}; leave out {option}")


def _make_noise(arguments: argparse.Namespace) -> Callable[[], Augmented]:
    if own_place().size > 1:
        raise UserError("augment --noise is work for one process; start it without torchrun")
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
    _refuse(arguments, _FOR_NOISE, f"--{arguments.way} makes no noise")
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
        way=arguments.way,
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
    """The one name that came; a shell makes two of NAME.{en,de} where there are no quotes."""
    if len(names) > 1:
        raise UserError(
            f"{option} takes one corpus, but got {len(names)} names, {names[0]} and {names[1]} first; put quotes around it, as in "
            f"{option} 'NAME.{{en,de}}', so that the shell leaves it alone"
        )
    return names[0]

"""What the verbs share: arguments for models and search, loading a model, printing a result."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.bounds import MAX_BATCH, check_whole
from regard.builtin import DEFAULT, DEFAULTS
from regard.errors import UserError
from regard.escaping import escape, escape_json

if TYPE_CHECKING:
    from regard.api import Model
    from regard.translation.constraints import TextConstraints

_NAMED = "a bundle, a run folder or the name of a built-in or cached model"
MODEL = f"{_NAMED} (default: {DEFAULT})"
MODEL_OF_VECTORS = f"{_NAMED} (default: {DEFAULTS['embed']})"
MODEL_OF_TEXT = "a language model: a bundle, a run folder or the name of a cached model"
ENSEMBLE = f"{MODEL}; repeat for an ensemble of models with the same vocabulary"
ALL = f"{_NAMED}; repeatable (default: all built-in models)"


def verb(verbs: Any, name: str, run: Any, help: str, description: str = "") -> argparse.ArgumentParser:
    """Add a verb; `help` is its line in `regard --help`, `description` opens its own --help (default: that line)."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=description or f"{help[0].upper()}{help[1:]}."
    )
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser, *, several: str = "") -> None:
    """Arguments for a model and where it runs. With `several`, -m is repeatable, and `several` is its help text."""
    parser.add_argument(
        "-m", "--model", action="append" if several else "store", metavar="MODEL", help=several or MODEL
    )
    add_engine(parser)


def add_adapter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        type=Path,
        metavar="DIR",
        help="what LoRA changed of this model: an adapter, or the run that made it",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Arguments for where a model runs."""
    parser.add_argument(
        "--engine",
        default="auto",
        choices=("auto", "torch", "torch-int8", "ctranslate2", "ctranslate2-fp32", "onnxruntime"),
        help="auto: on CPUs onnxruntime (language models, with AVX-512 VNNI), ctranslate2, or onnxruntime (encoders), if installed "
        "and able to run the model, else torch; ctranslate2 and onnxruntime run language models in 8 bits, ctranslate2-fp32 in "
        "fp32; torch-int8 is for language models on CPUs, and what a server writes with there (default: auto)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    parser.add_argument(
        "--batch", type=int, default=0, metavar="N", help="sentences per batch (default: depends on the device)"
    )


def add_search(parser: argparse._ActionsContainer) -> None:
    """--beam and --alpha."""
    parser.add_argument(
        "--beam", type=int, metavar="N", help="beam width; 1 is greedy search (default: the model's, usually 4)"
    )
    parser.add_argument(
        "--alpha", type=float, metavar="A", help="length penalty ((5 + |Y|) / 6)^A (default: the model's, usually 0.6)"
    )


def add_all_search(parser: argparse.ArgumentParser) -> None:
    """All search options and constraints."""
    add_search(parser)
    constraints = parser.add_argument_group("constraints on the translation")
    constraints.add_argument("--glossary", type=Path, metavar="FILE", help="source term, tab, target term on each line")
    constraints.add_argument("--keep", action="append", metavar="TEXT", help="leave this text untranslated; repeatable")
    constraints.add_argument("--prefix", metavar="TEXT", help="forced prefix: every translation begins with it")
    constraints.add_argument(
        "--phrase", action="append", dest="phrases", metavar="TEXT", help="must appear in every translation; repeatable"
    )
    how = parser.add_argument_group("search")
    how.add_argument(
        "--mbr", choices=("bleu", "chrf"), help="minimum Bayes risk reranking of the beam with this metric"
    )
    how.add_argument("--coverage", type=float, metavar="B", help="penalty for untranslated source words, such as 0.2")
    how.add_argument("--no-repeat", type=int, metavar="N", help="n-gram size that may not repeat; 0 disables")
    how.add_argument(
        "--max-repeat", type=int, metavar="N", help="times that a run of tokens may repeat in a row; 0 disables"
    )
    how.add_argument("--groups", type=int, metavar="N", help="diverse beam search with N groups")
    how.add_argument("--diversity", type=float, metavar="D", help="penalty between groups (default: 0.5)")
    how.add_argument(
        "--sample",
        action="store_const",
        const=True,
        help="sample instead of searching; --beam N takes the best of N samples",
    )
    how.add_argument(
        "--temperature", type=float, metavar="T", help="with --sample: below 1 favours likely tokens (default: 1)"
    )
    how.add_argument("--top-k", type=int, metavar="K", help="with --sample: only from the K likeliest tokens")
    how.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="with --sample: only from the likeliest tokens that make up probability P",
    )
    how.add_argument("--seed", type=int, metavar="S", help="with --sample: random seed (default: 0)")


_SEARCH_OPTIONS = (
    "beam", "alpha", "nbest", "glossary", "keep", "mbr", "coverage", "no_repeat", "max_repeat", "groups", "diversity", "sample",
    "temperature", "top_k", "top_p", "seed",
)  # fmt: skip


@cache
def _option_names(more: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the names of options in a message. Not in "a wider beam": there it is a word."""
    names = "|".join((*_SEARCH_OPTIONS, *more))
    return re.compile(rf"(?<![\w-])(?<!\ba )(?<!\bthe )(?<!\bwider )({names})(?![\w-])")


@contextmanager
def naming_options(more: Sequence[str] = ()) -> Iterator[None]:
    """Errors about search options name them as on the command line: --top-k, where Python has top_k. `more` are further options."""
    try:
        yield
    except UserError as error:
        named = _option_names(tuple(more)).sub(lambda match: f"--{match[0].replace('_', '-')}", str(error))
        raise UserError(re.sub(r"^n(?= must be )", "-n", named)) from None


def given_search(arguments: argparse.Namespace) -> dict[str, Any]:
    """The search options that were given, apart from beam and alpha, by their names in the Python API."""
    names = (name for name in _SEARCH_OPTIONS if name not in ("beam", "alpha", "nbest"))
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def given_constraints(arguments: argparse.Namespace) -> TextConstraints | None:
    """The prefix and phrases for every translation; None if neither was given."""
    from regard.translation.constraints import TextConstraints

    if arguments.prefix is None and not arguments.phrases:
        return None
    return TextConstraints(arguments.prefix or "", tuple(arguments.phrases or ()))


def load_model(
    arguments: argparse.Namespace,
    device: str | None = None,
    task: str = "translate",
    sample: Iterable[str] = (),
    is_all: bool = False,
) -> Model:
    """The model that the arguments name, which must be one for this task. `device` replaces --device where each of several
    processes has its own. The direction of a translation model is that of --from and --to, else found by `sample`; `is_all`: that
    is all there is to translate, so a blank one may go in any direction."""
    folders = find_models(arguments, task)  # before the slow imports: a wrong name fails at once
    batch = checked_batch(arguments)
    from regard.api import load

    adapter = getattr(arguments, "adapter", None)
    device = device or arguments.device
    model = load(folders, device=device, batch=batch, engine=arguments.engine, task=task, adapter=adapter)
    if task != "translate":
        return model
    target, source = (getattr(arguments, name, None) for name in ("to_language", "from_language"))
    return model.toward_texts(sample, target, source) if is_all else model.toward(target, source, sample)


def read_texts(arguments: argparse.Namespace, wanted: str = "TEXT, -i FILE or standard input") -> list[str]:
    """The texts of the arguments, or the lines of -i or of standard input. `wanted` names what the verb takes."""
    if arguments.texts and arguments.input:
        raise UserError(f"{arguments.verb} takes TEXT or -i FILE, but got both; leave one out")
    for text in arguments.texts:
        if os.path.isfile(text):
            raise UserError(f"{text} is a file; -i {text} reads the texts in it, one on each line")
    if arguments.texts:
        return list(arguments.texts)
    from regard.data.corpus import check_file, read_lines

    if arguments.input:
        check_file(arguments.input)
        return list(read_lines(arguments.input))
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(f"{arguments.verb} needs {wanted}")
    from regard.translation.lines import read_available, standard_input

    return [line for block in read_available(standard_input(), 1024) for line in block]


def find_models(arguments: argparse.Namespace, task: str | None = None) -> list[Path]:
    """The bundle folders of all -m; without any, that of the built-in model for the task."""
    from regard.bundle import find_bundle

    names = arguments.model if isinstance(arguments.model, list) else [arguments.model]
    return [find_bundle(name, task) for name in names]


def checked_batch(arguments: argparse.Namespace) -> int:
    """--batch; 0 leaves the size to the engine."""
    batch: int = arguments.batch
    if batch < 0:
        raise UserError(f"--batch must be at least 1, but is {batch}; leave it out for the default")
    check_whole("--batch", batch, 0, MAX_BATCH)
    return batch


def print_result(arguments: argparse.Namespace, document: Any, lines: Sequence[str]) -> None:
    """Write the document as JSON with --json, else the lines, to standard output. Both may quote a file that a stranger made."""
    if arguments.json:
        text = escape_json(json.dumps(document, ensure_ascii=False, indent=2))
    elif not lines:  # not even a blank line
        return
    else:
        text = escape("\n".join(lines), keep="\n\t")
    sys.stdout.write(text + "\n")

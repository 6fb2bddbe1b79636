"""`regard train`: from a recipe, or from plain files with everything else chosen."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import verb
from regard.cli.train_inputs import TASKS, check_inputs, find_task, is_recipe, run_name
from regard.errors import UserError
from regard.parallel.processes import first_reports, process_info

if TYPE_CHECKING:
    from regard.recipe import Recipe


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "train",
        run,
        "train a model from a recipe, from parallel files, text, or labels",
        "Train a model from a recipe (a .toml file), a translator from two parallel files, a language model from text files and "
        "folders, a classifier from a table of texts with labels, a tagger from words with tags, or a model of text vectors "
        "from pairs of texts that mean the same (--task embed); without a recipe "
        "Regard chooses the settings. docs/recipe.md lists every field of a recipe.",
    )
    parser.usage = (
        "regard train RECIPE.toml | SRC TGT | TEXT.txt ... | FOLDER | TABLE.tsv|.csv|.jsonl | WORDS.conll [options]"
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="RECIPE.toml | SRC TGT | TEXT.txt ... | FOLDER | TABLE.tsv | WORDS.conll",
        help="a recipe; a source and a target file; text for a language model; texts with labels; or words with tags",
    )
    parser.add_argument(
        "--task",
        choices=TASKS,
        help="what to learn from plain files (default: two files in two languages are parallel text)",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a recipe field; repeatable"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the newest intact checkpoint, if there is one"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be trained and how long it would take, and exit"
    )
    parser.add_argument("--dump-recipe", action="store_true", help="print the resolved recipe and exit")
    _add_fields(parser)


def _names(value: str) -> list[str]:
    """Columns with commas between them."""
    return [name.strip() for name in value.split(",")]


def _corpus(value: str) -> float | str:
    """A number or share of the text to hold out, or a corpus, whose path is relative to the current folder and not to the
    recipe's."""
    if value.isdecimal():
        return int(value)
    return float(value) if re.fullmatch(r"0?\.\d+", value) else str(Path(value).resolve())


# Options for the common fields of a recipe: (option, field, type, metavar, help).
_FIELDS: tuple[tuple[str, str, Any, str, str], ...] = (
    ("--minutes", "train.minutes", float, "N", "time budget, replaces the recipe's length"),
    ("--epochs", "train.epochs", float, "N", "passes over the training text, replaces the recipe's length"),
    ("--steps", "train.steps", int, "N", "updates, replaces the recipe's length"),
    ("--source", "data.source", str, "CODE", "source language"),
    ("--target", "data.target", str, "CODE", "target language"),
    (
        "--valid",
        "data.valid",
        _corpus,
        "CORPUS|N",
        "validation text such as dev.{en,de} or dev.txt, or how many pairs or documents to hold out",
    ),
    ("--test", "data.test", _corpus, "CORPUS|N", "test text, or how many to hold out"),
    ("--init", "train.init", str, "MODEL", "fine-tune this model: a bundle, a run folder or a built-in model"),
    ("--text", "data.text", _names, "COLUMN[,COLUMN]", "the column with the text, or two, by name or number"),
    ("--label", "data.label", str, "COLUMN", "the column with the label or tag, by name or number"),
    ("--preset", "model.preset", str, "NAME", "shape of the model, such as tiny, small or base"),
    ("--dropout", "model.dropout", float, "P", "dropout"),
    ("--vocab-size", "tokenizer.vocab_size", int, "N", "number of subword pieces"),
    ("--batch-tokens", "train.batch_tokens", int, "N", "tokens per update"),
    ("--lr", "train.lr", float, "RATE", "peak learning rate"),
    ("--seed", "train.seed", int, "N", "random seed"),
    ("--device", "train.device", str, "NAME", "auto, cpu, cuda, cuda:N or mps"),
)
_LENGTHS = ("train.minutes", "train.epochs", "train.steps")


def _add_fields(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("common fields of the recipe (all others: --set)")
    for option, field, type_, metavar, help_ in _FIELDS:
        group.add_argument(option, dest=field, type=type_, metavar=metavar, help=f"{help_} ({field})")


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """The options for fields and --set, which comes last and so takes precedence, as "section.key=value"."""
    given = {field: value for _, field, *_ in _FIELDS if (value := getattr(arguments, field)) is not None}
    lengths = [option for option, field, *_ in _FIELDS if field in _LENGTHS and field in given]
    if len(lengths) > 1:
        raise UserError(f"give only one of {' and '.join(lengths)}: a run has one length")
    # 0 is a field that is not set: the option replaces another length in the recipe.
    unset = [f"{field}=0" for field in _LENGTHS] if lengths else []
    for option, field, *_ in _FIELDS:
        if field in _LENGTHS and field in given and not given[field] > 0:
            raise UserError(f"{option} must be more than 0, but is {given[field]}")
    # JSON writes strings and numbers as TOML does.
    return [*unset, *(f"{field}={json.dumps(value)}" for field, value in given.items()), *arguments.set]


def run(arguments: argparse.Namespace) -> None:
    """Choose or read the recipe and train; --dry-run and --dump-recipe stop before."""
    started = time.perf_counter()  # choosing a recipe is part of train.minutes
    is_first = process_info().is_first  # under torchrun only the first process prints
    with first_reports():
        recipe, name, lines = chosen_recipe(arguments, is_first)
    if is_first:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        if arguments.dump_recipe:
            sys.stdout.write(recipe.to_toml())
    if arguments.dump_recipe or arguments.dry_run:
        return
    from regard.training.run import train

    train(recipe, _out(arguments, name), resume=arguments.resume, started=started)


def _out(arguments: argparse.Namespace, name: str) -> Path:
    return arguments.out or Path("runs") / name


def chosen_recipe(arguments: argparse.Namespace, is_first: bool) -> tuple[Recipe, str, list[str]]:
    """The recipe, given or chosen for plain files; the name of the run; lines that describe the choice."""
    from regard.recipe import load_recipe

    inputs: list[str] = arguments.inputs
    silent = arguments.dump_recipe or not is_first
    overrides = _overrides(arguments)
    check_inputs(inputs)
    if is_recipe(inputs):
        if arguments.task:
            raise UserError("--task is for plain files; a recipe says its task itself")
        recipe = load_recipe(Path(inputs[0]), overrides)
        lines = []
        if arguments.dry_run and not silent:
            from regard.training.auto import describe_run

            lines = describe_run(recipe)
        return recipe, Path(inputs[0]).stem, lines
    task, reason = (arguments.task, "") if arguments.task else find_task(inputs)
    from regard.training.auto import choose_recipe

    choice = choose_recipe(task, [Path(name) for name in inputs], overrides, partial(_check, arguments))
    lines = [] if silent else [*([reason] if reason else []), *choice.describe(arguments.dry_run)]
    return choice.recipe, _name(arguments, choice.recipe), lines


def _check(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Fail before the files are read, if the run would be refused whatever they contain."""
    from regard.training.check import check_machine
    from regard.training.fine_tuning import check_init, resolve_recipe
    from regard.training.folder import RunFolder, check_folder
    from regard.training.speed import own_process_device

    recipe = resolve_recipe(recipe)
    if not arguments.resume:
        check_init(recipe)
    check_machine(recipe, own_process_device(recipe.train.device), process_info().size)
    if not (arguments.resume or arguments.dry_run or arguments.dump_recipe):
        check_folder(RunFolder(_out(arguments, _name(arguments, recipe))), recipe, resume=False)


def _name(arguments: argparse.Namespace, recipe: Recipe) -> str:
    return recipe.name if recipe.settings.has_sides else run_name(arguments.inputs)

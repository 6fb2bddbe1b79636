"""`regard compare`: models and files of translations on the same text, as a table and a page."""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

from regard.cli.common import add_all_search, add_engine, find_models, given_search, load_model, print_result, verb
from regard.cli.evaluate import check_pairs, translate_all
from regard.cli.languages import add_direction, given_direction
from regard.errors import UserError
from regard.files import check_new_file, check_overwrite, is_same_file, write_atomic

_TRIALS = 10_000


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "compare",
        run,
        "compare models on the same text: scores, significance, and a page of the sentences that differ",
        "Compare models, or files of translations, on the same text. Prints BLEU, chrF and TER with 95% intervals and a paired "
        "significance test against the first system; -o writes a page of the sentences on which they differ most.",
    )
    systems: dict[str, Any] = {"action": "append", "dest": "systems", "default": []}
    parser.add_argument(
        "-m",
        "--model",
        type=_model,
        metavar="MODEL",
        help="a bundle, a run folder or a built-in model; the first system is the baseline",
        **systems,
    )
    parser.add_argument(
        "--hypothesis", type=_file, metavar="FILE", help="translations of another system; repeatable", **systems
    )
    parser.add_argument("--source", type=Path, metavar="FILE", help="text to translate; optional without -m")
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE", help="reference translations")
    parser.add_argument("--target-language", metavar="CODE", help="selects sacreBLEU's tokenizer for zh, ja and ko")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PAGE.html", help="write a page of the sentences that differ"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing page")
    parser.add_argument("--sentences", type=int, default=50, metavar="N", help="sentences on the page (default: 50)")
    parser.add_argument(
        "--test",
        choices=("bootstrap", "randomization"),
        default="bootstrap",
        help="paired bootstrap or approximate randomization (default: bootstrap)",
    )
    parser.add_argument(
        "--bootstrap", type=int, default=1000, metavar="N", help="resamples for intervals and test (default: 1000)"
    )
    parser.add_argument(
        "--trials", type=int, metavar="N", help=f"with --test randomization: number of trials (default: {_TRIALS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_direction(parser)
    add_engine(parser)
    add_all_search(parser)


def _model(name: str) -> tuple[str, str]:
    return "model", name


def _file(name: str) -> tuple[str, str]:
    return "file", name


def run(arguments: argparse.Namespace) -> None:
    """Translate with each model, print the table, write the page."""
    from regard.comparison.systems import compare_systems
    from regard.data.corpus import read_lines

    _check(arguments)
    references = list(read_lines(arguments.reference))
    sources = None
    if arguments.source:
        sources = list(read_lines(arguments.source))
        check_pairs(arguments, sources, references)
    systems, labels = _translations(arguments, sources, len(references))
    comparison = compare_systems(
        systems,
        references,
        sources=sources,
        target_language=arguments.target_language or next((target for _, target in labels.values()), None),
        bootstrap=arguments.bootstrap,
        trials=(arguments.trials or _TRIALS) if arguments.test == "randomization" else 0,
        most=arguments.sentences,
        notes=_language_notes(labels),
        reference_name=str(arguments.reference),
    )
    if arguments.output:
        from regard.comparison.page import render_comparison

        write_atomic(arguments.output, render_comparison(comparison))
    print_result(arguments, comparison.to_json(), comparison.lines())
    if arguments.output:
        sys.stderr.write(f"{arguments.output}: the {len(comparison.sentences):,} sentences that differ most\n")
    elif not arguments.json:
        sys.stderr.write("-o compare.html writes a page of the sentences on which they differ most\n")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be compared before anything is translated."""
    names = [name for _, name in arguments.systems]
    if len(names) < 2:
        raise UserError(
            f"compare needs at least two systems, but got {len(names)}; repeat -m MODEL or --hypothesis FILE, or score one with "
            f"regard evaluate"
        )
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise UserError(f"{twice[0]} is named twice; compare it with another system")
    models = [name for kind, name in arguments.systems if kind == "model"]
    if models and not arguments.source:
        raise UserError("compare needs --source FILE to translate with -m; leave it out only with --hypothesis alone")
    if not models and (given := _given_for_models(arguments)):
        raise UserError(f"{' and '.join(given)}: for -m only; --hypothesis is scored as it is")
    if arguments.sentences < 0:
        raise UserError(f"--sentences must be at least 0, but is {arguments.sentences}")
    if arguments.trials is not None and arguments.test != "randomization":
        raise UserError("--trials is for --test randomization; add that, or use --bootstrap N")
    if arguments.trials is not None and arguments.trials < 1:
        raise UserError(f"--trials must be at least 1, but is {arguments.trials}; 10000 is usual")
    if arguments.output:
        _check_output(arguments)
    arguments.model = models
    find_models(arguments)


def _check_output(arguments: argparse.Namespace) -> None:
    output: Path = arguments.output
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"-o {output}: must end in .html; --json prints data")
    check_new_file(output)
    inputs = [
        arguments.source,
        arguments.reference,
        *(Path(name) for kind, name in arguments.systems if kind == "file"),
    ]
    if any(file is not None and is_same_file(file, output) for file in inputs):
        raise UserError(f"-o {output}: must not be one of the input files; name another")
    check_overwrite(output, arguments.force)


def _given_for_models(arguments: argparse.Namespace) -> list[str]:
    named = {
        "beam": arguments.beam,
        "alpha": arguments.alpha,
        "prefix": arguments.prefix,
        "phrase": arguments.phrases,
    }
    named |= given_search(arguments)
    options = given_direction(arguments) | {f"--{name.replace('_', '-')}": value for name, value in named.items()}
    return [option for option, value in options.items() if value is not None]


def _translations(
    arguments: argparse.Namespace, sources: list[str] | None, lines: int
) -> tuple[list[tuple[str, list[str]]], dict[str, tuple[str, str]]]:
    """Each system's translations, and the languages of each model. Models are loaded one after the other."""
    from regard.data.corpus import read_lines

    files = {name: list(read_lines(Path(name))) for kind, name in arguments.systems if kind == "file"}
    for name, read in files.items():
        if len(read) != lines:
            raise UserError(
                f"{name} must have as many lines as {arguments.reference}, but has {len(read):,} against {lines:,}; line N of one "
                f"must correspond to line N of the other"
            )
    systems, labels = [], {}
    for kind, name in arguments.systems:
        if kind == "file":
            systems.append((name, files[name]))
            continue
        assert sources is not None  # checked
        one = copy.copy(arguments)
        one.model = [name]
        model = load_model(one, sample=sources)
        labels[name] = (model.bundle.source, model.bundle.target)
        systems.append((name, translate_all(model, sources, arguments, f"translating with {name}")))
    return systems, labels


def _language_notes(labels: dict[str, tuple[str, str]]) -> list[str]:
    """A note if models translate between different languages."""
    if len(set(labels.values())) < 2:
        return []
    listed = ", ".join(f"{name} {source} → {target}" for name, (source, target) in labels.items())
    return [f"these models are for different languages: {listed}"]

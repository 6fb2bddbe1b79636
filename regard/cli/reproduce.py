"""`regard reproduce`: published results as commands, with their data check, training, evaluation and comparison."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import print_result, verb
from regard.errors import UserError
from regard.task_table import DEFAULT_TASK

if TYPE_CHECKING:
    from regard.recipe import Recipe
    from regard.reproduce.data_check import DataCheck
    from regard.reproduce.results import Result


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "reproduce",
        run,
        "reproduce a published result: check its data, train, evaluate, compare",
        "Reproduce a published result: check that its text is there, train its recipe, evaluate as the paper does and compare with "
        "what was published. A run that was stopped resumes.",
    )
    parser.usage = "regard reproduce NAME | --list [options]"
    parser.add_argument("name", nargs="?", metavar="NAME", help="the result; --list names all")
    parser.add_argument("--list", action="store_true", help="list the results with what to expect, and exit")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="folder of all text (default: data)"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="folder for runs, the file of results and its page (default: runs/reproduce)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a recipe field; repeatable"
    )
    parser.add_argument("--dry-run", action="store_true", help="check the data, print what would be done, and exit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    sweep = parser.add_argument_group("variations")
    sweep.add_argument("--parallel", type=int, metavar="N", help="rows at the same time (default: 1)")
    sweep.add_argument("--minutes", type=float, metavar="N", help="stop after N minutes; the same command goes on")
    sweep.add_argument("--rows", metavar="NAMES", help="only rows whose names begin so, with commas")


def run(arguments: argparse.Namespace) -> None:
    """List the results, or reproduce one."""
    from regard.reproduce.results import load_result

    if arguments.list:
        if arguments.name:
            raise UserError("give NAME or --list, not both")
        _list(arguments)
        return
    if not arguments.name:
        raise UserError("reproduce needs NAME; regard reproduce --list names all results")
    result = load_result(arguments.name)
    given = [f"--{name}" for name in ("parallel", "minutes", "rows") if getattr(arguments, name) is not None]
    if given and not result.rows:
        raise UserError(f"{' and '.join(given)} belong to a sweep, such as variations; {result.name} is one run")
    for option, value in (("--parallel", arguments.parallel), ("--minutes", arguments.minutes)):
        if value is not None and not value > 0:
            raise UserError(f"{option} must be above 0, but is {value:g}")
    from regard.reproduce.data_check import check_data, refuse_missing, refuse_unmeasurable, result_recipe

    recipe = result_recipe(result, arguments.data, arguments.set)
    refuse_unmeasurable(result, recipe)
    check = check_data(result, recipe)
    if not arguments.json or arguments.dry_run:
        print_result(arguments, _plan(result, recipe, check, arguments), _plan_lines(result, recipe, check, arguments))
    refuse_missing(result, check)
    if not arguments.dry_run:
        (_sweep if result.rows else _reproduce)(result, recipe, check, arguments)


def _list(arguments: argparse.Namespace) -> None:
    from regard.evaluate import aligned
    from regard.reproduce.data_check import check_data, result_recipe
    from regard.reproduce.results import load_result, result_names

    rows, titles, document = [("name", "data", "published", "expected", "minutes")], [""], []
    for name in result_names():
        result = load_result(name)
        missing = check_data(result, result_recipe(result, arguments.data)).missing
        expected = result.expected
        rows.append(
            (
                name,
                "no" if missing else "yes",
                "" if result.published.score is None else f"{result.published.score:g} {result.published.metric}",
                "" if expected is None or expected.score is None else f"{expected.score:g} {expected.metric}",
                f"{result.minutes:g}, {result.device}",
            )
        )
        titles.append(f"  {result.title}")
        document.append({"name": name, "title": result.title, "minutes": result.minutes, "has data": not missing})
    lines = [line for pair in zip(aligned(rows), titles, strict=True) for line in pair if line]
    note = (
        f"data: whether it is below {arguments.data} (--data DIR); regard reproduce NAME --dry-run says what is missing"
    )
    print_result(arguments, document, [*lines, "", note])


def _plan(result: Result, recipe: Recipe, check: DataCheck, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": result.name,
        "title": result.title,
        "recipe": str(result.recipe),
        "data": str(check.root),
        "missing": list(check.missing),
        "other text": list(check.differing),
        "minutes": result.minutes,
        "device": result.device,
        "rows": [row.name for row in result.rows if _is_chosen(row.name, arguments.rows)],
    }


def _plan_lines(result: Result, recipe: Recipe, check: DataCheck, arguments: argparse.Namespace) -> list[str]:
    """What will be done and what to expect."""
    lines = [
        f"{result.name}: {result.title}",
        f"train      {result.command} --set data.root={check.root}",
        f"time       {result.minutes:g} minutes on {result.device}",
    ]
    if recipe.task == DEFAULT_TASK:
        weights = f"average of the last {result.average} checkpoints" if result.average else "the run's model"
        lines.append(
            f"evaluate   {recipe.data.test}: {weights}, beam {recipe.decode.beam}, alpha {recipe.decode.alpha:g}"
        )
    for title, score in (("published", result.published), ("expected", result.expected)):
        if score is not None:
            shown = "" if score.score is None else f"{score.score:g} {score.metric}: "
            lines.append(f"{title:<10} {shown}{score.what}")
    if chosen := [row.name for row in result.rows if _is_chosen(row.name, arguments.rows)]:
        lines.append(f"rows       {len(chosen)}: {'; '.join(chosen)}")
    if not check.missing:
        lines.append(f"data       {check.line()}")
    return lines


def _reproduce(result: Result, recipe: Recipe, check: DataCheck, arguments: argparse.Namespace) -> None:
    from regard.reproduce.page import RECORDS, write_page
    from regard.reproduce.records import append_record
    from regard.reproduce.run import reproduce

    out: Path = arguments.out
    outcome = reproduce(result, recipe, check, out / result.folder(arguments.set), arguments.set)
    append_record(out / RECORDS, outcome.record)
    page = write_page(out, _variations(), out / "variations")
    print_result(arguments, outcome.record, [*outcome.lines, f"page  {page}"])


def _sweep(result: Result, recipe: Recipe, check: DataCheck, arguments: argparse.Namespace) -> None:
    """Run the rows that are left, and print the table of those that are done."""
    from regard.evaluate import aligned
    from regard.reproduce.data_check import result_recipe
    from regard.reproduce.page import write_page
    from regard.reproduce.sweep import Row, Sweep, interrupted
    from regard.reproduce.table3 import compare_rows, summary, table_lines

    chosen = [row for row in result.rows if _is_chosen(row.name, arguments.rows)]
    if not chosen:
        raise UserError(
            f"--rows {arguments.rows}: no row begins so; there are {'; '.join(row.name for row in result.rows)}"
        )
    rows = [Row(each, result_recipe(result, arguments.data, [*each.set, *arguments.set])) for each in chosen]
    folder = arguments.out / result.name
    sweep = Sweep(folder, rows, lambda text: _say(text))
    is_done = sweep.run(arguments.parallel or 1, (arguments.minutes or float("inf")) * 60)
    records = sweep.finished()
    if sweep.stop_requested or not records:
        raise interrupted(folder)
    lines = compare_rows(result.rows, records)
    page = write_page(arguments.out, result.rows, folder)
    left = len([row for row in chosen if row.name not in records])
    notes = [summary(lines), f"page  {page}"]
    if not is_done:
        notes.append(f"{left} of {len(chosen)} rows are left; the same command goes on")
    print_result(arguments, lines, [*aligned(table_lines(lines)), "", *notes])


def _is_chosen(name: str, wanted: str | None) -> bool:
    return wanted is None or any(name.startswith(each) for each in map(str.strip, wanted.split(",")) if each)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _variations() -> Any:
    from regard.reproduce.results import load_result, result_names

    return load_result("variations").rows if "variations" in result_names() else ()

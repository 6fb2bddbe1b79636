"""`regard translate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_model, add_search, load_model, verb
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.api import Model
    from regard.decode.options import SearchOptions
    from regard.decode.text import Result


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "translate",
        run,
        "translate text, a file or standard input",
        "Translate. Line N of the output is the translation of line N of the input, also when that line is empty.",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="sentences; without any, -i or standard input is read")
    add_model(parser)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="file to translate (also .gz, .xz, .zst)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where the translations go (default: standard output)"
    )
    add_search(parser)
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N", help="N translations a line: line number, score, text"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -i and -o: go on after the last line that was written"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> None:
    from regard.decode.lines import LineFile, read_available

    if arguments.text and arguments.input:
        raise UserError("translate takes TEXT or -i FILE, but got both")
    if arguments.resume and not (arguments.input and arguments.output):
        raise UserError("--resume needs -i FILE and -o FILE: only then is it known which lines are done")
    if arguments.nbest > 1 and arguments.resume:
        raise UserError("--resume goes with one translation a line; leave out --nbest")
    if arguments.json and arguments.resume:
        raise UserError("--resume goes with plain lines; leave out --json")
    model = load_model(arguments)
    options = model.search_options(arguments.beam, arguments.alpha, arguments.nbest)
    if arguments.input:
        from regard.data.corpus import read_lines

        # A pipe can be read only once, so its lines are not counted first.
        total = sum(1 for _ in read_lines(arguments.input)) if arguments.input.is_file() else 0
        blocks = _blocks(read_lines(arguments.input), model.chunk)
    else:
        total = len(arguments.text)
        if not arguments.text and sys.stdin is None:
            raise UserError("there is no TEXT, no -i FILE and no standard input to translate")
        blocks = iter([arguments.text]) if arguments.text else read_available(sys.stdin.buffer, model.chunk)
    with LineFile(arguments.output, arguments.resume) as out:
        _translate_blocks(model, options, blocks, total, out, arguments)


def _blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    from itertools import islice

    while block := list(islice(lines, size)):
        yield block


def _translate_blocks(
    model: Model,
    options: SearchOptions,
    blocks: Iterator[list[str]],
    total: int,
    out: Any,
    arguments: argparse.Namespace,
) -> None:
    from contextlib import nullcontext

    from regard.progress import progress

    document: list[dict[str, Any]] = []
    number = 0
    skip = out.lines_done
    bar = progress("translating", total, before=skip) if total > 1 else nullcontext(lambda count: None)
    with bar as done:
        for block in blocks:
            skipped = min(skip, len(block))
            skip -= skipped
            number += skipped
            for result in model.stream(block[skipped:], options, done=done):
                number += 1
                if arguments.json:
                    document.append(_result_json(result))
                elif arguments.nbest > 1:
                    out.write("".join(f"{number}\t{way.score:.4f}\t{way.text}\n" for way in result.translations))
                else:
                    out.write(result.text + "\n")
            out.flush()
    if skip:
        raise UserError(
            f"--resume: {arguments.output}.partial has {skip} more lines than {arguments.input}, so it belongs to another file; "
            f"name that one, or remove {arguments.output}.partial"
        )
    if arguments.json:
        out.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "source": result.source,
        "translations": [{"text": way.text, "score": way.score} for way in result.translations],
    }

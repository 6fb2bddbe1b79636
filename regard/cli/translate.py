"""`regard translate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import TOGETHER, add_all_search, add_model, given_ask, given_search, load_model, verb
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
    add_model(parser, several=TOGETHER)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="file to translate (also .gz, .xz, .zst)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where the translations go (default: standard output)"
    )
    add_all_search(parser)
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N", help="N translations a line: line number, score, text"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -i and -o: go on after the last line that was written"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--words", action="store_true", help="with --json: each word with its log-probability")
    parser.add_argument("--alignment", action="store_true", help="with --json: which source word each word comes from")
    parser.add_argument("--follow", action="store_true", help="show each translation while it grows, word by word")


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
    if (arguments.words or arguments.alignment) and not arguments.json:
        raise UserError("--words and --alignment are shown in JSON; add --json")
    if arguments.follow and (arguments.json or arguments.nbest > 1 or arguments.output):
        raise UserError("--follow is for reading along on standard output; leave out --json, --nbest and -o")
    model = load_model(arguments)
    search = given_search(arguments)
    if arguments.words or arguments.alignment:
        search |= {"words": True, "alignment": arguments.alignment}
    options = model.search_options(arguments.beam, arguments.alpha, arguments.nbest, **search)
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
    bar = (
        progress("translating", total, before=skip)
        if total > 1 and not arguments.follow
        else nullcontext(lambda count: None)
    )
    with bar as done:
        for block in blocks:
            skipped = min(skip, len(block))
            skip -= skipped
            number += skipped
            if arguments.follow:
                for line in block:
                    _follow(model, options, line, out, arguments)
                continue
            for result in model.stream(block[skipped:], options, done=done, ask=given_ask(arguments)):
                number += 1
                if arguments.json:
                    document.append(_result_json(result, options.words, options.alignment))
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


def _follow(model: Model, options: SearchOptions, line: str, out: Any, arguments: argparse.Namespace) -> None:
    """Write what is new of a translation as soon as it is certain."""
    shown = ""
    for begun in model.follow_line(line, options, given_ask(arguments)):
        out.write(begun[len(shown) :])
        out.flush()
        shown = begun
    out.write("\n")
    out.flush()


def _result_json(result: Result, words: bool, alignment: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"source": result.source}
    if alignment:
        document["source_words"] = list(result.source_words)
    document["translations"] = []
    for way in result.translations:
        shown: dict[str, Any] = {"text": way.text, "score": way.score}
        if words:
            shown["words"] = [{"text": word.text, "log_prob": word.log_prob} for word in way.words]
        if alignment:
            shown["alignment"] = [list(link) for link in way.alignment]
        document["translations"].append(shown)
    return document

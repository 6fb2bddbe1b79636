"""`regard translate`: text, a file or standard input, line by line; documents and folders in `translate_documents.py`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import (
    ENSEMBLE,
    add_all_search,
    add_model,
    checked_batch,
    find_models,
    given_constraints,
    given_search,
    load_model,
    naming_options,
    verb,
)
from regard.cli.languages import InputLanguage, add_languages, choose_model
from regard.cli.translate_documents import DocumentJob, open_job, run_job, take_file_names
from regard.data.corpus import COMPRESSION_SUFFIXES
from regard.errors import Interrupted, UserError
from regard.files import check_new_file, check_overwrite, is_same_file

if TYPE_CHECKING:
    from regard.api import Model
    from regard.parallel.crew import Crew
    from regard.progress import OnProgress
    from regard.translation.lines import LineFile
    from regard.translation.results import Result
    from regard.translation.translation_options import TranslationOptions


_LONG_LINE = 5_000  # characters: progress is shown inside a line
_PERCENT = 100


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "translate",
        run,
        "translate text, a document, a folder or standard input",
        "Translate text, a document, a folder of documents or standard input. In plain text, line N of the output translates line "
        "N of the input, and empty lines stay empty. A document keeps everything but its text.",
    )
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="sentences to translate, or a document (default: read -i or standard input)",
    )
    add_model(parser, several=ENSEMBLE)
    add_languages(parser)
    parser.add_argument(
        "-i",
        "--input",
        type=Path,
        metavar="FILE|DIR",
        help="file to translate: plain text, also .gz, .xz or .zst, or a document such as .docx; or a folder of documents",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE|DIR",
        help="file for the translations (default: standard output), or a folder",
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files; never the input")
    parser.add_argument(
        "--column", metavar="NAME|N", help="with .csv and .tsv: the column to translate, by name or number"
    )
    add_all_search(parser)
    parser.add_argument(
        "--nbest",
        type=int,
        default=1,
        metavar="N",
        help="print N translations per line, as line number, score and text",
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -i and -o: continue after the last line or file written"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--words", action="store_true", help="with --json: each word with its log-probability")
    parser.add_argument(
        "--alignment", action="store_true", help="with --json: the source word that each word is aligned to"
    )
    parser.add_argument(
        "--follow", action="store_true", help="print each translation word by word while it is being searched"
    )


def run(arguments: argparse.Namespace) -> None:
    """Translate everything, with the other processes if torchrun started several."""
    from regard.parallel.crew import join_crew

    with join_crew(arguments.device, arguments.engine) as crew:
        opened = crew.run_on_first(partial(_open, arguments, crew))
        load = partial(_load, arguments, crew.device)
        if opened is None:
            crew.help(lambda: partial(_work, arguments, *load()))
            return
        language = InputLanguage()
        if isinstance(opened, DocumentJob):
            model, options = crew.load(load)
            work = partial(_work, arguments, model, options)
            look = partial(language.look, model.bundle)
            run_job(opened, arguments, model, crew, work, partial(_settings, arguments), look)
            return
        out, total = opened
        with out:
            model, options = crew.load(load)
            blocks = language.watch(model.bundle, _blocks(arguments, model.chunk * crew.size))
            if arguments.follow:
                for block in blocks:
                    for line in block:
                        _follow(model, options, line, out, arguments)
                return
            steps = _PERCENT if crew.size == 1 and _is_one_long_line(arguments, total) else 1
            work = partial(_work, arguments, model, options, steps=steps)
            _translate_blocks(blocks, total, out, crew, work, arguments)


def _open(arguments: argparse.Namespace, crew: Crew) -> DocumentJob | tuple[LineFile, int]:
    """Check the arguments; return the documents, or for text the output and the number of input lines (0 if unknown)."""
    from regard.translation.lines import LineFile

    _check_inputs(arguments)
    choose_model(arguments)
    job = open_job(arguments)
    if job is None:
        _check(arguments, crew)
    find_models(arguments)
    checked_batch(arguments)
    if job is not None:
        return job
    total = len(arguments.text)
    if arguments.input:
        from regard.data.corpus import check_file, read_lines

        check_file(arguments.input)
        # A pipe can be read only once, so its lines cannot be counted first.
        total = sum(1 for _ in read_lines(arguments.input)) if arguments.input.is_file() else 0
    elif not arguments.text and sys.stdin is None:
        raise UserError("translate needs TEXT, -i FILE or standard input, but got none of them")
    if arguments.output and not arguments.resume:
        check_new_file(arguments.output)
        check_overwrite(arguments.output, arguments.force)
    settings = _settings(arguments) if arguments.input and arguments.output and _is_plain(arguments) else None
    return LineFile(arguments.output, arguments.resume, settings, is_kept=not arguments.json), total


def _is_one_long_line(arguments: argparse.Namespace, total: int) -> bool:
    """Whether there is a single line, whose parts take long enough to be counted."""
    if total != 1:
        return False
    return (arguments.input.stat().st_size if arguments.input else len(arguments.text[0])) > _LONG_LINE


def _is_plain(arguments: argparse.Namespace) -> bool:
    """Whether line N of the output translates line N of the input."""
    return not arguments.json and arguments.nbest == 1


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a resumed command must not change; engine and device may change."""
    from regard.data.corpus import check_file
    from regard.files import MANIFEST, sha256

    given = {"beam": arguments.beam, "alpha": arguments.alpha, **given_search(arguments)}
    if arguments.glossary:
        check_file(arguments.glossary)
        given["glossary"] = sha256(arguments.glossary)
    content = sha256(arguments.input) if arguments.input.is_file() else ""  # a pipe can be read only once
    if arguments.column is not None:
        given["column"] = arguments.column
    named = {"from": arguments.from_language, "to": arguments.to_language}  # the direction, of a model for several
    given |= {option: language for option, language in named.items() if language is not None}
    return {
        "input": [arguments.input.name, content],
        "model": [sha256(folder / MANIFEST) for folder in find_models(arguments)],
        **given,
        "prefix": arguments.prefix,
        "phrases": arguments.phrases,
    }


def _check_inputs(arguments: argparse.Namespace) -> None:
    """One input, and where its file names are."""
    if arguments.text and arguments.input:
        raise UserError("translate takes TEXT or -i FILE, but got both; leave one out")
    take_file_names(arguments)


def _check(arguments: argparse.Namespace, crew: Crew) -> None:
    if arguments.column is not None:
        raise UserError("--column is for .csv and .tsv files; leave it out")
    if arguments.resume and not (arguments.input and arguments.output):
        raise UserError("--resume needs -i FILE and -o FILE to know which lines are done")
    if arguments.output and arguments.output.suffix in COMPRESSION_SUFFIXES:
        raise UserError(f"-o {arguments.output}: translate writes plain text; leave out {arguments.output.suffix}")
    if arguments.output and arguments.input and is_same_file(arguments.input, arguments.output):
        raise UserError(f"-o {arguments.output}: must not be the input file; name another")
    if arguments.nbest > 1 and arguments.resume:
        raise UserError("--resume needs one translation per line; leave out --nbest")
    if arguments.json and arguments.resume:
        raise UserError("--resume needs plain text output; leave out --json")
    if (arguments.words or arguments.alignment) and not arguments.json:
        raise UserError("--words and --alignment need JSON output; add --json")
    if arguments.follow and (arguments.json or arguments.nbest > 1 or arguments.output):
        raise UserError("--follow prints to standard output; leave out --json, --nbest and -o")
    if arguments.follow and crew.size > 1:
        raise UserError("--follow runs in one process; start it without torchrun")


def _load(arguments: argparse.Namespace, device: str) -> tuple[Model, TranslationOptions]:
    choose_model(arguments)
    model = load_model(arguments, device, sample=_sample(arguments), is_all=_is_readable_twice(arguments))
    search = given_search(arguments)
    if arguments.words or arguments.alignment:
        search |= {"words": True, "alignment": arguments.alignment}
    with naming_options():
        return model, model.search_options(arguments.beam, arguments.alpha, arguments.nbest, **search)


def _is_readable_twice(arguments: argparse.Namespace) -> bool:
    """Whether the input is no standard input and no pipe, so that `_sample` sees all of it."""
    source: Path | None = arguments.input
    return bool(arguments.text) if source is None else source.is_dir() or source.is_file()


def _sample(arguments: argparse.Namespace) -> Iterator[str]:
    """Text of the input; read only for a model of several directions where --from and --to leave a choice. Of standard input and
    pipes, which can be read only once, there is none."""
    from regard.data.corpus import read_lines
    from regard.translation.documents.files import sample_of_file, sample_of_folder
    from regard.translation.documents.formats import find_kind

    source: Path | None = arguments.input
    if source is None:
        yield from arguments.text
    elif source.is_dir():
        yield from sample_of_folder(source, arguments.output, arguments.column)
    elif source.is_file():
        is_lines = find_kind(source.name) in (None, "txt")
        yield from read_lines(source) if is_lines else sample_of_file(source, arguments.column)


def _blocks(arguments: argparse.Namespace, size: int) -> Iterator[list[str]]:
    """The lines to translate, in blocks of at most `size`."""
    from regard.data.corpus import read_lines
    from regard.translation.lines import read_available, standard_input

    if arguments.input or arguments.text:
        return _cut(read_lines(arguments.input) if arguments.input else arguments.text, size)
    if sys.stdin.isatty():
        sys.stderr.write("type a line and press Enter to translate it; Ctrl-D ends\n")
    return read_available(standard_input(), size)


def _cut(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    from itertools import islice

    lines = iter(lines)
    while block := list(islice(lines, size)):
        yield block


def _work(
    arguments: argparse.Namespace,
    model: Model,
    options: TranslationOptions,
    lines: list[str],
    done: OnProgress,
    steps: int = 1,
) -> list[Any]:
    """What is printed for each line: a JSON object, the n-best rows or the best translation."""
    from regard.translation.results import unmet_note

    results = list(model.stream(lines, options, len(lines), done, given_constraints(arguments), steps))
    if said := unmet_note(results):
        print(f"regard: {said}", file=sys.stderr)
    if arguments.json:
        return [_result_json(result, options.words, options.alignment) for result in results]
    if arguments.nbest > 1:
        return [
            [f"{hypothesis.score:.4f}\t{hypothesis.text}" for hypothesis in result.translations] for result in results
        ]
    return [result.text for result in results]


def _translate_blocks(
    blocks: Iterator[list[str]], total: int, out: LineFile, crew: Crew, work: Any, arguments: argparse.Namespace
) -> None:
    from contextlib import AbstractContextManager, nullcontext

    from regard.progress import progress

    number, skip = 0, out.lines_done
    with_parts = _is_one_long_line(arguments, total) and not skip
    bar: AbstractContextManager[OnProgress] = nullcontext(lambda count: None)
    if total > 1 or with_parts:
        bar = progress("translating", *((_PERCENT, "percent") if with_parts else (total, "lines")), before=skip)
    try:
        with bar as done:
            for block in blocks:
                skipped = min(skip, len(block))
                skip -= skipped
                number += skipped
                for shown in crew.share(left, work, done) if (left := block[skipped:]) else []:
                    number += 1
                    out.write(_text(shown, number, arguments))
                out.flush()
    except KeyboardInterrupt:
        if arguments.output and arguments.input and _is_plain(arguments):
            saved = out.saved_lines()
            raise Interrupted(
                f"stopped after {saved:,} lines, which are saved; continue with the same command and --resume"
                if saved
                else "stopped before anything was written"
            ) from None
        raise
    if skip:
        raise UserError(
            f"--resume: {arguments.output}.partial must not be longer than {arguments.input}, but has {skip} more lines; name the "
            f"file that it was made from, or remove {arguments.output}.partial"
        )
    if arguments.json:
        out.write("\n]\n" if number else "[]\n")


def _text(shown: Any, number: int, arguments: argparse.Namespace) -> str:
    """The output for line `number`; with --json, one entry of a list."""
    if arguments.json:
        entry = json.dumps(shown, ensure_ascii=False, indent=2).replace("\n", "\n  ")
        return f"{'[' if number == 1 else ','}\n  {entry}"
    if arguments.nbest > 1:
        return "".join(f"{number}\t{row}\n" for row in shown)
    return f"{shown}\n"


def _follow(model: Model, options: TranslationOptions, line: str, out: Any, arguments: argparse.Namespace) -> None:
    """Write each word of a translation as soon as the search can no longer change it."""
    shown = ""
    for begun in model.follow_line(line, options, given_constraints(arguments)):
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
    for hypothesis in result.translations:
        shown: dict[str, Any] = {"text": hypothesis.text, "score": hypothesis.score}
        if words:
            shown["words"] = [{"text": word.text, "log_prob": word.log_prob} for word in hypothesis.words]
        if alignment:
            shown["alignment"] = [list(link) for link in hypothesis.alignment]
        document["translations"].append(shown)
    if result.unmet:
        document["unmet"] = [{"option": one.option, "text": one.text} for one in result.unmet]
    return document

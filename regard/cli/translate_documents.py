"""`regard translate` for documents: a file, or a folder of them. Plain text goes line by line, in `translate.py`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.corpus import COMPRESSION_SUFFIXES
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.api import Model
    from regard.parallel.crew import Crew
    from regard.progress import OnProgress
    from regard.translation.documents.document import AlignPairs
    from regard.translation.documents.files import FolderJob, Languages

_NAMED = 5  # files that a summary names


@dataclass(frozen=True)
class DocumentJob:
    """One document or a folder of them, checked before the model is loaded."""

    file: Path | None = None
    folder: FolderJob | None = None


def take_file_names(arguments: argparse.Namespace) -> None:
    """A document among the texts is the input: `regard translate letter.docx` means `-i letter.docx`. Other names of files are
    refused: their owners hardly mean the name itself."""
    from regard.translation.documents.formats import find_kind

    for text in arguments.text:
        is_name = len(text.split()) == 1
        is_file = is_name and os.path.isfile(text)
        is_document = is_name and find_kind(text) is not None
        if is_file and is_document and len(arguments.text) == 1 and arguments.input is None:
            arguments.input, arguments.text = Path(text), []
        elif is_file and is_document:
            raise UserError(
                f"{text}: translate takes one document at a time; put several into a folder and use -i FOLDER"
            )
        elif is_file:
            raise UserError(
                f"{text}: is a file; translate it with -i {text}, or give the word itself on standard input"
            )
        elif is_document and len(arguments.text) == 1 and "://" not in text:
            raise UserError(f"{text}: there is no such file; to translate the name itself, give it on standard input")
        elif arguments.output and len(arguments.text) == 1 and os.path.isdir(text):
            raise UserError(f"{text}: is a folder; translate it with -i {text}")


def open_job(arguments: argparse.Namespace) -> DocumentJob | None:
    """The documents that the arguments name, with all checks that need no model; None for plain text."""
    source: Path | None = arguments.input
    if source is None:
        return None
    from regard.translation.documents.files import check_is_text, find_documents
    from regard.translation.documents.formats import find_kind

    if source.is_dir():
        _check(arguments)
        if arguments.output is None:
            raise UserError(f"-i {source}: is a folder; name another for the translations with -o")
        return DocumentJob(folder=find_documents(source, arguments.output, arguments.force, arguments.resume))
    if not source.is_file():
        return None
    if find_kind(source.name) in (None, "txt"):
        if source.suffix not in COMPRESSION_SUFFIXES:
            check_is_text(source)
        return None
    _check(arguments)
    _check_file(source, arguments)
    return DocumentJob(file=source)


def _check_file(source: Path, arguments: argparse.Namespace) -> None:
    from regard.translation.documents.files import check_target
    from regard.translation.documents.formats import find_kind, is_printable, output_kind

    kind = output_kind(find_kind(source.name) or "txt")
    if arguments.resume:
        raise UserError("--resume is for folders and plain text; a single document is translated in one go")
    if arguments.output is not None:
        check_target(source, arguments.output, arguments.force)
    elif not is_printable(kind):
        raise UserError(f"{source}: a .{kind} cannot be printed; name a file for the translation with -o")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that only make sense for lines."""
    given = {
        "--json": arguments.json, "--nbest": arguments.nbest > 1, "--words": arguments.words,
        "--alignment": arguments.alignment, "--follow": arguments.follow, "--prefix": arguments.prefix is not None,
        "--phrase": arguments.phrases,
    }  # fmt: skip
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise UserError(f"{wrong[0]} is for lines of text, but {arguments.input} is a document; leave it out")


def run_job(
    job: DocumentJob,
    arguments: argparse.Namespace,
    model: Model,
    crew: Crew,
    work: Callable[[list[str], OnProgress], list[str]],
    settings: Callable[[], Mapping[str, Any]],
    look: Callable[[list[str]], None],
) -> None:
    """Translate; `work` translates lines, on every process of the crew. `look` sees the sentences before that."""
    from regard.progress import progress
    from regard.translation.documents.files import Languages, translate_local

    languages = Languages(model.bundle.source, model.bundle.target)

    def translate(done: OnProgress, sentences: list[str]) -> list[str]:
        look(sentences)
        found: list[str] = []
        size = model.chunk * crew.size
        for start in range(0, len(sentences), size):
            found += crew.share(sentences[start : start + size], work, done)
        return found

    if job.folder is not None:
        _run_folder(job.folder, arguments, languages, partial(translate, lambda count: None), model.align, settings())
        return
    assert job.file is not None

    def with_bar(sentences: list[str]) -> list[str]:
        with progress("translating", len(sentences), unit="sentences") as done:
            return translate(done, sentences)

    content, note = translate_local(job.file, languages, with_bar, arguments.column, model.align)
    if note:
        print(f"{job.file}: {note}", file=sys.stderr)
    if arguments.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        from regard.files import write_atomic

        write_atomic(arguments.output, content)


def _run_folder(
    job: FolderJob,
    arguments: argparse.Namespace,
    languages: Languages,
    translate: Callable[[list[str]], list[str]],
    align: AlignPairs,
    settings: Mapping[str, Any],
) -> None:
    from regard.progress import progress
    from regard.translation.documents.files import own_column, translate_folder, translate_local

    notes: list[str] = []

    def translate_one(path: Path) -> tuple[bytes, str]:
        return translate_local(path, languages, translate, own_column(path, arguments.column), align)

    with progress("translating", len(job.files), unit="files") as done:

        def on_file(path: Path, note: str) -> None:
            done(1)
            if note:
                notes.append(f"{path}: {note}")

        failed = translate_folder(job, settings, arguments.resume, translate_one, on_file)
    for line in (*notes, *failed):
        print(line, file=sys.stderr)
    if job.skipped:
        named = ", ".join(str(path.relative_to(job.source)) for path in job.skipped[:_NAMED])
        more = f" and {len(job.skipped) - _NAMED} more" if len(job.skipped) > _NAMED else ""
        print(f"{job.source}: left out, since their kind is not known: {named}{more}", file=sys.stderr)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(job.files)} files could not be translated; mend them, and continue with the same command "
            "and --resume"
        )

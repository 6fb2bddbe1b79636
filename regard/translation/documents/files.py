"""Documents as local files: one into another, or a folder into another that can be stopped and resumed. A source file is never
overwritten, and a file that exists only on demand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.writer import check_settings
from regard.errors import InputError, Interrupted, UserError
from regard.files import check_new_file, check_regular, is_same_file, read_json, sha256, write_atomic
from regard.translation.documents.document import AlignPairs, Document, join_plans
from regard.translation.documents.formats import LOCAL_BYTES, TABLES, find_kind, list_kinds, output_kind

TranslateLines = Callable[[list[str]], list[str]]
STATE = ".regard-translate.json"
_SNIFFED = 65_536  # bytes at the beginning of a file that show whether it is text
_MAGIC = (b"PK\x03\x04", b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"\xd0\xcf\x11\xe0", b"{\\rtf", b"\x7fELF")
_OLD = {"doc": "docx", "rtf": "docx", "xls": "xlsx", "ppt": "pptx"}


@dataclass(frozen=True)
class Languages:
    """The codes of the model's languages."""

    source: str
    target: str


def check_is_text(path: Path) -> None:
    """Refuse a file of unknown kind that is not plain text."""
    with path.open("rb") as file:
        start = file.read(_SNIFFED)
    if start.startswith(_MAGIC) or b"\0" in start:
        newer = _OLD.get(path.suffix.lower().removeprefix("."))
        remedy = (
            f"save it as .{newer}" if newer and find_kind(f"x.{newer}") else f"documents end in one of {list_kinds()}"
        )
        raise UserError(f"{path}: must be plain text or a document of a known kind, but is neither; {remedy}")


def check_target(source: Path, target: Path, force: bool, option: str = "-o ") -> None:
    """Refuse, before any work is done, to overwrite the source or, without `force`, any file; or to change the format."""
    check_new_file(target)
    if is_same_file(source, target):
        raise UserError(f"{option}{target}: must not be the input file; name another")
    if target.exists() and not force:
        how = "add --force" if option else "pass force=True"
        raise UserError(f"{option}{target}: already exists; choose another name, or {how} to overwrite it")
    kind = find_kind(source.name)
    wanted, given = output_kind(kind or "txt"), find_kind(target.name)
    if kind not in (None, "txt") and given != wanted and {given, wanted} != {"html", "htm"}:
        raise UserError(f"{option}{target}: must end in .{wanted}, as the translation of {source.name}")


def open_local(source: Path, target: str = "", column: str | None = None) -> Document:
    """The document in a local file, read for the language `target`; an error names the file."""
    from regard.translation.documents.readers import open_document  # here: plain text does not need the readers

    kind = find_kind(source.name)
    check_regular(source, "a document is read more than once")
    try:
        if kind is None:
            check_is_text(source)
        data = source.read_bytes()
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from None
    with _naming(source):
        return open_document(data, kind or "txt", LOCAL_BYTES, column, target)


def translate_document(
    document: Document, language: str, translate: TranslateLines, align: AlignPairs | None = None
) -> bytes:
    """The translated document. `language` is that of its texts; `translate` gets every different sentence once, `align` those with
    elements inside and their translations."""
    plans = document.plans(language)
    sentences = list(dict.fromkeys(sentence for plan in plans for sentence in plan.sentences if sentence))
    known = {"": "", **dict(zip(sentences, translate(sentences) if sentences else [], strict=True))}
    translations = [[known[one] for one in plan.sentences] for plan in plans]
    return document.save(join_plans(plans, translations, align))


def translate_local(
    source: Path,
    languages: Languages,
    translate: TranslateLines,
    column: str | None = None,
    align: AlignPairs | None = None,
) -> tuple[bytes, str]:
    """The translation of a local document, and a note for the user, if any; an error names the file."""
    document = open_local(source, languages.target, column)
    with _naming(source):
        return translate_document(document, languages.source, translate, align), document.note


@contextmanager
def _naming(source: Path) -> Iterator[None]:
    """Errors in a document name its file."""
    try:
        yield
    except InputError as error:
        raise UserError(f"{source}: {str(error).removeprefix('file ')}") from None


# --- folders ---


@dataclass(frozen=True)
class FolderJob:
    """The documents of a folder, and where their translations go."""

    source: Path
    target: Path
    files: Sequence[tuple[Path, Path]]
    skipped: Sequence[Path]  # of no known kind

    @property
    def state(self) -> Path:
        return self.target / STATE


def find_documents(source: Path, target: Path, force: bool, resume: bool) -> FolderJob:
    """List the documents of a folder, and refuse targets that would overwrite something. Links to folders are not followed."""
    if target.exists() and not target.is_dir():
        raise UserError(f"-o {target}: must be a folder, since -i {source} is one")
    if target.exists() and target.samefile(source):
        raise UserError(f"-o {target}: must not be the input folder; name another")
    files: list[tuple[Path, Path]] = []
    skipped: list[Path] = []
    for path in walk(source, target):
        kind = find_kind(path.name)
        if kind is None:
            skipped.append(path)
            continue
        name = path.name if output_kind(kind) == kind else f"{path.name}.{output_kind(kind)}"
        files.append((path, target / path.relative_to(source).with_name(name)))
    if not files:
        raise UserError(f"-i {source}: has no documents; their names end in one of {list_kinds()}")
    job = FolderJob(source, target, files, skipped)
    _check_targets(job, force, {} if not resume else _done(job))
    return job


def walk(source: Path, target: Path, leave_out: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """The files of a folder and of those below it, in order, without hidden ones, the folder `target` and those to `leave_out`."""
    inside = target.resolve()
    for folder, folders, names in os.walk(source):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and (here / name).resolve() != inside and not leave_out(here / name)
        )
        yield from (here / name for name in sorted(names) if not name.startswith(".") and (here / name).is_file())


def own_column(path: Path, column: str | None) -> str | None:
    """The column of one of the documents in a folder, where it is for tables alone."""
    return column if find_kind(path.name) in TABLES else None


def sample_of_file(source: Path, column: str | None = None) -> Iterator[str]:
    """What is to be translated in a local document, to tell its language by; an error names the file."""
    document = open_local(source, column=column)
    with _naming(source):
        yield from document.sample()


def sample_of_folder(source: Path, target: Path, column: str | None = None) -> Iterator[str]:
    """The samples of the documents that `find_documents` lists, to tell their language by. Of those that cannot be read there are
    none: translation says so."""
    for path in walk(source, target):
        if find_kind(path.name) is not None:
            try:
                yield from sample_of_file(path, own_column(path, column))
            except UserError:
                continue


def _check_targets(job: FolderJob, force: bool, done: Mapping[str, str]) -> None:
    identities = {(status.st_dev, status.st_ino) for status in (path.stat() for path, _ in job.files)}
    taken: dict[Path, Path] = {}
    for path, target in job.files:
        if (other := taken.setdefault(target, path)) is not path:
            raise UserError(f"{other} and {path}: would both be translated to {target}; rename one")
        if not target.exists():
            continue
        status = target.stat()
        if (status.st_dev, status.st_ino) in identities:
            raise UserError(f"-o {job.target}: {target} is one of the files to translate; choose another folder")
        if not force and _key(job, path) not in done:
            raise UserError(f"{target}: already exists; choose another folder with -o, or add --force to overwrite it")


def _key(job: FolderJob, path: Path) -> str:
    return path.relative_to(job.source).as_posix()


def _done(job: FolderJob) -> dict[str, str]:
    """The files that an interrupted job has finished: name -> SHA-256 of the source."""
    if not job.state.exists():
        return {}
    done = read_json(job.state).get("done")
    if not isinstance(done, dict):
        raise UserError(f"{job.state}: is not the state of an interrupted translation; remove it")
    return done


def translate_folder(
    job: FolderJob,
    settings: Mapping[str, Any],
    resume: bool,
    translate: Callable[[Path], tuple[bytes, str]],
    on_file: Callable[[Path, str], None],
) -> list[str]:
    """Translate file after file, each written in one step. Returns what went wrong, a line for each file that could not be
    translated. `on_file` is called for each file with a note, which may be empty."""
    done = _begin(job, settings, resume)
    failed: list[str] = []
    try:
        for path, target in job.files:
            digest, note = sha256(path), ""
            if done.get(_key(job, path)) != digest or not target.exists():
                try:
                    content, note = translate(path)
                except UserError as error:
                    failed.append(str(error))
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(target, content)
                    done[_key(job, path)] = digest
                    _save(job, settings, done)
            on_file(path, note)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped after {len(done)} of {len(job.files)} files, which are saved in {job.target}; continue with the same "
            "command and --resume"
        ) from None
    if not failed:
        job.state.unlink(missing_ok=True)
    return failed


def _begin(job: FolderJob, settings: Mapping[str, Any], resume: bool) -> dict[str, str]:
    if not resume:
        if job.state.exists():
            raise UserError(f"{job.state}: is left from an interrupted run; continue with --resume, or remove it")
        done: dict[str, str] = {}
    elif not job.state.exists():
        raise UserError(f"--resume: {job.state} does not exist; there is nothing to resume")
    else:
        check_settings(settings, read_json(job.state).get("settings") or {}, job.state)
        done = _done(job)
    job.target.mkdir(parents=True, exist_ok=True)
    _save(job, settings, done)
    return done


def _save(job: FolderJob, settings: Mapping[str, Any], done: Mapping[str, str]) -> None:
    document = {"settings": dict(settings), "done": dict(done)}
    write_atomic(job.state, json.dumps(document, ensure_ascii=False, indent=2) + "\n")

"""What the arguments of `regard train` are: a recipe, parallel text, text for a language model, a table with labels, or words with
tags."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from regard.errors import UserError
from regard.files import check_regular
from regard.task_table import TABLE_SUFFIXES, TEXT_SUFFIXES, WORDS_SUFFIXES

TASKS = ("translate", "generate", "classify", "tag", "embed")  # those that settings are chosen for
# What files look like that are no text to train on, by suffix.
_OTHER_DATA = {
    "a table": (".json", ".parquet", ".xlsx", ".ods", ".arrow"),
    "a translation memory": (".tmx", ".xliff", ".xlf"),
    "a document": (".docx", ".odt", ".pdf", ".html", ".htm", ".epub", ".pptx"),
    "a picture": (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"),
    "sound": (".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus"),
    "a video": (".mp4", ".mkv", ".webm", ".mov"),
    "a model": (".safetensors", ".pt", ".pth", ".bin", ".npz", ".onnx", ".gguf"),
}
_WANTED = (
    "`regard train SRC TGT` takes parallel text, two files where line N of one translates line N of the other; `regard train "
    "TEXT.txt ...` takes text for a language model, also folders; `regard train TABLE.tsv` takes texts with labels (.tsv, .csv, "
    ".jsonl), `regard train WORDS.conll` words with tags; `regard train RECIPE.toml` takes what the recipe names"
)
_SAMPLE_LINES = 200
_NAMED = (*TEXT_SUFFIXES, *TABLE_SUFFIXES, *WORDS_SUFFIXES)


def is_recipe(inputs: Sequence[str]) -> bool:
    return len(inputs) == 1 and inputs[0].endswith(".toml")


def check_inputs(inputs: Sequence[str]) -> None:
    """Answer what is not there, and data of another kind with what Regard trains, and from what."""
    if is_recipe(inputs):
        return
    for name in inputs:
        path = Path(name)
        if path.suffix == ".toml":
            raise UserError(f"{name} is a recipe, which is trained alone: regard train {name}")
        # corpus.tsv.gz is a table too
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        kind = next((kind for kind, known in _OTHER_DATA.items() if set(known) & set(suffixes)), None)
        if kind is not None and not path.is_dir():
            saved = {"a table": "; save it as .csv", "a document": "; save its text as .txt"}.get(kind, "")
            raise UserError(f"{name} is {kind}{saved}; {_WANTED}")
        if not path.exists():
            raise UserError(f"{name}: there is no such file or folder")
        if not path.is_dir():
            check_regular(path, "a corpus is read more than once")


def find_task(inputs: Sequence[str]) -> tuple[str, str]:
    """The task that these files are for, and why, for people. Two files are parallel text if their names end in two languages, or
    in two words that are no suffixes of text, or if they have the same number of lines in two languages; everything else is text
    for a language model."""
    paths = [Path(name) for name in inputs]
    kinds = {_labelled_task(path) for path in paths if not path.is_dir()}
    if kinds & {"classify", "tag"}:
        if len(kinds) > 1:
            raise UserError(
                "tables with labels, words with tags and text are trained one kind at a time; name files of one kind"
            )
        return kinds.pop() or "", ""
    if len(paths) != 2 or any(path.is_dir() for path in paths) or any(map(_is_jsonl, paths)):
        return "generate", ""
    if None not in (codes := [_language_in_name(path) for path in paths]) and codes[0] != codes[1]:
        return "translate", ""
    if (
        None not in (sides := [_other_suffix(path) for path in paths]) and sides[0] != sides[1]
    ):  # corpus.src and corpus.tgt
        return "translate", ""
    if _are_parallel(paths):
        return (
            "translate",
            "the two files have the same number of lines, in two languages: parallel text (or --task generate)",
        )
    return (
        "generate",
        "the two files are not line by line in two languages: text for one language model (or --task translate)",
    )


def _labelled_task(path: Path) -> str | None:
    """The task of a file with labels by its name; of .jsonl by its first line, which is text for a language model if it has
    nothing but a text or messages."""
    suffix = Path(_without_suffixes(path.name)).suffix.lower()
    if suffix in WORDS_SUFFIXES:
        return "tag"
    if suffix not in TABLE_SUFFIXES:
        return None
    if suffix == ".jsonl":
        from regard.data.tables import read_rows

        first = next(iter(read_rows(path)), None) if path.is_file() else None
        if first is None or "messages" in first.names or not set(first.names) - {"text", "id", "meta"}:
            return None
    return "classify"


def run_name(inputs: Sequence[str]) -> str:
    """A name for the run folder: that of the first file or folder."""
    path = Path(inputs[0]).resolve()
    return path.name if path.is_dir() else _without_suffixes(path.name, _NAMED) or path.name


def _without_suffixes(name: str, suffixes: Sequence[str] = ()) -> str:
    """The name without the suffix of packed text, and without one of these."""
    from regard.data.corpus import COMPRESSION_SUFFIXES

    for known in (COMPRESSION_SUFFIXES, suffixes):
        ending = next((suffix for suffix in known if name.lower().endswith(suffix)), "")
        name = name[: len(name) - len(ending)]
    return name


def _is_jsonl(path: Path) -> bool:
    return ".jsonl" in (suffix.lower() for suffix in path.suffixes[-2:])


def _other_suffix(path: Path) -> str | None:
    """The word that a name ends in if it says what the file is, and not that it is text."""
    suffix = Path(_without_suffixes(path.name)).suffix.lower()
    return suffix if suffix[1:].isalpha() and suffix not in TEXT_SUFFIXES else None


def _language_in_name(path: Path) -> str | None:
    """The language that a name ends in; not of a name that is nothing else, such as one.txt."""
    from regard.translation.languages import language_in_name

    code = language_in_name(path)
    return None if code == _without_suffixes(path.name, TEXT_SUFFIXES) else code


def _are_parallel(paths: Sequence[Path]) -> bool:
    """Whether two texts have the same number of lines, and are clearly in two languages."""
    from regard.data.corpus import read_lines
    from regard.translation.languages import language_of_text

    samples: tuple[list[str], list[str]] = ([], [])
    for number, lines in enumerate(zip_longest(*(read_lines(path) for path in paths))):
        if None in lines:
            return False
        if number < _SAMPLE_LINES:
            for sample, line in zip(samples, lines, strict=True):
                sample.append(line)
    found = [language_of_text(sample) for sample in samples]
    return None not in found and found[0] != found[1]

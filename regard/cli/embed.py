"""`regard embed`: vectors of texts, and an index of a folder of documents."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import (
    MODEL_OF_VECTORS,
    add_engine,
    checked_batch,
    find_models,
    load_model,
    naming_options,
    print_result,
    read_texts,
    verb,
)
from regard.errors import RegardError, UserError
from regard.escaping import escape

if TYPE_CHECKING:
    from regard.understanding.embedder import Vectors
    from regard.understanding.indexing import Changes

_FORMATS = (".npy", ".parquet")
_NAMED_FILES = 5  # most unreadable documents that a message names


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "embed",
        run,
        "make vectors of texts, or an index of a folder for `regard search`",
        "Make a vector of each text: an argument, or a line of a file or of standard input. Texts with similar meanings get "
        "similar vectors. With a folder of documents, make an index of it for `regard search`, or bring it up to date: only "
        "changed documents are embedded again, and removed ones are dropped.",
    )
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT|FOLDER",
        help="texts, or one folder of documents (default: -i or standard input)",
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=MODEL_OF_VECTORS)
    add_engine(parser)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="a file with a text on each line")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="write the vectors to FILE.npy, or with their texts to FILE.parquet"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file of --to")
    parser.add_argument(
        "--prompt",
        metavar="NAME",
        help="put this prompt of the model before each text, such as query, if it has prompts",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--index", type=Path, metavar="INDEX", help="with a folder: its index (default: FOLDER.index)")
    parser.add_argument(
        "--passage-tokens", type=int, metavar="N", help="with a folder: most tokens of a passage (default: 128)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Embed texts, or a folder."""
    folder = _folder(arguments)
    _check(arguments, folder)
    find_models(arguments, "embed")  # before anything is read
    checked_batch(arguments)
    with naming_options(("passage_tokens", "prompt")):
        if folder is not None:
            _embed_folder(folder, arguments)
        else:
            _embed_texts(arguments)


def _embed_texts(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments, "TEXT, a FOLDER, -i FILE or standard input")
    if arguments.to is not None and arguments.to.suffix == ".parquet":
        _import_pyarrow()
    model = load_model(arguments, task="embed")
    vectors = model.embed(texts, prompt=arguments.prompt, progress=len(texts) > 1)
    if arguments.to is not None:
        _write(arguments.to, texts, vectors)
        written = {"file": str(arguments.to), "texts": len(texts), "width": model.embedder.width}
        print_result(arguments, written, [f"{arguments.to}: {len(texts):,} vectors of {model.embedder.width} numbers"])
        return
    document = [{"text": text, "vector": vector.tolist()} for text, vector in zip(texts, vectors, strict=True)]
    if arguments.json:  # a vector on one line
        lines = ",\n".join(json.dumps(one) for one in document)
        sys.stdout.write(f"[\n{lines}\n]\n")
        return
    for vector in vectors:
        sys.stdout.write(" ".join(f"{number:.6f}" for number in vector.tolist()) + "\n")


def _folder(arguments: argparse.Namespace) -> Path | None:
    """The folder to index; None if the arguments are texts."""
    if arguments.index is None and not any(
        Path(text).is_dir() for text in arguments.texts if text and "\0" not in text
    ):
        return None
    if len(arguments.texts) != 1:
        raise UserError(
            f"embed makes an index of one folder, but got {len(arguments.texts)} arguments; name one FOLDER"
        )
    return Path(arguments.texts[0])


def _check(arguments: argparse.Namespace, folder: Path | None) -> None:
    """Refuse options that do not go together, before any work."""
    if folder is not None:
        for option in ("input", "to", "prompt"):
            if getattr(arguments, option) is not None:
                raise UserError(f"--{option} is for texts, but {folder} is a folder; leave one out")
        return
    if arguments.passage_tokens is not None:
        raise UserError("--passage-tokens is for an index; name a FOLDER, and where its index goes with --index INDEX")
    if arguments.to is None:
        return
    from regard.files import check_new_file

    if arguments.to.suffix not in _FORMATS:
        raise UserError(f"--to {arguments.to}: must end in {' or '.join(_FORMATS)}")
    check_new_file(arguments.to)
    if arguments.to.exists() and not arguments.force:
        raise UserError(f"--to {arguments.to}: already exists; choose another name, or add --force to overwrite it")


# --- files ---


def _import_pyarrow() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise UserError(
            "--to FILE.parquet needs the package pyarrow; pip install 'regard[parquet]', or use .npy"
        ) from None


def _write(path: Path, texts: Sequence[str], vectors: Vectors) -> None:
    """Write the vectors in one step."""
    import io

    from regard.files import write_atomic

    content = io.BytesIO()
    if path.suffix == ".npy":
        import numpy as np

        np.save(content, vectors)
    else:
        pyarrow = _import_pyarrow()
        flat = pyarrow.array(vectors.reshape(-1))
        columns = {
            "text": pyarrow.array(texts),
            "vector": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), content)
    write_atomic(path, content.getvalue())


# --- a folder ---


def _embed_folder(folder: Path, arguments: argparse.Namespace) -> None:
    from regard.progress import counted, progress

    if not folder.is_dir():
        raise UserError(
            f"{folder}: must be a folder of documents, but {'is a file' if folder.exists() else 'does not exist'}"
        )
    if folder.resolve() == folder.resolve().parent:
        raise UserError(f"{folder}: is the whole machine; name a folder of documents")
    named = folder if folder.name not in ("", "..") else folder.resolve()
    out = arguments.index or named.with_name(f"{named.name}.index")
    model = load_model(arguments, task="embed")
    from regard.understanding.indexing import update_index

    with progress("reading", None, "documents") as done:
        index, changes = update_index(folder, out, model.embedder, arguments.passage_tokens, on_progress=done)
    document = {
        "index": str(out),
        "documents": len(index.documents),
        "passages": len(index),
        **{name: getattr(changes, name) for name in ("added", "changed", "removed", "unchanged", "skipped", "failed")},
    }
    print_result(arguments, document, [_summary(out, len(index.documents), len(index), changes)])
    if changes.failed:
        some = "; ".join(changes.failed[:_NAMED_FILES]) + ("; ..." if len(changes.failed) > _NAMED_FILES else "")
        raise RegardError(
            f"{counted(len(changes.failed), 'document')} could not be read, left out of the index: {escape(some)}"
        )


def _summary(out: Path, documents: int, passages: int, changes: Changes) -> str:
    from regard.progress import counted

    counts = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
    what = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "up to date"
    skipped = f"; {counted(len(changes.skipped), 'file')} of other kinds left out" if changes.skipped else ""
    return f"{out}: {counted(documents, 'document')}, {counted(passages, 'passage')} ({what}{skipped})"

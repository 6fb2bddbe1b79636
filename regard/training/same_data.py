"""Whether a resumed run would go on with the data that it was started with: checkpoints have fingerprints of the tokenizer, the
validation records and the token ids. Those of earlier versions lack some or all of them, and what is not there is not compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.data.corpus import RecordSource, Texts
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.files import read_json
from regard.training.folder import RunFolder

_SAME_TEXT = "resume with the text that it was started with, or start a new run in another folder with --out"


def data_fingerprint(tokenizer: Tokenizer, store: Store, valid: Sequence[Texts] | None) -> dict[str, Any]:
    """What a checkpoint keeps about the data, for JSON."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "valid": hash_records(valid or ()),
        "store": store.content,
        "texts": store.texts,
    }


def saved_fingerprint(checkpoint: Path, folder: RunFolder) -> dict[str, Any]:
    """The fingerprints in a checkpoint. If it has none, the store still says which tokenizer it was made with."""
    saved = read_json(checkpoint / "state.json").get("data")
    if isinstance(saved, dict):
        return saved
    with suppress(UserError):
        return {"tokenizer": read_json(folder.store / "store.json").get("tokenizer")}
    return {}


def hash_records(records: Sequence[Texts]) -> str:
    return hashlib.sha256(json.dumps([list(texts) for texts in records]).encode()).hexdigest()


def check_tokenizer(saved: Mapping[str, Any], tokenizer: Tokenizer, folder: RunFolder) -> None:
    """Refuse another tokenizer, whose ids would mean other pieces."""
    if saved.get("tokenizer") not in (None, tokenizer.fingerprint):
        raise UserError(
            f"{folder.tokenizer}: is not the tokenizer that the run was started with: damaged or changed; delete it and "
            "resume, and it is made anew from the text that the run was started with"
        )


def check_valid(saved: Mapping[str, Any], valid: Sequence[Texts], noun: str = "pair") -> None:
    """Refuse other validation records, whose scores could not be compared."""
    if saved.get("valid") not in (None, hash_records(valid)):
        raise UserError(f"data.valid: the {noun}s are not those that the run was started with; {_SAME_TEXT}")


def check_store(saved: Mapping[str, Any], store: Store, corpora: Sequence[RecordSource], folder: RunFolder) -> None:
    """Refuse other token ids, naming the file whose lines are others."""
    if saved.get("store") in (None, "", store.content):
        return
    changed = str(folder.store)
    texts = saved.get("texts", {})
    for corpus in corpora:
        now, before = store.texts.get(corpus.name), texts.get(corpus.name)
        if now and before and now != before:
            changed = _changed_file(corpus, now, before)
            break
    raise UserError(f"{changed}: does not hold the text that the run was started with; {_SAME_TEXT}")


def _changed_file(corpus: RecordSource, now: Sequence[str], before: Sequence[str]) -> str:
    """The file of the first column whose text differs; the corpus, if its text comes from several files."""
    if len(corpus.files) > len(now):
        return corpus.name
    different = next(number for number, hashes in enumerate(zip(now, before, strict=False)) if hashes[0] != hashes[1])
    return str(corpus.files[min(different, len(corpus.files) - 1)])

"""What the files of sentence-transformers say about making one vector of a text: its modules, pooling, length and prompts.

    modules.json  1_Pooling/config.json  sentence_bert_config.json  config_sentence_transformers.json

What a bundle cannot hold is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.bounds import MAX_LENGTH, check_whole
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError, naming
from regard.escaping import shorten
from regard.files import path_inside, read_json
from regard.settings import Pooling

MODULES, PROMPTS, LENGTHS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"
# Its names for Regard's kinds of pooling, in older and in newer files.
POOLING_FLAGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
_POOLING_MODES: dict[str, Pooling] = {"mean": "mean", "cls": "first"}
_ALLOWED = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
# The same settings under the names that earlier versions gave the file.
_OLD_LENGTHS = tuple(
    f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")
)


@dataclass(frozen=True)
class SentenceModel:
    """How a folder of sentence-transformers makes a vector."""

    pooling: Pooling
    normalize: bool = False
    max_length: int | None = None  # tokens, with those that frame a text; None: not limited
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)  # what is put before a text, by name
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """As the table `head` of a family reads it."""
        return {"pooling": self.pooling, "normalize": self.normalize}

    def check(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Refuse what the tokenizer does not do."""
        if self.lower_case and tokenizer.encode("A") != tokenizer.encode("a"):
            raise UserError(
                f"{folder}: do_lower_case must be false with a tokenizer that tells capitals apart, but is true; a bundle cannot "
                "hold such a model"
            )


def is_cross_encoder(settings: Mapping[str, Any]) -> bool:
    """Whether config.json is that of a cross-encoder, which reads pairs of texts; the second name is that of versions before 4."""
    return isinstance(settings.get("sentence_transformers"), dict) or "sbert_ce_default_activation_function" in settings


def read_sentence_model(folder: Path) -> SentenceModel | None:
    """What the folder says; None if it is no model of sentence-transformers."""
    if not (folder / MODULES).exists():
        if not (folder / POOLING_FOLDER / "config.json").exists():
            return None
        return SentenceModel(_read_pooling(folder / POOLING_FOLDER / "config.json"))
    kinds, paths = _read_modules(folder)
    path = path_inside(folder, f"{paths[1]}/config.json")
    lengths = _read_lengths(folder)
    prompts, notes = _read_prompts(folder, "Normalize" in kinds)
    if prompts and path.exists() and read_json(path).get("include_prompt") is False:
        raise UserError(f"{path}: include_prompt must be true where there are prompts, but is false")
    return SentenceModel(
        _read_pooling(path),
        "Normalize" in kinds,
        lengths.get("max_seq_length") or _tokenizer_length(folder),
        lengths.get("do_lower_case") is True,
        prompts,
        notes,
    )


def _read_modules(folder: Path) -> tuple[list[str], list[str]]:
    """The kinds of the modules, and their folders."""
    path = folder / MODULES
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        kinds = [str(one["type"]).rpartition(".")[2] for one in modules]
        paths = [str(one["path"]) for one in modules]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path}: must be a list of modules with type and path, but cannot be read as one") from None
    if kinds not in _ALLOWED:
        raise UserError(
            f"{path}: modules must be Transformer, Pooling and perhaps Normalize, but are {shorten(', '.join(kinds))}; a bundle "
            "cannot hold such a model"
        )
    if paths[0] not in ("", "."):
        raise UserError(
            f"{path}: the module Transformer must lie in the folder itself, but lies in {shorten(paths[0])}"
        )
    return kinds, paths


def _read_pooling(path: Path) -> Pooling:
    settings = read_json(path)
    mode = settings.get("pooling_mode")
    if mode is not None:
        mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
        if not isinstance(mode, str) or mode not in _POOLING_MODES:
            raise UserError(f"{path}: pooling_mode must be {' or '.join(_POOLING_MODES)}, but is {shorten(mode)}")
        return _POOLING_MODES[mode]
    on = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in POOLING_FLAGS:
        raise UserError(f"{path}: must have one of {', '.join(POOLING_FLAGS)}, but has {', '.join(on) or 'none'}")
    return POOLING_FLAGS[on[0]]


def _read_lengths(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in (LENGTHS, *_OLD_LENGTHS) if (folder / name).exists()), None)
    if path is None:
        return {}
    settings = read_json(path)
    with naming(path):
        if settings.get("max_seq_length") is not None:
            check_whole("max_seq_length", settings["max_seq_length"], 1, MAX_LENGTH)
    return settings


def _tokenizer_length(folder: Path) -> int | None:
    """The longest text by tokenizer_config.json, where newer versions keep it; a number beyond all texts stands for no limit."""
    path = folder / "tokenizer_config.json"
    length = read_json(path).get("model_max_length") if path.exists() else None
    is_length = isinstance(length, int) and not isinstance(length, bool) and 0 < length <= MAX_LENGTH
    return length if is_length else None


def _read_prompts(folder: Path, normalizes: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The prompts by name, and notes."""
    path = folder / PROMPTS
    if not path.exists():
        return {}, ()
    settings = read_json(path)
    given = settings.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(one, str) for one in given.values()):
        raise UserError(f"{path}: prompts must be texts by name, but is {shorten(given)}")
    if (default := settings.get("default_prompt_name")) is not None and given.get(default):
        raise UserError(
            f"{path}: default_prompt_name must be null, but is {shorten(default)}; a bundle puts a prompt before a text only where "
            "one is asked for"
        )
    similarity = settings.get("similarity_fn_name")
    is_cosine = similarity in (None, "cosine") or (similarity == "dot" and normalizes)
    note = f"similarity_fn_name is {shorten(similarity)}, but regard search compares by cosine"
    return {name: text for name, text in given.items() if text}, () if is_cosine else (note,)

"""Exports bundles for other programs: CTranslate2, ONNX, Hugging Face transformers, and smaller bundles.

Each target is a module with a function `write(bundle, folder, weights, samples) -> list[list[float]]`, which writes into an
empty folder and returns the samples' log-probabilities as the written model computes them, in the target's own runtime. A
target that does not support one of the model's settings refuses it by name. The folder gets its name only after the numbers
agree, so no wrong export is left behind.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from regard.bundle import Bundle
from regard.errors import UserError
from regard.export.verify import LogProbDifference, check, make_samples
from regard.files import atomic_folder, check_new_folder

# The weight formats of each target; the first is the default.
TARGETS = {
    "ctranslate2": ("fp32", "fp16", "int8"),
    "onnx": ("fp32",),
    "transformers": ("fp32",),
    "bundle": ("int8", "fp16", "fp32"),
}
_MODULES = {"ctranslate2": "ctranslate2", "onnx": "onnx", "transformers": "transformers", "bundle": "quantised"}


@dataclass(frozen=True)
class Report:
    """An export, and how closely it agrees with the original."""

    folder: Path
    weights: str
    difference: LogProbDifference
    tolerance: float  # for the largest difference; for int8, for the mean; for a language model in int8, for the rise of its loss
    notes: tuple[str, ...] = ()  # what Regard does around the model and other programs do not


def export(bundle: Bundle, to: str, out: Path, weights: str | None = None) -> Report:
    """Write a bundle for another program into the new folder `out`, and compare it with the original."""
    if to not in TARGETS:
        raise UserError(f"--to must be one of {', '.join(TARGETS)}, but is {to!r}")
    weights = weights or TARGETS[to][0]
    if weights not in TARGETS[to]:
        raise UserError(f"--weights must be one of {', '.join(TARGETS[to])} for --to {to}, but is {weights!r}")
    if bundle.task == "generate" and to == "onnx":
        raise UserError(
            f"--to {to} takes models for the tasks translate, embed, classify, tag and fill, but this one is for the task "
            "generate; use --to transformers"
        )
    check_new_folder(out)
    module = importlib.import_module(f"regard.export.{_MODULES[to]}")
    samples = make_samples(bundle, weights)
    with atomic_folder(out) as temporary:
        scores = module.write(bundle, temporary, weights, samples)
        difference = check(samples, scores, weights, to)
    return Report(out, weights, difference, difference.allowed, () if to == "bundle" else _notes(bundle, to))


def _notes(bundle: Bundle, to: str) -> tuple[str, ...]:
    notes = []
    if to == "transformers" and bundle.config.positions == "relative" and not bundle.config.tie_embeddings:
        notes.append(
            "transformers 5 replaces T5's output matrix by its embedding; version 4 reads the one that was written"
        )
    head = bundle.config.head_settings
    no_sentence_files = to == "transformers" and bundle.task == "embed" and head.pooling == "tanh-first"
    if no_sentence_files:
        scaled = ", to be scaled to length 1" if head.normalize else ""
        notes.append(
            f"sentence-transformers has no such pooling (model.head.pooling = {head.pooling!r}): the folder is for transformers "
            f"alone, whose pooler_output is the vector{scaled}"
        )
    if bundle.prompts and (no_sentence_files or to == "ctranslate2"):
        names = ", ".join(bundle.prompts)
        notes.append(
            f"this model's prompts ({names}) are not in the folder: put them before a text; regard info --json shows them"
        )
    if bundle.tokenizer.protects:
        notes.append(
            "this model sees addresses, placeholders and tags as reserved pieces (tokenizer.protect), which Regard inserts and "
            "replaces; elsewhere they pass through it as text"
        )
    if bundle.decode.guard:
        notes.append(
            "decode.guard is part of Regard: elsewhere nothing checks whether a translation runs away or loses a number, and "
            "text in capitals is translated as it stands"
        )
    return tuple(notes)

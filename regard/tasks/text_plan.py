"""A recipe for plain text: vocabulary, model, row length, batch size and held-out text for the size of the text and the machine."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.data.corpus import COMPRESSION_SUFFIXES, RecordSource
from regard.data.documents import ChatCorpus, find_texts
from regard.errors import UserError
from regard.models.presets import LLAMA_BLOCK, gated_width
from regard.progress import counted
from regard.recipe import FINE_TUNING_LR, MAX_SHARE
from regard.task_table import TABLE_SUFFIXES, TEXT_SUFFIXES, WORDS_SUFFIXES
from regard.tasks.init_plan import readable_length
from regard.tasks.task import Decision, Plan

CHARACTERS_PER_PIECE = 4.0  # roughly, with a subword vocabulary
MANY_DOCUMENTS = 20  # from this many on, whole documents are held out; otherwise the end of each
_HELD_OUT_BYTES = 2_000_000  # the largest share
_MOST_CHARACTERS = 500  # distinct characters in a vocabulary of characters
_SHARE = 0.1
_FINE_TUNING_EPOCHS, _FINE_TUNING_LENGTH = 3, 1024


@dataclass(frozen=True)
class TextTier:
    """Settings for up to `max_bytes` of text."""

    max_bytes: float
    vocab_size: int  # 0: characters
    length: int  # of a row, in tokens
    epochs: float
    batch_tokens: int
    model: dict[str, Any]
    train: dict[str, Any] = field(default_factory=dict)


_MUON = {"optimizer": "muon", "schedule": "linear", "beta2": 0.99, "weight_decay": 0.1, "ema": 0.99}


def _shape(layers: int, width: int, dropout: float) -> dict[str, Any]:
    """LLaMA's block, so that the models can be exported as such, with heads of 64 (of 48 in the narrowest)."""
    heads, d_ff = max(4, width // 64), gated_width(width)
    shape = {"decoder_layers": layers, "d_model": width, "d_ff": d_ff, "num_heads": heads}
    return {**shape, "dropout": dropout, **LLAMA_BLOCK}


# docs/results.md has what the first tier of each makes of Tiny Shakespeare (1 MB).
CPU_TIERS = (
    TextTier(2_500_000, 0, 256, 8, 2_048, _shape(4, 192, 0.0), {**_MUON, "lr": 3e-3}),
    TextTier(10_000_000, 2_000, 256, 4, 2_048, _shape(4, 192, 0.0), {**_MUON, "lr": 3e-3}),
    TextTier(math.inf, 4_000, 256, 1, 4_096, _shape(4, 256, 0.0), {**_MUON, "lr": 3e-3}),
)
GPU_TIERS = (
    TextTier(2_500_000, 0, 256, 15, 16_384, _shape(6, 384, 0.25), {**_MUON, "lr": 3e-3}),
    TextTier(10_000_000, 4_000, 512, 20, 16_384, _shape(6, 384, 0.3), {**_MUON, "lr": 2e-3}),
    TextTier(100_000_000, 8_000, 512, 15, 32_768, _shape(8, 512, 0.2), {**_MUON, "lr": 1.5e-3}),
    TextTier(1_000_000_000, 16_000, 1024, 5, 65_536, _shape(12, 768, 0.1), {**_MUON, "lr": 1.2e-3}),
    TextTier(math.inf, 32_000, 1024, 1, 131_072, _shape(12, 768, 0.0), {**_MUON, "lr": 1e-3}),
)


@dataclass
class TextAmount:
    """How much text there is."""

    documents: int = 0
    characters: int = 0
    num_bytes: int = 0
    alphabet: set[str] = field(default_factory=set)  # not complete beyond _MOST_CHARACTERS

    def add(self, corpus: RecordSource) -> None:
        for record in corpus.records():
            text = record.texts[0]
            self.documents += record.begins
            self.characters += len(text)
            self.num_bytes += len(text.encode("utf-8", "surrogatepass"))
            if len(self.alphabet) <= _MOST_CHARACTERS:
                self.alphabet.update(text)

    def num_tokens(self, by_character: bool) -> int:
        """The approximate number of tokens in an epoch."""
        return self.documents + int(self.characters / (1.0 if by_character else CHARACTERS_PER_PIECE))


def plan(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    """The files, and those of the folders, are documents to train on."""
    root, specs, shown = text_specs(inputs)
    unit = str(given.get("data", {}).get("documents", "file"))
    corpora = [find_texts(spec, root, unit) for spec in specs]
    tiers = unit_tiers(CPU_TIERS if on_cpu else GPU_TIERS, given.get("tokenizer", {}))
    is_tuned = bool(given.get("train", {}).get("init"))
    has_chats = any(isinstance(corpus, ChatCorpus) for corpus in corpora)
    if has_chats and not is_tuned:
        raise UserError(f"{shown}: conversations need --init, a model with a chat template to fine-tune")

    def values(tier: TextTier, held_out: dict[str, Any]) -> dict[str, Any]:
        tokenizer: dict[str, Any] = {"vocab_size": tier.vocab_size}
        if not tier.vocab_size:
            tokenizer = {"unit": "character", "character_coverage": 1.0}
        model, data, train = {"preset": "small", **tier.model}, {"max_length": tier.length}, dict(tier.train)
        if preset := given.get("model", {}).get("preset"):  # it sets the whole shape
            model = {"preset": preset}
        if is_tuned:  # shape, vocabulary and context are the model's
            data["max_length"] = min(_FINE_TUNING_LENGTH, readable_length(str(given["train"]["init"])) or tier.length)
            tokenizer, model = {}, {"preset": "init"}
            train |= {"optimizer": "adamw", "lr": FINE_TUNING_LR}
            if given["train"].get("lora"):  # an average of steps has changes of a higher rank than an adapter holds
                train |= {"ema": 0.0, "average": 1}
        epochs = min(tier.epochs, _FINE_TUNING_EPOCHS) if is_tuned else tier.epochs
        return {
            "data": {"root": str(root), "train": specs[0] if len(specs) == 1 else list(specs), **data, **held_out},
            "tokenizer": tokenizer,
            "model": model,
            "train": {"epochs": epochs, "batch_tokens": tier.batch_tokens, **train},
        }

    def decide() -> Decision:
        amount = TextAmount()
        for corpus in corpora:
            amount.add(corpus)
        if not amount.characters:
            raise UserError(f"{shown}: must have text, but has none")
        tier = pick_tier(tiers, amount)
        others = num_others(inputs)
        left_out = f" ({counted(others, 'other file')} left out)" if others else ""
        found = f"{shown}: {counted(amount.documents, 'document')}, {_size(amount.num_bytes)}{left_out}, "
        by_character = not tier.vocab_size and not is_tuned
        return Decision(
            values(tier, held_out(amount, has_chats)), found, amount.documents, amount.num_tokens(by_character)
        )

    return Plan([values(tier, {"valid": _SHARE}) for tier in tiers], decide)


def unit_tiers(tiers: Sequence[TextTier], tokenizer: Mapping[str, Any]) -> list[TextTier]:
    """The tiers that fit the given tokenizer settings: all with characters, or, for subword settings, those with subwords."""
    if tokenizer.get("unit") == "character":
        return [replace(tier, vocab_size=0) for tier in tiers]
    is_subword = not {"unit", "vocab_size", "split_digits"}.isdisjoint(tokenizer)
    return [tier for tier in tiers if tier.vocab_size or not is_subword]


def pick_tier(tiers: Sequence[TextTier], amount: TextAmount) -> TextTier:
    """The tier for this size; one of characters only if the alphabet is small, or if there are no others."""
    fitting = [tier for tier in tiers if amount.num_bytes <= tier.max_bytes]
    has_few = len(amount.alphabet) <= _MOST_CHARACTERS
    return next((tier for tier in fitting if tier.vocab_size or has_few), fitting[0])


def held_out(amount: TextAmount, has_chats: bool = False) -> dict[str, Any]:
    """The validation and test sets: a twentieth each of many documents; the end of each of few documents, or one conversation."""
    if amount.documents >= MANY_DOCUMENTS:
        number = min(1_000, amount.documents // 20)
        return {"valid": number, "test": number}
    if has_chats:
        return {"valid": 1}
    share = min(_SHARE, _HELD_OUT_BYTES / max(1, amount.num_bytes))
    return {"valid": min(MAX_SHARE, float(f"{share:.2g}"))}


def text_specs(inputs: Sequence[Path]) -> tuple[Path, tuple[str, ...], str]:
    """The files and folders as in a recipe: their common folder, files or patterns relative to it, and their names for people."""
    for given in inputs:
        if not given.exists():
            raise UserError(f"{given}: there is no such file or folder")
    paths = [path.resolve() for path in inputs]
    _refuse_twice(inputs, paths)
    parents = [path if path.is_dir() else path.parent for path in paths]
    root = Path(os.path.commonpath(parents))
    specs: list[str] = []
    for given, path in zip(inputs, paths, strict=True):
        name = path.relative_to(root).as_posix()
        if re.search(r"[*?[]", name):
            raise UserError(f"{given}: file names must not contain * ? [, which recipes use for patterns; rename it")
        if path.is_dir():
            found = folder_patterns(given)
            specs += [pattern if name == "." else f"{name}/{pattern}" for pattern in found]
        else:
            specs.append(name)
    return root, tuple(specs), ", ".join(map(str, inputs[:3])) + (", ..." if len(inputs) > 3 else "")


def _refuse_twice(inputs: Sequence[Path], paths: Sequence[Path]) -> None:
    """Refuse a file or folder that is named twice, or lies in another named folder."""
    for number, (given, path) in enumerate(zip(inputs, paths, strict=True)):
        if path in paths[:number]:
            raise UserError(f"{given}: must be named once, but is named twice")
        for folder, outer in zip(inputs, paths, strict=True):
            inner = path.relative_to(outer).parts if outer in path.parents else ()
            is_hidden = any(part.startswith(".") for part in inner)  # patterns do not match these
            if inner and not is_hidden and (path.is_dir() or path.name.endswith(folder_endings())):
                raise UserError(f"{given}: must be named once, but is also in {folder}; leave it out")


def folder_endings() -> tuple[str, ...]:
    """The endings of the files that are taken from a folder."""
    return tuple(f"{text}{packed}" for text in TEXT_SUFFIXES for packed in ("", *COMPRESSION_SUFFIXES))


def folder_patterns(folder: Path) -> list[str]:
    """A pattern for each kind of text file in a folder and its subfolders."""
    patterns = [f"**/*{ending}" for ending in folder_endings() if next(folder.rglob(f"*{ending}"), None) is not None]
    if not patterns:
        labelled = sorted(
            path for path in folder.rglob("*") if path.suffix.lower() in (*TABLE_SUFFIXES, *WORDS_SUFFIXES)
        )
        raise UserError(
            f"{folder}: must have text files ({', '.join(TEXT_SUFFIXES)}, also packed as {', '.join(COMPRESSION_SUFFIXES)}), "
            f"but has none{f'; name a table itself: regard train {labelled[0]}' if labelled else ''}"
        )
    return patterns


def num_others(inputs: Sequence[Path]) -> int:
    """The number of files in the folders that are no text by their names; hidden ones do not count."""
    return sum(
        file.is_file() and not file.name.endswith(folder_endings())
        for path in inputs
        if path.is_dir()
        for file in path.rglob("*")
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def _size(num_bytes: int) -> str:
    """For example "1.1 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return counted(num_bytes, "byte")

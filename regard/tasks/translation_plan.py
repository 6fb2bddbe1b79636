"""A recipe for two plain files of parallel text: languages, vocabulary, model and batch size for the corpus and the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.corpus import Corpus, check_corpus, read_lines
from regard.errors import UserError
from regard.progress import counted
from regard.recipe import FINE_TUNING_LR
from regard.tasks.counting import PIECES_PER_WORD, count_words
from regard.tasks.task import Decision, Plan
from regard.translation.languages import guess_language

SAMPLE_LINES = 500
_FINE_TUNING_EPOCHS = 5  # at most


@dataclass(frozen=True)
class Tier:
    """Settings for a corpus of up to `max_pairs` pairs."""

    max_pairs: float
    preset: str
    vocab_size: int
    epochs: float
    batch_tokens: int
    model: dict[str, Any]
    train: dict[str, Any]


_PRE = {"norm_position": "pre"}
_DEEPER = {**_PRE, "encoder_layers": 4, "decoder_layers": 4}
_QUICK = {"optimizer": "adamw", "schedule": "linear", "weight_decay": 0.01, "ema": 0.999, "monitor": "bleu"}

# Pre-norm with a high learning rate learns fastest from little text in little time; with a GPU and a million pairs the paper's
# own recipe is used. The small tiers were tuned on the validation sets of Multi30k and Tatoeba (docs/results.md).
CPU_TIERS = (
    Tier(30_000, "tiny", 6_000, 25, 1_500, {**_PRE, "dropout": 0.2}, {**_QUICK, "lr": 3e-3}),
    Tier(100_000, "tiny", 6_000, 15, 1_500, {**_PRE, "dropout": 0.1}, {**_QUICK, "lr": 3e-3}),
    Tier(400_000, "small", 8_000, 5, 1_500, {**_PRE, "dropout": 0.05}, {**_QUICK, "lr": 2e-3}),
    Tier(math.inf, "small", 16_000, 2, 3_000, {**_PRE, "dropout": 0.05}, {**_QUICK, "lr": 2e-3}),
)
GPU_TIERS = (
    Tier(30_000, "small", 6_000, 60, 5_000, {**_DEEPER, "dropout": 0.35}, {**_QUICK, "lr": 2e-3}),
    Tier(100_000, "small", 8_000, 40, 5_000, {**_DEEPER, "dropout": 0.3}, {**_QUICK, "lr": 2e-3}),
    Tier(400_000, "small", 8_000, 30, 8_000, {**_DEEPER, "dropout": 0.15}, {**_QUICK, "lr": 2e-3}),
    Tier(1_500_000, "base", 16_000, 12, 12_000, {}, {}),
    Tier(math.inf, "base", 32_000, 10, 25_000, {}, {}),
)


def plan(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    """The two files are the source and the target."""
    if len(inputs) != 2:
        raise UserError(f"parallel text is two files, the source and the target, but there are {len(inputs)}")
    source, target = inputs
    corpus = Corpus(source.name, source, target)
    check_corpus(corpus)
    languages = _languages(source, target, given.get("data", {}))
    root, spec = corpus_spec(source, target)
    tiers = CPU_TIERS if on_cpu else GPU_TIERS
    is_tuned = bool(given.get("train", {}).get("init"))

    def values(tier: Tier, held_out: int) -> dict[str, Any]:
        data = {"source": languages[0], "target": languages[1], "root": root, "train": spec}
        tokenizer: dict[str, Any] = {"vocab_size": tier.vocab_size}
        model = {"preset": tier.preset, **tier.model}
        train = {"epochs": tier.epochs, "batch_tokens": tier.batch_tokens, **tier.train}
        if is_tuned:  # shape and vocabulary are given
            tokenizer, model = {}, {"preset": "init"}
            train |= {**_QUICK, "lr": FINE_TUNING_LR, "epochs": min(tier.epochs, _FINE_TUNING_EPOCHS)}
        return {
            "data": {**data, "valid": held_out, "test": held_out},
            "tokenizer": tokenizer,
            "model": model,
            "train": train,
        }

    def decide() -> Decision:
        pairs, words = count_words(corpus)
        tier = next(tier for tier in tiers if pairs <= tier.max_pairs)
        found = f"{source.name} and {target.name}: {counted(pairs, 'pair')}, "
        return Decision(
            values(tier, max(1, min(2_000, pairs // 50))), found, pairs, int(words * PIECES_PER_WORD) + pairs
        )

    return Plan([values(tier, 1) for tier in tiers], decide)


def _languages(source: Path, target: Path, given: dict[str, Any]) -> tuple[str, str]:
    found = []
    for key, path in (("source", source), ("target", target)):
        label = given.get(key) or guess_language(path, list(islice(read_lines(path), SAMPLE_LINES)))
        found.append(str(label))
    if found[0] == found[1]:
        raise UserError(
            f"{source.name} and {target.name} must be in two languages, but both look like {found[0]}; name them with "
            f"--set data.source=xx --set data.target=yy"
        )
    return found[0], found[1]


def corpus_spec(*files: Path) -> tuple[str, str]:
    """One or two files as a recipe names them: their common folder, and a corpus pattern relative to it."""
    paths = [path.resolve() for path in files]
    root = os.path.commonpath([path.parent for path in paths])
    names = [path.relative_to(root).as_posix() for path in paths]
    for name in names:
        if any(character in name for character in "{},*?["):
            raise UserError(
                f"{name}: file names must not contain {{ }} , * ? [, which recipes use for patterns; rename it"
            )
    return root, names[0] if len(names) == 1 else f"{{{names[0]},{names[1]}}}"

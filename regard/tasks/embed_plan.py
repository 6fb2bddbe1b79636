"""A recipe for plain files of pairs of texts, what to expect of its run, and how to try the model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.corpus import Corpus, check_corpus
from regard.errors import UserError
from regard.progress import counted
from regard.recipe import Recipe
from regard.tasks.counting import PIECES_PER_WORD
from regard.tasks.init_plan import FROM_ENCODER, encoder_lr, readable_length
from regard.tasks.task import Decision, Outcome, Plan, Prospect
from regard.tasks.translation_plan import SAMPLE_LINES, corpus_spec
from regard.translation.languages import language_in_name, language_of_text

LENGTH = 128  # tokens of a text
HELD_OUT = 1_000  # pairs for each of validation and test
FEW_PAIRS = 10_000  # fewer do not teach a model from scratch two languages
POOR = 50.0  # percent of held-out texts found among a thousand


class Size(NamedTuple):
    """Settings for up to `max_pairs` pairs."""

    max_pairs: float
    vocab_size: int
    epochs: float
    batch_tokens: int
    model: dict[str, Any]
    lr: float


# BERT's layers, so that sentence-transformers and CTranslate2 take the model. What a text is about is learnt by few layers; what
# counts is how many other pairs each one is told apart from, so batches are large.
_BERT = {
    "activation": "gelu", "positions": "learned", "embedding_scale": False, "embedding_norm": True, "max_positions": 512,
    "front": {"token_types": 2},
}  # fmt: skip
_SMALL = {**_BERT, "d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 3, "dropout": 0.1}
_LARGE = {**_BERT, "d_model": 384, "d_ff": 1536, "num_heads": 12, "encoder_layers": 6, "dropout": 0.1}
CPU_SIZES = (
    Size(100_000, 8_000, 10, 8_000, _SMALL, 1e-3),
    Size(math.inf, 16_000, 3, 8_000, _SMALL, 1e-3),
)
GPU_SIZES = (
    Size(100_000, 8_000, 30, 32_000, _LARGE, 5e-4),
    Size(math.inf, 32_000, 10, 64_000, _LARGE, 5e-4),
)
_TRAIN = {"optimizer": "adamw", "schedule": "linear", "weight_decay": 0.01, "ema": 0.999}


def plan(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    """Two parallel files, or one table with two columns."""
    if len(inputs) > 2:
        raise UserError(f"pairs of texts are two files, or one with tabs (.tsv), but there are {len(inputs)} files")
    first, second = inputs[0], inputs[1] if len(inputs) == 2 else None
    corpus = Corpus(first.name, first, second)
    check_corpus(corpus)
    languages = _labels(corpus, given.get("data", {}))
    root, spec = corpus_spec(*inputs)
    init = str(given.get("train", {}).get("init", ""))

    def values(size: Size, held_out: int) -> dict[str, Any]:
        data = {"source": languages[0], "target": languages[1], "root": root, "train": spec}
        longest = min(LENGTH, (readable_length(init) if init else None) or LENGTH)
        tokenizer: dict[str, Any] = {} if init else {"vocab_size": size.vocab_size}
        model = {"preset": "init"} if init else {"preset": "small", **size.model}
        train: dict[str, Any] = {"epochs": size.epochs, "batch_tokens": size.batch_tokens, **_TRAIN, "lr": size.lr}
        if init:
            train = {
                "epochs": min(size.epochs, 3),
                "batch_tokens": size.batch_tokens,
                **FROM_ENCODER,
                "lr": encoder_lr(init),
            }
        return {
            "data": {**data, "valid": held_out, "test": held_out, "max_length": longest},
            "tokenizer": tokenizer,
            "model": model,
            "train": train,
        }

    sizes = CPU_SIZES if on_cpu else GPU_SIZES

    def decide() -> Decision:
        pairs = words = 0
        for record in corpus.records():
            pairs += 1
            words += sum(max(1, len(text.split()), len(text) // 12) for text in record.texts)
        size = next(size for size in sizes if pairs <= size.max_pairs)
        found = f"{' and '.join(path.name for path in inputs)}: {counted(pairs, 'pair')}, "
        tokens = int(words * PIECES_PER_WORD) + 2 * pairs
        return Decision(values(size, max(1, min(HELD_OUT, pairs // 50))), found, pairs, tokens)

    return Plan([values(size, 1) for size in sizes], decide)


def _labels(corpus: Corpus, given: Mapping[str, Any]) -> tuple[str, str]:
    """The languages of both sides; of one language, what they are called."""
    if given.get("source") and given.get("target"):
        return str(given["source"]), str(given["target"])
    sample = list(islice((record.texts for record in corpus.records()), SAMPLE_LINES))
    found = [
        (path and language_in_name(path)) or language_of_text([texts[side] for texts in sample])
        for side, path in enumerate((corpus.source, corpus.target) if corpus.target else (None, None))
    ]
    if None in found or found[0] == found[1]:
        return str(given.get("source", "first")), str(given.get("target", "second"))
    return str(given.get("source", found[0])), str(given.get("target", found[1]))


def too_little(recipe: Recipe, num_records: float) -> str | None:
    """Fine-tuning has no such bound."""
    if recipe.train.init or num_records >= FEW_PAIRS:
        return None
    return (
        f"{counted(round(num_records), 'pair')} will not suffice to learn a language: get at least {FEW_PAIRS:,}, or start from a "
        f"trained encoder (train.init)"
    )


def outlook(prospect: Prospect) -> list[str]:
    warning = too_little(prospect.recipe, prospect.records)
    return [warning] if warning and prospect.is_dry_run else []  # the run itself warns of too little text


def verdict(outcome: Outcome) -> str:
    """How to try the model, or that it has hardly learnt anything."""
    found = outcome.best.get("retrieval")
    if found is not None and found < POOR:
        remedy = too_little(outcome.recipe, len(outcome.store)) or "train longer, or on more text"
        return f"verdict the right text is the nearest of the validation set for only {found:.0f}%: {remedy}"
    run = shlex.quote(str(outcome.run))
    return f'try it  regard embed -m {run} FOLDER; regard search FOLDER.index "..."'

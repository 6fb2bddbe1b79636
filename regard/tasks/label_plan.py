"""A recipe for plain tables and for files of words with tags: the encoder to start from, the length of a run, what is held out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.columns import find_columns
from regard.data.corpus import RecordSource
from regard.data.labelled import BETWEEN, find_words, table_sample
from regard.errors import UserError
from regard.progress import counted
from regard.recipe import INIT, Recipe, recipe_from_dict
from regard.tasks.counting import PIECES_PER_WORD
from regard.tasks.init_plan import FROM_ENCODER, NARROW_LR, built_in_encoder, encoder_lr, readable_length
from regard.tasks.task import Decision, Plan

SHARE = 0.1  # for validation, and for testing
LENGTH = 256

_READ = {"classify": 40_000, "tag": 80_000}  # texts in all epochs
FROM_SCRATCH = {
    "optimizer": "adamw", "schedule": "linear", "weight_decay": 0.05, "beta2": 0.98, "lr": 1e-3, "average": 1,
}  # fmt: skip


def plan_table(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    """Tables of texts with labels."""
    for path in inputs:
        if not path.is_file():
            raise UserError(
                f"{path}: must be a table (.tsv, .csv or .jsonl), but is {'a folder' if path.is_dir() else 'missing'}"
            )
    data, head = given.get("data", {}), given.get("model", {}).get("head", {})
    text = data.get("text", ())
    used = find_columns(
        inputs[0],
        table_sample(inputs[0]),
        [str(one) for one in ([text] if isinstance(text, str | int) else text)],
        str(data.get("label", "")),
        data.get("header"),
        str(data.get("separator", "")),
        head.get("answer"),
    )
    answer = {} if used.answer == "one" else {"answer": used.answer}
    columns = {"text": list(used.text), "label": used.label, "header": used.header, "separator": used.separator}
    return _plan("classify", inputs, given, columns, {"kind": "classes", **answer})


def plan_words(inputs: Sequence[Path], given: Mapping[str, Any], on_cpu: bool) -> Plan:
    """Words with tags."""
    for path in inputs:
        find_words(str(path.resolve()), Path(), (), "", ())
    return _plan("tag", inputs, given, {}, {"kind": "tags"})


def _plan(
    task: str, inputs: Sequence[Path], given: Mapping[str, Any], columns: dict[str, Any], head: dict[str, Any]
) -> Plan:
    train = given.get("train", {})
    init = str(train["init"]) if "init" in train else built_in_encoder()
    if "init" not in train and given.get("model", {}).get("preset", INIT) != INIT:  # a shape of its own
        init = ""
    root, names = _names(inputs)
    data = {"root": str(root), "train": names, **_held_out(given.get("data", {})), **columns}

    def values(texts: int, length: float) -> dict[str, Any]:
        """For so many texts with so many tokens on average."""
        batch = 32 if init else 64
        chosen: dict[str, Any] = {"batch_tokens": max(256, round(batch * length / 64) * 64)}
        epochs = _epochs(task, texts, bool(init))
        if init:
            chosen |= {**FROM_ENCODER, "lr": _lr(task, init), "init": init, "fit_head": True}
            model: dict[str, Any] = {"preset": "init", "head": head}
        else:
            chosen |= FROM_SCRATCH
            model = {"preset": "tiny", "d_model": 192, "d_ff": 768, "num_heads": 4, "encoder_layers": 3, "dropout": 0.2}
            model["head"] = {**head, "dropout": 0.2, **({"pooling": "mean"} if task == "classify" else {})}
            if preset := given.get("model", {}).get("preset"):
                model = {"preset": preset, "head": model["head"]}
        tokenizer = {} if init else {"vocab_size": max(1_000, min(8_000, texts // 2))}
        longest = (readable_length(init) if init else None) or LENGTH
        return {
            "data": {**data, "max_length": min(LENGTH, longest)},
            "tokenizer": tokenizer,
            "model": model,
            "train": {"epochs": epochs, **chosen},
        }

    def decide() -> Decision:
        # Imported here, since the tasks' modules have this one's functions.
        from regard.tasks import TASKS

        head_alone = {"preset": "tiny", "head": {**head, **given.get("model", {}).get("head", {})}}
        start = {"task": task, "data": {**data, **given.get("data", {})}, "model": head_alone, "train": {"epochs": 1.0}}
        recipe: Recipe = TASKS[task].complete(recipe_from_dict(start))
        corpora: list[RecordSource] = [
            corpus for entry in recipe.data.train for corpus in TASKS[task].find_corpora(entry.path, recipe, 1.0)
        ]
        texts = words = 0
        for corpus in corpora:
            for record in corpus.records():
                texts += 1
                words += max(1, len(record.texts[0].replace(BETWEEN, " ").split()))
        length = 2 + PIECES_PER_WORD * words / max(1, texts)
        chosen = values(texts, length)
        chosen["model"]["head"] = {**chosen["model"]["head"], "labels": list(recipe.model.labels)}
        shown = ", ".join(str(path) for path in inputs[:3]) + (", ..." if len(inputs) > 3 else "")
        note = "" if init else "no encoder to start from (--init names one): a model from scratch. "
        found = f"{shown}: {counted(texts, TASKS[task].NOUN)}; {note}"
        return Decision(chosen, found, texts, int(texts * length))

    return Plan([values(1000, 20.0)], decide)


def _lr(task: str, init: str) -> float:
    """Tags take twice the usual rate, and twice the epochs: from MiniLM, F1 on the validation set of SNIPS's slots rises from 93.6
    to 95.4. That was not measured for wider encoders, which keep the usual rate."""
    usual = encoder_lr(init)
    return NARROW_LR * 2 if task == "tag" and usual >= NARROW_LR else usual


def _epochs(task: str, texts: int, has_encoder: bool) -> float:
    """More passes over fewer texts."""
    if has_encoder:
        return float(max(2, min(10, round(_READ[task] / max(1, texts)))))
    return float(max(3, min(30, round(200_000 / max(1, texts)))))


def _held_out(data: Mapping[str, Any]) -> dict[str, Any]:
    """A share each for validation and testing, unless the user chose otherwise."""
    valid, test = data.get("valid"), data.get("test")
    if valid is not None and test is None:
        return {"valid": valid}
    if isinstance(test, int) and not isinstance(test, bool) and test and valid is None:
        return {"valid": test}
    return {"valid": SHARE} if test is not None else {"valid": SHARE, "test": SHARE}


def _names(inputs: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that the files share, and their names relative to it, as a recipe has them."""
    paths = [path.resolve() for path in inputs]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return root, [path.relative_to(root).as_posix() for path in paths]

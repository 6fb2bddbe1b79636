"""What a plan for plain files takes from the model to start from: which one that is, how long its inputs may be, and the settings
that suit it."""

from __future__ import annotations

from regard.builtin import builtin_models
from regard.bundle import find_bundle, read_bundle
from regard.errors import UserError

ENCODER_TASKS = ("embed", "fill")  # of the built-in models to start from; the first task that has one

# What BERT and its like are usually fine-tuned with; benchmarks/understanding.py measures it.
FROM_ENCODER = {
    "optimizer": "adamw", "schedule": "linear", "weight_decay": 0.01, "beta2": 0.999, "eps": 1e-8, "average": 1,
}  # fmt: skip
NARROW_LR = 1e-4  # for an encoder of width 384


def built_in_encoder() -> str:
    """The name of the built-in model to start from; empty if there is none."""
    tasks = {name: read_bundle(folder).task for name, folder in builtin_models().items()}
    return next((name for task in ENCODER_TASKS for name, found in tasks.items() if found == task), "")


def readable_length(init: str) -> int | None:
    """How many tokens the model to start from can read; None for a missing model, which is refused later."""
    try:
        bundle = read_bundle(find_bundle(init))
    except UserError:
        return None
    return min(bundle.max_length, bundle.config.longest or bundle.max_length)


def encoder_lr(init: str) -> float:
    """Narrow encoders take larger steps: 1e-4 at a width of 384, 5e-5 at 768."""
    try:
        width = read_bundle(find_bundle(init)).config.d_model
    except UserError:  # refused later
        width = 768
    return float(f"{min(2 * NARROW_LR, NARROW_LR * 384 / width):.2g}")

"""The fast path on GPUs: which of its parts a run uses. Each can be switched off on its own.

    slots       batches of one fixed shape, sentences of all lengths mixed; the other parts build on it
    attention   the Triton kernel for short packed sequences      (twin: kernels.dense)
    residual    dropout, residual sum and norm in one kernel      (twin: kernels.residual)
    feedforward ReLU or GELU with a backward pass in one kernel   (twin: activate(linear))
    loss        from a chunk of logits to its gradient in one kernel (twin: linear_cross_entropy)
    compile     torch.compile, layer by layer
    graph       the whole update captured as a CUDA graph, then replayed

`train.fast = "auto"` uses all of them on a CUDA device in bf16 with Triton and a C compiler, and none elsewhere. Without a
part the model runs as written; each part is tested against its twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.config import ModelConfig
from regard.errors import UserError
from regard.nn.kernels import has_compiler, has_triton
from regard.recipe import FAST_PARTS, TrainRecipe

KERNELS = ("attention", "residual", "feedforward", "loss")


@dataclass(frozen=True)
class FastPath:
    """The parts in use; `slots` always is."""

    attention: bool = False
    residual: bool = False
    feedforward: bool = False
    loss: bool = False
    compile: bool = False
    graph: bool = False


def missing_requirement(device: torch.device, dtype: torch.dtype | None) -> str | None:
    """What the fast path needs and this machine lacks; None: nothing."""
    if device.type != "cuda":
        return "a CUDA device"
    if dtype is None:
        return "bf16 (train.precision)"
    if not has_triton():
        return "Triton (pip install triton)"
    if not has_compiler():
        return "a C compiler, which Triton calls (install gcc, or name one in CC)"
    return None


def fast_path(
    spec: str,
    device: torch.device,
    dtype: torch.dtype | None,
    num_ranks: int = 1,
    rdrop: bool = False,
    plain_path_field: str = "",
) -> FastPath | None:
    """The parts that `train.fast` names; None is the plain path, with batches of any shape.

    `graph` is off with several processes: capturing the exchange of gradients is untested. `loss` is off with R-Drop: its
    kernel handles a single pass. `plain_path_field` names a field of the recipe that only the plain path supports.
    """
    if plain_path_field and spec not in ("auto", "off"):
        raise UserError(
            f"train.fast must be auto or off, since {plain_path_field} needs the plain path, but is {spec!r}"
        )
    missing = plain_path_field or missing_requirement(device, dtype)
    if spec == "off" or (spec == "auto" and missing):
        return None
    names = set(FAST_PARTS) if spec == "auto" else {name.strip() for name in spec.split(",")}
    if missing and (unable := sorted(names & {*KERNELS, "graph"})):
        raise UserError(f"train.fast: {unable[0]} needs {missing}; remove it, or use auto")
    impossible = {"graph": num_ranks > 1, "loss": rdrop}
    reasons = {
        "graph": "works with one process, but there are several",
        "loss": "works with one pass, but train.rdrop makes two",
    }
    for name in (name for name, is_impossible in impossible.items() if is_impossible):
        if spec != "auto" and name in names:
            raise UserError(f"train.fast: {name} {reasons[name]}; remove it, or use auto")
        names.discard(name)
    return FastPath(**{name: name in names for name in FAST_PARTS if name != "slots"})


def plain_path_field(train: TrainRecipe, config: ModelConfig) -> str:
    """The field of the recipe that rules out the fast path; empty: none does."""
    if config.head_settings.kind not in ("tokens", "vector"):
        return f"a head for {config.head_settings.kind}"
    if train.anchor:
        return "train.anchor"
    if train.shard or train.recompute:
        return "train.shard" if train.shard else "train.recompute"
    # The Triton kernel for attention takes neither of these, and its twin holds a score for every pair of rows of a batch.
    for stack in config.stacks.values():
        if stack.attention_dropout:
            return "model.attention_dropout"
        if stack.positions == "relative":
            return "model.positions = 'relative'"
    return ""

"""The fast path: which of its parts a run takes. Each can be switched off on its own.

    slots       batches of one fixed shape, sentences of all lengths mixed; the ground that the other parts stand on
    attention   the Triton kernel for short packed sequences      (twin: kernels.dense)
    residual    dropout, sum and norm in one Triton kernel        (twin: kernels.residual)
    feedforward the ReLU in the product, and a Triton kernel for its backward pass (twin: relu(linear))
    loss        a chunk of logits to its gradient in one kernel   (twin: linear_cross_entropy)
    compile     torch.compile, layer by layer
    graph       a whole update captured once as a CUDA graph, then replayed

`train.fast = "auto"` takes all of them on a CUDA device that computes in bf16, with Triton and a C compiler, and none
elsewhere. What runs with a part left out is the model as it is written; the twins are what the parts are tested against.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.errors import UserError
from regard.nn.kernels import has_compiler, has_triton
from regard.recipe import FAST_PARTS, TrainRecipe

KERNELS = ("attention", "residual", "feedforward", "loss")


@dataclass(frozen=True)
class FastPath:
    attention: bool = False
    residual: bool = False
    feedforward: bool = False
    loss: bool = False
    compile: bool = False
    graph: bool = False


def missing_requirement(device: torch.device, dtype: torch.dtype | None) -> str | None:
    """What the fast path needs and does not find; None: nothing."""
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
    """The parts that `train.fast` asks for; None is the plain path, with batches of any shape.

    Several processes go without `graph`: the exchange of gradients would have to be captured with the rest, and that is not
    tried out. The other parts are the same for each of them. R-Drop goes without `loss`, whose kernel knows of one pass only.
    `plain_path_field` names a field of the recipe that goes with the plain path alone.
    """
    if plain_path_field and spec not in ("auto", "off"):
        raise UserError(f"train.fast: {plain_path_field} goes with the plain path alone; set train.fast to auto or off")
    missing = plain_path_field or missing_requirement(device, dtype)
    if spec == "off" or (spec == "auto" and missing):
        return None
    names = set(FAST_PARTS) if spec == "auto" else {name.strip() for name in spec.split(",")}
    if missing and (unable := sorted(names & {*KERNELS, "graph"})):
        raise UserError(f"train.fast: {unable[0]} needs {missing}; leave it out, or say auto")
    impossible = {"graph": num_ranks > 1, "loss": rdrop}
    reasons = {
        "graph": "is for one process, and there are several",
        "loss": "is for one pass, and train.rdrop makes two",
    }
    for name in (name for name, is_impossible in impossible.items() if is_impossible):
        if spec != "auto" and name in names:
            raise UserError(f"train.fast: {name} {reasons[name]}; leave it out, or say auto")
        names.discard(name)
    return FastPath(**{name: name in names for name in FAST_PARTS if name != "slots"})


def plain_path_field(train: TrainRecipe) -> str:
    """The field of a recipe that keeps a run from the fast path, if there is one."""
    return "train.shard" if train.shard else "train.recompute" if train.recompute else ""

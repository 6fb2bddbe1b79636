"""Tables of weight names: which tensors of another program a tensor of Regard consists of, and how. One table serves both
directions, and both are exact: rows are stacked, reordered or transposed, and no number changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.settings import StackConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Entry:
    """A tensor of Regard, and theirs that it stacks."""

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()  # rows of each of theirs; (): equal parts
    rows: Sequence[int] = ()  # for each row of ours, which of their stacked rows it is; (): the same order
    columns: Sequence[int] = ()  # the same for columns
    transposed: bool = False  # theirs have inputs in rows, as in GPT-2's Conv1D
    as_row: bool = False  # theirs is (1, size), ours (size,)
    only_read: bool = False  # another entry writes the same tensor of theirs


def from_theirs(entries: Iterable[Entry], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Regard's weights, in float32."""
    import torch

    weights: dict[str, Tensor] = {}
    for entry in entries:
        parts = [tensors[name].float() for name in entry.theirs]
        if entry.transposed:
            parts = [part.t() for part in parts]
        weight = torch.cat(parts) if len(parts) > 1 else parts[0]
        if entry.as_row:
            weight = weight.flatten()
        for axis, order in ((0, entry.rows), (1, entry.columns)):
            if len(order):
                weight = weight.index_select(axis, torch.as_tensor(order))
        weights[entry.ours] = weight.clone() if entry.only_read else weight.contiguous()
    return weights


def to_theirs(entries: Iterable[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_theirs`."""
    import torch

    tensors: dict[str, Tensor] = {}
    for entry in entries:
        if entry.only_read:
            continue
        weight = weights[entry.ours]
        for axis, order in ((0, entry.rows), (1, entry.columns)):
            if len(order):
                weight = weight.index_select(axis, torch.as_tensor(order).argsort())
        parts = weight.split(entry.sizes) if entry.sizes else weight.chunk(len(entry.theirs))
        for name, part in zip(entry.theirs, parts, strict=True):
            part = part.t() if entry.transposed else part
            tensors[name] = (part[None] if entry.as_row else part).contiguous().clone()
    return tensors


# --- the rows of a layer ---

# The parts of a layer that a family names, and Regard's names for them. Regard stacks projections of the same input.
_STACKED = {
    "self_attention.qkv": ("q", "k", "v"),
    "cross_attention.q": ("cross_q",),
    "cross_attention.kv": ("cross_k", "cross_v"),
    "feed_forward.inner": ("gate", "inner"),
}
_SINGLE = {"self_attention.out": "out", "cross_attention.out": "cross_out", "feed_forward.outer": "outer"}
_NORMS = {
    "self_residual.norm": "norm",
    "cross_residual.norm": "cross_norm",
    "feed_forward_residual.norm": "feed_forward_norm",
}


@dataclass(frozen=True)
class LayerNames:
    """What another program calls the parts of a layer: "q", "k", "v" or "qkv" in one, "out", "gate", "inner", "outer", "norm", and
    so on. A part that its layers do not have is missing."""

    parts: Mapping[str, str]
    halves: bool = False  # its rotary positions rotate dimensions (i, i + d/2) together, where Regard has (2i, 2i + 1)
    transposed: bool = False  # of all matrices


def layer_entries(names: LayerNames, stack: StackConfig, ours: str, theirs: str) -> Iterator[Entry]:
    """The entries of one layer, whose names begin with `ours` and `theirs`."""
    q, kv = stack.num_heads * stack.d_head, stack.num_kv_heads * stack.d_head
    sizes = {"q": q, "k": kv, "v": kv, "cross_q": q, "cross_k": kv, "cross_v": kv}
    rotated = names.halves and stack.positions == "rotary"
    for name, wanted in _STACKED.items():
        found = tuple(part for part in wanted if part in names.parts)
        if name == "self_attention.qkv" and "qkv" in names.parts:
            found = ("qkv",)
        if not found or (name.startswith("cross") and not stack.cross):
            continue
        rows = qkv_order(stack) if rotated and name == "self_attention.qkv" else ()
        lengths = tuple(sizes.get(part, stack.d_ff) for part in found) if len(found) > 1 else ()
        for kind in _kinds(stack, name):
            parts = tuple(f"{theirs}.{names.parts[part]}.{kind}" for part in found)
            is_transposed = names.transposed and kind == "weight"
            yield Entry(f"{ours}.{name}.{kind}", parts, lengths, rows, transposed=is_transposed)
    for name, part in {**_SINGLE, **_NORMS}.items():
        has_part = not (
            (name.startswith("cross") and not stack.cross) or (part == "feed_forward_norm" and stack.parallel)
        )
        if part in names.parts and has_part:
            for kind in _kinds(stack, name):
                is_transposed = names.transposed and kind == "weight" and name in _SINGLE
                place = f"{theirs}.{names.parts[part]}.{kind}"
                yield Entry(f"{ours}.{name}.{kind}", (place,), transposed=is_transposed)


def norm_entries(stack: StackConfig, ours: str, theirs: str) -> Iterator[Entry]:
    """The entries of one norm of a stack."""
    for kind in _norm_kinds(stack):
        yield Entry(f"{ours}.{kind}", (f"{theirs}.{kind}",))


def linear_entries(ours: str, theirs: str) -> Iterator[Entry]:
    """The entries of a matrix with its bias."""
    for kind in ("weight", "bias"):
        yield Entry(f"{ours}.{kind}", (f"{theirs}.{kind}",))


def _kinds(stack: StackConfig, name: str) -> tuple[str, ...]:
    """`weight` and, where a part has one, `bias`."""
    if name.endswith(".norm"):
        return _norm_kinds(stack)
    if name.startswith("feed_forward"):
        has_bias = stack.feed_forward_bias
    else:
        has_bias = stack.attention_bias == "all" or (stack.attention_bias == "qkv" and not name.endswith(".out"))
    return ("weight", "bias") if has_bias else ("weight",)


def _norm_kinds(stack: StackConfig) -> tuple[str, ...]:
    return ("weight", "bias") if stack.norm == "layer" and stack.norm_bias else ("weight",)


def qkv_order(stack: StackConfig) -> list[int]:
    """For each row of Regard's queries, keys and values, the row of those whose rotary positions work on halves."""
    half = stack.rotary_dim // 2
    head = [place for i in range(half) for place in (i, i + half)] + list(range(2 * half, stack.d_head))
    num_rotated = stack.num_heads + stack.num_kv_heads
    rotated = [number * stack.d_head + place for number in range(num_rotated) for place in head]
    return rotated + list(range(len(rotated), len(rotated) + stack.num_kv_heads * stack.d_head))

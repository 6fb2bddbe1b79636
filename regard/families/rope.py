"""Rotary positions in the settings of transformers: `rope_parameters`, or `rope_theta` and `rope_scaling` before version 5."""

from __future__ import annotations

from typing import Any

from regard.errors import UserError
from regard.escaping import shorten
from regard.families.family import Fields
from regard.settings import StackConfig

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")


def read_rope(fields: Fields) -> dict[str, Any]:
    """The fields of ModelConfig; a scaling that Regard does not know is refused by name."""
    given = {**fields.table("rope_scaling"), **fields.table("rope_parameters")}
    base = Fields(given, {"rope_theta": fields.number("rope_theta", 10_000.0)}).number("rope_theta")
    kind = given.get("rope_type", given.get("type", "default"))
    known = Fields(given, {})
    if kind == "default":
        scaling: dict[str, Any] = {}
    elif kind == "linear":
        scaling = {"kind": "linear", "factor": known.number("factor")}
    elif kind == "llama3":
        scaling = {"kind": "llama3", **{name: known.number(name) for name in _LLAMA3}}
        scaling["original_max_positions"] = known.whole("original_max_position_embeddings")
    else:
        raise UserError(
            f"rope_type must be one of default, linear, llama3, but is {shorten(kind)}; a bundle cannot hold such a model"
        )
    if (part := known.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))) != 1.0:
        raise UserError(f"partial_rotary_factor must be 1, but is {part}; a bundle cannot hold such a model")
    return {"positions": "rotary", "rotary_base": base, "rotary_scaling": scaling}


def write_rope(stack: StackConfig) -> dict[str, Any]:
    """`rope_parameters`."""
    scaling = dict(stack.rotary_scaling)
    kind = scaling.pop("kind", "default")
    if "original_max_positions" in scaling:
        scaling["original_max_position_embeddings"] = scaling.pop("original_max_positions")
    return {"rope_theta": stack.rotary_base, "rope_type": kind, **scaling}

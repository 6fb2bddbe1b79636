"""What the settings of a model must be: each on its own, and together. A combination that no test covers, or in which a setting
would do nothing, is refused by name. `ModelConfig` calls `check_model` when it is made."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from regard.bounds import MAX_VOCABULARY, check_flag, check_number, check_whole
from regard.errors import UserError
from regard.escaping import shorten
from regard.settings import (
    FIRST_SETTINGS,
    STACK_FIELDS,
    TABLES,
    Activation,
    Answer,
    AttentionBias,
    FrontConfig,
    FrontKind,
    HeadConfig,
    HeadKind,
    Norm,
    NormPosition,
    Pooling,
    Positions,
    RotaryPairing,
    Side,
    StackConfig,
)

if TYPE_CHECKING:
    from regard.config import ModelConfig

_MAX_LABELS = 1_000_000

_CHOICES: dict[str, Any] = {
    "norm_position": NormPosition, "norm": Norm, "activation": Activation, "positions": Positions,
    "rotary_pairing": RotaryPairing, "attention_bias": AttentionBias,
}  # fmt: skip
_BOUNDS = {
    "vocab_size": (1, MAX_VOCABULARY), "d_model": (1, 65_536), "d_ff": (1, 1_048_576), "num_heads": (1, 4_096),
    "encoder_layers": (0, 1_000), "decoder_layers": (0, 1_000), "max_positions": (1, 1_048_576), "d_head": (0, 65_536),
    "position_offset": (0, 1_024), "rotary_dim": (0, 65_536), "relative_buckets": (2, 65_536),
    "relative_max_distance": (2, 1_048_576), "num_kv_heads": (-math.inf, 4_096),
}  # fmt: skip
_FLAGS = ("tie_embeddings", "output_bias", "norm_bias", "feed_forward_bias", "embedding_scale", "embedding_norm", "parallel",
          "share_layers")  # fmt: skip
_NUMBERS = ("dropout", "norm_eps", "attention_dropout", "rotary_base", "score_scale")
_SCALINGS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_positions"),
}

Name = Callable[[str], str]  # a field -> the name under which the user set it


def stack_keys() -> list[str]:
    """The settings that may differ between the stacks: all but the width that they share."""
    return [name for name in STACK_FIELDS if name != "d_model"]


def table_keys(table: str) -> list[str]:
    """What the table `encoder`, `decoder`, `front` or `head` may hold."""
    return stack_keys() if table in get_args(Side) else [f.name for f in dataclasses.fields(TABLES[table])]


def refuse_unknown_keys(table: str, given: Collection[str], where: str = "") -> None:
    """Refuse a key that the table does not have, naming the nearest one that it has."""
    known = table_keys(table)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UserError(f"{where}model.{table}.{shorten(key)[1:-1]} is not known; {hint}")


def check_model(config: ModelConfig) -> None:
    for table in TABLES:
        given = getattr(config, table)
        if not isinstance(given, Mapping):
            raise UserError(f"model.{table} must be a table, but is {shorten(given)}")
        refuse_unknown_keys(table, given)
        object.__setattr__(config, table, {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
    _check_front(config)
    _check_kinds({f.name: getattr(config, f.name) for f in dataclasses.fields(config)}, "model.{}".format)
    if not config.encoder_layers and not config.decoder_layers:
        raise UserError(
            "model.encoder_layers and model.decoder_layers must not both be 0; a model has at least one stack"
        )
    for side in get_args(Side):
        own = getattr(config, side)
        _check_kinds(own, partial("model.{}.{}".format, side))
        if own and not getattr(config, f"{side}_layers"):
            raise UserError(f"model.{side} must be empty, since model.{side}_layers is 0, but sets {next(iter(own))}")
        if getattr(config, f"{side}_layers"):
            _check_stack(config, side)
    _check_unused(config)
    _check_factored(config)
    _check_head(config)


def _check_kinds(values: Mapping[str, Any], name: Name) -> None:
    """Each value on its own: its type and its bounds."""
    for key, value in values.items():
        if key in _BOUNDS:
            check_whole(name(key), value, *_BOUNDS[key])
        elif key in _CHOICES:
            check_choice(name(key), value, _CHOICES[key])
        elif key in _FLAGS:
            check_flag(name(key), value)
        elif key in _NUMBERS:
            check_number(name(key), value)
        elif key == "final_norm" and value is not None:
            check_flag(name(key), value)
    for key in ("dropout", "attention_dropout"):
        if key in values and not 0.0 <= values[key] < 1.0:
            raise UserError(f"{name(key)} must be at least 0 and below 1, but is {values[key]}")
    if "norm_eps" in values and not 0.0 < values["norm_eps"] < 1.0:
        raise UserError(f"{name('norm_eps')} must be above 0 and below 1, but is {values['norm_eps']}")
    if "rotary_base" in values and not values["rotary_base"] > 1.0:
        raise UserError(f"{name('rotary_base')} must be above 1, but is {values['rotary_base']}")
    if "score_scale" in values and values["score_scale"] < 0.0:
        raise UserError(f"{name('score_scale')} must not be negative, but is {values['score_scale']}")
    if "rotary_scaling" in values:
        _check_scaling(values["rotary_scaling"], name("rotary_scaling"))


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse what is not one of a Literal's values."""
    if not isinstance(value, str) or value not in get_args(choices):
        raise UserError(f"{name} must be one of {', '.join(get_args(choices))}, but is {shorten(value)}")


def _check_scaling(scaling: Any, name: str) -> None:
    if not isinstance(scaling, Mapping):
        raise UserError(f"{name} must be a table, but is {shorten(scaling)}")
    if not scaling:
        return
    kind = scaling.get("kind")
    if kind not in _SCALINGS:
        raise UserError(f"{name}.kind must be one of {', '.join(_SCALINGS)}, but is {shorten(kind)}")
    wanted = {"kind", *_SCALINGS[kind]}
    if different := sorted(wanted ^ set(scaling)):
        what = "is missing" if different[0] in wanted else "is not known"
        raise UserError(f"{name}.{shorten(different[0])[1:-1]} {what} for {kind}; it has {', '.join(_SCALINGS[kind])}")
    for key in _SCALINGS[kind]:
        check_number(f"{name}.{key}", scaling[key])
        if not scaling[key] > 0:
            raise UserError(f"{name}.{key} must be above 0, but is {scaling[key]}")
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise UserError(f"{name}.high_freq_factor must be above low_freq_factor, but is {scaling['high_freq_factor']}")


def _check_stack(config: ModelConfig, side: Side) -> None:
    """What the settings of one stack must be together."""
    own = getattr(config, side)

    def name(key: str) -> str:
        return f"model.{side}.{key}" if key in own else f"model.{key}"

    num_heads, d_model = own.get("num_heads", config.num_heads), config.d_model
    if not own.get("d_head", config.d_head) and d_model % num_heads:
        raise UserError(f"model.d_model must be a multiple of {name('num_heads')} ({num_heads}), but is {d_model}")
    stack = config._stack(side)
    assert stack is not None
    if stack.positions == "sinusoidal" and stack.d_embedding % 2:
        width = "model.d_model" if stack.d_embedding == d_model else "model.front.d_embedding"
        raise UserError(f"{width} must be even (positions are pairs of sine and cosine), but is {stack.d_embedding}")
    if stack.num_kv_heads < 0 or num_heads % stack.num_kv_heads:
        raise UserError(
            f"{name('num_kv_heads')} must divide {name('num_heads')} ({num_heads}), but is {stack.num_kv_heads}"
        )
    if stack.positions == "rotary" and stack.rotary_dim == stack.d_head and stack.d_head % 2:
        raise UserError(f"model.d_model / model.num_heads must be even with rotary positions, but is {stack.d_head}")
    if stack.positions == "rotary" and (stack.rotary_dim > stack.d_head or stack.rotary_dim % 2):
        raise UserError(
            f"{name('rotary_dim')} must be even and at most d_head ({stack.d_head}), but is {stack.rotary_dim}"
        )
    if stack.positions == "relative":
        _check_buckets(stack, name)
    if stack.parallel and stack.norm_position != "pre":
        raise UserError(f"{name('parallel')} needs {name('norm_position')} = 'pre': the two share the norm before them")
    if stack.parallel and stack.cross:
        raise UserError(
            f"{name('parallel')} must be false in a decoder that attends to an encoder; no known model has both"
        )
    if not stack.norm_bias and stack.norm == "rms":
        raise UserError(f"{name('norm_bias')} must be true with RMSNorm, which never has a bias")


def _check_buckets(stack: StackConfig, name: Name) -> None:
    """Half of the buckets of a direction are for one distance each, the others share what is left up to the largest."""
    buckets = stack.relative_buckets
    if buckets % 4:
        raise UserError(f"{name('relative_buckets')} must be a multiple of 4, but is {buckets}")
    if stack.relative_max_distance <= (exact := buckets // (2 if stack.causal else 4)):
        raise UserError(f"{name('relative_max_distance')} must be above {exact}, but is {stack.relative_max_distance}")


# Settings that need another one: where no stack has it, they would do nothing.
_NEEDS_POSITIONS: dict[str, Positions] = {
    "position_offset": "learned", "rotary_base": "rotary", "rotary_pairing": "rotary", "rotary_dim": "rotary",
    "rotary_scaling": "rotary", "relative_buckets": "relative", "relative_max_distance": "relative",
}  # fmt: skip


def _check_unused(config: ModelConfig) -> None:
    """Refuse a setting that no stack would read."""
    for name, needed in _NEEDS_POSITIONS.items():
        flat = getattr(config, name) != config.default(name)
        users = [stack for stack in config.stacks.values() if stack.positions == needed]
        if flat and not users:
            raise UserError(f"model.{name} needs model.positions = {needed!r}, but no stack has that")
        for side, stack in config.stacks.items():
            if name in getattr(config, side) and stack.positions != needed:
                raise UserError(
                    f"model.{side}.{name} needs positions = {needed!r} there, but that is {stack.positions!r}"
                )


def _check_front(config: ModelConfig) -> None:
    given = {**dataclasses.asdict(FrontConfig()), **config.front}
    check_choice("model.front.kind", given["kind"], FrontKind)
    check_whole("model.front.d_embedding", given["d_embedding"], 0, 65_536)
    check_whole("model.front.token_types", given["token_types"], 0, 1_024)


def _check_factored(config: ModelConfig) -> None:
    """Narrow embeddings and token types are known from encoders alone."""
    front = config.front_settings
    is_factored = front.d_embedding != config.d_model
    if config.decoder_layers and (is_factored or front.token_types):
        which = "d_embedding" if is_factored else "token_types"
        raise UserError(
            f"model.front.{which} needs a model without a decoder; only encoders such as BERT and ALBERT have it"
        )
    if is_factored and any(stack.embedding_scale for stack in config.stacks.values()):
        raise UserError("model.front.d_embedding needs model.embedding_scale = false; no known model has both")
    has_logits = config.head.get("kind", "tokens") == "tokens"
    if is_factored and has_logits and not (config.tie_embeddings and config.head.get("transform")):
        raise UserError(
            "model.front.d_embedding needs model.tie_embeddings and model.head.transform, which leads back to that width, "
            "for logits of tokens"
        )


def _check_head(config: ModelConfig) -> None:
    given = {**dataclasses.asdict(HeadConfig()), **config.head}
    kind = given["kind"]
    check_choice("model.head.kind", kind, HeadKind)
    check_flag("model.head.transform", given["transform"])
    check_number("model.head.logit_scale", given["logit_scale"])
    check_choice("model.head.pooling", given["pooling"], Pooling)
    check_flag("model.head.normalize", given["normalize"])
    check_number("model.head.dropout", given["dropout"])
    check_choice("model.head.answer", given["answer"], Answer)
    _check_labels(given["labels"], kind)
    if not 0.0 <= given["dropout"] < 1.0:
        raise UserError(f"model.head.dropout must be at least 0 and below 1, but is {given['dropout']}")
    if given["answer"] == "number" and len(given["labels"]) > 1:
        raise UserError(
            f"model.head.labels must be one name with model.head.answer = 'number', but are {len(given['labels'])}"
        )
    if given["logit_scale"] <= 0.0:
        raise UserError(f"model.head.logit_scale must be above 0, but is {given['logit_scale']}")
    if kind != "tokens" and config.decoder_layers:
        raise UserError(f"model.head.kind must be 'tokens' in a model with a decoder, but is {kind!r}")
    if given["transform"] and config.decoder_layers:
        raise UserError("model.head.transform needs a model without a decoder; only encoders such as BERT have it")
    if given["transform"] and config.stacks["encoder"].gated:
        raise UserError("model.head.transform needs model.activation without a gate; no known model has both")
    if given["logit_scale"] != 1.0 and config.output_bias:
        raise UserError("model.head.logit_scale must be 1 with model.output_bias; no known model has both")
    for name, kinds in _HEADS_WITH.items():
        if given[name] != getattr(HeadConfig, name) and kind not in kinds:
            raise UserError(
                f"model.head.{name} needs model.head.kind = {' or '.join(map(repr, kinds))}, but that is {kind!r}"
            )
    for name, off in (("output_bias", False), ("tie_embeddings", True)):
        if getattr(config, name) != off and kind != "tokens":
            raise UserError(
                f"model.{name} must be {str(off).lower()} with model.head.kind = {kind!r}, which has no logits of tokens"
            )


_HEADS_WITH: dict[str, tuple[HeadKind, ...]] = {
    "transform": ("tokens",),
    "logit_scale": ("tokens",),
    "labels": ("classes", "tags"),
    "pooling": ("classes", "vector"),
    "normalize": ("vector",),
    "dropout": ("classes", "tags"),
    "answer": ("classes",),
}


def _check_labels(labels: Any, kind: HeadKind) -> None:
    if not isinstance(labels, tuple) or len(labels) > _MAX_LABELS:
        raise UserError(f"model.head.labels must be a list of names, but is {shorten(labels)}")
    for label in labels:
        if not isinstance(label, str) or not label or not label.isprintable():
            raise UserError(f"model.head.labels must be a list of names, but has {shorten(label)}")
    if len(set(labels)) < len(labels):
        raise UserError(f"model.head.labels must be different, but are {shorten(labels)}")
    if kind in ("classes", "tags") and not labels:
        raise UserError(f"model.head.labels must name the {kind}, but is empty")


def first_unknown(config: ModelConfig, known: Collection[str], choices: Mapping[str, Collection[Any]]) -> str | None:
    """See `ModelConfig.unsupported`."""
    for name in ("encoder_layers", "decoder_layers"):
        if not getattr(config, name) and name not in known:
            return f"model.{name} = 0"
    for name, values in choices.items():
        if (value := getattr(config, name)) not in values:
            return f"model.{name} = {value!r}"
    for name, value in config.to_dict().items():
        if name in TABLES:
            base = {key: getattr(config, key) for key in STACK_FIELDS} if name in get_args(Side) else {}
            for key, own in value.items():
                if f"{name}.{key}" not in known and (key not in base or own != base[key]):
                    return f"model.{name}.{key} = {shorten(own)}"
        elif name not in FIRST_SETTINGS and name not in known:
            return f"model.{name} = {shorten(value)}"
    return None

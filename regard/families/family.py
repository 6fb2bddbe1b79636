"""What a family is: the settings of another program's models <-> ModelConfig, and a table of weight names. No modules: the blocks
are Regard's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from regard.bounds import check_flag, check_number, check_whole
from regard.config import ModelConfig
from regard.errors import UserError
from regard.escaping import shorten
from regard.families.table import Entry
from regard.settings import HeadKind, StackConfig

# How a folder without tokenizer.json is read: as GPT-2's tokenizer, as RoBERTa's, which frames its input, or as BERT's.
TokenizerStyle = Literal["gpt2", "roberta", "bert"]
_LARGEST = 10_000_000  # of every whole number


class Fields:
    """The settings of a model of another program. A field that is missing or null has that program's default; each is checked by
    kind as it is read."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.given = {name: value for name, value in given.items() if value is not None}
        self.nulls = {name for name, value in given.items() if value is None}
        self.defaults = defaults

    def _get(self, name: str, default: Any) -> Any:
        return self.given.get(name, self.defaults.get(name, default))

    def has(self, name: str) -> bool:
        return self._get(name, None) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        check_whole(name, value, 0, _LARGEST)
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        check_number(name, value)
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        check_flag(name, value)
        return bool(value)

    def choice(self, name: str, choices: Mapping[str, Any]) -> Any:
        """The value that one of `choices` stands for."""
        value = self._get(name, None)
        if not isinstance(value, str) or value not in choices:
            raise UserError(f"{name} must be one of {', '.join(choices)}, but is {shorten(value)}")
        return choices[value]

    def table(self, name: str) -> dict[str, Any]:
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise UserError(f"{name} must be an object, but is {shorten(value)}")
        return {key: one for key, one in value.items() if one is not None}

    def refuse(self, fixed: Mapping[str, Any]) -> None:
        """Refuse a field that has another value than the one that Regard supports."""
        for name, value in fixed.items():
            came = self._get(name, value)
            if came is not None and came != value:
                raise UserError(f"{name} must be {value!r}, but is {shorten(came)}; a bundle cannot hold such a model")

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        named = self.table("id2label") or {str(i): f"LABEL_{i}" for i in range(self.whole("num_labels", 2))}
        try:
            return tuple(str(named[str(i)]) for i in range(len(named)))
        except KeyError as error:
            raise UserError(f"id2label must name the classes from 0 on, but has no {error.args[0]}") from None


Read = Callable[[Fields, HeadKind], ModelConfig]
Write = Callable[[ModelConfig], dict[str, Any]]
Table = Callable[[ModelConfig], Iterable[Entry]]


@dataclass(frozen=True)
class Family:
    """A family of models of Hugging Face's transformers."""

    name: str  # for people
    model_type: str
    heads: Mapping[str, HeadKind]  # by architecture; the first is meant where a model does not say
    read: Read
    write: Write
    entries: Table
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of fields that config.json lacks
    fixed: Mapping[str, Any] = field(default_factory=dict)  # the one value of each of these that Regard supports
    prefix: str = ""  # of the names of all but the head; some files leave it out
    tokenizer: TokenizerStyle | None = None
    # Tensors that files may have beside the model's own: constants, copies, and heads that the architecture does not use.
    ignored: Sequence[str] = ()  # how their names end
    unused: Sequence[str] = ()  # how names begin that import mentions as left out
    aliases: Mapping[str, str] = field(default_factory=dict)  # another name of a tensor -> the name in the table

    def config(self, given: Mapping[str, Any], architecture: str) -> ModelConfig:
        """The settings of a model of this family; a UserError names what Regard does not support."""
        fields = Fields(given, self.defaults)
        fields.refuse(self.fixed)
        return self.read(fields, self.heads[architecture])

    def settings(self, config: ModelConfig) -> dict[str, Any] | None:
        """The fields of config.json for a model of Regard; None if the family cannot express all of its settings."""
        for architecture, kind in self.heads.items():
            if kind != config.head_settings.kind:
                continue
            try:
                given = {"model_type": self.model_type, "architectures": [architecture], **self.write(config)}
                if is_same(self.config(given, architecture), config):
                    return given
            except (KeyError, UserError):
                continue
        return None

    def difference(self, config: ModelConfig) -> list[str]:
        """The settings, such as "positions = 'none'", that the family has otherwise; empty if it has no such stacks or head."""
        for architecture, kind in self.heads.items():
            if kind != config.head_settings.kind:
                continue
            try:
                own = self.config(self.write(config), architecture)
            except (KeyError, UserError):
                continue
            if own.stacks.keys() == config.stacks.keys():
                return _differences(own, config)
        return []


def _differences(own: ModelConfig, config: ModelConfig) -> list[str]:
    found = []
    for side, stack in config.stacks.items():
        ours, theirs = _plain_stack(stack), _plain_stack(own.stacks[side])
        where = f"{side}." if len(config.stacks) > 1 else ""
        found += [
            f"{where}{key} = {value!r}"
            for key, value in ours.items()
            if value != theirs[key] and key != "max_positions"
        ]
    for name in ("front_settings", "head_settings", "tie_embeddings", "output_bias"):
        if getattr(own, name) != getattr(config, name):
            found.append(name.removesuffix("_settings"))
    return found


def is_same(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether two models compute the same with the same weights; dropout is no part of that."""
    return _computed(one) == _computed(other)


def _computed(config: ModelConfig) -> tuple[object, ...]:
    stacks = [_plain_stack(stack) for stack in config.stacks.values()]
    head = replace(config.head_settings, dropout=0.0)
    return stacks, config.front_settings, head, config.vocab_size, config.tie_embeddings, config.output_bias


def _plain_stack(stack: StackConfig) -> dict[str, Any]:
    """The settings of a stack without those that change nothing of what it computes."""
    rows = stack.max_positions if stack.positions == "learned" else 0
    return asdict(replace(stack, dropout=0.0, attention_dropout=0.0, max_positions=rows))


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gelu_tanh": "gelu_new"}  # those to write

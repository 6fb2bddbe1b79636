"""What a run is: dataclasses for data, tokenizer, model, training and decoding; TOML in and out; overrides.

Precedence: preset < file < `--set section.key=value`. Unknown keys are refused with the nearest known one, before anything
missing is reported. No torch here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.builtin import builtin_models
from regard.config import ModelConfig
from regard.errors import UserError
from regard.models.presets import PRESETS
from regard.toml import dump_toml

T = TypeVar("T")
Schedule = Literal["paper", "linear", "cosine", "wsd"]
Optimizer = Literal["adam", "adamw", "muon"]
Precision = Literal["auto", "fp32", "bf16"]
Monitor = Literal["loss", "bleu"]
BUILT_IN = "builtin:"  # before the name of a built-in model in a recipe that is written, where no folder can be meant
INIT = "init"  # the preset that stands for the shape of the model in train.init, until that has been looked at
FAST_PARTS = (
    "slots",
    "attention",
    "residual",
    "feedforward",
    "loss",
    "compile",
    "graph",
)  # see regard/training/fast.py


@dataclass(frozen=True)
class CorpusEntry:
    """One training corpus; a weight of 2 shows each of its pairs twice an epoch, 0.5 a random half."""

    path: str
    weight: float = 1.0


@dataclass(frozen=True)
class DataRecipe:
    source: str  # a label, the language code where it is a language
    target: str
    train: tuple[CorpusEntry, ...]  # "corpus.{en,de}.xz" names a pair of files, "corpus.tsv" one tab-separated file
    valid: str | int  # a corpus, or how many pairs to hold out from the training text
    test: str | int = 0  # likewise; scored once, at the end; 0: none
    root: str = "."  # paths are relative to it; by default the recipe's folder
    max_length: int = (
        256  # tokens; longer pairs are left out of training, longer lines are cut at a clause in translation
    )
    max_ratio: float = 4.0  # pairs whose lengths differ by more than this factor are left out
    deduplicate: bool = False


@dataclass(frozen=True)
class TokenizerRecipe:
    vocab_size: int = 32_000  # a wish: fitted to what the corpus and byte fallback allow
    character_coverage: float = 0.9999  # of the text; rarer characters are spelled in bytes
    split_digits: bool = False
    # Addresses, placeholders and tags go through the model as one reserved piece each. Not said: no; with train.init, as there.
    protect: bool | None = None
    extend: int = 0  # with train.init: pieces that may be added to that model's vocabulary for the new text


@dataclass(frozen=True)
class ModelRecipe:
    preset: str = "base"  # or "init": the shape of the model in train.init
    fields: dict[str, Any] = field(default_factory=dict)  # fields of ModelConfig that differ from the preset

    def config(self, vocab_size: int) -> ModelConfig:
        # The preset "init" has no shape yet: until it is looked at, the default one stands in for it in what is checked.
        return ModelConfig(vocab_size=vocab_size, **{**PRESETS.get(self.preset, {}), **self.fields})


@dataclass(frozen=True)
class TrainRecipe:
    # How long: exactly one of the three. A time budget covers everything from the start to the written bundle.
    steps: int = 0
    epochs: float = 0.0
    minutes: float = 0.0
    batch_tokens: int = 25_000  # target tokens in one update
    accumulate: int = 1  # parts that an update is computed in, to fit the memory
    recompute: bool = False  # layers compute again in the backward pass instead of keeping what they computed
    shard: bool = False  # weights, gradients and optimizer are split over the processes of torchrun (FSDP2)
    optimizer: Optimizer = "adam"  # muon: Muon for the matrices of the layers, AdamW for the rest
    schedule: Schedule = "paper"  # linear and cosine fall to 0; wsd: warm-up, stable, decay
    cooldown: float = 0.2  # share of the run over which wsd brings the rate to 0
    # The highest learning rate. 0: the paper's, (d_model * warmup)^-0.5, where warmup is not said with 4,000; with train.init 2e-4.
    lr: float = 0.0
    warmup: int = 0  # steps; 0: the smaller of 4,000 and a tenth of the run
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0  # largest gradient norm; 0: no clipping, as in the paper
    label_smoothing: float = 0.1
    rdrop: float = 0.0  # alpha of R-Drop, which draws two passes with other dropout together; 5 is usual, 0: off
    bpe_dropout: float = 0.0  # probability that a merge is left out when a word of the training text is cut
    # Whose weights and vocabulary the run starts from: a bundle or run folder, relative to the recipe's folder, or a built-in one.
    init: str = ""
    precision: Precision = "auto"
    fast: str = "auto"  # the fast path on GPUs: auto, off, or some of FAST_PARTS joined by commas
    device: str = "auto"
    seed: int = 1
    average: int = 5  # the last N checkpoints, averaged, become the model; 1: no averaging
    ema: float = 0.0  # decay of an exponential moving average of the weights, which then replaces `average`; 0: off
    monitor: Monitor = "loss"  # what "best" means on the validation set
    patience: int = 0  # stop after this many validations without a new best; 0: never
    validate_every: int = 0  # steps; 0: ten validations a run
    validate_sentences: int = (
        400  # validation sentences translated for BLEU; the loss is over all up to data.max_length
    )
    save_every: int = 0  # steps; 0: twenty checkpoints a run
    log_every: int = 0  # steps; 0: about every ten seconds
    workers: int = 0  # processes that tokenize; 0: one for each core
    tensorboard: bool = False


@dataclass(frozen=True)
class DecodeRecipe:
    beam: int = 4
    alpha: float = 0.6  # length penalty ((5 + |Y|) / 6)^alpha
    max_extra: int = 50  # a translation has at most this many tokens more than its source
    # A line that the model cannot know, or whose translation is plainly nonsense, stays as it is; a number that is lost is kept,
    # and is written as the target's language writes numbers. Not said: no; with train.init, as there.
    guard: bool | None = None


@dataclass(frozen=True)
class Recipe:
    data: DataRecipe
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    decode: DecodeRecipe = field(default_factory=DecodeRecipe)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain nested values, as they stand in a TOML file."""
        sections: dict[str, dict[str, Any]] = {}
        for section in dataclasses.fields(self):
            part = getattr(self, section.name)
            if isinstance(part, ModelRecipe):
                sections["model"] = {"preset": part.preset, **part.fields}
            else:
                values = {f.name: _plain(getattr(part, f.name)) for f in dataclasses.fields(part)}
                sections[section.name] = {name: value for name, value in values.items() if value is not None}
        for name, folder in builtin_models().items():  # wherever it lies on this machine
            if sections["train"]["init"] == str(folder):
                sections["train"]["init"] = BUILT_IN + name
        return sections

    def with_defaults(self, protect: bool, guard: bool) -> Recipe:
        """The recipe with `tokenizer.protect` and `decode.guard` in it, as they were said or else as here."""
        tokenizer, decode = self.tokenizer, self.decode
        if tokenizer.protect is None:
            tokenizer = dataclasses.replace(tokenizer, protect=protect)
        if decode.guard is None:
            decode = dataclasses.replace(decode, guard=guard)
        return dataclasses.replace(self, tokenizer=tokenizer, decode=decode)

    def to_toml(self) -> str:
        return dump_toml(self.to_dict())


_SECTIONS: dict[str, type] = {
    "data": DataRecipe,
    "tokenizer": TokenizerRecipe,
    "model": ModelRecipe,
    "train": TrainRecipe,
    "decode": DecodeRecipe,
}


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file; `overrides` are "section.key=value" with the value in TOML (bare words are taken as strings)."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such recipe file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a recipe ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is not valid TOML: {error}") from None
    resolve_paths(values, path.parent)
    apply_overrides(values, overrides)
    resolve_paths(values, Path())  # one that was said on the command line is meant from where it was said
    return recipe_from_dict(values, str(path))


def resolve_paths(values: dict[str, Any], start: Path) -> None:
    data, train = values.get("data"), values.get("train")
    if isinstance(data, dict) and isinstance(data.setdefault("root", "."), str):
        data["root"] = str((start / data["root"]).resolve())
    if isinstance(train, dict) and isinstance(init := train.get("init"), str) and init:
        path, known = start / init, builtin_models()
        if init.startswith(BUILT_IN):
            name = init.removeprefix(BUILT_IN)
            if name not in known:
                raise UserError(f"train.init: there is no built-in model {name!r}; there are {', '.join(known)}")
            train["init"] = str(known[name])
        elif init in known and not path.exists():  # a folder of that name, where one is, is what was meant
            train["init"] = str(known[init])
        else:
            train["init"] = str(path.resolve())


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> None:
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise UserError(f"--set {override}: must look like section.key=value, for example train.steps=1000")
        part = values.setdefault(section, {})
        if not isinstance(part, dict):
            raise UserError(f"[{section}] must be a table, but is {part!r}")
        part[key] = _parse_value(text.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def recipe_from_dict(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Build and check a recipe from nested plain values."""
    _refuse_unknown(values, _SECTIONS, f"{where}: section")
    for name, section in _SECTIONS.items():
        part = values.get(name, {})
        if not isinstance(part, dict):
            raise UserError(f"{where}: [{name}] must be a table, but is {part!r}")
        _refuse_unknown(part, _known_keys(section), f"{where}: {name}.")
    if "data" not in values:
        raise UserError(f"{where}: [data] is missing; it names source, target, train and valid")
    recipe = Recipe(
        data=_data_recipe(values["data"], where),
        tokenizer=_section(TokenizerRecipe, values.get("tokenizer", {}), where, "tokenizer"),
        model=_model_recipe(values.get("model", {}), where),
        train=_section(TrainRecipe, values.get("train", {}), where, "train"),
        decode=_section(DecodeRecipe, values.get("decode", {}), where, "decode"),
    )
    _check(recipe, where)
    return recipe


def _known_keys(section: type) -> list[str]:
    if section is ModelRecipe:
        return ["preset", *(f.name for f in dataclasses.fields(ModelConfig) if f.name != "vocab_size")]
    return [f.name for f in dataclasses.fields(section)]


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            space = "" if where.endswith(".") else " "
            raise UserError(f"{where}{space}{key} is not known; {hint}")


def _model_recipe(values: Mapping[str, Any], where: str) -> ModelRecipe:
    preset = values.get("preset", "base")
    if not isinstance(preset, str) or (preset not in PRESETS and preset != INIT):
        raise UserError(f"{where}: model.preset must be one of {', '.join(PRESETS)}, {INIT}, but is {preset!r}")
    if preset == INIT and (shape := [key for key in values if key not in ("preset", "dropout")]):
        raise UserError(
            f"{where}: model.{shape[0]} comes from the model in train.init (model.preset = 'init'); only dropout may differ"
        )
    hints = get_type_hints(ModelConfig)
    fields = {k: _convert(v, hints[k], f"{where}: model.{k}") for k, v in values.items() if k != "preset"}
    recipe = ModelRecipe(preset, fields)
    recipe.config(vocab_size=1000)  # raises on a combination that cannot be built
    return recipe


def _data_recipe(values: Mapping[str, Any], where: str) -> DataRecipe:
    given = dict(values)
    entries = given.get("train")
    if entries is not None:
        listed = entries if isinstance(entries, list) else [entries]
        given["train"] = tuple(_corpus_entry(entry, f"{where}: data.train") for entry in listed)
        if not listed:
            raise UserError(f"{where}: data.train must name at least one corpus, but is empty")
    return _section(DataRecipe, given, where, "data")


def _corpus_entry(entry: Any, where: str) -> CorpusEntry:
    if isinstance(entry, str):
        return CorpusEntry(_convert(entry, str, where))
    if isinstance(entry, dict):
        _refuse_unknown(entry, ["path", "weight"], f"{where}: ")
        if isinstance(entry.get("path"), str):
            weight = _convert(entry.get("weight", 1.0), float, f"{where}: weight")
            if not 0 < weight < math.inf:
                raise UserError(f"{where}: the weight of {entry['path']} must be a number above 0, but is {weight}")
            return CorpusEntry(_convert(entry["path"], str, where), weight)
    raise UserError(f'{where} must hold file names or {{ path = "...", weight = 2.0 }}, but has {entry!r}')


def _section(section: type[T], values: Mapping[str, Any], where: str, name: str) -> T:
    hints = get_type_hints(section)
    converted = {}
    for f in dataclasses.fields(section):  # type: ignore[arg-type]
        if f.name in values:
            converted[f.name] = _convert(values[f.name], hints[f.name], f"{where}: {name}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: {name}.{f.name} is missing")
    return section(**converted)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """The value as the field's type; whole numbers pass as floats, nothing else changes its type."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} must be one of {', '.join(map(str, get_args(hint)))}, but is {value!r}")
        return value
    is_union = get_origin(hint) in (Union, types.UnionType)
    accepted = get_args(hint) if is_union else (get_origin(hint) or hint,)
    accepted = tuple(
        kind for kind in accepted if kind is not types.NoneType
    )  # TOML knows no such value: it is left out
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{where} must be a number of 64 bits, but is out of their range")
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and not _is_text(value):
        raise UserError(f"{where} must be in UTF-8, but is {value!r}; give the file or folder another name")
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        wanted = " or ".join({"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}.get(
            kind.__name__, kind.__name__) for kind in accepted)  # fmt: skip
        raise UserError(f"{where} must be {wanted}, but is {value!r}")
    return value


def _is_text(value: str) -> bool:
    """Whether it can be written down; the name of a file need not."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check(recipe: Recipe, where: str) -> None:
    """What each field must be on its own, then what must fit together."""
    _check_ranges(recipe, where)
    _check_train(recipe, where)
    _check_fast(recipe.train.fast, where)
    _check_init(recipe, where)
    check_positions(recipe, where)
    data = recipe.data
    if isinstance(data.valid, int) and data.valid < 1:
        raise UserError(
            f"{where}: data.valid must name a corpus or say how many pairs to hold out, but is {data.valid}"
        )
    if isinstance(data.test, int) and data.test < 0:
        raise UserError(f"{where}: data.test must not be negative, but is {data.test}")


def check_positions(recipe: Recipe, where: str) -> None:
    longest, config = recipe.data.max_length, recipe.model.config(vocab_size=1000)
    if config.positions == "learned" and longest >= config.max_positions:
        raise UserError(
            f"{where}: data.max_length ({longest}) must be below model.max_positions ({config.max_positions})"
        )


def _check_ranges(recipe: Recipe, where: str) -> None:
    train, data, decode = recipe.train, recipe.data, recipe.decode
    lengths = {name: getattr(train, name) for name in ("steps", "epochs", "minutes")}
    given = [name for name, value in lengths.items() if value]
    if len(given) != 1:
        what = " and ".join(given) or "none"
        raise UserError(
            f"{where}: give exactly one of train.steps, train.epochs and train.minutes, but there is {what}"
        )
    not_negative: dict[str, float] = {
        **{f"train.{name}": value for name, value in lengths.items()},
        **{f"train.{name}": getattr(train, name) for name in (
            "lr", "warmup", "weight_decay", "clip", "rdrop", "patience", "validate_every", "validate_sentences", "save_every",
            "log_every", "workers", "eps")},
        "decode.alpha": decode.alpha,
        "decode.max_extra": decode.max_extra,
    }  # fmt: skip
    for name, value in not_negative.items():
        if not math.isfinite(value):
            raise UserError(f"{where}: {name} must be a finite number, but is {value}")
        if value < 0:
            raise UserError(f"{where}: {name} must not be negative, but is {value}")
    at_least_one = {
        "train.batch_tokens": train.batch_tokens,
        "train.accumulate": train.accumulate,
        "train.average": train.average,
        "data.max_length": data.max_length,
        "decode.beam": decode.beam,
        "tokenizer.vocab_size": recipe.tokenizer.vocab_size,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise UserError(f"{where}: {name} must be at least 1, but is {value}")
    below_one = {name: getattr(train, name) for name in ("label_smoothing", "ema", "beta1", "beta2", "bpe_dropout")}
    for name, value in below_one.items():
        if not 0 <= value < 1:
            raise UserError(f"{where}: train.{name} must be at least 0 and below 1, but is {value}")
    if not 0 < train.cooldown <= 1:
        raise UserError(f"{where}: train.cooldown must be above 0 and at most 1, but is {train.cooldown}")
    if not 0 < recipe.tokenizer.character_coverage <= 1:
        coverage = recipe.tokenizer.character_coverage
        raise UserError(f"{where}: tokenizer.character_coverage must be above 0 and at most 1, but is {coverage}")
    if not data.max_ratio >= 1:  # nor is what is no number
        raise UserError(f"{where}: data.max_ratio must be at least 1, but is {data.max_ratio}")
    for name, label in (("source", data.source), ("target", data.target)):
        if not label or set(label) & set("/\\\0") or label in (".", ".."):
            raise UserError(f"{where}: data.{name} must be a language code or another name for files, but is {label!r}")


def _check_train(recipe: Recipe, where: str) -> None:
    """Fields of [train] that mean something only together, or exclude each other."""
    train = recipe.train
    if train.cooldown != TrainRecipe.cooldown and train.schedule != "wsd":
        raise UserError(f"{where}: train.cooldown is for train.schedule = 'wsd', but that is {train.schedule!r}")
    if train.shard and train.optimizer == "muon":
        raise UserError(f"{where}: train.optimizer = 'muon' needs whole matrices, which train.shard splits; use adamw")
    if train.shard and train.monitor == "bleu":
        raise UserError(f"{where}: train.monitor must be 'loss' with train.shard, which validates without translating")
    if train.rdrop and not recipe.model.config(vocab_size=1000).dropout:
        raise UserError(f"{where}: train.rdrop needs model.dropout above 0, or its two passes are the same")
    if train.monitor == "bleu" and not train.validate_sentences:
        raise UserError(f"{where}: train.monitor = 'bleu' needs train.validate_sentences above 0")


def _check_init(recipe: Recipe, where: str) -> None:
    wish, defaults = recipe.tokenizer, TokenizerRecipe()
    if wish.extend < 0:
        raise UserError(f"{where}: tokenizer.extend must not be negative, but is {wish.extend}")
    if not recipe.train.init:
        for name, given in (("tokenizer.extend", wish.extend), ("model.preset = 'init'", recipe.model.preset == INIT)):
            if given:
                raise UserError(f"{where}: {name} needs train.init, the model to start from")
        return
    # The coverage says which characters of the new text get pieces of their own, where there are new pieces.
    for name in ("vocab_size", "split_digits", *([] if wish.extend else ["character_coverage"])):
        if getattr(wish, name) != getattr(defaults, name):
            raise UserError(
                f"{where}: tokenizer.{name} must be left out with train.init, whose vocabulary is taken; "
                f"tokenizer.extend adds pieces to it"
            )


def _check_fast(fast: str, where: str) -> None:
    unknown = [name.strip() for name in fast.split(",") if name.strip() not in FAST_PARTS]
    if fast not in ("auto", "off") and unknown:
        raise UserError(
            f"{where}: train.fast must be auto, off, or some of {', '.join(FAST_PARTS)} joined by commas, but has {unknown[0]!r}"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, CorpusEntry):
        return value.path if value.weight == 1.0 else {"path": value.path, "weight": value.weight}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value

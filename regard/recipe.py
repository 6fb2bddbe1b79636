"""Recipes: dataclasses that describe a run, read from and written to TOML, with overrides.

Precedence: preset < task < file < `--set section.key=value`. Unknown keys are refused with the nearest known one, before anything
missing is reported. No torch here.

The comment of a field is its entry in docs/recipe.md, which `python -m scripts.recipe_reference` writes.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.arguments import check_path
from regard.bounds import (
    MAX_ALPHA,
    MAX_BEAM,
    MAX_EXTRA,
    MAX_LENGTH,
    MAX_VOCABULARY,
    MAX_WORKERS,
    MOST_TARGETS,
    check_flag,
    check_label,
    check_number,
    check_whole,
)
from regard.builtin import builtin_models
from regard.config import ModelConfig
from regard.errors import UserError
from regard.files import open_input
from regard.models.presets import MAX_DEPTH, PRESETS, depth_settings
from regard.rules import refuse_unknown_keys, table_keys
from regard.settings import GATED, TABLES
from regard.task_table import DEFAULT_TASK, TASK_SETTINGS, TaskSettings, foreign_fields
from regard.toml import dump_toml

T = TypeVar("T")
Documents = Literal["file", "paragraph", "line"]
Schedule = Literal["paper", "linear", "cosine", "wsd"]
Optimizer = Literal["adam", "adamw", "muon"]
Precision = Literal["auto", "fp32", "bf16"]
Monitor = Literal["loss", "bleu", "score", "accuracy", "f1", "macro_f1", "spearman", "pearson", "retrieval"]
Unit = Literal["subword", "character"]
Words = Literal["spaces", "split"]
BUILT_IN = "builtin:"  # prefix of a built-in model in written recipes, so that it is not taken for a folder
FINE_TUNING_LR = 2e-4  # the default peak of fine-tuning: the paper's would undo what the model has learnt
MAX_RANK = 4096  # of LoRA
MAX_SHARE = 0.4  # of the text, for each of validation and test
CHARACTER_VOCABULARY = 400  # what a vocabulary of characters is taken to have until it is made
UNKNOWN_LABEL = "label"  # stands for the labels until they are known
INIT = "init"  # the preset that stands for the shape of the model in train.init
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
    """One training corpus, as an entry of `data.train`."""

    path: str  # as for `data.train`
    # How often each pair or row is shown per epoch: 2 shows it twice, 0.5 shows a random half of them.
    weight: float = 1.0
    source: str = ""  # `translate`, `embed`: label of its source side. Unset: `data.source`
    # `translate`, `embed`: label of its target side. Unset: `data.target`. Corpora of several directions make one translation model
    # that is told the target language.
    target: str = ""


@dataclass(frozen=True)
class DataRecipe:
    """The text to train, validate and test on: pairs of sentences to `translate`, of texts that mean the same to `embed`, documents
    to `generate` and `fill`."""

    source: str  # `translate`, `embed`: label of the source side; a language code if it is a language
    target: str  # `translate`, `embed`: label of the target side
    # Training text: a corpus or a list of them, each a path or `{ path = "...", weight = 2.0 }`. To translate and embed,
    # "corpus.{en,de}.xz" names a pair of files, "corpus.tsv" one tab-separated file. To generate and fill, "books/*.txt" names text
    # files. `*` matches several; .gz, .xz and .zst are unpacked.
    train: tuple[CorpusEntry, ...]
    # Validation corpus, or the number of pairs or documents to hold out from the training text (at most a tenth of it). With
    # several directions also a list, as in `data.train`; to translate, a number is held out from all of them in equal parts. To
    # generate and fill also a share: 0.1 holds out the last tenth of each document.
    valid: str | int | float | tuple[CorpusEntry, ...]
    # Test corpus, or the number or share to hold out; scored once, at the end; 0: no test set. A share for testing is cut off after
    # the one for validation. With several directions also a list.
    test: str | int | float | tuple[CorpusEntry, ...] = 0
    root: str = "."  # folder that paths are relative to, itself relative to the recipe's folder
    # Longest sequence in tokens. `translate`: training drops longer pairs, translation splits longer lines. `generate`: the length
    # of the rows that the text is cut into, 1,024 if unset. `fill`: documents are cut into pieces of at most this length, 512 if
    # unset. `embed`: training drops longer pairs, 128 if unset.
    max_length: int = 256
    max_ratio: float = 4.0  # `translate`, `embed`: pairs whose lengths differ by more than this factor are dropped
    deduplicate: bool = False  # `translate`, `embed`: drop repeated pairs
    documents: Documents = "file"  # `generate`, `fill`: what is a document; paragraphs end at a blank line
    across_documents: bool = False  # `generate`: tokens also attend to the documents before their own in the row
    # `classify`: the column with the text, or two for pairs of texts, by name or number; `tag`: that with the words. Unset: found.
    text: tuple[str, ...] = ()
    label: str = ""  # `classify`, `tag`: the column with the label or tag, by name or number. Unset: found
    header: bool | None = None  # `classify`: whether the first line of a table names its columns. Unset: found
    separator: str = ""  # `classify`: what stands between several labels in a cell. Unset: found

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Source and target of every direction that the training text has."""
        return tuple(dict.fromkeys(map(self.direction, self.train)))

    def anchored_column(self, label: str) -> int | None:
        """0 if this is the source of all directions, 1 if it is the target of all, else None, also where it is both."""
        sides = [side for side in (0, 1) if all(pair[side] == label for pair in self.directions)]
        return sides[0] if len(sides) == 1 else None

    def direction(self, entry: CorpusEntry) -> tuple[str, str]:
        """Source and target of a corpus."""
        return entry.source or self.source, entry.target or self.target


@dataclass(frozen=True)
class TokenizerRecipe:
    """The joint subword vocabulary."""

    vocab_size: int = 32_000  # number of pieces; reduced if the corpus is too small for it
    unit: Unit = (
        "subword"  # what a piece is; `character`: a single one, so that `vocab_size` and `split_digits` must be unset
    )
    character_coverage: float = (
        0.9999  # share of the text whose characters get pieces; rarer characters are spelled in bytes
    )
    split_digits: bool = False  # make every digit a piece of its own
    # Pass URLs, placeholders and tags through the model as one reserved piece each. Unset: false, or the init model's setting.
    protect: bool | None = None
    # `translate`: begin each source with a reserved piece that names its target language. Unset: true if `data.train` has several
    # directions, or the init model's setting.
    tag_targets: bool | None = None
    extend: int = (
        0  # with `train.init`: the largest number of pieces to add to that model's vocabulary for the new text
    )
    # Use the vocabulary in this folder, `tokenizer` of another run or model, and learn none; relative to the recipe's folder.
    folder: str = ""


@dataclass(frozen=True)
class ModelRecipe:
    """The shape of the model: a preset, and fields that override it."""

    preset: str = "base"  # a named shape, see Presets; `init`: the shape of the model in `train.init`
    fields: dict[str, Any] = field(default_factory=dict)  # overridden fields of ModelConfig
    # One number for the size: sets the layers of each stack, width, heads, `train.batch_tokens` and `train.lr` (for the optimizer),
    # by published rules and where the recipe does not set them itself. They know nothing of the machine: batches of 140,000 tokens
    # at depth 4 need a GPU, or `train.accumulate`. 0: the size of the preset. It is resolved as the recipe is read.
    depth: int = 0

    def config(self, vocab_size: int) -> ModelConfig:
        """The model's full configuration. "init" counts as the default shape until the init model is read."""
        fields = {**PRESETS.get(self.preset, {}), **self.fields}
        head = fields.get("head", {})
        if isinstance(head, Mapping) and head.get("kind") in ("classes", "tags") and not head.get("labels"):
            fields["head"] = {**head, "labels": (UNKNOWN_LABEL,)}  # until the data is read
        if self.preset == INIT and fields.get("head"):
            fields.setdefault("decoder_layers", 0)  # what has labels is an encoder
        return ModelConfig(vocab_size=vocab_size, **fields)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a head for classes or tags; empty until they are known."""
        return tuple(self.fields.get("head", {}).get("labels", ()))


@dataclass(frozen=True)
class TrainRecipe:
    """Length, batches, optimization, validation and checkpoints of a run."""

    steps: int = 0  # length of the run in updates; set exactly one of `steps`, `epochs` and `minutes`
    epochs: float = 0.0  # length of the run in passes over the training text
    minutes: float = (
        0.0  # time budget for everything from reading the text to writing the model, without scoring the test set
    )
    batch_tokens: int = 25_000  # tokens per update; to translate, target tokens
    accumulate: int = 1  # micro-batches per update; raise it if an update does not fit the memory
    recompute: bool = (
        False  # recompute activations in the backward pass (activation checkpointing): slower, less memory
    )
    shard: bool = False  # shard weights, gradients and optimizer state over the processes of torchrun (FSDP2)
    optimizer: Optimizer = "adam"  # `muon`: Muon for the matrices of the layers, AdamW for the rest
    schedule: Schedule = "paper"  # `linear` and `cosine` decay to 0; `wsd`: warm-up, stable, decay to 0
    cooldown: float = 0.2  # with `wsd`: share of the run over which the learning rate decays to 0
    # Peak learning rate. 0: the paper's, (d_model * warmup)^-0.5, with 4,000 for an unset `warmup`; 2e-4 with `init`.
    lr: float = 0.0
    warmup: int = 0  # warm-up steps; 0: a tenth of the run, at most 4,000
    beta1: float = 0.9  # Adam's decay of the first moment
    beta2: float = 0.98  # Adam's decay of the second moment
    eps: float = 1e-9  # Adam's epsilon
    weight_decay: float = 0.0  # L2 penalty with `adam`; decoupled weight decay of matrices with `adamw` and `muon`
    clip: float = 1.0  # largest gradient norm; 0: no clipping, as in the paper
    label_smoothing: float = 0.1  # probability mass spread over all pieces
    # Weight (alpha) of R-Drop, which pulls together the predictions of two passes with different dropout; 5 is common, 0: off.
    rdrop: float = 0.0
    bpe_dropout: float = (
        0.0  # `translate`: probability of skipping a merge when a word of the training text is tokenized
    )
    # Fine-tuning: the model whose weights and vocabulary the run starts from, and which is written if no step beats it. A bundle or
    # run folder, relative to the recipe's folder, or the name of a built-in model.
    init: str = ""
    # With `init`: LoRA of this rank. Only the matrices of the layers change, each by a product of two thin ones, which AdamW
    # learns. The run writes them merged (`model`) and apart (`adapter`). 0: all weights change.
    lora: int = 0
    precision: Precision = "auto"  # number format of matrix products; `auto`: bf16 where the hardware supports it
    # The fast path on GPUs: `auto`, `off`, or some of slots, attention, residual, feedforward, loss, compile, graph, with commas.
    fast: str = "auto"
    device: str = "auto"  # `cpu`, `cuda`, `cuda:N` or `mps`; `auto`: a GPU if there is one
    seed: int = 1  # random seed of initialization, shuffling, dropout and held-out pairs
    average: int = 5  # number of last checkpoints to average into the model; 1: no averaging
    ema: float = 0.0  # decay of an exponential moving average of the weights, used instead of `average`; 0: off
    mask: float = 0.15  # `fill`: share of the tokens that are masked, drawn anew each epoch
    whole_words: bool = False  # `fill`: choose a share of the words, and all tokens of each (whole-word masking)
    # `embed`: cosines are divided by it before the softmax over the batch; the smaller, the more the nearest negatives count.
    temperature: float = 0.05
    # `embed`, with `init`: the language that the model in `init` knows, `data.source` or `data.target`. The vectors of its texts
    # are held near those of that model, and those of the other side are drawn there, so that a model learns a language and forgets
    # little.
    anchor: str = ""
    # Validation metric that decides which checkpoint is best; of language models the loss does. `translate`: loss or BLEU. `embed`:
    # loss or retrieval, the default. `classify`, `tag`: `score`, the default, is the first one that is measured (accuracy of one
    # label, F1 of several and of B-/I- tags, Spearman of numbers).
    monitor: Monitor = "loss"
    # `classify`, `tag`: what an example of each label counts: "balanced", in inverse proportion to how often the label occurs, or a
    # table, { spam = 5.0 }; others count 1. Weights are scaled so that their mean over the data is 1.
    class_weights: str | dict[str, float] = ""
    # `classify`, `tag`, with `init`: fit a new head by regression on the encoder's vectors before the first step.
    fit_head: bool = False
    patience: int = 0  # stop after this many validations without a new best; 0: never
    validate_every: int = 0  # steps between validations; 0: ten validations per run
    validate_sentences: int = (
        400  # `translate`: validation sentences to translate for BLEU and chrF; the loss uses all pairs
    )
    save_every: int = 0  # steps between checkpoints; 0: twenty checkpoints per run
    log_every: int = 0  # steps between log lines; 0: about every ten seconds
    workers: int = 0  # processes that tokenize; 0: one per core
    tensorboard: bool = False  # also write TensorBoard events; needs the extra `regard[tensorboard]`


@dataclass(frozen=True)
class DecodeRecipe:
    """Settings that the bundle keeps as its defaults: of the search, for translation."""

    beam: int = 4  # beam size
    alpha: float = 0.6  # length penalty: scores are divided by ((5 + length) / 6)^alpha
    max_extra: int = 50  # largest number of tokens by which a translation may exceed its source
    # Keep source lines that the model cannot translate or turns into nonsense, restore lost numbers, write numbers as the target
    # language does, and translate text in capitals in sentence case. Unset: false, or the init model's setting.
    guard: bool | None = None
    # `classify` with several labels: the probability from which a label is given. Unset: the one with the best F1 on the validation
    # set.
    threshold: float | None = None
    # `tag`: the words of a plain text: what stands between `spaces`, or punctuation marks `split` off. Unset: as in the training
    # text.
    words: Words | None = None


@dataclass(frozen=True)
class Recipe:
    """A training run as a TOML file describes it, one attribute for each section."""

    data: DataRecipe
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    decode: DecodeRecipe = field(default_factory=DecodeRecipe)
    # What is learnt: `translate`; language models, `generate` of the next token and `fill` of masked ones; labels, `classify` of
    # texts and `tag` of words; `embed`, vectors of texts.
    task: str = DEFAULT_TASK

    @property
    def settings(self) -> TaskSettings:
        """What recipes of this task may say."""
        return TASK_SETTINGS[self.task]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as in a TOML file: the fields of its task."""
        sections: dict[str, Any] = {} if self.task == DEFAULT_TASK else {"task": self.task}
        for name in _SECTIONS:
            part = getattr(self, name)
            if isinstance(part, ModelRecipe):
                sections["model"] = {"preset": part.preset, **part.fields}
                continue
            left_out = foreign_fields(self.task, name)
            if name == "tokenizer" and self.tokenizer.unit == "character":
                left_out |= _OF_SUBWORDS
            values = {f.name: _plain(getattr(part, f.name)) for f in dataclasses.fields(part) if f.name not in left_out}
            if values:
                sections[name] = {key: value for key, value in values.items() if value is not None}
        for name, folder in builtin_models().items():  # by name, since its folder differs between machines
            if sections["train"]["init"] == str(folder):
                sections["train"]["init"] = BUILT_IN + name
        return sections

    @property
    def name(self) -> str:
        """A name for the run folder."""
        sides = "+".join(f"{source}-{target}" for source, target in self.data.directions)
        if self.task == DEFAULT_TASK:
            return sides
        return f"{self.task}-{sides}" if self.settings.has_sides else self.task

    @property
    def takes_pairs(self) -> bool | None:
        """Whether the rows of tables have two texts; None for other tasks, and before the columns are known."""
        return len(self.data.text) > 1 if self.settings.has_tables and self.data.text else None

    @property
    def has_tags(self) -> bool:
        """Whether each source begins with the tag of its target language."""
        wanted = self.tokenizer.tag_targets
        return self.task == DEFAULT_TASK and (len(self.data.directions) > 1 if wanted is None else wanted)

    def of_entry(self, entry: CorpusEntry) -> Recipe:
        """The recipe with the languages of a corpus for its own."""
        source, target = self.data.direction(entry)
        return dataclasses.replace(self, data=dataclasses.replace(self.data, source=source, target=target))

    def held_out_names(self, name: str) -> dict[tuple[str, str], str]:
        """What the files of the records held out as `name` begin with, by direction."""
        if not self.has_tags or len(self.data.directions) == 1:
            return {(self.data.source, self.data.target): name}
        return {pair: f"{name}.{'-'.join(pair)}" for pair in self.data.directions}

    def with_defaults(self, protect: bool, guard: bool, tag_targets: bool = False) -> Recipe:
        """The recipe with these values for `tokenizer.protect`, `decode.guard` and `tokenizer.tag_targets` where they are unset."""
        tokenizer, decode = self.tokenizer, self.decode
        if tokenizer.tag_targets is None and (tag_targets or self.has_tags):
            tokenizer = dataclasses.replace(tokenizer, tag_targets=True)
        if tokenizer.protect is None:
            tokenizer = dataclasses.replace(tokenizer, protect=protect)
        if decode.guard is None:
            decode = dataclasses.replace(decode, guard=guard)
        return dataclasses.replace(self, tokenizer=tokenizer, decode=decode)

    def to_toml(self) -> str:
        """The recipe as a TOML file with every field, defaults included."""
        return dump_toml(self.to_dict())


_OF_SUBWORDS = frozenset({"vocab_size", "split_digits"})  # the fields of [tokenizer] that characters have no use for
_SECTIONS: dict[str, type] = {
    "data": DataRecipe,
    "tokenizer": TokenizerRecipe,
    "model": ModelRecipe,
    "train": TrainRecipe,
    "decode": DecodeRecipe,
}


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file; `overrides` are "section.key=value" with the value in TOML (bare words are strings)."""
    path = check_path("path", path)
    try:
        with open_input(path) as file:
            values = tomllib.loads(file.read().decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such recipe file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except RecursionError:
        raise UserError(f"{path}: must be valid TOML, but is nested too deeply") from None
    except ValueError as error:  # of tomllib, or a number with more digits than Python reads
        raise UserError(f"{path}: must be valid TOML, but is not: {error}") from None
    resolve_paths(values, path.parent)
    apply_overrides(values, overrides)
    resolve_paths(values, Path())  # paths in overrides are relative to the current folder
    return recipe_from_dict(values, str(path))


def resolve_paths(values: dict[str, Any], start: Path) -> None:
    """Make `data.root`, `tokenizer.folder` and `train.init` absolute, from the folder `start`, in place."""
    data, tokenizer, train = values.get("data"), values.get("tokenizer"), values.get("train")
    if isinstance(tokenizer, dict) and isinstance(folder := tokenizer.get("folder"), str) and folder:
        tokenizer["folder"] = _absolute("tokenizer.folder", start, folder)
    if isinstance(data, dict) and isinstance(data.setdefault("root", "."), str):
        data["root"] = _absolute("data.root", start, data["root"])
    if isinstance(train, dict) and isinstance(init := train.get("init"), str) and init:
        path, known = start / init, builtin_models()
        if init.startswith(BUILT_IN):
            name = init.removeprefix(BUILT_IN)
            if name not in known:
                raise UserError(
                    f"train.init must name one of the built-in models {', '.join(known)}, but names {name!r}"
                )
            train["init"] = str(known[name])
        elif init in known and not path.exists():  # a folder of that name takes precedence
            train["init"] = str(known[init])
        else:
            train["init"] = _absolute("train.init", start, init)


def _absolute(name: str, start: Path, text: str) -> str:
    try:
        return str((start / text).resolve())
    except (ValueError, OSError) as error:
        raise UserError(f"{name} must be a path, but is {text!r} ({error})") from None


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set the fields named by "section.key=value" in `values`."""
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if section == "task" and equals and not dot:
            values["task"] = _parse_value(text.strip())
            continue
        if not (equals and dot and section and key):
            raise UserError(f"--set {override}: must look like section.key=value, for example train.steps=1000")
        _refuse_unknown([section], _SECTIONS, "--set: section")
        table, dot, inner = key.partition(".")
        if section == "model" and dot and table in TABLES:  # model.encoder.d_ff
            refuse_unknown_keys(table, [inner], "--set ")
            part = _table(_table(values, section, section), table, f"{section}.{table}")
            part[inner] = _parse_value(text.strip())
            continue
        _refuse_unknown([key], _known_keys(_SECTIONS[section]), f"--set {section}.")
        _table(values, section, section)[key] = _parse_value(text.strip())


def _table(values: dict[str, Any], name: str, shown: str) -> dict[str, Any]:
    """The table of this name, made if there is none."""
    part = values.setdefault(name, {})
    if not isinstance(part, dict):
        raise UserError(f"[{shown}] must be a table, but is {part!r}")
    return part


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (RecursionError, ValueError):
        return text


def recipe_from_dict(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Build and check a recipe from nested plain values."""
    task = values.get("task", DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASK_SETTINGS:
        raise UserError(f"{where}: task must be one of {', '.join(TASK_SETTINGS)}, but is {task!r}")
    _refuse_unknown([name for name in values if name != "task"], _SECTIONS, f"{where}: section")
    sections = {}
    for name, section in _SECTIONS.items():
        part = values.get(name, {})
        if not isinstance(part, dict):
            raise UserError(f"{where}: [{name}] must be a table, but is {part!r}")
        _refuse_unknown(part, _known_keys(section), f"{where}: {name}.")
        if foreign := sorted(part.keys() & foreign_fields(task, name)):
            raise UserError(
                f"{where}: {name}.{foreign[0]} must not be set with task = {task!r}, which has no such field"
            )
        has_own_shape = name == "model" and part.get("preset") == INIT
        defaults = TASK_SETTINGS[task].defaults.get(name, {})
        if has_own_shape:  # the rest is that of the model in train.init
            defaults = {"head": {"kind": defaults["head"]["kind"]}} if "head" in defaults else {}
        tables = {key: {**value, **part.get(key, {})} for key, value in defaults.items() if isinstance(value, dict)}
        sections[name] = {**defaults, **part, **tables}
    _apply_depth(sections, values, TASK_SETTINGS[task], where)
    if "data" not in values:
        raise UserError(f"{where}: [data] is missing; it must set {TASK_SETTINGS[task].required}")
    recipe = Recipe(
        data=_data_recipe(sections["data"], where, task),
        tokenizer=_tokenizer_recipe(sections["tokenizer"], where),
        model=_model_recipe(sections["model"], where),
        train=_section(TrainRecipe, sections["train"], where, "train"),
        decode=_section(DecodeRecipe, sections["decode"], where, "decode"),
        task=task,
    )
    _check(recipe, where)
    return recipe


def _apply_depth(sections: dict[str, Any], given: Mapping[str, Any], settings: TaskSettings, where: str) -> None:
    """Replace `model.depth` by the settings that it stands for; those that the recipe gives itself take precedence."""
    depth = _convert(sections["model"].pop("depth", 0), int, f"{where}: model.depth")
    if not 0 <= depth <= MAX_DEPTH:
        raise UserError(f"{where}: model.depth must be between 0 and {MAX_DEPTH}, but is {depth}")
    if not depth:
        return
    if sections["model"].get("preset") == INIT:
        raise UserError(f"{where}: model.depth must not be set with model.preset = 'init', which has its own")
    preset = PRESETS.get(str(sections["model"].get("preset")), {})
    activation = sections["model"].get("activation", preset.get("activation"))
    optimizer = _convert(sections["train"].get("optimizer", "adam"), Optimizer, f"{where}: train.optimizer")
    for name, values in depth_settings(depth, activation in GATED, optimizer).items():
        kept = {**settings.defaults.get(name, {}), **given.get(name, {})}
        sections[name] = {**sections[name], **{key: value for key, value in values.items() if key not in kept}}


def _known_keys(section: type) -> list[str]:
    if section is ModelRecipe:
        return ["preset", "depth", *(f.name for f in dataclasses.fields(ModelConfig) if f.name != "vocab_size")]
    return [f.name for f in dataclasses.fields(section)]


def field_names() -> list[str]:
    """All fields of a recipe, as `--set` names them.

    >>> field_names()[:2]
    ['data.source', 'data.target']
    """
    plain = [
        f"{name}.{key}" for name, section in _SECTIONS.items() for key in _known_keys(section) if key not in TABLES
    ]
    return [*plain, *(f"model.{table}.{key}" for table in TABLES for key in table_keys(table)), "task"]


def _refuse_unknown(given: Iterable[str], known: Sequence[str] | Mapping[str, Any], where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            space = "" if where.endswith(".") else " "
            raise UserError(f"{where}{space}{key} is not known; {hint}")


_OPEN = ("preset", "dropout", "attention_dropout", "head")  # what may be set with model.preset = "init"


def _model_recipe(values: Mapping[str, Any], where: str) -> ModelRecipe:
    preset = values.get("preset", "base")
    if not isinstance(preset, str) or (preset not in PRESETS and preset != INIT):
        raise UserError(f"{where}: model.preset must be one of {', '.join(PRESETS)}, {INIT}, but is {preset!r}")
    if preset == INIT and (shape := [key for key in values if key not in _OPEN]):
        raise UserError(
            f"{where}: model.{shape[0]} must not be set with model.preset = 'init'; only dropout, attention_dropout and head may "
            "differ from train.init"
        )
    hints = get_type_hints(ModelConfig)
    fields = {k: _convert(v, hints[k], f"{where}: model.{k}") for k, v in values.items() if k != "preset"}
    for table in (table for table in TABLES if table in fields):
        refuse_unknown_keys(table, fields[table], f"{where}: ")
    recipe = ModelRecipe(preset, fields)
    recipe.config(vocab_size=1000)  # raises on an impossible combination
    return recipe


def _tokenizer_recipe(values: Mapping[str, Any], where: str) -> TokenizerRecipe:
    recipe = _section(TokenizerRecipe, values, where, "tokenizer")
    if recipe.unit != "character":
        return recipe
    if given := sorted(_OF_SUBWORDS & values.keys()):
        raise UserError(
            f"{where}: tokenizer.{given[0]} must not be set with tokenizer.unit = 'character'; use 'subword'"
        )
    return dataclasses.replace(recipe, vocab_size=CHARACTER_VOCABULARY)


def _data_recipe(values: Mapping[str, Any], where: str, task: str) -> DataRecipe:
    given = dict(values)
    if not TASK_SETTINGS[task].has_sides:
        given |= {"source": "", "target": ""}
    entries = given.get("train")
    if entries is not None:
        listed = entries if isinstance(entries, list) else [entries]
        given["train"] = tuple(_corpus_entry(entry, f"{where}: data.train") for entry in listed)
        if not listed:
            raise UserError(f"{where}: data.train must name at least one corpus, but is empty")
        given |= _sides(given, where, task)
    given |= {key: _columns(given[key], f"{where}: data.{key}") for key in ("text", "label") if key in given}
    return _section(DataRecipe, given, where, "data")


def _sides(given: Mapping[str, Any], where: str, task: str) -> dict[str, Any]:
    """The corpora with their languages, if any names its own; `data.source` and `data.target` may then be left out."""
    train: tuple[CorpusEntry, ...] = given["train"]
    changed: dict[str, Any] = {}
    for name in ("valid", "test"):
        if isinstance(listed := given.get(name), list):
            changed[name] = tuple(_corpus_entry(entry, f"{where}: data.{name}") for entry in listed)
            if not listed:
                raise UserError(f"{where}: data.{name} must name at least one corpus, but is empty")
            if weighted := [entry.path for entry in changed[name] if entry.weight != 1.0]:
                raise UserError(f"{where}: data.{name}: {weighted[0]} must have no weight; leave it out")
    named = [entry for entries in (train, *changed.values()) for entry in entries if entry.source or entry.target]
    if not TASK_SETTINGS[task].has_sides and (named or changed):
        what = "the source and target of a corpus" if named else f"a list as data.{next(iter(changed))}"
        raise UserError(f"{where}: {what} must not be there with task = {task!r}, which has no directions")
    if not named:
        return changed
    defaults = {side: given.get(side) or getattr(named[0], side) for side in ("source", "target")}
    whole = {}
    for name, entries in {"train": train, **changed}.items():
        whole[name] = tuple(
            dataclasses.replace(one, source=one.source or defaults["source"], target=one.target or defaults["target"])
            for one in entries
        )
    return defaults | whole


def _columns(value: Any, where: str) -> Any:
    """Columns by name or number: those of the text as a tuple, that of the label as one string."""
    listed = value if isinstance(value, list | tuple) else [value] if value != "" else []  # empty: found later
    names = tuple(str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in listed)
    for name in names:
        if not isinstance(_convert(name, str, where), str) or not name.strip():
            raise UserError(f"{where} must be the name or the number of a column, but is {name!r}")
    if where.endswith(".label"):
        if len(names) > 1:
            raise UserError(f"{where} must be one column, but is {value!r}")
        return "".join(names)
    if len(names) > 2 or len(set(names)) < len(names):
        raise UserError(f"{where} must be one column, or two different ones, but is {value!r}")
    return names


def _corpus_entry(entry: Any, where: str) -> CorpusEntry:
    if isinstance(entry, str):
        return CorpusEntry(_convert(entry, str, where))
    if isinstance(entry, dict):
        _refuse_unknown(entry, ["path", "weight", "source", "target"], f"{where}: ")
        if isinstance(entry.get("path"), str):
            sides = {}
            for side in ("source", "target"):
                if side in entry:
                    check_label(f"{where}: {side} of {entry['path']}", entry[side])
                    sides[side] = entry[side]
            weight = _convert(entry.get("weight", 1.0), float, f"{where}: weight")
            if not 0 < weight < math.inf:
                raise UserError(f"{where}: the weight of {entry['path']} must be a number above 0, but is {weight}")
            return CorpusEntry(_convert(entry["path"], str, where), weight, **sides)
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


_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    tuple: "a list",
}


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Check a value against the field's type; integers become floats where needed, nothing else is converted."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} must be one of {', '.join(map(str, get_args(hint)))}, but is {value!r}")
        return value
    is_union = get_origin(hint) in (Union, types.UnionType)
    if is_union and (choices := next((one for one in get_args(hint) if get_origin(one) is Literal), None)):
        return _convert(value, choices, where)
    accepted = get_args(hint) if is_union else (get_origin(hint) or hint,)
    accepted = tuple(get_origin(kind) or kind for kind in accepted if kind is not types.NoneType)  # TOML has no null
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{where} must be a number that fits 64 bits, but does not")
    if float in accepted and int not in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and not _is_text(value):
        raise UserError(f"{where} must be valid UTF-8, but is {value!r}; rename the file or folder")
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        wanted = " or ".join(_KINDS.get(kind, kind.__name__) for kind in accepted)
        raise UserError(f"{where} must be {wanted}, but is {value!r}")
    return value


def _is_text(value: str) -> bool:
    """Whether it can be encoded as UTF-8, unlike some file names."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check(recipe: Recipe, where: str) -> None:
    """Check each field on its own, then combinations."""
    _check_ranges(recipe, where)
    _check_train(recipe, where)
    _check_fast(recipe.train.fast, where)
    _check_init(recipe, where)
    check_positions(recipe, where)
    _check_stacks(recipe, where)
    data, noun = recipe.data, recipe.settings.noun
    if isinstance(data.valid, int) and data.valid < 1:
        raise UserError(
            f"{where}: data.valid must be a corpus or a positive number of {noun}s to hold out, but is {data.valid}"
        )
    if isinstance(data.test, int) and data.test < 0:
        raise UserError(f"{where}: data.test must not be negative, but is {data.test}")
    _check_shares(recipe, where)
    if recipe.settings.has_sides:
        _check_directions(recipe, where)


def _check_directions(recipe: Recipe, where: str) -> None:
    """The directions of a model, and the corpora to measure it by."""
    data, known = recipe.data, recipe.data.directions
    shown = ", ".join(f"{source} → {target}" for source, target in known)
    if (data.source, data.target) not in known:
        raise UserError(
            f"{where}: data.source and data.target must be a direction of data.train ({shown}), but are "
            f"{data.source} → {data.target}; leave them out, or name one of these"
        )
    for name in ("valid", "test"):
        spec = getattr(data, name)
        if isinstance(spec, str):
            entries: tuple[CorpusEntry, ...] = (CorpusEntry(spec),)
        else:
            entries = spec if isinstance(spec, tuple) else ()
        for entry in entries:
            pair = data.direction(entry)
            if spec and pair not in known:
                raise UserError(
                    f"{where}: data.{name}: {entry.path} must be of a direction of data.train ({shown}), but is {' → '.join(pair)}"
                )
    if len(known) > 1 and recipe.tokenizer.tag_targets is False:
        raise UserError(
            f"{where}: tokenizer.tag_targets must not be false with several directions ({shown}); leave it out"
        )
    targets = {target for _, target in known}
    if recipe.task == DEFAULT_TASK and len(targets) > MOST_TARGETS:
        raise UserError(
            f"{where}: data.train must have at most {MOST_TARGETS} target languages, but has {len(targets)}; train two models"
        )


def _check_shares(recipe: Recipe, where: str) -> None:
    """Shares of the text that are held out."""
    held_out, noun = {"data.valid": recipe.data.valid, "data.test": recipe.data.test}, recipe.settings.noun
    shares = {name: value for name, value in held_out.items() if isinstance(value, float)}
    for name, value in shares.items():
        if recipe.settings.has_sides:
            raise UserError(f"{where}: {name} must be a corpus or a number of {recipe.settings.noun}s, but is {value}")
        if not 0 < value <= MAX_SHARE:  # also rejects NaN
            raise UserError(
                f"{where}: {name} must be a corpus, a number of {noun}s, or a share of the text up to {MAX_SHARE}, but is {value}"
            )
    if shares and any(isinstance(value, int) and value for value in held_out.values()):
        raise UserError(
            f"{where}: data.valid and data.test must both be shares or both be numbers of {noun}s, but are {recipe.data.valid} "
            f"and {recipe.data.test}"
        )


def _check_stacks(recipe: Recipe, where: str) -> None:
    """A task has both stacks, or leaves out the one that its defaults set to 0."""
    if recipe.model.preset == INIT:
        return
    config, left_out = recipe.model.config(vocab_size=1000), recipe.settings.defaults.get("model", {})
    task = recipe.settings.title
    for name in ("encoder_layers", "decoder_layers"):
        layers = getattr(config, name)
        if name in left_out and layers:
            raise UserError(f"{where}: model.{name} must be 0 for {task}, but is {layers}")
        if name not in left_out and not layers:
            raise UserError(f"{where}: model.{name} must be at least 1 for {task}, but is 0")


def check_positions(recipe: Recipe, where: str) -> None:
    """Refuse sequences longer than the table of learned positions; those of some tasks have a mark besides."""
    longest, config = recipe.data.max_length, recipe.model.config(vocab_size=1000)
    marks = recipe.settings.marks
    if config.longest is not None and longest + marks > config.longest:
        how = "below" if marks else "at most"
        raise UserError(f"{where}: data.max_length ({longest}) must be {how} model.max_positions ({config.longest})")


def _check_ranges(recipe: Recipe, where: str) -> None:
    train, data = recipe.train, recipe.data
    lengths = {name: getattr(train, name) for name in ("steps", "epochs", "minutes")}
    given = [name for name, value in lengths.items() if value]
    if len(given) != 1:
        what = " and ".join(given) or "none"
        raise UserError(f"{where}: set exactly one of train.steps, train.epochs and train.minutes, not {what}")
    not_negative: dict[str, float] = {
        **{f"train.{name}": value for name, value in lengths.items()},
        **{f"train.{name}": getattr(train, name) for name in (
            "lr", "warmup", "weight_decay", "clip", "rdrop", "patience", "validate_every", "validate_sentences", "save_every",
            "log_every", "workers", "eps")},
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
    if not 0 < train.temperature < math.inf:  # also rejects NaN
        raise UserError(f"{where}: train.temperature must be a number above 0, but is {train.temperature}")
    if not 0 < train.mask < 1:
        raise UserError(f"{where}: train.mask must be above 0 and below 1, but is {train.mask}")
    if not data.max_ratio >= 1:  # also rejects NaN
        raise UserError(f"{where}: data.max_ratio must be at least 1, but is {data.max_ratio}")
    try:
        if recipe.settings.has_sides:
            check_label("data.source", data.source)
            check_label("data.target", data.target)
        check_whole("data.max_length", data.max_length, 1, MAX_LENGTH)
        check_whole("tokenizer.vocab_size", recipe.tokenizer.vocab_size, 1, MAX_VOCABULARY)
        check_whole("train.workers", train.workers, 0, MAX_WORKERS)
        check_whole("train.lora", train.lora, 0, MAX_RANK)
        check_decode(recipe.decode)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def check_decode(decode: DecodeRecipe) -> DecodeRecipe:
    """The settings, which must be of the right kind and within bounds."""
    check_whole("decode.beam", decode.beam, 1, MAX_BEAM)
    check_number("decode.alpha", decode.alpha, 0, MAX_ALPHA)
    check_whole("decode.max_extra", decode.max_extra, 0, MAX_EXTRA)
    if decode.guard is not None:
        check_flag("decode.guard", decode.guard)
    if decode.words not in (None, *get_args(Words)):
        raise UserError(f"decode.words must be one of {', '.join(get_args(Words))}, but is {decode.words!r}")
    if decode.threshold is not None:
        check_number("decode.threshold", decode.threshold)
        if not 0 < decode.threshold < 1:
            raise UserError(f"decode.threshold must be above 0 and below 1, but is {decode.threshold}")
    return decode


def _check_train(recipe: Recipe, where: str) -> None:
    """Combinations of fields in [train]."""
    train = recipe.train
    if train.cooldown != TrainRecipe.cooldown and train.schedule != "wsd":
        raise UserError(f"{where}: train.cooldown needs train.schedule = 'wsd', but that is {train.schedule!r}")
    if train.shard and train.optimizer == "muon":
        raise UserError(
            f"{where}: train.optimizer = 'muon' needs unsharded matrices, but train.shard is set; use adamw"
        )
    if train.shard and train.monitor == "bleu":
        raise UserError(f"{where}: train.monitor must be 'loss' with train.shard, which validates without translating")
    if train.lora:
        reason = "train.optimizer must be adam or adamw" if train.optimizer == "muon" else ""
        reason = reason or ("train.shard must be false" if train.shard else "")
        reason = reason or ("" if train.init else "train.init must name the model to start from")
        if reason:
            raise UserError(f"{where}: {reason} with train.lora")
    if train.rdrop and not recipe.model.config(vocab_size=1000).dropout:
        raise UserError(f"{where}: train.rdrop needs model.dropout above 0, since its two passes must differ")
    _check_head(recipe, where)
    if train.anchor:
        _check_anchor(recipe, where)
    if train.monitor == "bleu" and not train.validate_sentences:
        raise UserError(f"{where}: train.monitor = 'bleu' needs train.validate_sentences above 0")


def _check_head(recipe: Recipe, where: str) -> None:
    """Settings of tasks whose head does not predict tokens."""
    train, settings = recipe.train, recipe.settings
    if train.monitor not in settings.monitors:
        raise UserError(
            f"{where}: train.monitor must be one of {', '.join(settings.monitors)} for {settings.title}, but is {train.monitor!r}"
        )
    if settings.has_own_head and train.rdrop:
        raise UserError(f"{where}: train.rdrop must be 0 for {settings.title}, but is {train.rdrop}")
    if settings.has_own_head and train.shard:
        raise UserError(f"{where}: train.shard must be false for {settings.title}")
    if train.fit_head and not train.init:
        raise UserError(f"{where}: train.fit_head needs train.init, the encoder whose vectors the head is fitted to")
    if not settings.can_smooth and train.label_smoothing:
        raise UserError(f"{where}: train.label_smoothing must be 0 for {settings.title}, which has no labels")
    weights = train.class_weights
    if isinstance(weights, str) and weights not in ("", "balanced"):
        raise UserError(f"{where}: train.class_weights must be 'balanced' or a table of numbers, but is {weights!r}")
    for label, weight in weights.items() if isinstance(weights, dict) else ():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UserError(f"{where}: train.class_weights.{label} must be a number above 0, but is {weight!r}")


def _check_anchor(recipe: Recipe, where: str) -> None:
    train, data = recipe.train, recipe.data
    if not train.init:
        raise UserError(f"{where}: train.anchor needs train.init, the model whose vectors stay as they are")
    if recipe.tokenizer.extend:
        raise UserError(f"{where}: tokenizer.extend must be 0 with train.anchor, whose texts must be read as before")
    if data.anchored_column(train.anchor) is None:
        shown = ", ".join(f"{source} and {target}" for source, target in data.directions)
        raise UserError(
            f"{where}: train.anchor must be the source of all corpora or the target of all, but is {train.anchor!r}; they are "
            f"{shown}. Name the language that all have on the same side; source and target may be exchanged"
        )


def _check_init(recipe: Recipe, where: str) -> None:
    wanted, defaults = recipe.tokenizer, TokenizerRecipe()
    if wanted.extend < 0:
        raise UserError(f"{where}: tokenizer.extend must not be negative, but is {wanted.extend}")
    if not recipe.train.init:
        for name, given in (
            ("tokenizer.extend", wanted.extend),
            ("model.preset = 'init'", recipe.model.preset == INIT),
        ):
            if given:
                raise UserError(f"{where}: {name} needs train.init, the model to start from")
        return
    if wanted.folder:
        raise UserError(f"{where}: tokenizer.folder must not be set with train.init, whose vocabulary is used")
    # character_coverage decides which characters of the new text get pieces, so it goes with extend.
    for name in ("unit", "vocab_size", "split_digits", *([] if wanted.extend else ["character_coverage"])):
        if getattr(wanted, name) != getattr(defaults, name):
            raise UserError(
                f"{where}: tokenizer.{name} must not be set with train.init, whose vocabulary is used; "
                f"tokenizer.extend adds pieces to it"
            )


def _check_fast(fast: str, where: str) -> None:
    unknown = [name.strip() for name in fast.split(",") if name.strip() not in FAST_PARTS]
    if fast not in ("auto", "off") and unknown:
        raise UserError(
            f"{where}: train.fast must be auto, off, or some of {', '.join(FAST_PARTS)} with commas, but has {unknown[0]!r}"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, CorpusEntry):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        given = {name: one for name, one in fields.items() if one != getattr(CorpusEntry, name, None)}
        return value.path if given.keys() == {"path"} else given
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value

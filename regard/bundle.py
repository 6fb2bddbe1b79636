"""A bundle: a finished model as a folder that can be shared.

    model.safetensors  config.json  tokenizer/  recipe.toml  card.md  manifest.json (SHA-256 of every file)

A bundle is complete: nothing outside the folder is needed to use it. Reading one imports no torch; engines read the weights.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from regard.aligning import AlignmentHeads
from regard.bounds import MAX_DIRECTIONS, MAX_LENGTH, check_label, check_whole
from regard.builtin import DEFAULT, DEFAULTS, builtin_models
from regard.card import make_card
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer, used_files
from regard.errors import UserError, naming
from regard.escaping import shorten
from regard.files import (
    MANIFEST,
    atomic_folder,
    cache_folder,
    check_manifest,
    path_inside,
    read_json,
    sha256,
    write_manifest,
)
from regard.recipe import DecodeRecipe, check_decode
from regard.settings import FrontKind, HeadKind
from regard.weights import Stored, check_finite, check_header, readable, scale_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


class BundleGone(UserError):
    """The files of an opened bundle were removed or replaced."""


FORMAT = 4  # the highest readable format; all earlier ones stay readable. 4: several directions
CONFIG, CARD, RECIPE, WEIGHTS = "config.json", "card.md", "recipe.toml", "model.safetensors"


@dataclass(frozen=True)
class Bundle:
    """A model's settings and facts, without its weights."""

    folder: Path
    config: ModelConfig
    source: str
    target: str
    decode: DecodeRecipe
    max_length: int  # longest training sentence in tokens; longer lines are split
    facts: dict[str, Any]  # training data, scores, versions; shown by the card and `regard info`
    stored: Stored = "fp32"  # data type in the weights file; they load as fp32
    alignment: AlignmentHeads | None = None  # which attention aligns words, if that was measured
    manifest: str = field(default="", compare=False, repr=False)  # SHA-256 of manifest.json when the bundle was read
    task: str = "translate"  # what the model was made for; only translation has a source and a target
    prompts: Mapping[str, str] = field(
        default_factory=dict
    )  # of the task embed: what may be put before a text, by name
    # Source and target of each direction of a model that is told the target language; empty in a model for one direction. `source`
    # and `target` are the chosen one, the first unless `toward` chose another.
    directions: tuple[tuple[str, str], ...] = ()
    takes_pairs: bool | None = None  # of the task classify: whether it reads pairs of texts; None: not recorded

    def __repr__(self) -> str:
        layers = "+".join(str(stack.layers) for stack in self.config.stacks.values())
        what = self.languages if self.task == "translate" else self.task
        return f"<regard.Bundle {what}, d_model {self.config.d_model}, {layers} layers, {self.folder}>"

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Source and target of every direction; a model for one direction has one."""
        return self.directions or ((self.source, self.target),)

    @property
    def languages(self) -> str:
        """The directions for people, such as "en → fr, fr → en"."""
        return ", ".join(f"{source} → {target}" for source, target in self.pairs)

    def toward(self, source: str, target: str) -> Bundle:
        """The same model for one of its directions."""
        if (source, target) not in self.pairs:
            raise UserError(
                f"{self.folder}: must translate {source} → {target}, but translates {self.languages}; choose one of these"
            )
        chosen = dataclasses.replace(self, source=source, target=target)
        if "tokenizer" in vars(self):
            vars(chosen)["tokenizer"] = self.tokenizer  # it is loaded already
        return chosen

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the model reads."""
        return (_INPUTS[self.config.front_settings.kind],)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded when first used."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(
                f"{self.folder / 'tokenizer'}: must have at most as many pieces as the model's vocabulary "
                f"({self.config.vocab_size:,}), but has {tokenizer.vocab_size:,}"
            )
        if bool(tokenizer.targets) != bool(self.directions) or not {to for _, to in self.directions} <= {
            *tokenizer.targets
        }:
            raise UserError(
                f"{self.folder / 'tokenizer'}: must have tags for the targets of the model's directions "
                f"({', '.join(dict.fromkeys(to for _, to in self.directions)) or 'none'}), but has tags for "
                f"{', '.join(tokenizer.targets) or 'none'}"
            )
        return tokenizer

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def alignment_heads(self) -> AlignmentHeads:
        """Which attention aligns words."""
        return self.alignment or AlignmentHeads.default(self.config)

    @property
    def card(self) -> str:
        """The text of card.md, as it is in the bundle: whoever prints it escapes it."""
        return path_inside(self.folder, CARD).read_text(encoding="utf-8", errors="backslashreplace")

    @property
    def recipe(self) -> str:
        """The text of recipe.toml."""
        return path_inside(self.folder, RECIPE).read_text(encoding="utf-8", errors="backslashreplace")


def save_bundle(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    recipe_toml: str,
    *,
    source: str,
    target: str,
    decode: DecodeRecipe,
    max_length: int,
    facts: Mapping[str, Any],
    stored: Stored = "fp32",
    alignment: AlignmentHeads | None = None,
    task: str = "translate",
    prompts: Mapping[str, str] | None = None,
    directions: Sequence[tuple[str, str]] = (),
    takes_pairs: bool | None = None,
) -> Bundle:
    """Write a bundle atomically, replacing one in the same folder. `weights` are already in the form that `stored` names. `source`
    and `target` are languages, and empty where the task is not translation."""
    from safetensors.torch import save_file

    check_task_shape(task, config)
    decode = dataclasses.replace(decode, guard=bool(decode.guard))
    number = 4 if directions else format_of(config, tokenizer, stored, task)
    with atomic_folder(folder) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(contiguous, str(temporary / WEIGHTS))
        settings: dict[str, Any] = {"format": number}
        if number >= 3:
            settings |= {"task": task, "inputs": [_INPUTS[config.front_settings.kind]]}
            settings["head"] = config.head_settings.kind
        settings["model"] = config.to_dict()
        if task == "translate":
            settings |= {"source": source, "target": target}
        if directions:
            settings["directions"] = [list(pair) for pair in directions]
        settings |= {
            "decode": {key: value for key, value in dataclasses.asdict(decode).items() if value is not None},
            "max_length": max_length,
            "facts": dict(facts),
        }
        if stored != "fp32":
            settings["weights"] = stored
        if alignment is not None:  # earlier versions ignore it
            settings["alignment"] = alignment.to_json()
        if prompts:
            settings["prompts"] = dict(prompts)
        if takes_pairs is not None:  # earlier versions ignore it
            settings["takes_pairs"] = takes_pairs
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")
        (temporary / "tokenizer").mkdir()
        tokenizer.save(temporary / "tokenizer")
        (temporary / RECIPE).write_text(recipe_toml, encoding="utf-8")
        bundle = Bundle(
            temporary, config, source, target, decode, max_length, dict(facts), stored, alignment, task=task,
            prompts=dict(prompts or {}), directions=tuple(directions), takes_pairs=takes_pairs,
        )  # fmt: skip
        (temporary / CARD).write_text(make_card(bundle), encoding="utf-8")
        write_manifest(temporary, format=number)
    return dataclasses.replace(bundle, folder=folder)


def format_of(config: ModelConfig, tokenizer: Tokenizer, stored: Stored, task: str) -> int:
    """The lowest format that can hold a model: 1, 2 for compressed weights, 3 for another task than translation, later settings, or
    a tokenizer of Hugging Face. Earlier versions of Regard then say that they are too old."""
    if task != "translate" or config.unsupported(("output_bias",)) or tokenizer.controls is not None:
        return 3
    return 1 if stored == "fp32" else 2


# What a model needs for a task: its stacks, and the kind of its head.
_SHAPES: dict[str, tuple[tuple[str, ...], HeadKind]] = {
    "translate": (("encoder", "decoder"), "tokens"),
    "generate": (("decoder",), "tokens"),
    "fill": (("encoder",), "tokens"),
    "classify": (("encoder",), "classes"),
    "tag": (("encoder",), "tags"),
    "embed": (("encoder",), "vector"),
}
_INPUTS: dict[FrontKind, str] = {"tokens": "text"}


def check_task_shape(task: Any, config: ModelConfig) -> None:
    """Refuse an unknown task, or a model that cannot do it."""
    if not isinstance(task, str) or task not in _SHAPES:
        raise UserError(f"task must be one of {', '.join(_SHAPES)}, but is {shorten(task)}")
    stacks, head = _SHAPES[task]
    for side in ("encoder", "decoder"):
        count = getattr(config, f"{side}_layers")
        if side in stacks:
            check_whole(f"model.{side}_layers", count, 1)
        elif count:
            raise UserError(f"model.{side}_layers must be 0 for the task {task}, but is {count}")
    if (kind := config.head_settings.kind) != head:
        raise UserError(f"model.head.kind must be {head!r} for the task {task}, but is {kind!r}")


def task_of(config: ModelConfig) -> str:
    """The task that a model's shape is for.

    >>> task_of(ModelConfig(vocab_size=100, encoder_layers=0))
    'generate'
    """
    shape = tuple(config.stacks), config.head_settings.kind
    return next(task for task, wanted in _SHAPES.items() if wanted == shape)


def load_bundle(folder: Path, task: str | None = None) -> Bundle:
    """Read a bundle and check all of it but the tensors, which engines check when they read them. With `task`, a model for another
    task is refused."""
    settings = _read_settings(folder)
    tokenizer_files = (f"tokenizer/{name}" for name in used_files(folder / "tokenizer"))
    check_manifest(folder, (CONFIG, WEIGHTS, CARD, RECIPE, *tokenizer_files))
    bundle = _named_from_settings(folder, settings)
    if task is not None and bundle.task != task:
        raise UserError(
            f"{folder}: must be a model for the task {task}, but is one for the task {bundle.task}; name another with -m"
        )
    check_header(bundle.weights, bundle.config, bundle.stored)
    return bundle


def read_bundle(folder: Path) -> Bundle:
    """What config.json says of a bundle, for a list of many: its other files are neither read nor checked."""
    return _named_from_settings(folder, _read_settings(folder))


def _read_settings(folder: Path) -> dict[str, Any]:
    """config.json, if it is of a format that this version reads."""
    path = path_inside(folder, CONFIG)
    settings = read_json(path)
    with naming(path):
        number = _format(settings)
    if number > FORMAT:
        raise UserError(
            f"{folder}: bundle format must be at most {FORMAT} for this version of Regard, but is {number}; upgrade Regard"
        )
    return settings


def _format(settings: Mapping[str, Any]) -> int:
    number = settings.get("format")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UserError(f"format must be a positive integer, but is {shorten(number)}")
    return number


def _named_from_settings(folder: Path, settings: Mapping[str, Any]) -> Bundle:
    """`_from_settings`, whose errors name the file."""
    with naming(path_inside(folder, CONFIG)):
        return _from_settings(folder, settings)


def _from_settings(folder: Path, settings: Mapping[str, Any]) -> Bundle:
    """The bundle that config.json describes; every value is checked."""
    parts = {name: settings.get(name, {}) for name in ("model", "decode", "facts")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise UserError(f"{name} must be a JSON object, but is {shorten(part)}")
    for name, known in (("model", ModelConfig), ("decode", DecodeRecipe)):
        if unknown := set(parts[name]) - {field.name for field in dataclasses.fields(known)}:
            raise UserError(f"{name}.{shorten(min(unknown))[1:-1]} is not known to this Regard")
    stored = settings.get("weights", "fp32")
    if stored not in get_args(Stored):
        raise UserError(f"weights must be one of {', '.join(get_args(Stored))}, but is {shorten(stored)}")
    check_whole("max_length", settings.get("max_length"), 1, MAX_LENGTH)
    config = ModelConfig(**{"vocab_size": None, **parts["model"]})
    task = _read_task(settings, config)
    for name in ("source", "target"):
        if task == "translate":
            check_label(name, settings.get(name))
        elif settings.get(name, "") != "":
            raise UserError(f"{name} must be empty for the task {task}, but is {shorten(settings[name])}")
    bundle = Bundle(
        folder=folder,
        config=config,
        source=settings.get("source", ""),
        target=settings.get("target", ""),
        decode=check_decode(DecodeRecipe(**{"guard": False, **parts["decode"]})),  # missing in early bundles
        max_length=settings["max_length"],
        facts=parts["facts"],
        stored=stored,
        alignment=AlignmentHeads.from_json(settings["alignment"], config) if "alignment" in settings else None,
        manifest=sha256(folder / MANIFEST),
        task=task,
        prompts=_read_prompts(settings, task),
        directions=_read_directions(settings, task),
        takes_pairs=_read_takes_pairs(settings, task),
    )
    try:
        make_card(bundle)  # looks at every fact that Regard uses
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(
            f"facts must be as Regard writes them, but no card can be made of them ({type(error).__name__})"
        ) from None
    return bundle


def _read_task(settings: Mapping[str, Any], config: ModelConfig) -> str:
    """The task of a bundle; formats 1 and 2 are translation. What config.json says of inputs and head must agree with the model."""
    if _format(settings) < 3:
        for name in ("task", "inputs", "head"):
            if name in settings:
                raise UserError(f"{name} must not be there before format 3, but is {shorten(settings[name])}")
        check_task_shape("translate", config)
        return "translate"
    task = settings.get("task")
    check_task_shape(task, config)
    expected = {"inputs": [_INPUTS[config.front_settings.kind]], "head": config.head_settings.kind}
    for name, wanted in expected.items():
        if settings.get(name) != wanted:
            raise UserError(f"{name} must be {wanted!r} by the model's settings, but is {shorten(settings.get(name))}")
    return str(task)


def _read_directions(settings: Mapping[str, Any], task: str) -> tuple[tuple[str, str], ...]:
    """The directions of a model that is told the target language; that in `source` and `target` is one of them."""
    listed = settings.get("directions", [])
    if not isinstance(listed, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in listed):
        raise UserError(f"directions must be a list of pairs of languages, but is {shorten(listed)}")
    for pair in listed:
        for name, label in zip(("source", "target"), pair, strict=True):
            check_label(f"{name} in directions", label)
    found = tuple((source, target) for source, target in listed)
    if found and (task != "translate" or _format(settings) < 4):
        raise UserError("directions must not be there before format 4 or for another task than translate")
    if found and ((settings["source"], settings["target"]) not in found or len(set(found)) < len(found)):
        raise UserError("directions must be different pairs, one of them source and target")
    if len(found) > MAX_DIRECTIONS:
        raise UserError(f"directions must be at most {MAX_DIRECTIONS}, but are {len(found):,}")
    return found


def _read_prompts(settings: Mapping[str, Any], task: str) -> dict[str, str]:
    prompts = settings.get("prompts", {})
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise UserError(f"prompts must be texts by name, but is {shorten(prompts)}")
    if prompts and task != "embed":
        raise UserError(f"prompts must not be there for the task {task}, but is {shorten(prompts)}")
    return prompts


def _read_takes_pairs(settings: Mapping[str, Any], task: str) -> bool | None:
    given = settings.get("takes_pairs")
    if given is None and "takes_pairs" not in settings:
        return None
    if not isinstance(given, bool):
        raise UserError(f"takes_pairs must be true or false, but is {shorten(given)}")
    if task != "classify":
        raise UserError(f"takes_pairs must not be there for the task {task}, but is {shorten(given)}")
    return given


def load_weights(bundle: Bundle) -> dict[str, Tensor]:
    """The weights as fp32, however they are stored; a UserError if some are not finite."""
    from safetensors.torch import load_file

    _check_unchanged(bundle)
    with readable(bundle.weights):
        tensors = load_file(str(bundle.weights))
    weights = {}
    for name in [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        scale = tensors.pop(scale_name(name), None)
        if scale is None:
            raise UserError(f"{bundle.weights}: tensor {scale_name(name)} is missing")
        weights[name] = tensors.pop(name).float().div_(scale[:, None])
    weights |= {name: tensor.float() for name, tensor in tensors.items()}
    check_finite(bundle.weights, ((name, _is_finite(tensor)) for name, tensor in weights.items()))
    return weights


def _is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinity. Summing is several times as fast as looking at each; only a sum may overflow."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _check_unchanged(bundle: Bundle) -> None:
    """Refuse a bundle that was replaced since it was opened: its weights may be read much later, by a server for instance."""
    manifest = bundle.folder / MANIFEST
    is_there = manifest.is_file() and bundle.weights.is_file()
    if not is_there or (bundle.manifest and sha256(manifest) != bundle.manifest):
        raise BundleGone(f"{bundle.folder}: was removed or replaced after it was opened; load it again")


def cached_models() -> dict[str, Path]:
    """The folders of the bundles in the cache, by name: models that people put there to be found from everywhere."""
    found = (folder.parent for folder in (cache_folder() / "models").glob(f"*/{CONFIG}"))
    return {folder.name: folder for folder in sorted(found)}


def find_bundle(model: str | Path | None, task: str | None = None) -> Path:
    """The bundle folder that `-m` names: a bundle, the model in a run folder, or a built-in or cached model. Without a name, the
    built-in model for the task."""
    models = builtin_models()
    if model is None:
        default = DEFAULTS.get(task or "", DEFAULT)
        if default not in models and default != DEFAULT:
            raise UserError(
                f"-m must name a model for the task {task}, since this copy of Regard has no built-in one; import one: "
                "regard import --from transformers FOLDER -o MODEL"
            )
        if default not in models:
            raise UserError(
                "-m must name a bundle or a run folder, since this copy of Regard has no built-in models; or train a model: "
                "regard train corpus.en corpus.de"
            )
        return models[default]
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if (folder / "checkpoints").is_dir():
        raise UserError(
            f"{folder}: the run is unfinished and has no model yet; resume it with `regard train ... --out {folder} --resume`, "
            f"or make a model from its checkpoints: regard average {folder} -o MODEL"
        )
    if not folder.exists():
        cached = {name: one for name, one in cached_models().items() if name not in models}
        if found := (models | cached).get(str(model)):
            return found
        kind = "built-in or cached" if cached else "built-in"
        known = f", or a {kind} model ({', '.join(models | cached)})" if models | cached else ""
        raise UserError(f"{folder}: there is no such model; name a bundle or a run folder{known}")
    raise UserError(f"{folder}: must be a bundle or a run folder, but has no config.json")


def add_facts(folder: Path, facts: Mapping[str, Any]) -> Bundle:
    """Add facts to a bundle and its card, such as scores measured later."""
    bundle = load_bundle(folder)
    return _rewrite(bundle, {"facts": {**bundle.facts, **facts}})


def add_alignment(folder: Path, alignment: AlignmentHeads) -> Bundle:
    """Store in a bundle which attention aligns words."""
    return _rewrite(load_bundle(folder), {"alignment": alignment.to_json()})


def _rewrite(bundle: Bundle, changed: Mapping[str, Any]) -> Bundle:
    """Change fields of a bundle's config.json, and what follows from them."""
    folder = bundle.folder
    settings = {**read_json(folder / CONFIG), **changed}
    with atomic_folder(folder) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")
        card = make_card(dataclasses.replace(bundle, facts=settings.get("facts", {})))
        (temporary / CARD).write_text(card, encoding="utf-8")
        write_manifest(temporary, format=settings["format"])
    return load_bundle(folder)

"""Fine-tuning: a run that starts from the shape, vocabulary and weights of a finished model (`train.init`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.builtin import builtin_models, shown_name
from regard.bundle import Bundle, find_bundle, load_bundle, load_weights
from regard.data.extend import extend_tokenizer, unknown_characters
from regard.data.tokenizer import Tokenizer, check_joint
from regard.errors import UserError
from regard.families import FAMILIES
from regard.models.transformer import Transformer
from regard.progress import counted
from regard.recipe import FINE_TUNING_LR, INIT, ModelRecipe, Recipe, check_positions
from regard.settings import HeadConfig
from regard.task_table import DEFAULT_TASK
from regard.tasks import TASKS

# Settings that may differ from the init model; its weights fix all others.
_FREE = {"vocab_size", "dropout", "attention_dropout"}
_OF_HEAD = {"head", "output_bias", "tie_embeddings"}  # settings that a new head has of its own
NEW_HEAD_DROPOUT = 0.1
_BY_PIECE = {"embedding.weight", "src_embedding.weight", "tgt_embedding.weight", "output.weight", "output_bias"}


def load_init_bundle(recipe: Recipe) -> Bundle:
    """The model in `train.init`."""
    try:
        return load_bundle(find_bundle(recipe.train.init))
    except UserError as error:
        raise UserError(f"train.init: {error}") from None


def resolve_recipe(recipe: Recipe, started: Recipe | None = None) -> Recipe:
    """Fill in what the recipe leaves open: protected spans, the guard and, with `train.init`, a fine-tuning learning rate and the
    shape of `model.preset = "init"`. These come from the init model, or from the recipe `started` of a run that is resumed."""
    task = TASKS[recipe.task]
    if not recipe.train.init:
        return task.complete(recipe.with_defaults(protect=False, guard=False))
    head = None
    if started is None:
        bundle = load_init_bundle(recipe)
        shape = bundle.config.to_dict()
        del shape["vocab_size"]
        if recipe.settings.has_own_head:
            _check_encoder(recipe, bundle)
            head = bundle.config.head_settings
            shape = {key: value for key, value in shape.items() if key not in _OF_HEAD}
            shape["head"] = {**start_head(recipe, head), **recipe.model.fields.get("head", {})}
        own, protects = ModelRecipe("base", shape), bool(bundle.tokenizer.protects)
        guards, tags = bool(bundle.decode.guard), bool(bundle.directions)
    else:
        own, protects, guards = started.model, bool(started.tokenizer.protect), bool(started.decode.guard)
        tags = started.has_tags
    if recipe.model.preset == INIT:
        fields = {**own.fields, **recipe.model.fields}
        if "head" in own.fields:
            fields["head"] = {**own.fields["head"], **recipe.model.fields.get("head", {})}
        recipe = dataclasses.replace(recipe, model=ModelRecipe(own.preset, fields))
    if not recipe.train.lr:
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, lr=FINE_TUNING_LR))
    recipe = task.complete(recipe.with_defaults(protects, guards, tags), head)
    if recipe.train.fit_head and _comes_with_head(recipe, head, started):
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, fit_head=False))
    return recipe


def _comes_with_head(recipe: Recipe, head: HeadConfig | None, started: Recipe | None) -> bool:
    """Whether the init model's head is kept, so that there is none to fit. `started` has settled it."""
    if started is not None:
        return not started.train.fit_head
    return head is not None and keeps_head(recipe.model.config(1000).head_settings, head)


def _check_encoder(recipe: Recipe, bundle: Bundle) -> None:
    if bundle.config.decoder_layers:
        raise UserError(
            f"train.init must be an encoder, a model without a decoder, for the task {recipe.task}, but is a model for the task "
            f"{bundle.task}"
        )


def start_head(recipe: Recipe, head: HeadConfig) -> dict[str, Any]:
    """The settings of a new head on this model: those that it has for vectors of texts, else the task's own."""
    kind = recipe.settings.defaults["model"]["head"]["kind"]
    pooling = {"pooling": head.pooling if head.kind in ("classes", "vector") else "mean"}
    if kind == "vector":
        return {"kind": kind, **pooling, "normalize": head.normalize or head.kind != "vector"}
    return {"kind": kind, "dropout": head.dropout or NEW_HEAD_DROPOUT, **(pooling if kind == "classes" else {})}


def check_init(recipe: Recipe) -> None:
    """Refuse a recipe that does not fit its init model, naming the field."""
    if not recipe.train.init:
        return
    bundle = load_init_bundle(recipe)
    if recipe.task != bundle.task and not recipe.settings.has_own_head:
        raise UserError(
            f"train.init must be a model for the task {recipe.task}, but {shown_name(bundle.folder)} is one for the task "
            f"{bundle.task}; name another, or train it on data for {bundle.task}"
        )
    _check_shape(recipe, bundle)
    if recipe.train.rdrop and not recipe.model.config(1000).dropout:
        raise UserError("train.rdrop needs dropout, but the model in train.init has none; set model.dropout above 0")
    if recipe.train.anchor:
        _check_anchor(recipe, bundle)
    check_positions(recipe, "train.init")
    if bool(recipe.tokenizer.protect) != bundle.tokenizer.protects:
        how = "with" if bundle.tokenizer.protects else "without"
        raise UserError(
            f"tokenizer.protect: the model in train.init was trained {how} protected spans; remove tokenizer.protect"
        )
    if recipe.train.bpe_dropout:
        check_joint(bundle.tokenizer, "train.bpe_dropout")
    if recipe.tokenizer.extend:
        check_joint(bundle.tokenizer, "tokenizer.extend")
    if recipe.tokenizer.tag_targets is False and bundle.directions:
        raise UserError(
            "tokenizer.tag_targets: the model in train.init was trained with tags; remove tokenizer.tag_targets"
        )
    if recipe.has_tags:
        bundle.tokenizer.with_targets(target for _, target in recipe.data.directions)  # an imported one has no tags


def _check_anchor(recipe: Recipe, bundle: Bundle) -> None:
    """Refuse a model that has no vectors to hold, or other ones than the run would have."""
    if bundle.task != recipe.task:
        raise UserError(
            f"train.init must be a model for the task {recipe.task} with train.anchor, but {shown_name(bundle.folder)} is one for "
            f"the task {bundle.task}; train it on pairs of the language that it knows first"
        )
    wanted, there = recipe.model.config(1000).head_settings.pooling, bundle.config.head_settings.pooling
    if wanted != there:
        raise UserError(
            f"model.head.pooling must be {there!r} with train.anchor, as in the model in train.init, but is {wanted!r}"
        )


def _check_shape(recipe: Recipe, bundle: Bundle) -> None:
    """Refuse settings of the model other than those of the init model: the first that differs by value, others by name."""
    wanted, there = (dataclasses.asdict(config) for config in (recipe.model.config(1000), bundle.config))
    free = {*_FREE, *(_OF_HEAD if recipe.settings.has_own_head else ())}
    differ = [name for name in wanted if name not in free and wanted[name] != there[name]]
    if not differ:
        return
    first, *others = differ
    family = f" ({FAMILIES[key].name})" if (key := bundle.facts.get("family")) in FAMILIES else ""
    more = f" (also different: {', '.join(others[:4])}{', ...' if others[4:] else ''})" if others else ""
    raise UserError(
        f"model.{first} must be {there[first]!r}, as in the model in train.init{family}, but is {wanted[first]!r}{more}; "
        f"set model.preset = 'init', and nothing else in [model] but dropouts and the head, to take its shape"
    )


def tokenizer_from_init(recipe: Recipe, lines: Callable[[], Iterator[str]], say: Callable[[str], None]) -> Tokenizer:
    """The init model's tokenizer, with up to `tokenizer.extend` pieces added for the text in `lines`."""
    old = load_init_bundle(recipe).tokenizer
    wanted, seed = recipe.tokenizer, recipe.train.seed
    for note in init_notes(recipe):
        say(note)
    if wanted.extend:
        tokenizer = extend_tokenizer(old, lines(), wanted.extend, wanted.character_coverage, seed)
        say(
            f"vocabulary of {tokenizer.vocab_size:,} pieces: {old.vocab_size:,} of {init_shown(recipe.train.init)}, "
            f"{tokenizer.vocab_size - old.vocab_size:,} new"
        )
        remedy = "a larger tokenizer.extend or tokenizer.character_coverage"
    else:
        tokenizer, remedy = old, "tokenizer.extend"
        say(f"vocabulary of {old.vocab_size:,} pieces, from {init_shown(recipe.train.init)}")
    if tokenizer.kind == "joint" and (unknown := unknown_characters(tokenizer, lines(), seed)):
        shown = " ".join(character for character, _ in unknown.most_common(10))
        say(
            f"{counted(len(unknown), 'character')} of the new text not in the vocabulary, spelled in bytes: {shown}"
            f"{' …' if len(unknown) > 10 else ''} ({remedy} adds pieces for them)"
        )
    return tokenizer


def init_notes(recipe: Recipe) -> list[str]:
    """A note where the init model translates other languages: that may be intended, and may be a mistake."""
    bundle, data = load_init_bundle(recipe), recipe.data
    if bundle.task != DEFAULT_TASK or set(data.directions) <= set(bundle.pairs):
        return []
    fits = f"{data.source}-{data.target}"
    hint = f"; the built-in model {fits} matches" if fits in builtin_models() and len(data.directions) == 1 else ""
    return [f"train.init translates {bundle.languages}, this run {TASKS[recipe.task].describe(recipe)}{hint}"]


@torch.no_grad()
def load_init_weights(recipe: Recipe, model: Transformer, tokenizer: Tokenizer) -> None:
    """Copy the init model's weights into `model`; rows for added pieces are made from the rows of their parts."""
    bundle = load_init_bundle(recipe)
    weights = load_weights(bundle)
    added = range(bundle.config.vocab_size, tokenizer.vocab_size)
    if added:
        spelled = [bundle.tokenizer.spell(piece) for piece in tokenizer.pieces(added)]
        weights = {name: _with_new_rows(t, spelled) if name in _BY_PIECE else t for name, t in weights.items()}
    if recipe.settings.has_own_head:
        weights = _with_own_head(model, weights, bundle)
    model.load_state_dict(weights)


def keeps_head(own: HeadConfig, there: HeadConfig) -> bool:
    """Whether a run goes on with the head of its init model: it has the same labels, and pools in the same way."""
    return all(getattr(own, name) == getattr(there, name) for name in ("kind", "labels", "answer", "pooling"))


def _with_own_head(model: Transformer, weights: dict[str, Tensor], bundle: Bundle) -> dict[str, Tensor]:
    """The init model's weights with the model's own head, which is new unless `keeps_head`. BERT's pooler is kept."""
    kept = keeps_head(model.config.head_settings, bundle.config.head_settings)
    found = {}
    for name, tensor in model.state_dict().items():
        is_new = name.startswith("head.") and not (name.startswith("head.pooler.") and name in weights)
        found[name] = tensor if is_new and not kept else weights[name]
    return found


def _with_new_rows(tensor: Tensor, spelled: list[list[int]]) -> Tensor:
    """A row for each new piece: the mean of the rows of the old pieces that spelled it so far."""
    return torch.cat([tensor, torch.stack([tensor[ids].mean(dim=0) for ids in spelled])])


def init_shown(path: str) -> str:
    """The init model for messages: a built-in one by its name."""
    return next((name for name, folder in builtin_models().items() if str(folder) == path), path)


def init_name(path: str) -> str:
    """The init model's name for a bundle: without the folders of this machine, since bundles go to other people."""
    return Path(path).name

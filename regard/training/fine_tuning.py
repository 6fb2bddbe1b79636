"""A run that starts from a finished model: its shape, its vocabulary with what the new text needs besides, its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from regard.builtin import builtin_models
from regard.bundle import Bundle, find_bundle, load_bundle, load_weights
from regard.data.extend import extend, unknown_characters
from regard.data.tokenizer import Tokenizer, check_joint
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import INIT, ModelRecipe, Recipe, check_positions

# What may differ from the model that a run starts from; of the rest, everything is in its weights.
_FREE = {"vocab_size", "dropout"}
FINE_TUNING_LR = 2e-4  # the default peak: the paper's would undo what the model has learnt
_BY_PIECE = {"embedding.weight", "src_embedding.weight", "tgt_embedding.weight", "output.weight", "output_bias"}


def load_init_bundle(recipe: Recipe) -> Bundle:
    try:
        return load_bundle(find_bundle(recipe.train.init))
    except UserError as error:
        raise UserError(f"train.init: {error}") from None


def resolve_recipe(recipe: Recipe, begun: Recipe | None = None) -> Recipe:
    """The recipe with what it leaves to the model that it starts from: the shape, where `model.preset = "init"`, whether spans are
    protected and whether there is a guard; and with a rate that leaves that model whole, where none is said. A run that has begun
    knows all this from its own recipe and needs that model no more."""
    if not recipe.train.init:
        return recipe.with_defaults(protect=False, guard=False)
    if begun is None:
        bundle = load_init_bundle(recipe)
        shape = dataclasses.asdict(bundle.config)
        del shape["vocab_size"]
        own, protects = ModelRecipe("base", shape), bool(bundle.tokenizer.protects)
        guards = bool(bundle.decode.guard)
    else:
        own, protects, guards = begun.model, bool(begun.tokenizer.protect), bool(begun.decode.guard)
    if recipe.model.preset == INIT:
        recipe = dataclasses.replace(recipe, model=ModelRecipe(own.preset, {**own.fields, **recipe.model.fields}))
    if not recipe.train.lr:
        recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, lr=FINE_TUNING_LR))
    return recipe.with_defaults(protects, guards)


def check_init(recipe: Recipe) -> None:
    """Refuse by name what the model that the run starts from does not fit, or cannot do."""
    if not recipe.train.init:
        return
    bundle = load_init_bundle(recipe)
    wanted, there = (dataclasses.asdict(config) for config in (recipe.model.config(1000), bundle.config))
    for name in wanted:
        if name not in _FREE and wanted[name] != there[name]:
            raise UserError(
                f"model.{name} is {wanted[name]!r}, but the model in train.init has {there[name]!r}; "
                f"with model.preset = 'init' and nothing but dropout beside it the shape is taken from there"
            )
    if recipe.train.rdrop and not recipe.model.config(1000).dropout:
        raise UserError("train.rdrop needs dropout, but the model in train.init has none; set model.dropout above 0")
    check_positions(recipe, "train.init")
    if bool(recipe.tokenizer.protect) != bundle.tokenizer.protects:
        how = "with" if bundle.tokenizer.protects else "without"
        raise UserError(f"tokenizer.protect: the model in train.init was trained {how} protected spans; leave it out")
    if recipe.train.bpe_dropout:
        check_joint(bundle.tokenizer, "train.bpe_dropout")
    if recipe.tokenizer.extend:
        check_joint(bundle.tokenizer, "tokenizer.extend")


def tokenizer_from_init(recipe: Recipe, lines: Callable[[], Iterator[str]], say: Callable[[str], None]) -> Tokenizer:
    """The vocabulary of the model that the run starts from, with new pieces where they are asked for."""
    old = load_init_bundle(recipe).tokenizer
    wish, seed = recipe.tokenizer, recipe.train.seed
    for note in init_notes(recipe):
        say(note)
    if wish.extend:
        tokenizer = extend(old, lines(), wish.extend, wish.character_coverage, seed)
        say(
            f"vocabulary of {tokenizer.vocab_size:,} pieces, {tokenizer.vocab_size - old.vocab_size:,} of them added to that of "
            f"{recipe.train.init}"
        )
        remedy = "a larger tokenizer.extend or tokenizer.character_coverage"
    else:
        tokenizer, remedy = old, "tokenizer.extend"
        say(f"vocabulary of {old.vocab_size:,} pieces, that of {recipe.train.init}")
    if tokenizer.kind == "joint" and (unknown := unknown_characters(tokenizer, lines(), seed)):
        shown = " ".join(character for character, _ in unknown.most_common(10))
        say(
            f"the vocabulary lacks {len(unknown)} characters of the new text, which are spelled in bytes: {shown}"
            f"{' …' if len(unknown) > 10 else ''} ({remedy} adds pieces for them)"
        )
    return tokenizer


def init_notes(recipe: Recipe) -> list[str]:
    """What may be meant, and may be a mistake: a model of other languages, whose vocabulary and layers can still be of use."""
    bundle, data = load_init_bundle(recipe), recipe.data
    if (bundle.source, bundle.target) == (data.source, data.target):
        return []
    fits = f"{data.source}-{data.target}"
    hint = f"; the built-in model {fits} would fit" if fits in builtin_models() else ""
    return [f"train.init translates {bundle.source} → {bundle.target}, this run {data.source} → {data.target}{hint}"]


@torch.no_grad()
def load_init_weights(recipe: Recipe, model: Transformer, tokenizer: Tokenizer) -> None:
    """Put the weights of the model that the run starts from in place."""
    bundle = load_init_bundle(recipe)
    weights = load_weights(bundle)
    added = range(bundle.config.vocab_size, tokenizer.vocab_size)
    if added:
        spelled = [bundle.tokenizer.spell(piece) for piece in tokenizer.pieces(added)]
        weights = {name: _with_rows(t, spelled) if name in _BY_PIECE else t for name, t in weights.items()}
    model.load_state_dict(weights)


def _with_rows(tensor: Tensor, spelled: list[list[int]]) -> Tensor:
    """A row for each new piece: the mean of the rows of those pieces that it was written with up to now."""
    return torch.cat([tensor, torch.stack([tensor[ids].mean(dim=0) for ids in spelled])])


def init_name(path: str) -> str:
    """What goes into a bundle, to other people: not where the model lay."""
    return Path(path).name

"""Imports translation models in Hugging Face's Marian format, such as those of OPUS-MT, as bundles.

    config.json  generation_config.json  source.spm  target.spm  vocab.json  tokenizer_config.json  model.safetensors

The package transformers is not needed. A setting that a bundle cannot express is refused by name; nothing is silently ignored.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bounds import MAX_LENGTH, check_flag, check_label, check_number, check_whole
from regard.bundle import Bundle, save_bundle
from regard.config import ModelConfig
from regard.data.sentencepieces import read_model
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Special, Vocabulary, read_pieces
from regard.errors import UserError, naming
from regard.escaping import shorten
from regard.families import marian
from regard.families.table import from_theirs
from regard.files import check_new_folder, read_json, sha256
from regard.importing.marian_file import read_tensors, take_embeddings, take_positions
from regard.models.transformer import Transformer
from regard.recipe import DecodeRecipe, check_decode
from regard.version import __version__
from regard.weights import check_finite

_LARGEST = 1_000_000  # of every number of pieces, layers or dimensions
# Search settings that Regard does not have, and the value that turns each off.
OFF: dict[str, Any] = {
    "do_sample": False,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "forced_bos_token_id": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": None,
}
_IMPOSSIBLE = -1e4  # bias of a logit that must not count: e^-10000 is 0, and the number still fits into 16 bits


def import_marian(
    folder: Path, out: Path, *, source: str | None = None, target: str | None = None, allow_pickle: bool = False
) -> Bundle:
    """Convert a folder in Marian's format to a bundle; `source` and `target` are its languages, by default the folder's own.

    `allow_pickle` permits weights in pytorch_model.bin where there is no safetensors file.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: must be a folder with a Marian model (config.json, source.spm, ...), but is not a folder"
        )
    if (folder / "manifest.json").is_file() and (folder / "tokenizer").is_dir():
        raise UserError(f"{folder}: is a bundle of Regard already; use it as it is: -m {folder}")
    check_new_folder(out)
    settings = marian.DEFAULTS | {
        key: value for key, value in read_json(folder / "config.json").items() if value is not None
    }
    search = _read_search(folder, settings)
    where = folder / "config.json"
    _refuse(settings, marian.FIXED, where, "a bundle cannot hold such a model")
    with naming(where):
        _check_kinds(settings)
    tokenizer_settings = _read_optional(folder / "tokenizer_config.json")
    forbidden = _forbidden(search, folder)
    tokenizer = _tokenizer(folder, settings, search, tokenizer_settings, forbidden)
    tensors, weights_file = read_tensors(folder, allow_pickle)
    # Some models normalise probabilities over the pieces that are not forbidden.
    renormalise = bool(search.get("renormalize_logits"))
    try:
        config, weights = _convert(tensors, settings, tokenizer, renormalise, where, weights_file)
    except (IndexError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{weights_file}: the tensors must fit {where.name}, but do not ({reason})") from None
    check_finite(weights_file, ((name, bool(weight.isfinite().all())) for name, weight in weights.items()))
    longest = min(settings["max_position_embeddings"], _length(tokenizer_settings.get("model_max_length")), MAX_LENGTH)
    guessed = _languages(folder, tokenizer_settings)
    with naming(folder):
        check_label("source", source or guessed[0])
        check_label("target", target or guessed[1])
    return save_bundle(
        out,
        weights,
        config,
        tokenizer,
        "# Imported: there is no recipe.\n",
        source=source or guessed[0],
        target=target or guessed[1],
        decode=_decode(search, folder),
        max_length=max(1, longest - 1),  # one position is for the end token
        facts={
            "regard": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "parameters": sum(weight.numel() for weight in weights.values()),
            "imported": f"{model_name(folder)}, a Marian model of Hugging Face's transformers",
            "imported_weights": f"{weights_file.name}, SHA-256 {sha256(weights_file)}",
        },
    )


# --- settings ---


def _check_kinds(settings: Mapping[str, Any]) -> None:
    """Each value must be of the kind of its default; ids are checked with the search."""
    for name, default in marian.DEFAULTS.items():
        value = settings[name]
        if isinstance(default, bool):
            check_flag(name, value)
        elif isinstance(default, float):
            check_number(name, value)
        elif isinstance(default, str):
            if not isinstance(value, str):
                raise UserError(f"{name} must be text, but is {shorten(value)}")
        elif value is not None and not name.endswith("_token_id"):
            check_whole(name, value, 1, _LARGEST)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read_search(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The model's search settings: generation_config.json where there is one, else those in config.json."""
    path = folder / "generation_config.json"
    search = read_json(path) if path.exists() else dict(settings)
    ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    search = {**{name: settings[name] for name in ids}, **{k: v for k, v in search.items() if v is not None}}
    where = path if path.exists() else folder / "config.json"
    _refuse(
        search, OFF, where, "Regard's search does not support it; remove it from the file if the model can do without"
    )
    for name in ids:
        if isinstance(search[name], bool) or not isinstance(search[name], int):
            raise UserError(f"{where}: {name} must be an integer, but is {shorten(search[name])}")
    forced = search.get("forced_eos_token_id")
    if forced not in (None, search["eos_token_id"]):
        raise UserError(
            f"{where}: forced_eos_token_id must be eos_token_id ({search['eos_token_id']}), but is {forced!r}"
        )
    return search


def _refuse(settings: Mapping[str, Any], allowed: Mapping[str, Any], where: Path, remedy: str) -> None:
    for name, value in allowed.items():
        if name in settings and settings[name] not in (None, value):
            raise UserError(f"{where}: {name} must be {value!r}, but is {settings[name]!r}; {remedy}")


def _forbidden(search: Mapping[str, Any], folder: Path) -> list[int]:
    """The ids that the search must never choose."""
    ids = _list(search, "suppress_tokens", folder)
    for words in _list(search, "bad_words_ids", folder):
        if not isinstance(words, list) or len(words) != 1:
            raise UserError(
                f"{folder}: bad_words_ids must hold single pieces, but has {words!r}; "
                "remove it from the file if the model can do without"
            )
        ids += words
    for i in ids:
        with naming(folder):
            check_whole("an id of bad_words_ids or suppress_tokens", i, 0)
    return [i for i in ids if i != search["eos_token_id"]]  # transformers never forbids the end either


def _list(settings: Mapping[str, Any], name: str, folder: Path) -> list[Any]:
    """The list of this name, which may be missing."""
    value = settings.get(name)
    if value is not None and not isinstance(value, list):
        raise UserError(f"{folder}: {name} must be a list, but is {shorten(value)}")
    return list(value or [])


def _decode(search: Mapping[str, Any], folder: Path) -> DecodeRecipe:
    beam, penalty = search.get("num_beams", 1), search.get("length_penalty", 1.0)
    if not isinstance(penalty, (int, float)) or penalty < 0:
        raise UserError(f"{folder}: length_penalty must be 0 or more, but is {shorten(penalty)}")
    with naming(folder):
        checked = check_decode(DecodeRecipe(beam=beam, alpha=penalty))
    return replace(checked, alpha=float(penalty))


def _length(value: Any) -> float:
    return value if isinstance(value, int) and value > 1 else math.inf  # tokenizers without a limit say 1e30


def model_name(folder: Path) -> str:
    """The model's name: its folder's, or the repository's in a cache of the Hugging Face Hub."""
    for part in reversed(folder.resolve().parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return folder.resolve().name


def _languages(folder: Path, tokenizer_settings: Mapping[str, Any]) -> tuple[str, str]:
    """The languages in the tokenizer's settings, else those in the model's name, else "source" and "target"."""
    named = re.search(r"opus-mt-(?:tc-\w+-)?(\w+)-(\w+)$", model_name(folder))
    from_name = (named[1], named[2]) if named else ("source", "target")
    return (
        tokenizer_settings.get("source_lang") or from_name[0],
        tokenizer_settings.get("target_lang") or from_name[1],
    )


# --- tokenizer ---


def _tokenizer(
    folder: Path,
    settings: Mapping[str, Any],
    search: Mapping[str, Any],
    tokenizer_settings: Mapping[str, Any],
    forbidden: list[int],
) -> Tokenizer:
    names = {name: _token(tokenizer_settings.get(f"{name}_token"), usual) for name, usual in _TOKENS.items()}
    _refuse_added(folder, tokenizer_settings, set(names.values()))
    source = read_pieces(folder / "vocab.json")
    separate = bool(tokenizer_settings.get("separate_vocabs"))
    target = read_pieces(folder / "target_vocab.json") if separate else source
    sizes = _vocab_sizes(settings)
    target_file = folder / ("target_vocab.json" if separate else "vocab.json")
    for pieces, file, size in ((source, folder / "vocab.json", sizes[0]), (target, target_file, sizes[1])):
        if max(pieces.values(), default=0) >= size:
            raise UserError(f"{file}: ids must be below {size}, but one is {max(pieces.values())}")
    for name, i in (
        ("bad_words_ids", max(forbidden, default=0)),
        ("decoder_start_token_id", search["decoder_start_token_id"]),
        ("pad_token_id", search["pad_token_id"]),
    ):
        if not 0 <= i < max(sizes):
            raise UserError(f"{folder}: {name} must be below the vocabulary's size, {max(sizes)}, but is {i}")
    ids = {name: source.get(token) for name, token in names.items()}
    for name in ("eos", "unk"):
        if ids[name] is None:
            raise UserError(f"{folder / 'vocab.json'}: must hold {names[name]!r}, but does not")
    if not ids["eos"] == target.get(names["eos"]) == search["eos_token_id"]:
        raise UserError(
            f"{folder}: the end of a sentence must have the same id everywhere, but is {ids['eos']} in vocab.json "
            f"and {search['eos_token_id']} as eos_token_id"
        )
    special = Special(
        unk=ids["unk"] or 0,
        start=search["decoder_start_token_id"],
        end=search["eos_token_id"],
        pad=search["pad_token_id"],
        # The smaller of two vocabularies is padded with ids that are not pieces.
        forbidden=tuple(sorted({*forbidden, *range(sizes[1], max(sizes))})),
    )
    models = [read_model(folder / "source.spm"), read_model(folder / "target.spm")]
    return Tokenizer(models, Vocabulary(source, target, special, max(sizes)))


def _vocab_sizes(settings: Mapping[str, Any]) -> tuple[int, int]:
    """The vocabulary sizes of source and target."""
    size = settings["vocab_size"]
    if settings["share_encoder_decoder_embeddings"]:
        return size, size
    return size, settings["decoder_vocab_size"] or size


_TOKENS = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}


def _token(value: Any, usual: str) -> str:
    """A token's text, which may be the content of an object with more about it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else usual


def _refuse_added(folder: Path, tokenizer_settings: Mapping[str, Any], known: set[str]) -> None:
    """Refuse tokens added to the vocabulary later: they split text before sentencepiece sees it, which Regard does not do."""
    added = list(_read_optional(folder / "added_tokens.json"))
    decoder = tokenizer_settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise UserError(f"{folder}: added_tokens_decoder must be a JSON object, but is {shorten(decoder)}")
    added += [_token(entry, "") for entry in decoder.values()]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        entries = tokenizer_settings.get(name)
        added += [_token(entry, "") for entry in (entries if isinstance(entries, (dict, list)) else [])]
    if other := [token for token in added if token not in known]:
        raise UserError(
            f"{folder}: the tokenizer must have no added tokens, but has {other[0]!r}; a bundle cannot hold them"
        )
    if tokenizer_settings.get("sp_model_kwargs"):
        value = tokenizer_settings["sp_model_kwargs"]
        raise UserError(f"{folder / 'tokenizer_config.json'}: sp_model_kwargs must be empty, but is {value!r}")


# --- weights ---


def _convert(
    tensors: dict[str, Tensor],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer,
    renormalise: bool,
    where: Path,
    file: Path,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model's configuration and weights. `where` is config.json, `file` the file of the tensors."""
    vocab_size = tokenizer.vocab_size
    bias = _output_bias(tensors, settings, tokenizer, renormalise)
    embeddings = take_embeddings(tensors, settings, vocab_size, file)
    with naming(where):
        config = marian.read_settings(settings, vocab_size, tied=len(embeddings) == 1, output_bias=bool(bias.any()))
    take_positions(tensors, config.d_model, file)
    tensors |= {**embeddings, marian.OUTPUT_BIAS: bias}
    needed = {name for entry in marian.entries(config) for name in entry.theirs} | {marian.OUTPUT_BIAS}
    if missing := needed - set(tensors):
        raise UserError(f"{file}: tensor {min(missing)} is missing")
    if extra := set(tensors) - needed:
        raise UserError(f"{file}: tensor {min(extra)} has no place in a bundle; this is not a plain Marian model")
    weights = from_theirs(marian.entries(config), tensors)
    with torch.device("meta"):
        expected = Transformer(config).state_dict()
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            wanted, came = tuple(tensor.shape), tuple(weights[name].shape)
            raise UserError(f"{file}: the tensor for {name} must have shape {wanted} by config.json, but has {came}")
    return config, weights


def _output_bias(
    tensors: dict[str, Tensor], settings: Mapping[str, Any], tokenizer: Tokenizer, renormalise: bool
) -> Tensor:
    """The bias of the logits, which also rules out ids that cannot be: the padding of the smaller of two vocabularies, and with
    `renormalise` the forbidden ids, so that probabilities sum to 1 without them."""
    bias = tensors.pop(marian.OUTPUT_BIAS, torch.zeros(0)).float().flatten()
    bias = torch.cat((bias, torch.zeros(max(0, tokenizer.vocab_size - len(bias)))))
    assert tokenizer.vocabulary is not None
    padding = range(_vocab_sizes(settings)[1], tokenizer.vocab_size)
    bias[[*(tokenizer.vocabulary.special.forbidden if renormalise else ()), *padding]] = _IMPOSSIBLE
    return bias

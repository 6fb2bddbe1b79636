"""Exports bundles for Hugging Face's transformers in the family that can express their settings: the one that they were imported
from, or the first that fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle, load_weights
from regard.config import ModelConfig
from regard.errors import RegardError, UserError
from regard.export.sentence_transformers import write_sentence_model
from regard.export.tokenizer_json import own_json, refuse_pair, sample_texts
from regard.export.verify import Samples, scores_of
from regard.families import FAMILIES
from regard.families.family import Family
from regard.families.table import from_theirs, to_theirs
from regard.generate.options import forbidden_ids
from regard.importing.original import their_outputs


def find_family(bundle: Bundle) -> tuple[Family, dict[str, Any]]:
    """The family, and config.json."""
    own = FAMILIES.get(str(bundle.facts.get("family")))
    for family in ([own] if own else []) + list(FAMILIES.values()):
        if (settings := family.settings(bundle.config)) is not None:
            return family, settings
    near = {family.name: found for family in FAMILIES.values() if (found := family.difference(bundle.config))}
    hint = ""
    if near:
        name, found = min(near.items(), key=lambda item: len(item[1]))
        hint = f"; {name} is the nearest, but not with model.{', model.'.join(found[:4])}{', ...' if found[4:] else ''}"
    raise UserError(
        f"{bundle.folder}: no family of transformers that Regard knows ({', '.join(FAMILIES)}) has this model's settings{hint}"
    )


def has_family(config: ModelConfig) -> bool:
    """Whether some family can express the settings of a model."""
    return any(family.settings(config) is not None for family in FAMILIES.values())


def write_family(bundle: Bundle, folder: Path, samples: Samples, transformers: Any) -> list[list[float]]:
    """Write the bundle into `folder`, load it with transformers, and score the samples."""
    from safetensors.torch import save_file

    family, settings = find_family(bundle)
    entries = list(family.entries(bundle.config))
    weights = load_weights(bundle)
    tensors = to_theirs(entries, weights)
    _check_copies(bundle, from_theirs(entries, tensors), weights)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {**settings, **_special_ids(bundle), "dtype": "float32"}
    for name in ("pooling", "normalize"):  # in files of their own
        config.pop(name, None)
    _write_json(folder / "config.json", config)
    if bundle.task in ("translate", "generate"):
        _write_json(folder / "generation_config.json", _generation(bundle))
    if bundle.task == "embed":
        write_sentence_model(bundle, folder)
    write_tokenizer(bundle, folder)
    (folder / "README.md").write_text(make_readme(bundle, family, settings), encoding="utf-8")
    if (folder / "tokenizer.json").exists():
        check_tokenizer(bundle, transformers.AutoTokenizer.from_pretrained(folder), samples)
    [architecture] = settings["architectures"]
    model = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    if family.model_type == "t5" and not bundle.config.tie_embeddings:
        model.lm_head.weight = torch.nn.Parameter(tensors["lm_head.weight"])
    return [_score(model, bundle, src, tgt) for src, tgt in zip(samples.src, samples.tgt, strict=True)]


def _check_copies(bundle: Bundle, back: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Matrices that are one tensor in the family must be equal in the bundle."""
    for name, weight in weights.items():
        if not torch.equal(back[name], weight):
            raise UserError(
                f"{bundle.weights}: tensor {name} must be a copy of the other embedding, since the family has one matrix for both, "
                "but is not; it cannot be written for transformers"
            )


@torch.no_grad()
def _score(model: Any, bundle: Bundle, src: list[int], tgt: list[int]) -> list[float]:
    tokenizer = bundle.tokenizer
    ids = torch.tensor([*src, tokenizer.eos_id] if bundle.task == "translate" else src)
    answer = their_outputs(model, bundle.config, ids, torch.zeros_like(ids), torch.tensor([tokenizer.bos_id, *tgt]))
    return scores_of(bundle, answer, src, tgt)


# --- files ---


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _special_ids(bundle: Bundle) -> dict[str, Any]:
    """The ids that config.json names; a family's own, such as RoBERTa's padding, are there already."""
    tokenizer = bundle.tokenizer
    ids = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    ids["decoder_start_token_id" if bundle.task == "translate" else "bos_token_id"] = tokenizer.bos_id
    _, settings = find_family(bundle)
    return {name: i if i >= 0 else None for name, i in ids.items() if name not in settings}


def _generation(bundle: Bundle) -> dict[str, Any]:
    """The defaults of transformers' `generate`, as close to the bundle's own search as possible."""
    tokenizer = bundle.tokenizer
    stops = [i for i in tokenizer.stop_ids if i >= 0]
    settings: dict[str, Any] = {"eos_token_id": stops[0] if len(stops) == 1 else stops or None}
    settings["pad_token_id"] = tokenizer.pad_id if tokenizer.pad_id >= 0 else None
    if bundle.task == "translate":
        settings["decoder_start_token_id"] = tokenizer.bos_id
        settings |= {"num_beams": bundle.decode.beam, "length_penalty": bundle.decode.alpha, "early_stopping": False}
        # Without it, transformers ends every text after 20 tokens. The first token is the one that starts the decoder.
        longest = 1 + bundle.max_length + bundle.decode.max_extra
        settings["max_length"] = min(longest, bundle.config.longest or longest)
    elif tokenizer.bos_id >= 0:
        settings["bos_token_id"] = tokenizer.bos_id
    if forbidden := forbidden_ids(tokenizer):
        settings["suppress_tokens"] = sorted(set(forbidden))
    return {name: value for name, value in settings.items() if value is not None}


def write_tokenizer(bundle: Bundle, folder: Path) -> None:
    """tokenizer.json as it came, or made from Regard's own vocabulary; a model without a tokenizer has none."""
    tokenizer = bundle.tokenizer
    if tokenizer.kind == "ids":
        return
    refuse_pair(bundle)
    content = (
        tokenizer.models[0]
        if tokenizer.kind == "huggingface"
        else json.dumps(own_json(tokenizer, bundle.task)).encode()
    )
    (folder / "tokenizer.json").write_bytes(content)
    pieces = tokenizer.raw_pieces()
    opening, closing = tokenizer.opening[:1], tokenizer.closing[-1:]
    ids = {"unk": tokenizer.unk_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
    if (
        bundle.task == "fill" or tokenizer.kind == "huggingface"
    ):  # elsewhere Regard's own vocabulary has another use for it
        ids["mask"] = tokenizer.mask_id
    if bundle.task in ("translate", "generate"):
        ids["bos"] = tokenizer.bos_id if bundle.task == "generate" else -1
    else:
        ids |= {"cls": opening[0] if opening else -1, "sep": closing[0] if closing else -1}
        ids["eos"] = -1
    named = {f"{name}_token": pieces[i] for name, i in ids.items() if i in pieces}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    settings["model_max_length"] = bundle.max_length
    if bundle.config.front_settings.token_types > 1:  # transformers leaves out the types of a pair's texts unless asked
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if tokenizer.chat is not None:
        (folder / "chat_template.jinja").write_text(tokenizer.chat.source, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False})


def check_tokenizer(bundle: Bundle, theirs: Any, samples: Samples) -> None:
    """Check that both tokenizers agree on the samples' text."""
    ours = bundle.tokenizer
    opening = list(ours.controls.source_opening if ours.controls is not None else ())
    for text in sample_texts(bundle, samples):
        ids = ours.encode(text, "target")
        is_prompt = bundle.task == "generate" and ours.controls is None
        expected = [*ours.prompt_opening, *ids] if is_prompt else [*opening, *ours.frame(ids)[0]]
        if list(theirs(text, split_special_tokens=True)["input_ids"]) != expected:
            raise RegardError(
                f"the exported tokenizer encodes {text!r} to other ids than the bundle; nothing was written. Please report it with "
                "the bundle's tokenizer"
            )


_AUTO = {
    "translate": "AutoModelForSeq2SeqLM",
    "generate": "AutoModelForCausalLM",
    "fill": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "embed": "AutoModel",
}


def make_readme(bundle: Bundle, family: Family, settings: Mapping[str, Any]) -> str:
    """How to load the folder."""
    auto = _AUTO[bundle.task]
    tokenizer = (
        "The model came without a tokenizer: its inputs are token ids."
        if bundle.tokenizer.kind == "ids"
        else "The tokenizer gives the same ids as Regard's, except that here the name of a control\n"
        "token in a text becomes that token; `split_special_tokens=True` turns most of that off."
    )
    return f"""---
library_name: transformers
---

# {family.name} ({settings["architectures"][0]})

Exported by Regard for Hugging Face's transformers.

    from transformers import {auto}, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = {auto}.from_pretrained("FOLDER")

The weights give the same numbers as in Regard. {tokenizer}
"""

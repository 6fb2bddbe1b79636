"""Exports bundles for Hugging Face's transformers: a folder that `MarianMTModel` and `MarianTokenizer` load.

Marian supports only the paper's model: post-norm, LayerNorm, sinusoids. Any other setting is refused by name. The README.md in
the folder lists what transformers does differently with the same weights: the length penalty, the limits, the tokenization of
odd text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle, load_weights
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.export.to_family import has_family, write_family
from regard.export.verify import Samples
from regard.families import marian
from regard.families.table import to_theirs
from regard.generate.options import forbidden_ids
from regard.importing.original import quiet_transformers

_MIN_POSITIONS = 512  # the minimum length of the table of sinusoids, which transformers recomputes on loading


def write(bundle: Bundle, folder: Path, weights: str, samples: Samples) -> list[list[float]]:
    """Write the bundle into `folder` in Marian's format, load it with transformers, and score the samples."""
    if weights != "fp32":
        raise UserError(f"--weights must be fp32 for --to transformers, but is {weights!r}")
    is_other = marian.unsupported(bundle.config) is not None and has_family(bundle.config)
    if bundle.task != "translate" or bundle.tokenizer.controls is not None or is_other:
        with _quiet_transformers() as transformers:
            return write_family(bundle, folder, samples, transformers)
    refuse_unknown(bundle.config)
    from safetensors.torch import save_file

    with _quiet_transformers() as transformers:
        settings = marian_settings(bundle.config, bundle.tokenizer, max_positions(bundle))
        transformers.MarianConfig(architectures=["MarianMTModel"], dtype="float32", **settings).save_pretrained(folder)
        transformers.GenerationConfig(**generation_settings(bundle)).save_pretrained(folder)
        tensors = marian_tensors(load_weights(bundle), bundle.config)
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        write_tokenizer(bundle, folder)
        (folder / "README.md").write_text(make_readme(bundle), encoding="utf-8")
        check_tokenizer(bundle.tokenizer, transformers.MarianTokenizer.from_pretrained(folder), samples)
        model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = bundle.tokenizer
    return [
        score(model, [*src, tokenizer.eos_id], [tokenizer.bos_id, *tgt], [*tgt, tokenizer.eos_id])
        for src, tgt in zip(samples.src, samples.tgt, strict=True)
    ]


@contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """The package, without its progress bars and its advice to install sacremoses."""
    with ExitStack() as stack:
        try:
            transformers = stack.enter_context(quiet_transformers())
        except ModuleNotFoundError:
            raise UserError(
                "--to transformers needs the package transformers, which is not installed; pip install 'regard[export]'"
            ) from None
        yield transformers


def refuse_unknown(config: ModelConfig) -> None:
    """Refuse a model that transformers' Marian does not support, naming the setting."""
    named = marian.unsupported(config)
    if named:
        raise UserError(
            f"{named} is not known to transformers' Marian, which is exactly the paper's model; "
            "use --to ctranslate2 or --to onnx"
        )


def max_positions(bundle: Bundle) -> int:
    """The most tokens of either side in transformers: the training limit plus what a translation may add."""
    return max(_MIN_POSITIONS, bundle.max_length + bundle.decode.max_extra + 2)


def marian_settings(config: ModelConfig, tokenizer: Tokenizer, max_positions: int) -> dict[str, Any]:
    """The arguments of MarianConfig."""
    return {
        **marian.write_settings(config, max_positions),
        "decoder_start_token_id": tokenizer.bos_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "forced_eos_token_id": None,
    }


def marian_tensors(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Regard's weights under Marian's names; Marian always has a bias of the logits."""
    return {marian.OUTPUT_BIAS: torch.zeros(1, config.vocab_size), **to_theirs(marian.entries(config), weights)}


def generation_settings(bundle: Bundle) -> dict[str, Any]:
    """The defaults of transformers' `generate`, as close to the bundle's own search as possible."""
    tokenizer = bundle.tokenizer
    return {
        "num_beams": bundle.decode.beam,
        "length_penalty": bundle.decode.alpha,
        "early_stopping": False,
        "max_length": max_positions(bundle),
        "bad_words_ids": [[i] for i in sorted(set(forbidden_ids(tokenizer)))] or None,
        "decoder_start_token_id": tokenizer.bos_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }


def write_tokenizer(bundle: Bundle, folder: Path) -> None:
    """Write MarianTokenizer's files: a sentencepiece model for each side, and the bundle's ids for their pieces."""
    tokenizer = bundle.tokenizer
    if tokenizer.kind == "pair" and tokenizer.vocabulary is None:
        raise UserError(
            f"{bundle.folder / 'tokenizer'}: two sentencepiece models without vocab.json cannot become a MarianTokenizer; "
            "use --to ctranslate2"
        )
    (folder / "source.spm").write_bytes(tokenizer.models[0])
    (folder / "target.spm").write_bytes(tokenizer.models[-1])
    codes = dict(zip(tokenizer.tag_ids, map(language_code, tokenizer.targets), strict=False))
    pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
    files = {"vocab.json": {codes.get(i, piece): i for i, piece in pieces}}
    if tokenizer.vocabulary is not None:
        files = tokenizer.vocabulary.files()
    names = {i: piece for piece, i in files["vocab.json"].items()}
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": bundle.source,
        "target_lang": bundle.target,
        "unk_token": names[tokenizer.unk_id],
        "eos_token": names[tokenizer.eos_id],
        "pad_token": names[tokenizer.pad_id],
        "separate_vocabs": "target_vocab.json" in files,
        "model_max_length": bundle.max_length + 1,
        "split_special_tokens": True,  # otherwise "</s>" in a text would be the end
        "clean_up_tokenization_spaces": False,
    }
    for name, content in {**files, "tokenizer_config.json": settings}.items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def language_code(target: str) -> str:
    """What a text begins with to be translated into this language, as in Marian's models for several."""
    return f">>{target}<<"


def check_tokenizer(ours: Tokenizer, theirs: Any, samples: Samples) -> None:
    """Check that both tokenizers agree on the samples' text, except for U+2581, which MarianTokenizer takes for a space."""
    for text in [ours.decode(ids).replace("\u2581", "") for ids in samples.src + samples.tgt]:
        pairs = [
            (theirs(text)["input_ids"], ours.encode(text)),
            (theirs(text_target=text)["input_ids"], ours.encode(text, "target")),
            *(
                (theirs(language_code(one) + text)["input_ids"], [*ours.target_tag(one), *ours.encode(text)])
                for one in ours.targets
            ),
        ]
        for ids, expected in pairs:
            if ids != [*expected, ours.eos_id]:
                raise RegardError(
                    f"the installed MarianTokenizer encodes {text!r} to other ids than the bundle; nothing was written"
                )


@torch.no_grad()
def score(model: Any, src: list[int], tgt_in: list[int], labels: list[int]) -> list[float]:
    """The log-probabilities of the labels."""
    logits: Tensor = model(input_ids=torch.tensor([src]), decoder_input_ids=torch.tensor([tgt_in])).logits[0]
    picked = torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor(labels)[:, None])
    values: list[float] = picked[:, 0].tolist()
    return values


def make_readme(bundle: Bundle) -> str:
    """How to load the folder, and where transformers differs from Regard."""
    decode, positions = bundle.decode, max_positions(bundle)
    targets, code, codes = bundle.tokenizer.targets, "", ""
    if targets:
        code = language_code(targets[0])
        codes = (
            f"A text begins with the code of the language to translate into, without a space after it: "
            f"`{'`, `'.join(map(language_code, targets))}`.\nWithout a code the translation may be in any of them.\n\n"
        )
    return f"""---
library_name: transformers
pipeline_tag: translation
---

# {bundle.languages}

A translation model, exported by Regard for Hugging Face's transformers.

    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained("FOLDER")
    model = MarianMTModel.from_pretrained("FOLDER")
    batch = tokenizer(["{code}A sentence."], return_tensors="pt", padding=True)
    print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))

{codes}The weights give the same log-probabilities as in Regard, and greedy search (`num_beams=1`) the same translations. What
`generation_config.json` sets, and what differs:

- `num_beams` = {decode.beam}, as in the bundle. Without a length penalty on either side (`length_penalty=0.0`, and `--alpha 0`
  in Regard) both searches find the same translations.
- `length_penalty` = {decode.alpha}, the bundle's alpha, but another formula: transformers divides a log-probability by n^penalty,
  Regard by ((5 + n) / 6)^alpha. Translations can differ, mostly in length.
- `max_length` = {positions}: a fixed number of tokens. Regard allows a translation {decode.max_extra} tokens more than its source.
- `bad_words_ids`: the pieces that stand for no text, which Regard never writes either.
- A source may have up to {positions} tokens; transformers raises an error for more, while Regard cuts a line of more than
  {bundle.max_length} tokens at a clause and joins the translations.

The tokenizer gives the same ids as Regard's, except for odd text: spaces around a line count here, while Regard strips them; a
literal U+2581 (▁) is a space here; a text that begins with `>>` and has `<<` somewhere begins with a language code here.
`MarianTokenizer` suggests installing sacremoses; nothing here needs it.
"""

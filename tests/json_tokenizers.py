"""Small tokenizer.json files of every kind that imported models have, trained with the package tokenizers on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.importing.opus import tatoeba

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def lines() -> list[str]:
    return tatoeba("train.en", 400) + tatoeba("train.de", 400)


def gpt2() -> Tokenizer:
    """Bytes; a prompt is not framed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama3() -> Tokenizer:
    """Bytes, cut by a regular expression; whole words are looked up first; added tokens that are text come after control tokens."""
    tokenizer = gpt2()
    settings = json.loads(tokenizer.to_str())
    settings["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A $B",
        special_tokens=[("<|begin_of_text|>", begin)],
    )
    return tokenizer


def llama2() -> Tokenizer:
    """Sentencepiece's way: spaces are U+2581, unknown characters bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False, limit_alphabet=60)
    tokenizer.train_from_iterator(lines(), trainer)
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = settings["added_tokens"][:3]  # bytes are text
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def roberta() -> Tokenizer:
    tokenizer = gpt2()
    settings = json.loads(tokenizer.to_str())
    pieces = sorted(settings["model"]["vocab"], key=settings["model"]["vocab"].__getitem__)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    settings["model"]["vocab"] = {piece: i for i, piece in enumerate([*special, *pieces])}
    settings["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.add_special_tokens([*special, AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def t5() -> Tokenizer:
    """Unigram: its model would read a typed "</s>" as the end of a sentence."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False, max_piece_length=8
    )
    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def words() -> Tokenizer:
    """Whole words: a typed "<eos>" is a word of the vocabulary."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>", "<eos>"], show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    maker.__name__: maker for maker in (gpt2, llama3, llama2, bert, roberta, t5, words)
}
# As their tokenizer_config.json would have them.
NAMES: dict[str, dict[str, str]] = {
    "gpt2": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "llama2": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "bert": {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "roberta": {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
    },
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "words": {"eos_token": "<eos>", "unk_token": "<unk>"},
}


@cache
def content(kind: str) -> str:
    """The text of a tokenizer.json."""
    return str(KINDS[kind]().to_str())


def write(folder: Path, kind: str, **settings: Any) -> None:
    """tokenizer.json and tokenizer_config.json, as save_pretrained writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(content(kind), encoding="utf-8")
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES[kind], **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")

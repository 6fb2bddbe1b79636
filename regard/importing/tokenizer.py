"""Reads the tokenizer of a folder of transformers: tokenizer.json, or GPT-2's vocab.json with merges.txt, or BERT's vocab.txt, and
what the files beside it say about control tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from regard.data.chat_template import ChatTemplate
from regard.data.huggingface import Controls, import_tokenizers, refusing
from regard.data.sentencepieces import read_file
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import read_pieces
from regard.errors import UserError, naming
from regard.escaping import shorten
from regard.families.family import TokenizerStyle
from regard.files import read_json

Shape = Literal["encoder", "decoder", "both"]  # which stacks a model has

# The control tokens of each style where the files name no others.
_USUAL: dict[TokenizerStyle, dict[str, str]] = {
    "gpt2": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "roberta": {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    },
    "bert": {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
}
_NAMES = ("bos", "eos", "unk", "sep", "cls", "pad", "mask")
# Tokenizers that transformers reads and Regard does not.
_UNREAD = (
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.bpe",
    "vocab.txt",
    "vocab.json",
)


def read_tokenizer(
    folder: Path, settings: Mapping[str, Any], shape: Shape, style: TokenizerStyle | None, vocab_size: int
) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and notes for the person who imports it. `settings` are those of the model and of its search."""
    described = _describe(folder)
    content = _content(folder, described, style)
    if content is None:
        return _without(folder, settings, shape, vocab_size)
    names = {name: token for name in _NAMES if (token := _token(described.get(f"{name}_token"))) is not None}
    if style is not None and not (folder / "tokenizer.json").exists():
        names = {**_USUAL[style], **names}
    controls = _controls(folder, content, described, names, settings, shape, vocab_size)
    with naming(folder):
        chat = _chat(folder, described, names) if shape == "decoder" else None
        tokenizer = Tokenizer([content], controls=controls, chat=chat)
    tokenizer.check(folder, "tokenizer.json")
    return tokenizer, []


def _chat(folder: Path, described: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template: a file of its own, or a part of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    template = (
        read_file(path).decode("utf-8", "replace").replace("\r\n", "\n")
        if path.exists()
        else described.get("chat_template")
    )
    return ChatTemplate.of(template, {f"{name}_token": token for name, token in names.items()})


def _describe(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, and for what it lacks the older special_tokens_map.json."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            found |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return found


def _token(value: Any) -> str | None:
    """A token's text, which may be the content of an object with more about it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _without(folder: Path, settings: Mapping[str, Any], shape: Shape, vocab_size: int) -> tuple[Tokenizer, list[str]]:
    """For a folder without a tokenizer: its text is the ids themselves."""

    def first(name: str) -> int:
        i = _id(settings, name, folder)
        return -1 if i is None or i >= vocab_size else i  # the settings of other models are often left as they are

    start, end = first("decoder_start_token_id" if shape == "both" else "bos_token_id"), first("eos_token_id")
    controls = Controls(
        vocab_size,
        start=start,
        end=end,
        pad=first("pad_token_id"),
        closing=(end,) if shape == "both" and end >= 0 else (),
        stops=() if end < 0 else (end,),
    )
    note = f"{folder} has no tokenizer.json; the bundle takes token ids as numbers, with spaces between them, in place of text"
    return Tokenizer([], controls=controls), [note]


# --- the file ---


def _content(folder: Path, described: Mapping[str, Any], style: TokenizerStyle | None) -> bytes | None:
    """A tokenizer.json, as it is or made from older files; None where there are none."""
    if (folder / "tokenizer.json").exists():
        return _with_added(read_file(folder / "tokenizer.json"), folder, described)
    if style in ("gpt2", "roberta") and (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _dump(_bytes_json(folder, described, style))
    if style == "bert" and (folder / "vocab.txt").exists():
        return _dump(_words_json(folder, described))
    if found := [name for name in _UNREAD[:5] if (folder / name).exists()]:
        raise UserError(
            f"{folder / found[0]}: a tokenizer must be a tokenizer.json, but there is none beside it; write one with transformers: "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    return None


def _dump(settings: Mapping[str, Any]) -> bytes:
    return json.dumps(settings, ensure_ascii=False).encode()


def _with_added(content: bytes, folder: Path, described: Mapping[str, Any]) -> bytes:
    """The file with the tokens that only tokenizer_config.json adds."""
    try:
        settings = json.loads(content)
        known = {token["content"] for token in settings.get("added_tokens") or []}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UserError(f"{folder / 'tokenizer.json'}: must be a tokenizer of Hugging Face, but is damaged") from None
    more = [token for token in _added(folder, described) if token["content"] not in known]
    if not more:
        return content
    tokens = sorted([*(settings.get("added_tokens") or []), *more], key=lambda token: token["id"])
    return _dump({**settings, "added_tokens": tokens})


def _added(folder: Path, described: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that were added to a vocabulary later."""
    found = []
    decoder = described.get("added_tokens_decoder")
    entries = decoder.items() if isinstance(decoder, dict) else ()
    for key, entry in entries:
        content = _token(entry)
        if not str(key).isdigit() or content is None:
            raise UserError(f"{folder}: added_tokens_decoder must give tokens by their ids, but has {shorten(key)}")
        flags = {
            name: bool(entry.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
        }
        found.append({"id": int(key), "content": content, **flags})
    return sorted(found, key=lambda token: int(token["id"]))


def _special(
    tokens: Mapping[str, str], vocabulary: Mapping[str, int], **flags: Mapping[str, bool]
) -> list[dict[str, Any]]:
    """Control tokens as added tokens, each once."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": vocabulary[token], "content": token, **plain, **flags.get(token, {}), "special": True}
        for token in dict.fromkeys(tokens.values())
        if token in vocabulary
    ]


def _bytes_json(folder: Path, described: Mapping[str, Any], style: TokenizerStyle) -> dict[str, Any]:
    """GPT-2's byte-level BPE, as transformers makes it from these files."""
    vocabulary = read_pieces(folder / "vocab.json")
    lines = read_file(folder / "merges.txt").decode("utf-8", "replace").splitlines()
    merges = [line for line in lines if line and not line.startswith("#version")]
    if wrong := [line for line in merges if len(line.split(" ")) != 2]:
        raise UserError(f"{folder / 'merges.txt'}: a line must be two pieces, but one is {shorten(wrong[0])}")
    names = {
        **_USUAL[style],
        **{n: token for n in _NAMES if (token := _token(described.get(f"{n}_token"))) is not None},
    }
    bytes_of = {
        "type": "ByteLevel",
        "add_prefix_space": described.get("add_prefix_space") is True,
        "trim_offsets": True,
        "use_regex": True,
    }
    frame = None
    if style == "roberta":
        ends = {name: [names[name], vocabulary.get(names[name], -1)] for name in ("sep", "cls")}
        frame = {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}
    added = [*_special(names, vocabulary, **{names.get("mask", ""): {"lstrip": True}}), *_added(folder, described)]
    return {
        "version": "1.0",
        "added_tokens": sorted({token["id"]: token for token in added}.values(), key=lambda token: token["id"]),
        "normalizer": None,
        "pre_tokenizer": bytes_of,
        "post_processor": frame,
        "decoder": bytes_of,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "fuse_unk": False},
    }


def _words_json(folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """BERT's word pieces, as transformers makes them from vocab.txt."""
    lines = read_file(folder / "vocab.txt").decode("utf-8", "replace").split("\n")
    vocabulary = {piece.rstrip("\r"): i for i, piece in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    names = {
        **_USUAL["bert"],
        **{n: token for n in _NAMES if (token := _token(described.get(f"{n}_token"))) is not None},
    }
    for name in ("unk", "cls", "sep"):
        if names[name] not in vocabulary:
            raise UserError(f"{folder / 'vocab.txt'}: must hold {names[name]}, but does not")
    template = {part: {"SpecialToken": {"id": names[part], "type_id": 0}} for part in ("cls", "sep")}
    first = [template["cls"], {"Sequence": {"id": "A", "type_id": 0}}, template["sep"]]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": names["sep"], "type_id": 1}}]
    tokens = {
        names[part]: {"id": names[part], "ids": [vocabulary[names[part]]], "tokens": [names[part]]}
        for part in ("cls", "sep")
    }
    added = {token["id"]: token for token in [*_special(names, vocabulary), *_added(folder, described)]}
    return {
        "version": "1.0",
        "added_tokens": sorted(added.values(), key=lambda token: int(token["id"])),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": described.get("tokenize_chinese_chars", True) is True,
            "strip_accents": described.get("strip_accents"),
            "lowercase": described.get("do_lower_case", True) is True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": tokens,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


# --- control tokens ---


def _id(settings: Mapping[str, Any], name: str, where: Path) -> int | None:
    """An id of the model's settings; the first of several."""
    ids = _ids(settings, name, where)
    return ids[0] if ids else None


def _ids(settings: Mapping[str, Any], name: str, where: Path) -> list[int]:
    value = settings.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int):
            raise UserError(f"{where}: {name} must be an integer or a list of them, but is {shorten(value)}")
    return [i for i in ids if i >= 0]


def _controls(
    folder: Path,
    content: bytes,
    described: Mapping[str, Any],
    names: Mapping[str, str],
    settings: Mapping[str, Any],
    shape: Shape,
    vocab_size: int,
) -> Controls:
    tokenizers = import_tokenizers()
    with refusing(folder / "tokenizer.json"):
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8", "replace"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        ids = {name: i for name, token in names.items() if (i := tokenizer.token_to_id(token)) is not None}
        # As in transformers, the flags in tokenizer_config.json count only where there is no tokenizer.json.
        flags = {} if (folder / "tokenizer.json").exists() else described
        opening, between, closing = _frame(tokenizer, flags, ids)
    stops = list(dict.fromkeys([*_ids(settings, "eos_token_id", folder), *([ids["eos"]] if "eos" in ids else [])]))
    end = stops[0] if stops else -1
    if shape == "both":
        start = _id(settings, "decoder_start_token_id", folder)
        if closing != (end,):
            raise UserError(
                f"{folder}: the tokenizer of an encoder-decoder must put the end of a sentence, {end}, after each text, "
                f"but puts {list(closing)}; a bundle cannot hold it"
            )
    elif shape == "decoder":
        start = opening[0] if opening else ids.get("bos", _id(settings, "bos_token_id", folder))
    else:
        start, end = opening[0] if opening else ids.get("cls"), closing[-1] if closing else ids.get("sep", -1)
    pad = _id(settings, "pad_token_id", folder)
    with naming(folder):
        return Controls(
            vocab_size,
            unk=ids.get("unk", -1),
            start=-1 if start is None else start,
            end=end,
            pad=ids.get("pad", -1 if pad is None else pad),
            mask=ids.get("mask", -1),
            source_opening=opening if shape == "both" else (),
            opening=() if shape == "both" else opening,
            between=between,
            closing=closing,
            stops=tuple(stops),
            forbidden=tuple(_forbidden(settings, folder)),
        )


def _frame(tokenizer: Any, flags: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """The ids before a text, between two and after the last, found by encoding; explicit `flags` have precedence."""
    if tokenizer.post_processor is None or "add_bos_token" in flags or "add_eos_token" in flags:
        opening = (ids["bos"],) if flags.get("add_bos_token") is True and "bos" in ids else ()
        closing = (ids["eos"],) if flags.get("add_eos_token") is True and "eos" in ids else ()
        return opening, (*closing, *opening), closing
    sample = next(
        text for text in ("a", "A", "1", *tokenizer.get_vocab()) if tokenizer.encode(text, add_special_tokens=False).ids
    )
    plain = tokenizer.encode(sample, add_special_tokens=False).ids
    single, pair = tokenizer.encode(sample).ids, tokenizer.encode(sample, sample).ids
    first = _find(single, plain, 0)
    opening, closing = tuple(single[:first]), tuple(single[first + len(plain) :])
    second = _find(pair, plain, first + len(plain))
    return opening, tuple(pair[first + len(plain) : second]), closing


def _find(ids: Sequence[int], wanted: Sequence[int], begin: int) -> int:
    """Where the ids of a text begin among those that frame it."""
    for place in range(begin, len(ids) - len(wanted) + 1):
        if list(ids[place : place + len(wanted)]) == list(wanted):
            return place
    raise UserError("post_processor must put control tokens around a text and leave the text as it is, but changes it")


def _forbidden(settings: Mapping[str, Any], folder: Path) -> list[int]:
    """The single ids that the search must never choose."""
    ids = set(_ids(settings, "suppress_tokens", folder))
    words = settings.get("bad_words_ids")
    if words is not None and not isinstance(words, list):
        raise UserError(f"{folder}: bad_words_ids must be a list, but is {shorten(words)}")
    for entry in words or []:
        if not isinstance(entry, list) or len(entry) != 1:
            raise UserError(
                f"{folder}: bad_words_ids must hold single pieces, but has {shorten(entry)}; "
                "remove it from the file if the model can do without"
            )
        ids |= set(_ids({"bad_words_ids": entry}, "bad_words_ids", folder))
    return sorted(ids)

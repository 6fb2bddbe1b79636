"""A bundle's tokenizer as a tokenizer.json of Hugging Face's package `tokenizers`, which frames a text as Regard does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regard.bundle import Bundle
from regard.data.huggingface import import_tokenizers
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.export.verify import Samples
from regard.importing.sentencepiece_json import SPACE, added_token, bpe_json


def refuse_pair(bundle: Bundle) -> None:
    """Refuse a tokenizer that no tokenizer.json can express."""
    if bundle.tokenizer.kind == "pair":
        raise UserError(
            f"{bundle.folder / 'tokenizer'}: two sentencepiece models cannot become one tokenizer.json; use --to ctranslate2"
        )


def own_json(tokenizer: Tokenizer, task: str) -> dict[str, Any]:
    """Regard's joint vocabulary as a tokenizer.json that puts around a text what Regard does. It takes a literal U+2581 for a
    space, as sentencepiece does."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    is_text = [tokenizer.has_text(i) for i in range(len(pieces))]
    controls = [i for i, text in enumerate(is_text) if not text and not tokenizer.is_byte(i)]
    not_text = {i for i, text in enumerate(is_text) if not text}
    added = [added_token(i, pieces[i], special=True) for i in controls]
    own = bpe_json(pieces, tokenizer.scores(), not_text, tokenizer.unk_id, prefix=True)
    if task == "fill":
        _make_room_for_blanks(own, added, tokenizer.mask_id)
    opening = tokenizer.prompt_opening if task == "generate" else tokenizer.opening
    closing = () if task == "generate" else tokenizer.closing
    frame = make_frame(tokenizer, opening, tokenizer.between if closing else (), closing)
    return {"version": "1.0", "added_tokens": added, **own, "post_processor": frame}


def _make_room_for_blanks(own: dict[str, Any], added: Sequence[dict[str, Any]], mask: int) -> None:
    """A mask stands for a piece with the space before it, and what follows it is not the beginning of a text."""
    own["normalizer"] = None
    own["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    for token in added:
        token["lstrip"] = token["id"] == mask


def make_frame(
    tokenizer: Tokenizer, opening: Sequence[int], between: Sequence[int], closing: Sequence[int]
) -> dict[str, Any]:
    """The part `post_processor` of a tokenizer.json that puts these tokens around a text, or around and between two."""
    pieces = tokenizer.raw_pieces()
    names = {i: pieces.get(i, f"<{i}>") for i in (*opening, *between, *closing)}

    def special(ids: Sequence[int], kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[i], "type_id": kind}} for i in ids]

    first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*special(opening, 0), first, *special(closing, 0)],
        "pair": [*special(opening, 0), first, *special(between, 0), second, *special(closing, 1)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }


def sample_texts(bundle: Bundle, samples: Samples) -> list[str]:
    """The text of the samples, by which tokenizers are compared. Only Regard can write U+2581; and where a vocabulary of its own
    fills in blanks, the other takes a space before a text for the one that begins its first word."""
    texts = [bundle.tokenizer.decode(ids).replace("\u2581", "") for ids in samples.src + samples.tgt]
    return [text.lstrip(" ") for text in texts] if bundle.task == "fill" else texts


def encoder_json(bundle: Bundle, max_length: int) -> dict[str, Any]:
    """The tokenizer of an encoder, complete: it frames a text, and cuts what is beyond `max_length` tokens."""
    refuse_pair(bundle)
    tokenizer = bundle.tokenizer
    content = json.loads(tokenizer.models[0]) if tokenizer.kind == "huggingface" else own_json(tokenizer, bundle.task)
    cut = {"max_length": max_length, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    frame = make_frame(tokenizer, tokenizer.opening, tokenizer.between, tokenizer.closing)
    return {**content, "truncation": cut, "padding": None, "post_processor": frame}


def check_encoder_json(bundle: Bundle, content: dict[str, Any], texts: Sequence[str]) -> None:
    """Check that a tokenizer.json gives the ids of the bundle's own tokenizer for these texts, alone and as pairs."""
    theirs, ours = import_tokenizers().Tokenizer.from_str(json.dumps({**content, "truncation": None})), bundle.tokenizer
    theirs.encode_special_tokens = True  # in Regard, no text becomes a control token
    for text in texts:
        ids = ours.encode(text)
        single, pair = theirs.encode(text), theirs.encode(text, text)
        if (single.ids, single.type_ids) != ours.frame(ids) or (pair.ids, pair.type_ids) != ours.frame(ids, ids):
            raise RegardError(
                f"the exported tokenizer encodes {text!r} to other ids than the bundle; nothing was written. Please report it with "
                "the bundle's tokenizer"
            )

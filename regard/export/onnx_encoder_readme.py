"""The page beside an encoder in ONNX: a program for ONNX Runtime and the package tokenizers, which the tests run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from regard.bundle import Bundle

_TITLES = {
    "embed": ("Vectors of texts", "writes the vector of each line of standard input, as JSON,"),
    "classify": ("Labels of texts", "writes the answer for each line of standard input"),
    "tag": ("Tags of words", "writes the words of each line of standard input with their tags"),
    "fill": ("Masked tokens", "writes the likeliest tokens for each mask in the lines of standard input, as JSON,"),
}

_PAGE = """\
# {title}, for ONNX Runtime

Exported by Regard. With `pip install onnxruntime{packages}`, this
{does} when it is run in this folder:

```python
import json, pathlib, sys
import numpy as np, {imports}

config = json.loads(pathlib.Path("config.json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
{encode}
def run(rows):  # rows of token ids
    longest = max(map(len, rows))
    ids = [row + [config["pad_id"]] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    given = {{"input_ids": np.array(ids, np.int64), "attention_mask": np.array(mask, np.int64)}}
    if "token_type_ids" in config["inputs"]:
        given["token_type_ids"] = np.zeros_like(given["input_ids"])
    return session.run(None, given)

lines = [line for line in sys.stdin.read().split("\\n") if line.strip()]
for start in range(0, len(lines), 16):
    batch = lines[start : start + 16]
{answer}```

| | name | shape | |
|---|---|---|---|
{table}

{notes}
"""

_TEXT = """\
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")  # puts control tokens around a text, and cuts a long one

def encode(text):
    return tokenizer.encode(text).ids
"""
_IDS = """\

def encode(text):  # token ids with spaces between them
    return (config["opening"] + [int(i) for i in text.split()])[: config["max_length"] - len(config["closing"])] + config["closing"]
"""
_WORDS = """\
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")

def encode(words):
    ids, places = list(config["opening"]), []
    for number, word in enumerate(words):
        pieces = tokenizer.encode((config["prefix"] if number else "") + word, add_special_tokens=False).ids
        pieces = pieces or [config["unk_id"]]
        if len(ids) + len(pieces) + len(config["closing"]) > config["max_length"]:
            break
        places.append(len(ids))
        ids += pieces
    return ids + config["closing"], places  # a word has the tag of its first token
"""
_WORD_IDS = """\

def encode(words):  # token ids
    words = words[: config["max_length"] - len(config["opening"]) - len(config["closing"])]
    places = range(len(config["opening"]), len(config["opening"]) + len(words))
    return config["opening"] + [int(word) for word in words] + config["closing"], places
"""

_EMBED = """\
    for vector in run([encode(line) for line in batch])[0]:
        print(json.dumps(vector.tolist()))
"""
_CLASSIFY = {
    "one": """\
    logits = run([encode(line) for line in batch])[0]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    for row in shares / shares.sum(axis=1, keepdims=True):
        print(config["labels"][row.argmax()], float(row.max()), sep="\\t")
""",
    "several": """\
    for row in 1 / (1 + np.exp(-run([encode(line) for line in batch])[0])):
        order = [int(i) for i in np.argsort(-row, kind="stable") if row[i] >= config["threshold"]]
        print(*(f"{config['labels'][i]}\\t{float(row[i])}" for i in order), sep="\\t")
""",
    "number": """\
    for [number] in run([encode(line) for line in batch])[0]:
        print(float(number))
""",
}
_TAG = """\
    texts = [re.findall(config["words"], line) for line in batch]
    read = [encode(words) for words in texts]
    logits = run([ids for ids, _ in read])[0]
    for words, (_, places), own in zip(texts, read, logits):
        print(*(f"{word}\\t{config['labels'][own[place].argmax()]}" for word, place in zip(words, places)), "", sep="\\n")
"""
_FILL = """\
    rows = [encode(line) for line in batch]
    for row, logits in zip(rows, run(rows)[0]):
        best = [np.argsort(-logits[place])[:5].tolist() for place, i in enumerate(row) if i == config["mask_id"]]
        print(json.dumps([[{name} for i in some] for some in best], ensure_ascii=False))
"""


def make_readme(bundle: Bundle, settings: Mapping[str, Any]) -> str:
    """How to use the folder without Regard or torch."""
    title, does = _TITLES[bundle.task]
    has_tokenizer = bundle.tokenizer.kind != "ids"
    by_words = bundle.task == "tag"
    with_tokenizer, without = (_WORDS, _WORD_IDS) if by_words else (_TEXT, _IDS)
    imports = ["onnxruntime", *(["re"] if by_words else []), *(["tokenizers"] if has_tokenizer else [])]
    return _PAGE.format(
        title=title,
        does=does,
        packages=" tokenizers" if has_tokenizer else "",
        imports=", ".join(imports),
        encode=with_tokenizer if has_tokenizer else without,
        answer=_answer(bundle, has_tokenizer),
        table="\n".join(_table(bundle, settings)),
        notes="\n".join(f"- {note}" for note in _notes(bundle, settings)),
    )


def _answer(bundle: Bundle, has_tokenizer: bool) -> str:
    if bundle.task == "fill":
        return _FILL.format(name="tokenizer.id_to_token(i)" if has_tokenizer else "i")
    if bundle.task == "classify":
        return _CLASSIFY[bundle.config.head_settings.answer]
    return _EMBED if bundle.task == "embed" else _TAG


def _table(bundle: Bundle, settings: Mapping[str, Any]) -> list[str]:
    labels, width = len(bundle.config.head_settings.labels), bundle.config.d_model
    what = {
        "input_ids": ("batch, length", "int64"),
        "attention_mask": ("batch, length", "int64; 1 for a token, 0 for padding, which is on the right"),
        "token_type_ids": ("batch, length", "int64; 0, and 1 for the second text of a pair"),
        "sentence_embedding": (f"batch, {width}", "float32; the vector of a text"),
        "last_hidden_state": (f"batch, length, {width}", "float32; the vectors of its tokens"),
        "logits": {
            "classify": (f"batch, {labels}", "float32"),
            "tag": (f"batch, length, {labels}", "float32"),
            "fill": (f"batch, length, {bundle.config.vocab_size}", "float32"),
        }.get(bundle.task, ("", "")),
    }
    return [
        f"| {side} | `{name}` | {' | '.join(what[name])} |"
        for side, names in (("in", settings["inputs"]), ("out", settings["outputs"]))
        for name in names
    ]


def _notes(bundle: Bundle, settings: Mapping[str, Any]) -> list[str]:
    notes = [
        f"Batch and length are free, up to {settings['max_length']:,} tokens with those around a text (`max_length`). What is "
        f"longer is cut here;\n  Regard reads it in parts and joins the answers."
    ]
    if bundle.tokenizer.kind != "ids":
        notes.append("The name of a control token in a text becomes that token here; in Regard it is text.")
    if bundle.task == "classify" and bundle.tokenizer.kind != "ids":
        types = "; its `type_ids` are the `token_type_ids`" if "token_type_ids" in settings["inputs"] else ""
        notes.append(f"A pair of texts: `tokenizer.encode(one, other)`{types}.")
    if bundle.task == "embed":
        how = {"mean": "the mean of", "first": "the first of", "tanh-first": "tanh of a matrix times the first of"}
        scaled = ", scaled to length 1" if settings["normalize"] else ""
        notes.append(f"A vector is {how[settings['pooling']]} the vectors of a text's tokens{scaled}.")
    if settings.get("prompts"):
        shown = json.dumps(settings["prompts"], ensure_ascii=False)
        notes.append(f"Texts of some kinds begin with a prompt (`prompts`): {shown}.")
    if bundle.task == "fill" and settings["mask"]:
        notes.append(f"A mask is written `{settings['mask']}`.")
    return notes

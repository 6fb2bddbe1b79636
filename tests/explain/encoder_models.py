"""Tiny encoders for each task: one that was trained so that one word decides, the others with random weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers

from regard.bundle import Bundle
from regard.importing.transformers import import_model
from tests import encoders

DECIDING = {"dog": "animal", "cat": "animal", "milk": "food", "tea": "food"}
LABELS = ["animal", "food", "other"]
FILLING = "the a my is was very on at we saw today here".split()


def text_with(word: str, draw: random.Random) -> str:
    """A text in which only this word says anything."""
    words = [*draw.choices(FILLING, k=draw.randint(3, 7)), word]
    draw.shuffle(words)
    return " ".join(words)


def _tokenizer(folder: Path) -> Any:
    """A WordPiece vocabulary of the words above, and of letters for all others."""
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *DECIDING,
        *FILLING,
        *letters,
        *(f"##{one}" for one in letters),
    ]
    (folder / "vocab.txt").write_text("\n".join([*dict.fromkeys(pieces), *".,;?!"]) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder)


def trained_classifier(folder: Path) -> tuple[Path, Bundle]:
    """A BERT of transformers, trained by transformers on texts in which one word says the label, and its bundle."""
    original = folder / "original"
    tokenizer = _tokenizer(original)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(LABELS)), label2id={label: n for n, label in enumerate(LABELS)},
    )  # fmt: skip
    model: Any = transformers.BertForSequenceClassification(config)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = random.Random(0)
    for _ in range(150):
        words = draw.choices([*DECIDING, "today", "here", "the"], k=24)
        inputs = tokenizer([text_with(word, draw) for word in words], return_tensors="pt", padding=True)
        labels = torch.tensor([LABELS.index(DECIDING.get(word, "other")) for word in words])
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(original)
    return original, import_model(original, folder / "classify", compare=False).bundle


def tagger(folder: Path) -> tuple[Path, Bundle]:
    """A BERT with random weights and tags that mark spans, and its bundle."""
    original = encoders.write_model(folder / "original", "BertForTokenClassification")
    settings = json.loads((original / "config.json").read_text())
    settings |= {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
    (original / "config.json").write_text(json.dumps(settings))
    return original, import_model(original, folder / "tag", compare=False).bundle


def filler(folder: Path) -> tuple[Path, Bundle]:
    """A BERT with random weights that fills blanks, and its bundle."""
    original = encoders.write_model(folder / "original", "BertForMaskedLM")
    return original, import_model(original, folder / "fill", compare=False).bundle


MAKERS = {"classify": trained_classifier, "tag": tagger, "fill": filler, "embed": encoders.vector_model}

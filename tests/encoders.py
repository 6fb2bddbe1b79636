"""Tiny encoders in folders of transformers and sentence-transformers, and the bundles made of them, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from regard.bundle import Bundle
from regard.importing.transformers import import_model
from tests import json_tokenizers

LABELS = {0: "no", 1: "yes", 2: "maybe"}


def write_model(folder: Path, architecture: str = "BertModel", positions: int = 40, seed: int = 3) -> Path:
    """A folder of transformers with random weights that tell texts apart, and a tokenizer."""
    family = architecture[: architecture.index("For") if "For" in architecture else architecture.index("Model")]
    json_tokenizers.write(folder, family.lower())
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(theirs), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=positions, id2label=LABELS, pad_token_id=theirs.pad_token_id,
    )  # fmt: skip
    model: Any = getattr(transformers, architecture)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1).add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(folder)
    return folder


def write_sentence_files(
    folder: Path, pooling: str = "mean_tokens", normalize: bool = True, max_length: int | None = 24, **more: Any
) -> None:
    """What sentence-transformers puts beside a model; `more` is for config_sentence_transformers.json."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if normalize else {})}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 32, **modes},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"__version__": {}, **more},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def vector_model(folder: Path, **more: Any) -> tuple[Path, Bundle]:
    """A folder of sentence-transformers, and its bundle."""
    original = write_model(folder / "original")
    write_sentence_files(original, **more)
    return original, import_model(original, folder / "bundle", compare=False).bundle


@torch.no_grad()
def their_vectors(original: Path, texts: list[str], normalize: bool = True) -> np.ndarray[Any, Any]:
    """The vectors of texts as transformers computes them, one at a time, with mean pooling."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(original)
    model = transformers.AutoModel.from_pretrained(original).eval()
    found = []
    for text in texts:
        mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        found.append(torch.nn.functional.normalize(mean, dim=0) if normalize else mean)
    return torch.stack(found).numpy()

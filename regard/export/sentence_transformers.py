"""The files from which sentence-transformers learns how a model makes one vector of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.bundle import Bundle
from regard.importing.sentence_transformers import LENGTHS, MODULES, POOLING_FLAGS, POOLING_FOLDER, PROMPTS


def write_sentence_model(bundle: Bundle, folder: Path) -> None:
    """Write them beside a model of transformers; not for BERT's own pooler, which is part of the model."""
    head = bundle.config.head_settings
    if head.pooling == "tanh-first":
        return
    paths = {"Transformer": "", "Pooling": POOLING_FOLDER, **({"Normalize": "2_Normalize"} if head.normalize else {})}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    for path in filter(None, paths.values()):
        (folder / path).mkdir()
    _write_json(folder / MODULES, modules)
    flags = {name: kind == head.pooling for name, kind in POOLING_FLAGS.items()}
    _write_json(folder / POOLING_FOLDER / "config.json", {"word_embedding_dimension": bundle.config.d_model, **flags})
    _write_json(folder / LENGTHS, {"max_seq_length": bundle.max_length, "do_lower_case": False})
    prompts = {"prompts": dict(bundle.prompts), "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write_json(folder / PROMPTS, prompts)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

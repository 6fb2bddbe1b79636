"""Exports encoders to ONNX: one graph with its weights, and all that a program needs beside it.

    model.onnx  tokenizer.json  config.json  README.md

The graph is that of `generate/engines/onnx_encoder_graph.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.data.labelled import DEFAULT_THRESHOLD, word_pattern, word_prefix
from regard.export.onnx_encoder_readme import make_readme
from regard.export.tokenizer_json import check_encoder_json, encoder_json, sample_texts
from regard.export.verify import Samples, check, scores_of
from regard.generate.engines.onnx_decoder import open_session
from regard.generate.engines.onnx_encoder_graph import MODEL, OPSET, convert, longest_input
from regard.generate.engines.torch_engine import load_model
from regard.layout import SequenceLayout

_MORE = 2  # columns of padding beside the longest sample


def write_encoder(bundle: Bundle, folder: Path, samples: Samples) -> list[list[float]]:
    """Write the bundle into `folder`, open it with ONNX Runtime, compare a padded batch, and score the samples one at a time."""
    max_length = min(bundle.max_length, longest_input(bundle) or bundle.max_length)
    content = None
    if bundle.tokenizer.kind != "ids":
        content = encoder_json(bundle, max_length)
        check_encoder_json(bundle, content, sample_texts(bundle, samples))
        _write_json(folder / "tokenizer.json", content)
    convert(bundle, folder)
    session = open_session(folder / MODEL, torch.get_num_threads())
    settings = make_settings(bundle, session, max_length)
    _write_json(folder / "config.json", settings)
    (folder / "README.md").write_text(make_readme(bundle, settings), encoding="utf-8")
    _check_batch(bundle, session, samples)
    found = []
    for ids in samples.src:
        given = {name: np.zeros((1, len(ids)), np.int64) for name in settings["inputs"]}
        given |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        answer = torch.from_numpy(session.run(None, given)[0])
        found.append(scores_of(bundle, answer[0], ids, []))
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def make_settings(bundle: Bundle, session: Any, max_length: int) -> dict[str, Any]:
    """The content of config.json: what the README's code reads."""
    tokenizer, head = bundle.tokenizer, bundle.config.head_settings
    settings: dict[str, Any] = {
        "exported_by": "regard",
        "task": bundle.task,
        "opset": OPSET,
        "inputs": [one.name for one in session.get_inputs()],
        "outputs": [one.name for one in session.get_outputs()],
        "max_length": max_length,
        "pad_id": max(0, tokenizer.pad_id),
        "opening": list(tokenizer.opening),
        "closing": list(tokenizer.closing),
    }
    if bundle.task == "embed":
        settings |= {"dimensions": bundle.config.d_model, "pooling": head.pooling, "normalize": head.normalize}
        settings["prompts"] = dict(bundle.prompts)
    if bundle.task in ("classify", "tag"):
        settings["labels"] = list(head.labels)
    if bundle.task == "classify":
        settings["answer"] = head.answer
    if head.answer == "several":
        settings["threshold"] = bundle.decode.threshold or DEFAULT_THRESHOLD
    if bundle.task == "tag":
        settings |= {"words": word_pattern(bundle.decode.words == "spaces"), "prefix": word_prefix(tokenizer)}
        settings["unk_id"] = max(0, tokenizer.unk_id if tokenizer.unk_id >= 0 else tokenizer.eos_id)
    if bundle.task == "fill":
        settings |= {"mask_id": tokenizer.mask_id, "mask": tokenizer.raw_pieces().get(tokenizer.mask_id)}
    return settings


@torch.no_grad()
def _check_batch(bundle: Bundle, session: Any, samples: Samples) -> None:
    """Compare all samples in one batch, padded beyond the longest, with kinds of tokens if the model has some; of vectors also
    their states."""
    model, lengths = load_model(bundle), [len(ids) for ids in samples.src]
    mask = (np.arange(max(lengths) + _MORE) < np.array(lengths)[:, None]).astype(np.int64)
    draw = np.random.default_rng(1)
    kinds = max(1, bundle.config.front_settings.token_types)
    given = {name: draw.integers(kinds, size=mask.shape) for name in ("token_type_ids",)}
    given |= {"input_ids": np.full_like(mask, samples.src[0][0]), "attention_mask": mask}  # padding may be any token
    given["input_ids"][mask == 1] = [i for ids in samples.src for i in ids]
    answers = [
        torch.from_numpy(one) for one in session.run(None, {one.name: given[one.name] for one in session.get_inputs()})
    ]
    layout, is_token = SequenceLayout.from_lengths(lengths), torch.from_numpy(mask).bool()
    types = torch.from_numpy(given["token_type_ids"])[is_token] if kinds > 1 else None
    ids = torch.tensor([i for one in samples.src for i in one])
    expected = [model(ids, layout, token_types=types)]
    if bundle.task == "embed":
        expected.append(model.states(ids, layout, token_types=types))
    for ours, theirs in zip(expected, answers, strict=True):
        packed = theirs[is_token] if theirs.ndim == 3 else theirs
        pair = [_numbers(bundle, one, samples.src, lengths) for one in (ours, packed)]
        check(replace(samples, log_probs=pair[0]), pair[1], "fp32", "onnx")


def _numbers(bundle: Bundle, answer: Tensor, src: Sequence[list[int]], lengths: Sequence[int]) -> list[list[float]]:
    """What is compared of each text, from the answers to all: (texts, width), or of their tokens, (tokens, width)."""
    parts = answer.split(1) if len(answer) == len(src) != sum(lengths) else answer.split(list(lengths))
    return [scores_of(bundle, part, ids, []) for part, ids in zip(parts, src, strict=True)]

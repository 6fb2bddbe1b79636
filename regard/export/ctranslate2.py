"""Exports bundles for CTranslate2: a folder that its `Translator`, `Generator` or `Encoder` loads, with tokenizer and README."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from regard.bundle import Bundle
from regard.export.ctranslate2_readme import HEAD_FILE, make_readme
from regard.export.verify import Samples, check, make_samples, scores_of
from regard.generate.engines.ctranslate2_common import import_ctranslate2
from regard.generate.engines.ctranslate2_convert import convert
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.ctranslate2_model import WeightFormat, int8_levels


def write(bundle: Bundle, folder: Path, weights: str, samples: Samples) -> list[list[float]]:
    """Write the bundle into `folder`, load it with CTranslate2, and score the samples."""
    import_ctranslate2()  # before anything is written
    stored = cast(WeightFormat, weights)
    if samples.is_own:
        _check_conversion(bundle)
    convert(bundle, folder, stored, int8_levels())
    if bundle.tokenizer.kind != "ids":
        bundle.tokenizer.save(folder / "tokenizer")
    if bundle.task == "translate":
        scores = CTranslate2Engine(folder, bundle, stored).score(samples.src, samples.tgt)
    elif bundle.task == "generate":
        scores = _score_next_tokens(bundle, folder, samples)
    else:
        _write_head(bundle, folder)
        scores = _score_encoder(bundle, folder, samples)
    (folder / "README.md").write_text(make_readme(bundle, stored), encoding="utf-8")
    return scores


def _check_conversion(bundle: Bundle) -> None:
    """Compare the converted model in fp32, where nothing is rounded: what int8 changes is rounding then, and no mistake."""
    with TemporaryDirectory() as name:
        samples, folder = make_samples(bundle), Path(name)
        convert(bundle, folder, "fp32", int8_levels())
        check(samples, _score_next_tokens(bundle, folder, samples), "fp32", "ctranslate2")


def _score_next_tokens(bundle: Bundle, folder: Path, samples: Samples) -> list[list[float]]:
    import torch

    generator = import_ctranslate2().Generator(str(folder), device="cpu")
    logits = [torch.from_numpy(np.array(generator.forward_batch([ids]))[0]) for ids in samples.src]
    return [scores_of(bundle, one, ids, []) for one, ids in zip(logits, samples.src, strict=True)]


# --- encoders: CTranslate2 runs the stack, and the head stays outside ---


def _write_head(bundle: Bundle, folder: Path) -> None:
    """What comes after the encoder. BERT's pooler is in the converted model."""
    from safetensors.torch import save_file

    from regard.generate.engines.torch_engine import load_model

    if bundle.config.head_settings.kind == "vector":
        return
    model = load_model(bundle)
    tensors = {name: value for name, value in model.state_dict().items() if name.startswith(("head.", "output_bias"))}
    tensors = {name: value for name, value in tensors.items() if not name.startswith("head.pooler.")}
    if bundle.config.head_settings.kind == "tokens":
        tensors["output.weight"] = model.output_matrix.detach()
    save_file({name: value.contiguous() for name, value in tensors.items()}, str(folder / HEAD_FILE))


def _score_encoder(bundle: Bundle, folder: Path, samples: Samples) -> list[list[float]]:
    import torch

    from regard.generate.engines.torch_engine import load_model
    from regard.layout import SequenceLayout

    model, encoder = load_model(bundle), import_ctranslate2().Encoder(str(folder), device="cpu")
    head: Any = model.head
    has_pooler = bundle.config.head_settings.pooling == "tanh-first"
    scores = []
    for ids in samples.src:
        output, layout = encoder.forward_batch([ids]), SequenceLayout.from_lengths([len(ids)])
        states = torch.from_numpy(np.array(output.last_hidden_state)[0])
        with torch.no_grad():
            if bundle.task == "fill":
                answer = model.logits(states)
            elif bundle.task == "tag" or not has_pooler:
                answer = head(states, layout)
            else:
                pooled = torch.from_numpy(np.array(output.pooler_output))
                answer = head.finish(pooled)
        scores.append(scores_of(bundle, answer, ids, []))
    return scores

"""Choosing the heads that align words: measured on the model, without alignments by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from regard.aligning import AlignmentHeads
from regard.builtin import DEFAULTS, builtin_models
from regard.bundle import load_bundle
from regard.config import ModelConfig
from regard.errors import UserError
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.models.transformer import Transformer
from regard.nn.attention import CrossAttention
from regard.tasks.alignment import choose_alignment_heads, measure_alignment_heads, measure_bundle
from regard.translation.alignment import align_texts
from tests.serve.server import GOLDEN

CPU = torch.device("cpu")
LETTERS = "abcdefghijklmnop"
REVERSED = [(text, text[::-1]) for start in range(12) for text in (" ".join(LETTERS[start : start + 4]),)]


def with_blind_heads(seeing: int) -> Transformer:
    """The golden model, which reverses letters, with only one head that sees the source: the others attend to all alike."""
    model = load_model(load_bundle(GOLDEN))
    for module in model.modules():
        if isinstance(module, CrossAttention):
            for head in {*range(module.num_heads)} - {seeing}:
                rows = slice(head * module.d_head, (head + 1) * module.d_head)
                module.q.weight.data[rows] = 0
                module.q.bias.data[rows] = 0
    return model


def test_a_head_that_looks_elsewhere_is_not_chosen() -> None:
    bundle = load_bundle(GOLDEN)
    for seeing in range(bundle.config.num_heads):
        model = with_blind_heads(seeing)
        chosen = choose_alignment_heads(model, bundle.tokenizer, REVERSED, CPU)
        assert chosen is not None and seeing in chosen.heads, seeing


def test_the_chosen_heads_align_what_the_model_does() -> None:
    bundle = load_bundle(GOLDEN)
    tokenizer = bundle.tokenizer
    model = load_model(bundle)
    chosen = choose_alignment_heads(model, tokenizer, REVERSED, CPU)
    assert chosen is not None
    engine = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id, alignment=[chosen])
    right = total = 0
    for (source, target), found in zip(REVERSED, align_texts(engine, tokenizer, REVERSED, 64), strict=True):
        total += len(found.pairs)
        right += sum(source[slice(*found.source[i])] == target[slice(*found.target[j])] for i, j in found.pairs)
    assert right >= 0.9 * total >= 0.8 * 4 * len(REVERSED)


def test_nothing_is_chosen_from_too_little_text() -> None:
    bundle = load_bundle(GOLDEN)
    model = load_model(bundle)
    for pairs in ([], REVERSED[:2], [("a", "a")] * 50, [("a b c " * 100, "c b a")] * 50, [("", "a b c")] * 50):
        assert choose_alignment_heads(model, bundle.tokenizer, pairs, CPU) is None


def test_an_old_bundle_can_be_measured_later(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "old"))
    chosen = measure_bundle(folder, REVERSED, "cpu")
    assert load_bundle(folder).alignment == chosen
    with pytest.raises(UserError, match="pairs must have at least 30 words"):
        measure_bundle(folder, REVERSED[:2], "cpu")


def test_heads_that_share_keys_are_chosen_alone_or_all() -> None:
    """CTranslate2 could not put two heads of different groups first."""
    tokenizer = load_bundle(GOLDEN).tokenizer
    for seed in range(4):
        torch.manual_seed(seed)
        config = ModelConfig(tokenizer.vocab_size, d_model=32, d_ff=64, num_heads=4, num_kv_heads=2, decoder_layers=2)
        weights = Transformer(config).state_dict()
        chosen = measure_alignment_heads(config, weights, tokenizer, REVERSED, CPU)
        assert chosen is not None
        assert AlignmentHeads.from_json(chosen.to_json(), config) == chosen


def test_the_builtin_models_align_by_measured_heads() -> None:
    for folder in (folder for name, folder in builtin_models().items() if name not in DEFAULTS.values()):
        assert load_bundle(folder).alignment is not None

"""Regard's weights in Hugging Face's MarianMTModel, the other implementation of the paper's model that people run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers import MarianConfig, MarianMTModel

from regard.export.transformers import marian_settings, marian_tensors, refuse_unknown
from regard.models.transformer import Transformer


def to_marian(model: Transformer, bos_id: int, eos_id: int, pad_id: int, max_positions: int = 256) -> MarianMTModel:
    """A MarianMTModel that computes what `model` computes. Like Regard's engine, give it sources that end with
    `eos_id`."""
    refuse_unknown(model.config)
    ids: Any = SimpleNamespace(bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
    theirs = MarianMTModel(MarianConfig(**marian_settings(model.config, ids, max_positions))).eval()
    loaded = theirs.load_state_dict(marian_tensors(model.state_dict(), model.config), strict=False)
    assert not loaded.unexpected_keys
    copied = {name for name in loaded.missing_keys if "embed_positions" not in name}
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
    assert copied == (tied if model.config.tie_embeddings else set()), "every other weight is Regard's"
    assert isinstance(theirs, MarianMTModel)
    return theirs

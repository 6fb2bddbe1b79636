"""Checkpoints of every family: small random ones that transformers writes, and staged ones with golden logits, where they are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from regard.config import ModelConfig
from regard.families import FAMILIES
from regard.families.table import from_theirs
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer

PIECES = 68


def find_goldens() -> Path | None:
    """The folder with staged checkpoints: $REGARD_GOLDENS, or shared/families/weights beside the repository."""
    if given := os.environ.get("REGARD_GOLDENS"):
        return Path(given)
    above = Path(__file__).parents[3:]
    return next((one for folder in above if (one := folder / "shared" / "families" / "weights").is_dir()), None)


# --- random models ---

_BERT: dict[str, Any] = {
    "vocab_size": PIECES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "id2label": {0: "no", 1: "yes", 2: "maybe"},
}
_ALBERT = {**_BERT, "embedding_size": 16, "num_hidden_layers": 3, "classifier_dropout_prob": 0.0}
_LLAMA: dict[str, Any] = {
    "vocab_size": PIECES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GPT: dict[str, Any] = {"vocab_size": PIECES, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
_FALCON: dict[str, Any] = {
    "vocab_size": PIECES,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "parallel_attn": True,
    "multi_query": True,
    "bias": False,
}
_COHERE: dict[str, Any] = {**_LLAMA, "logit_scale": 0.3}
_T5: dict[str, Any] = {
    "vocab_size": PIECES,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
_BART: dict[str, Any] = {
    "vocab_size": PIECES,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 40,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {  # name -> architecture and its settings
    "bert": ("BertForMaskedLM", _BERT),
    "bert-tanh": ("BertForMaskedLM", {**_BERT, "hidden_act": "gelu_new", "type_vocab_size": 3}),
    "bert-vector": ("BertModel", _BERT),
    "bert-classes": ("BertForSequenceClassification", _BERT),
    "bert-tags": ("BertForTokenClassification", _BERT),
    "bert-pretraining": ("BertForPreTraining", _BERT),
    "roberta": ("RobertaForMaskedLM", {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    "roberta-vector": ("RobertaModel", {**_BERT, "pad_token_id": 3}),
    "roberta-classes": ("RobertaForSequenceClassification", {**_BERT, "pad_token_id": 1}),
    "roberta-tags": ("RobertaForTokenClassification", {**_BERT, "pad_token_id": 1, "hidden_act": "relu"}),
    "albert": ("AlbertForMaskedLM", _ALBERT),
    "albert-vector": ("AlbertModel", _ALBERT),
    "albert-classes": ("AlbertForSequenceClassification", _ALBERT),
    "gpt2": ("GPT2LMHeadModel", _GPT),
    "gpt2-untied": ("GPT2LMHeadModel", {**_GPT, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False}),
    "gptj": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 4}),
    "gptj-whole": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 8, "n_inner": 40}),
    "falcon": ("FalconForCausalLM", _FALCON),
    "falcon-untied": ("FalconForCausalLM", {**_FALCON, "tie_word_embeddings": False, "ffn_hidden_size": 40}),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "llama-biases": ("LlamaForCausalLM", {**_LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-heads": ("LlamaForCausalLM", {**_LLAMA, "head_dim": 12, "num_key_value_heads": 1, "hidden_act": "gelu"}),
    "llama-linear": ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _LINEAR}),
    "llama3": ("LlamaForCausalLM", {**_LLAMA, "rope_parameters": _LLAMA3}),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "cohere": ("CohereForCausalLM", _COHERE),
    "cohere-biases": ("CohereForCausalLM", {**_COHERE, "attention_bias": True, "num_key_value_heads": 1}),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5-gated": ("T5ForConditionalGeneration", {**_T5, "d_kv": 8, "feed_forward_proj": "gated-gelu", "num_decoder_layers": None}),
    "bart": ("BartForConditionalGeneration", _BART),
    "bart-scaled": ("BartForConditionalGeneration", {**_BART, "scale_embedding": True, "activation_function": "relu"}),
}  # fmt: skip


def make_original(name: str, **changes: Any) -> Any:
    """A random model of transformers. No two numbers are alike, or biases and norms that are zero and one would hide a mix-up; the
    embeddings are small, so that the epsilon of a norm shows."""
    architecture, settings = CASES[name]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**{**settings, **changes})
    torch.manual_seed(1)
    model = kind(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            elif any(part in path for part in ("embed", "wte", "wpe", "shared")):
                parameter.normal_(std=0.05)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for path, buffer in model.named_buffers():
            if path == "final_logits_bias":
                buffer.normal_()
    return model


# --- both sides ---


@dataclass(frozen=True)
class Inputs:
    """A padded batch, as transformers takes it."""

    ids: Tensor  # (sequences, length)
    mask: Tensor  # 1 where there is a token
    types: Tensor | None = None
    target: Tensor | None = None  # the decoder's input, without padding

    def theirs(self) -> dict[str, Tensor]:
        given = {"input_ids": self.ids, "attention_mask": self.mask}
        given |= {} if self.types is None else {"token_type_ids": self.types}
        return given if self.target is None else {**given, "decoder_input_ids": self.target}


def run(model: Transformer, inputs: Inputs) -> Tensor:
    """What Regard's model answers, packed: (tokens, pieces), or (sequences, classes or d_model)."""
    is_token = inputs.mask.bool()
    layout = SequenceLayout.from_lengths(is_token.sum(1).tolist())
    types = None if inputs.types is None or not model.config.front_settings.token_types else inputs.types[is_token]
    target: tuple[Any, ...] = (None, None)
    if inputs.target is not None:
        lengths = [inputs.target.shape[1]] * len(inputs.target)
        target = inputs.target.flatten(), SequenceLayout.from_lengths(lengths)
    answer: Tensor = model(inputs.ids[is_token], layout, *target, types)
    return answer


def packed(inputs: Inputs, logits: Tensor) -> Tensor:
    """Padded outputs of transformers as `run` has them."""
    if logits.ndim == 2:
        return logits
    return logits[inputs.mask.bool()] if inputs.target is None else logits.flatten(0, 1)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in standard deviations of theirs."""
    return float((ours - theirs).abs().max() / theirs.std())


# --- staged checkpoints ---


@dataclass(frozen=True)
class Golden:
    """A staged checkpoint: settings and weights as Regard has them, and the goldens' inputs and logits."""

    config: ModelConfig
    weights: dict[str, Tensor]
    cases: list[tuple[Inputs, Tensor]]


def read_golden(folder: Path) -> Golden:
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = FAMILIES[settings["model_type"]]
    config = family.config(settings, settings["architectures"][0])
    weights = from_theirs(family.entries(config), load_file(folder / "model.safetensors"))
    golden = load_file(folder / "golden.safetensors")
    cases = []
    for name in [name for name in golden if name.startswith("logits")]:
        is_padded = name == "logits_masked" or "decoder_input_ids" in golden
        mask = golden["attention_mask"] if is_padded else torch.ones_like(golden["input_ids"])
        types = golden["token_type_ids"] if name == "logits_two_segments" else None
        cases.append((Inputs(golden["input_ids"], mask, types, golden.get("decoder_input_ids")), golden[name]))
    return Golden(config, weights, cases)


@torch.no_grad()
def golden_distance(model: Transformer, golden: Golden) -> float:
    """The largest distance over all goldens of a checkpoint."""
    return max(distance(run(model, inputs), packed(inputs, logits)) for inputs, logits in golden.cases)

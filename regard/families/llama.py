"""LLaMA, and its relatives in which only settings differ: Mistral without sliding windows, and Qwen2, which has biases on queries,
keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from regard.config import ModelConfig
from regard.errors import UserError
from regard.families.family import Family, Fields
from regard.families.rope import read_rope, write_rope
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import AttentionBias, HeadKind

LAYER = LayerNames(
    {
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "out": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "inner": "mlp.up_proj",
        "outer": "mlp.down_proj",
        "norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    },
    halves=True,
)


def _read(fields: Fields, head: HeadKind, bias: AttentionBias | None = None) -> ModelConfig:
    """`bias`: where the family's attention has biases; None: where its settings say."""
    _refuse_windows(fields)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    d_head = fields.whole("head_dim", width // heads if heads else 0)
    kv_heads = fields.whole("num_key_value_heads", heads)
    attention_bias: AttentionBias = "all" if fields.flag("attention_bias", False) else "none"
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=0 if kv_heads == heads else kv_heads,
        d_head=0 if heads and d_head * heads == width else d_head,
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        dropout=0.0,
        attention_dropout=fields.number("attention_dropout", 0.0),
        norm_position="pre",
        norm="rms",
        norm_eps=fields.number("rms_norm_eps"),
        activation=fields.choice("hidden_act", {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}),
        max_positions=fields.whole("max_position_embeddings"),
        attention_bias=bias or attention_bias,
        feed_forward_bias=fields.flag("mlp_bias", False),
        embedding_scale=False,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        **read_rope(fields),
    )


def _refuse_windows(fields: Fields) -> None:
    """Attention to a window of the last tokens is not what Regard computes."""
    kinds = fields.given.get("layer_types", ())
    if isinstance(kinds, (list, tuple)) and any(kind != "full_attention" for kind in kinds):
        raise UserError("layer_types must all be 'full_attention', but has sliding windows; a bundle cannot hold them")
    has_window = fields.has("sliding_window") and "sliding_window" not in fields.nulls
    if has_window and fields.flag("use_sliding_window", True):
        window = fields.whole("sliding_window")
        raise UserError(f"sliding_window must be null, but is {window}; a bundle cannot hold such a model")


def _write(config: ModelConfig, relative: bool = False) -> dict[str, Any]:
    stack = config.stacks["decoder"]
    fields = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": stack.d_ff,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.num_heads,
        "num_key_value_heads": stack.num_kv_heads,
        "head_dim": stack.d_head,
        "hidden_act": {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "rms_norm_eps": stack.norm_eps,
        "attention_dropout": stack.attention_dropout,
        "rope_parameters": write_rope(stack),
        "tie_word_embeddings": config.tie_embeddings,
    }
    if relative:
        return {**fields, "sliding_window": None, "use_sliding_window": False}
    return {**fields, "attention_bias": stack.attention_bias == "all", "mlp_bias": stack.feed_forward_bias}


def entries(config: ModelConfig, layer: LayerNames = LAYER) -> Iterator[Entry]:
    """The table of LLaMA's names, which its relatives share."""
    stack = config.stacks["decoder"]
    yield Entry("embedding.weight", ("model.embed_tokens.weight",))
    for number in range(stack.layers):
        yield from layer_entries(layer, stack, f"decoder.layers.{number}", f"model.layers.{number}")
    yield from norm_entries(stack, "decoder.final_norm", "model.norm")
    if not config.tie_embeddings:
        yield Entry("output.weight", ("lm_head.weight",))


_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_IGNORED = (".rotary_emb.inv_freq",)

LLAMA = Family(
    name="LLaMA",
    model_type="llama",
    heads={"LlamaForCausalLM": "tokens"},
    read=_read,
    write=_write,
    entries=entries,
    defaults=_DEFAULTS,
    fixed={"pretraining_tp": 1},
    prefix="model.",
    ignored=_IGNORED,
)
MISTRAL = Family(
    name="Mistral",
    model_type="mistral",
    heads={"MistralForCausalLM": "tokens"},
    read=partial(_read, bias="none"),
    write=partial(_write, relative=True),
    entries=entries,
    defaults={
        **_DEFAULTS,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    prefix="model.",
    ignored=_IGNORED,
)
QWEN2 = Family(
    name="Qwen2",
    model_type="qwen2",
    heads={"Qwen2ForCausalLM": "tokens"},
    read=partial(_read, bias="qkv"),
    write=partial(_write, relative=True),
    entries=entries,
    defaults={
        **_DEFAULTS,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    },
    prefix="model.",
    ignored=_IGNORED,
)

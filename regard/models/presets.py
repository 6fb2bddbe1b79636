"""Named model sizes. `base` and `big` are the paper's; the small ones are for small data and small machines; those of one stack are
language models of other papers. `depth_settings` makes a size of one number."""

from __future__ import annotations

from typing import Any

_ONE_STACK: dict[str, Any] = {"encoder_layers": 0, "norm_position": "pre", "embedding_scale": False}
_GPT2: dict[str, Any] = {**_ONE_STACK, "activation": "gelu_tanh", "positions": "learned", "dropout": 0.1}
_WITHOUT_BIAS: dict[str, Any] = {
    "activation": "swiglu",
    "positions": "rotary",
    "attention_bias": "none",
    "feed_forward_bias": False,
}
LLAMA_BLOCK: dict[str, Any] = {"norm_position": "pre", "norm": "rms", "embedding_scale": False, **_WITHOUT_BIAS}
_LLAMA: dict[str, Any] = {**_ONE_STACK, **LLAMA_BLOCK, "dropout": 0.0, "tie_embeddings": False}
_PALM: dict[str, Any] = {
    **_ONE_STACK,
    **_WITHOUT_BIAS,
    "dropout": 0.0,
    "norm_bias": False,
    "parallel": True,
    "num_kv_heads": 1,
}

PRESETS: dict[str, dict[str, Any]] = {
    # Table 3 of the paper.
    "base": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.1},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.3},
    # The paper's layers, fewer and narrower: for 10,000 to 300,000 sentence pairs.
    "tiny": {"d_model": 192, "d_ff": 768, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1},
    "small": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1},
    # A deep encoder and a shallow decoder, since the decoder runs once for every generated token.
    "fast": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 2, "dropout": 0.1},
    "fastest": {
        "d_model": 512,
        "d_ff": 2048,
        "num_heads": 8,
        "encoder_layers": 12,
        "decoder_layers": 1,
        "dropout": 0.1,
    },
    # Language models: GPT-2's two smallest sizes (Radford et al., 2019; its dropout of attention weights is left out, as the fast
    # path has none), and the blocks of LLaMA (Touvron et al., 2023) and PaLM (Chowdhery et al., 2022) in the size of the first.
    "gpt2": {**_GPT2, "d_model": 768, "d_ff": 3072, "num_heads": 12, "decoder_layers": 12},
    "gpt2-medium": {**_GPT2, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "decoder_layers": 24},
    "llama-small": {**_LLAMA, "d_model": 768, "d_ff": 2048, "num_heads": 12, "decoder_layers": 12},
    "palm-small": {**_PALM, "d_model": 768, "d_ff": 3072, "num_heads": 12, "decoder_layers": 12},
}

MAX_DEPTH = 200
# GPT-3 Small (Brown et al., 2020, table 2.1): 12 layers of 768, rate 6e-4, batches of 0.5 million tokens.
_REFERENCE_DEPTH = 12
_REFERENCE_BATCH = 500_000
# Muon's is the one that `regard train TEXT.txt` chooses for 12 layers of 768 on a GPU (tasks/text_plan.py).
_REFERENCE_RATES = {"adam": 6e-4, "adamw": 6e-4, "muon": 1.2e-3}


def gated_width(width: int) -> int:
    """The width of a gated feed-forward layer with as many weights as one of 4 * width without a gate (Shazeer, 2020), in steps of
    32."""
    return round(width * 8 / 3 / 32) * 32


def depth_settings(depth: int, is_gated: bool = False, optimizer: str = "adam") -> dict[str, dict[str, Any]]:
    """Width, heads, batch size and learning rate for so many layers, by section of a recipe, whatever the machine.

    The width is 64 for each layer, in heads of 64: within the flat optimum of Kaplan et al. (2020, figure 5), and what GPT-3 Small
    has. So parameters grow with the cube of the depth, and with them the text that a model is worth training on (Hoffmann et al.,
    2022). The batch grows with that text to the power of 0.383 (Bergsma et al., 2025), the rate falls with the root of the width,
    as in Karpathy's nanochat. Both go through the values of GPT-3 Small; the rate of Muon through one of its own.

    >>> depth_settings(12)["model"]["d_model"], depth_settings(12)["train"]
    (768, {'batch_tokens': 500000, 'lr': 0.0006})
    """
    width, ratio = 64 * depth, depth / _REFERENCE_DEPTH
    batch = _REFERENCE_BATCH * ratio ** (3 * 0.383)
    rate = _REFERENCE_RATES[optimizer] * ratio**-0.5
    d_ff = gated_width(width) if is_gated else 4 * width
    shape = {"d_model": width, "d_ff": d_ff, "num_heads": depth, "encoder_layers": depth, "decoder_layers": depth}
    return {
        "model": shape,
        "train": {"batch_tokens": int(float(f"{batch:.2g}")), "lr": float(f"{rate:.2g}")},
    }

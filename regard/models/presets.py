"""Named model sizes. `base` and `big` are the paper's; the small ones are for small data and small machines."""

from __future__ import annotations

from typing import Any

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
}

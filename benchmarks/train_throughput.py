"""Training speed beside peers: torch.nn.Transformer, Hugging Face Marian and Regard, on the same sentence lengths in one run.

    python -m benchmarks.train_throughput --preset tiny --vocab 8000 --tokens 2000

The padded peers get batches of similar lengths, as any toolkit gives them; only real target tokens are counted. All train
with AdamW, label smoothing and dropout 0.1, in bf16 where the machine has it (`--precision` to differ).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import machine, report, time_rounds
from regard.config import ModelConfig
from regard.device import compute_dtype, pick_device
from regard.layout import SequenceLayout
from regard.models.loss import linear_cross_entropy
from regard.models.presets import PRESETS
from regard.models.transformer import Transformer
from regard.nn.embedding import sinusoids

PAD = 0
Update = Callable[[], object]


def sentence_lengths(tokens: int, seed: int = 1) -> tuple[list[int], list[int]]:
    """Lengths like those of everyday text, sorted within the batch so that padding is small."""
    draw = random.Random(seed)
    mean = draw.randint(10, 30)
    tgt: list[int] = []
    while sum(tgt) < tokens:
        tgt.append(max(2, round(draw.gauss(mean, 2))))
    return sorted(max(2, length + draw.randint(-3, 3)) for length in tgt), sorted(tgt)


def updates(network: nn.Module, loss: Callable[[], Tensor], device: torch.device, dtype: torch.dtype | None) -> Update:
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device.type in ("cpu", "cuda"))

    def update() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            value = loss()
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def regard_update(
    config: ModelConfig, src: list[int], tgt: list[int], device: torch.device, dtype: torch.dtype | None
) -> Update:
    network = Transformer(config)
    src_layout, tgt_layout = (SequenceLayout.from_lengths(lengths, device) for lengths in (src, tgt))
    src_ids = torch.randint(1, config.vocab_size, (sum(src),), device=device)
    tgt_ids = torch.randint(1, config.vocab_size, (sum(tgt),), device=device)

    def loss() -> Tensor:
        hidden = network.hidden(src_ids, src_layout, tgt_ids, tgt_layout)
        result = linear_cross_entropy(hidden, network.output_weight, tgt_ids, 0.1)
        return result.total / result.count

    return updates(network, loss, device, dtype)


def padded(lengths: list[int], vocab_size: int, device: torch.device) -> Tensor:
    ids = torch.randint(1, vocab_size, (len(lengths), max(lengths)), device=device)
    places = torch.arange(max(lengths), device=device)
    return ids.masked_fill(places >= torch.tensor(lengths, device=device)[:, None], PAD)


class TorchModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.register_buffer("positions", sinusoids(512, config.d_model))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        scale = self.embedding.embedding_dim**0.5
        enter = [self.embedding(ids) * scale + self.positions[: ids.shape[1]] for ids in (src, tgt)]
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device, dtype=torch.bool)
        hidden = self.transformer(
            *enter,
            tgt_mask=causal,
            src_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=src == PAD,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def torch_update(
    config: ModelConfig, src: list[int], tgt: list[int], device: torch.device, dtype: torch.dtype | None
) -> Update:
    network = TorchModel(config)
    src_ids, tgt_ids = padded(src, config.vocab_size, device), padded(tgt, config.vocab_size, device)

    def loss() -> Tensor:
        logits = network(src_ids, tgt_ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), tgt_ids.flatten(), ignore_index=PAD, label_smoothing=0.1)

    return updates(network, loss, device, dtype)


def marian_update(
    config: ModelConfig, src: list[int], tgt: list[int], device: torch.device, dtype: torch.dtype | None
) -> Update:
    from transformers import MarianConfig, MarianMTModel

    network = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            decoder_vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            dropout=config.dropout,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=1,
            decoder_start_token_id=PAD,
            attn_implementation="sdpa",
        )
    )
    src_ids, tgt_ids = padded(src, config.vocab_size, device), padded(tgt, config.vocab_size, device)

    def loss() -> Tensor:
        logits = network(input_ids=src_ids, attention_mask=(src_ids != PAD).long(), decoder_input_ids=tgt_ids).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), tgt_ids.flatten(), ignore_index=PAD, label_smoothing=0.1)

    return updates(network, loss, device, dtype)


CONTENDERS = {
    "torch.nn.Transformer": torch_update,
    "Hugging Face Marian": marian_update,
    "Regard": regard_update,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=2000, help="target tokens in an update")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    dtype = compute_dtype(arguments.precision, device)
    config = ModelConfig(arguments.vocab, **{**PRESETS[arguments.preset], "dropout": 0.1})
    src, tgt = sentence_lengths(arguments.tokens)
    contenders = {name: make(config, src, tgt, device, dtype) for name, make in CONTENDERS.items()}
    seconds = time_rounds(contenders, arguments.rounds, device)
    ours = seconds["Regard"]
    rows = [
        {
            "contender": name,
            "target tokens/s": round(sum(tgt) / value),
            "update ms": 1e3 * value,
            "Regard is faster by": value / ours,
        }
        for name, value in seconds.items()
    ]
    facts = {
        **machine(device),
        "preset": arguments.preset,
        "vocabulary": arguments.vocab,
        "target tokens": sum(tgt),
        "precision": "fp32" if dtype is None else "bf16",
    }
    report("train_throughput", rows, facts, arguments.out)


if __name__ == "__main__":
    main()

"""Folders in Marian's format, as Hugging Face's hub has OPUS-MT's: small models with random weights and real tokenizers."""

from __future__ import annotations

import io
import json
import lzma
import random
from functools import cache
from pathlib import Path
from typing import Any, Literal

import sentencepiece
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

TATOEBA = Path(__file__).parents[2] / "data" / "tatoeba"
TAUGHT: dict[str, dict[str, torch.Tensor]] = {}  # weights that several tests start from


@cache
def tatoeba(name: str, count: int) -> list[str]:
    """The first lines of a file, such as "dev.en"."""
    with lzma.open(TATOEBA / f"{name}.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(count), strict=False)]


@cache
def sentencepiece_model(language: str) -> bytes:
    """As OPUS-MT's are: unigram, NFKC, no bytes; a character that it has not seen is unknown."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tatoeba(f"train.{language}", 600)),
        model_writer=writer,
        vocab_size=64,
        model_type="unigram",
        character_coverage=0.98,
        bos_id=-1,
        minloglevel=2,
    )
    return writer.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def vocabulary(*languages: str, seed: int = 0, without: int = 0) -> dict[str, int]:
    """OPUS-MT's order: the end first, then the unknown, the pieces of both languages, and the padding last. Two vocabularies
    need one id for the padding: where one has fewer pieces, it moves to the front."""
    pieces = {piece for language in languages for piece in pieces_of(sentencepiece_model(language))}
    ordered = sorted(pieces - {"</s>", "<unk>"})
    random.Random(seed).shuffle(ordered)
    if len(languages) == 1:
        ordered = ["<pad>", *ordered[without:]]
    else:
        ordered.append("<pad>")
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", ">>deu<<", *ordered])}


def write_opus(
    folder: Path,
    *,
    seed: int = 0,
    separate: Literal["", "fewer source", "fewer target"] = "",
    search: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    steps: int = 0,
    padding: float = 8.0,
    **config: Any,
) -> Any:
    """A MarianMTModel that has learned a little in `steps`; `padding` is the logit of the piece that is never to be chosen."""
    source = vocabulary("en", without=9 if separate == "fewer source" else 0) if separate else vocabulary("en", "de")
    target = vocabulary("de", seed=1, without=9 if separate == "fewer target" else 0) if separate else source
    pad = target["<pad>"]
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target)}
    shape: dict[str, Any] = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 128,
        "share_encoder_decoder_embeddings": not separate,
        "decoder_start_token_id": pad,
        "pad_token_id": pad,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "bos_token_id": 0,
    }
    with torch.random.fork_rng():  # whoever draws next draws the same, also where another test has taught this model
        model = MarianMTModel(MarianConfig(**{**sizes, **shape, **config})).eval()
        key = json.dumps([seed, separate, steps, config], sort_keys=True)
        if key not in TAUGHT:
            randomise(model, seed)
            teach(model, len(source), len(target), steps)
            TAUGHT[key] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(TAUGHT[key])
    with torch.no_grad():
        # The padding is no piece that was learned: nothing but `bad_words_ids` keeps it from being chosen.
        model.final_logits_bias[0, pad] = padding
    model.generation_config = GenerationConfig(
        **{
            "num_beams": 4,
            "max_length": 128,
            "bad_words_ids": [[pad]],
            "decoder_start_token_id": pad,
            "pad_token_id": pad,
            "eos_token_id": 0,
            "bos_token_id": 0,
            "forced_eos_token_id": 0,
            **(search or {}),
        }
    )
    model.save_pretrained(folder)
    assert (folder / "generation_config.json").exists()
    (folder / "source.spm").write_bytes(sentencepiece_model("en"))
    (folder / "target.spm").write_bytes(sentencepiece_model("de"))
    write_json(folder / "vocab.json", source)
    if separate:
        write_json(folder / "target_vocab.json", target)
    settings = {"source_lang": "eng", "target_lang": "deu", "separate_vocabs": bool(separate), **(tokenizer or {})}
    write_json(folder / "tokenizer_config.json", settings)
    return model


@torch.no_grad()
def randomise(model: MarianMTModel, seed: int) -> None:
    """No two numbers alike: biases and norms that are zero and one would hide a mix-up."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name or "shared" in name or "lm_head" in name:
            parameter.normal_(std=model.config.d_model**-0.5 if model.config.scale_embedding else 0.5)
        elif parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        elif "embed_positions" not in name:
            torch.nn.init.xavier_uniform_(parameter)
    model.final_logits_bias.normal_()


def teach(model: MarianMTModel, source_size: int, target_size: int, steps: int) -> None:
    """Begin to learn to write the source backwards, in other pieces: a model that says different things at many lengths. A
    random one nearly always says the same, or never ends."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        length = int(torch.randint(1, 13, (), generator=generator))
        words = torch.randint(4, source_size - 1, (24, length), generator=generator)
        end = torch.zeros(24, 1, dtype=torch.int64)
        labels = torch.cat((4 + words.flip(1) % (target_size - 5), end), dim=1)
        loss = model(input_ids=torch.cat((words, end), dim=1), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def change_json(path: Path, **changes: Any) -> None:
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **changes})

"""Prompts in the cache: what a model says after reading them at once, and after one or several more tokens at a time, is what it
says after reading everything; no sentence notices the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.cache import DecoderCache
from regard.nn.linear import set_row_tile
from regard.nn.places import Places
from tests.build import build, pack, random_sentences, tiny_config

# Decoders without an encoder, as the families have them, and what is particular about positions.
PRE: dict[str, Any] = {"norm_position": "pre"}
DECODERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "gpt2": {**PRE, "positions": "learned", "activation": "gelu_tanh", "embedding_scale": False, "max_positions": 64},
    "offset": {**PRE, "positions": "learned", "position_offset": 2, "max_positions": 64},
    "llama": {**PRE, "norm": "rms", "activation": "swiglu", "positions": "rotary", "rotary_pairing": "halves",
              "num_kv_heads": 2, "attention_bias": "none", "feed_forward_bias": False, "rotary_base": 500.0,
              "tie_embeddings": False, "embedding_scale": False},
    "llama3": {**PRE, "positions": "rotary", "rotary_scaling": {"kind": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_positions": 16}},
    "gptj": {**PRE, "positions": "rotary", "rotary_dim": 4, "parallel": True, "activation": "gelu_tanh",
             "output_bias": True, "tie_embeddings": False, "attention_bias": "none"},
    "falcon": {**PRE, "positions": "rotary", "parallel": True, "num_kv_heads": 1, "activation": "gelu"},
    "cohere": {**PRE, "positions": "rotary", "parallel": True, "norm_bias": False, "activation": "swiglu",
               "num_kv_heads": 1, "head": {"logit_scale": 0.25}},
    "wide-heads": {**PRE, "positions": "rotary", "d_head": 24},
    "relative": {**PRE, "norm": "rms", "positions": "relative", "relative_buckets": 8, "relative_max_distance": 12,
                 "score_scale": 1.0, "num_kv_heads": 2, "activation": "geglu_tanh"},
    "no-positions": {**PRE, "positions": "none", "activation": "geglu", "embedding_norm": True},
}  # fmt: skip
every_decoder = pytest.mark.parametrize("switches", DECODERS.values(), ids=DECODERS)
LENGTHS = [5, 1, 0, 17, 8, 9, 16]


def decoder(**switches: Any) -> Transformer:
    return build(tiny_config(encoder_layers=0, **switches))


def prompted(
    model: Transformer, prompts: Sequence[Tensor], beam: int = 1, capacity: int = 2, bucket: int = 8
) -> DecoderCache:
    ids, layout = pack(prompts)
    return model.prefill(ids, layout, beam, capacity, bucket)


def read(model: Transformer, cache: DecoderCache, tokens: Tensor, steps: Sequence[int]) -> Tensor:
    """Feed (rows, tokens) in steps of so many; logits are (rows, tokens, vocab_size)."""
    sentences = len(cache.places.prompts)
    logits = []
    for part in tokens.split(list(steps), dim=1):
        several = part.shape[1] > 1
        out = model.step(part.flatten(), cache, [part.shape[1]] * sentences if several else None)
        logits.append(out.view(*part.shape, -1))
    return torch.cat(logits, dim=1)


def read_at_once(model: Transformer, prompts: Sequence[Tensor], tokens: Tensor) -> Tensor:
    """Logits after each of (rows, tokens), whose rows continue these prompts, as training computes them."""
    whole = [torch.cat((prompt, row)) for prompt, row in zip(prompts, tokens, strict=True)]
    logits: Tensor = model(*pack(whole))
    return torch.stack([one[-tokens.shape[1] :] for one in logits.split([len(one) for one in whole])])


@every_decoder
@pytest.mark.parametrize("steps", [[1] * 6, [6], [1, 3, 2]], ids=str)
@torch.no_grad()
def test_a_prompt_and_steps_equal_reading_everything(switches: dict[str, Any], steps: list[int]) -> None:
    # In float64, so that a wrong position or head cannot hide behind rounding. Six tokens outgrow a capacity of two.
    model = decoder(**switches).double()
    prompts = random_sentences(LENGTHS, seed=1)
    tokens = torch.stack(random_sentences([6] * len(LENGTHS), seed=2))
    logits = read(model, prompted(model, prompts), tokens, steps)
    torch.testing.assert_close(logits, read_at_once(model, prompts, tokens), atol=1e-10, rtol=0)


@every_decoder
@torch.no_grad()
def test_cached_logits_are_those_without_a_cache_in_float32(switches: dict[str, Any]) -> None:
    model = as_generated(**switches)
    prompts = random_sentences(LENGTHS, seed=1)
    tokens = torch.stack(random_sentences([6] * len(LENGTHS), seed=2))
    logits = read(model, prompted(model, prompts), tokens, [1] * 6)
    expected = read_at_once(model, prompts, tokens)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@every_decoder
@torch.no_grad()
def test_hypotheses_share_a_prompt_and_take_over_each_others_tokens(switches: dict[str, Any]) -> None:
    model = decoder(**switches).double()
    prompts, beam = random_sentences([4, 11, 0], seed=3), 3
    tokens = torch.stack(random_sentences([5] * 9, seed=4))
    cache = prompted(model, prompts, beam)
    read(model, cache, tokens[:, :3], [1, 2])
    assert all(layer.self_attention.prompts is not None for layer in cache.layers)
    held = [group.keys for layer in cache.layers for group in layer.self_attention.prompts.groups]
    assert [keys.shape[0] for keys in held[:2]] == [1, 1]  # once for each sentence, not for each hypothesis
    origin = torch.tensor([2, 0, 0, 4, 3, 4, 8, 8, 6])
    cache.select(origin)
    after = [group.keys for layer in cache.layers for group in layer.self_attention.prompts.groups]
    assert all(one is other for one, other in zip(held, after, strict=True)), "reordering does not touch prompts"
    logits = read(model, cache, tokens[:, 3:], [2])
    histories = torch.cat((tokens[origin, :3], tokens[:, 3:]), dim=1)
    expected = read_at_once(model, [prompt for prompt in prompts for _ in range(beam)], histories)
    torch.testing.assert_close(logits, expected[:, 3:], atol=1e-10, rtol=0)


@every_decoder
@torch.no_grad()
def test_finished_sentences_leave_and_the_others_go_on(switches: dict[str, Any]) -> None:
    model = decoder(**switches).double()
    prompts, beam = random_sentences([4, 20, 6, 1, 17], seed=5), 2
    tokens = torch.stack(random_sentences([6] * 10, seed=6))
    cache = prompted(model, prompts, beam)
    read(model, cache, tokens[:, :2], [1, 1])
    rows = torch.tensor([3, 2, 4, 4, 8, 9])
    cache.select(rows, [1, 2, 4])
    histories = torch.cat((tokens[rows, :2], tokens[:6, 2:]), dim=1)
    expected = read_at_once(model, [prompts[n] for n in (1, 2, 4) for _ in range(beam)], histories)
    torch.testing.assert_close(read(model, cache, histories[:, 2:4], [2]), expected[:, 2:4], atol=1e-10, rtol=0)
    cache.select(torch.tensor([4, 5]), [2])
    torch.testing.assert_close(read(model, cache, histories[4:, 4:], [1, 1]), expected[4:, 4:], atol=1e-10, rtol=0)


@every_decoder
@torch.no_grad()
def test_sentences_may_take_different_numbers_of_tokens_in_a_step(switches: dict[str, Any]) -> None:
    """As when several drafts are checked at once: each sentence goes on from its own place."""
    model = decoder(**switches).double()
    prompts, beam = random_sentences([7, 0, 8, 3], seed=7), 2
    tokens = [torch.stack(random_sentences([9] * beam, seed=seed)) for seed in range(4)]
    cache = prompted(model, prompts, beam)
    found: list[list[Tensor]] = [[], [], [], []]
    places = [0, 0, 0, 0]
    for counts in ([1, 3, 1, 2], [1, 1, 1, 1], [4, 1, 2, 2], [1, 2, 3, 2], [1, 1, 1, 1]):
        parts = [one[:, at : at + n] for one, at, n in zip(tokens, places, counts, strict=True)]
        logits = model.step(torch.cat([part.flatten() for part in parts]), cache, counts)
        for number, out in enumerate(logits.split([beam * n for n in counts])):
            found[number].append(out.view(beam, counts[number], -1))
            places[number] += counts[number]
        cache.select(torch.arange(8))
    for number, prompt in enumerate(prompts):
        expected = read_at_once(model, [prompt] * beam, tokens[number][:, : places[number]])
        torch.testing.assert_close(torch.cat(found[number], dim=1), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
@torch.no_grad()
def test_a_decoder_with_a_source_reads_prompts_too(positions: str) -> None:
    model = build(tiny_config(positions=positions, num_kv_heads=2)).double()
    sources, prompts = random_sentences([5, 9, 2], seed=1), random_sentences([3, 0, 10], seed=2)
    tokens = torch.stack(random_sentences([4] * 6, seed=3))
    src, src_layout = pack(sources)
    cache = model.prefill(*pack(prompts), 2, 3, 8, model.encode(src, src_layout), src_layout)
    logits = read(model, cache, tokens, [1, 2, 1])
    whole = [torch.cat((prompts[n // 2], row)) for n, row in enumerate(tokens)]
    src, src_layout = pack([sources[n // 2] for n in range(6)])
    expected = model(src, src_layout, *pack(whole))
    expected = torch.stack([one[-4:] for one in expected.split([len(one) for one in whole])])
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)
    with pytest.raises(ValueError, match="sentences with a source take equally many tokens"):
        model.step(torch.zeros(8, dtype=torch.int64), cache, [1, 1, 2])


def test_a_step_without_tokens_is_refused() -> None:
    places = Places([3, 4], beam=1, bucket=8, device=torch.device("cpu"))
    for counts in ([1], [1, 0]):
        with pytest.raises(ValueError, match="a step needs one or more tokens for each of 2 sentences"):
            places.advance(counts)


# --- the same bits in any batch ---


def as_generated(**switches: Any) -> Transformer:
    """A model set up as the torch engine does it."""
    model = decoder(**switches)
    set_row_tile(model, 64)
    set_kernel(model, "by_length")
    return model


def bits(
    model: Transformer, prompts: Sequence[Tensor], tokens: Sequence[Tensor], beam: int, steps: Sequence[int]
) -> list[Tensor]:
    """(beam, tokens, vocab_size) logits of each sentence; hypotheses swap after each step."""
    cache = prompted(model, prompts, beam, capacity=len(prompts))
    logits = []
    for part in torch.cat(list(tokens)).split(list(steps), dim=1):
        out = model.step(part.flatten(), cache, [part.shape[1]] * len(prompts))
        logits.append(out.view(*part.shape, -1))
        cache.select(torch.arange(len(prompts) * beam).view(-1, beam).flip(1).flatten())
    return list(torch.cat(logits, dim=1).view(len(prompts), beam, sum(steps), -1))


def assert_independent(model: Transformer, lengths: list[int], beam: int, steps: list[int], seed: int) -> None:
    vocab_size = model.config.vocab_size
    prompts = random_sentences(lengths, vocab_size, seed)
    tokens = [one.view(beam, -1) for one in random_sentences([beam * sum(steps)] * len(lengths), vocab_size, seed + 1)]
    together = bits(model, prompts, tokens, beam, steps)
    for number in range(len(lengths)):
        alone = bits(model, prompts[number : number + 1], tokens[number : number + 1], beam, steps)
        assert torch.equal(alone[0], together[number]), f"sentence {number} of {lengths}"


@every_decoder
@torch.inference_mode()
def test_a_prompt_gets_the_same_bits_in_any_batch(switches: dict[str, Any]) -> None:
    # 100 is no multiple of a vector, and 24 no power of two: where the last elements of a row are computed differently.
    model = as_generated(**{"d_model": 96, "d_ff": 100, **switches})
    for seed, (lengths, beam) in enumerate([([5, 9, 0, 30, 9, 17], 4), ([12, 3], 1), ([7] * 9, 2), ([33, 1, 40], 1)]):
        assert_independent(model, lengths, beam, [1, 1, 2, 1], seed)


@pytest.mark.parametrize("num_heads", [4, 1])
@torch.inference_mode()
def test_a_prompt_gets_the_same_bits_when_there_are_more_threads_than_work(num_heads: int) -> None:
    torch.set_num_threads(16)
    model = as_generated(d_model=96, num_heads=num_heads, positions="rotary", decoder_layers=1)
    assert_independent(model, [7, 100, 104, 104], 4, [1, 1, 1], seed=1)
    assert_independent(model, [30, 7, 98], 1, [1, 3, 1], seed=2)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=16),
    steps=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    beam=st.integers(1, 5),
    heads=st.sampled_from([(2, 1), (4, 4), (8, 2)]),
    seed=st.integers(0, 1000),
)
@torch.inference_mode()
def test_a_prompt_gets_the_same_bits_in_any_random_batch(
    lengths: list[int], steps: list[int], beam: int, heads: tuple[int, int], seed: int
) -> None:
    model = as_generated(
        d_model=64, d_ff=128, num_heads=heads[0], num_kv_heads=heads[1], decoder_layers=1, positions="rotary"
    )
    assert_independent(model, lengths, beam, steps, seed)


@torch.inference_mode()
def test_what_others_take_in_a_step_does_not_change_a_sentences_bits() -> None:
    """Groups of one shape are computed on their own, whatever the others' shapes are."""
    model = as_generated(d_model=96, num_kv_heads=2, positions="rotary")
    prompts = random_sentences([9, 30, 2], seed=1)
    tokens = random_sentences([6, 6, 6], seed=2)
    alone = bits(model, prompts[:1], [tokens[0][None]], 1, [1, 2, 1, 2])[0][0]
    cache = prompted(model, prompts)
    places, found = [0, 0, 0], []
    for counts in ([1, 2, 1], [2, 1, 1], [1, 1, 3], [2, 2, 1]):
        parts = [one[at : at + n] for one, at, n in zip(tokens, places, counts, strict=True)]
        found.append(model.step(torch.cat(parts), cache, counts)[: counts[0]])
        places = [at + n for at, n in zip(places, counts, strict=True)]
    assert torch.equal(torch.cat(found), alone)

"""Every setting against the plain formulas in `tests/plain.py`, and random combinations of them: they build, run packed as alone,
hide the future, survive their files, or are refused with a reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.config import ModelConfig
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from tests import plain
from tests.build import HEADS, LATER, ONE_STACK, SWITCHES, build, pack, random_sentences, tiny_config

TWO_STACKS = SWITCHES | LATER


def double(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model in float64 in which everything is large enough to show."""
    model = build(config, seed).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative" in name or (len(config.stacks) == 1 and parameter.ndim == 2):
                parameter.mul_(8.0)
    return model


def inputs(config: ModelConfig, lengths: list[int], seed: int = 1) -> list[list[Tensor]]:
    """Sequences, and if the model has two stacks, their targets."""
    first = random_sentences(lengths, seed=seed)
    if len(config.stacks) == 1:
        return [[one] for one in first]
    return [[*pair] for pair in zip(first, random_sentences(lengths[::-1], seed=seed + 1), strict=True)]


def run(model: Transformer, batch: list[list[Tensor]], types: Tensor | None = None) -> Tensor:
    packed = [part for side in zip(*batch, strict=True) for part in pack(side)]
    answer: Tensor = model(*packed, token_types=types)
    return answer


@pytest.mark.parametrize("name", [*TWO_STACKS, *ONE_STACK, *HEADS])
@torch.no_grad()
def test_a_setting_does_what_the_plain_formula_says(name: str) -> None:
    config = tiny_config(**(TWO_STACKS | ONE_STACK | HEADS)[name])
    model = double(config)
    batch = inputs(config, [4, 1, 9])
    weights = model.state_dict()
    expected = torch.cat([plain.answer(weights, config, *one) for one in batch])
    # Sinusoids and the angles of rotary positions are computed in float32.
    torch.testing.assert_close(run(model, batch), expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*LATER, *ONE_STACK])
@torch.no_grad()
def test_a_setting_shows(name: str) -> None:
    """The formula without it, on the same weights, gives another answer: what is compared above is not too weak to tell."""
    given = (LATER | ONE_STACK)[name]
    config = tiny_config(**given)
    model, batch = double(config), inputs(config, [4, 9])
    weights, answer = model.state_dict(), run(model, batch)
    for key in given.keys() - TOLD_BY_WEIGHTS:
        try:
            other = dataclasses.replace(config, **{key: ModelConfig.default(key)})
            wrong = torch.cat([plain.answer(weights, other, *one) for one in batch])
        except (UserError, KeyError, RuntimeError):
            continue  # it needs other weights: no mistake could go unseen
        assert wrong.shape == answer.shape and not torch.allclose(wrong, answer, atol=1e-3, rtol=0), key


# The formula reads them from the names and shapes of the weights; or they hold several settings.
TOLD_BY_WEIGHTS = {
    "attention_bias", "feed_forward_bias", "norm_bias", "encoder_layers", "decoder_layers", "max_positions", "norm_eps",
    "encoder", "decoder", "front", "head",
}  # fmt: skip


@torch.no_grad()
def test_token_types_tell_tokens_apart() -> None:
    config = tiny_config(**ONE_STACK["bert"])
    model, batch = double(config), inputs(config, [5, 3])
    types = torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])
    expected = torch.cat(
        [
            plain.answer(model.state_dict(), config, one[0], None, own)
            for one, own in zip(batch, types.split([5, 3]), strict=True)
        ]
    )
    torch.testing.assert_close(run(model, batch, types), expected, atol=1e-9, rtol=0)
    assert not torch.allclose(run(model, batch), expected, atol=1e-3)
    with pytest.raises(ValueError, match=r"token_types are given, but model\.front\.token_types is 0"):
        run(double(tiny_config(**ONE_STACK["roberta"])), batch, types)


@pytest.mark.parametrize(
    "name", ["t5", "different-stacks", "no-key-bias", "bert", "albert", "gptj", "llama", "palm", "gpt2"]
)
def test_gradients_are_the_plain_formulas(name: str) -> None:
    config = tiny_config(**(TWO_STACKS | ONE_STACK)[name])
    model = double(config)
    batch = inputs(config, [3, 4])
    run(model, batch).square().sum().backward()
    weights = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
    torch.cat([plain.answer(weights, config, *one) for one in batch]).square().sum().backward()
    for key, parameter in model.named_parameters():
        wanted = weights[key].grad
        assert parameter.grad is not None and wanted is not None, key
        torch.testing.assert_close(
            parameter.grad, wanted, atol=2e-4 * float(wanted.abs().max()) + 1e-9, rtol=0, msg=key
        )


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "matmul", "by_length", "dense"])
@pytest.mark.parametrize("name", ["t5", "bert", "palm", "llama"])
@torch.no_grad()
def test_every_kernel_gives_the_same_model(name: str, kernel: Any) -> None:
    config = tiny_config(**(TWO_STACKS | ONE_STACK)[name])
    model, batch = double(config), inputs(config, [4, 1, 9])
    expected = run(model, batch)
    set_kernel(model, kernel)
    torch.testing.assert_close(run(model, batch), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "given",
    [
        {"attention_dropout": 0.5, "decoder_layers": 0},
        {"attention_dropout": 0.5, "encoder_layers": 0},
        {"decoder": {"attention_dropout": 0.5}},
        {"decoder_layers": 0, "head": {"kind": "classes", "labels": ["a"], "dropout": 0.5}},
        {"decoder_layers": 0, "head": {"kind": "tags", "labels": ["a"], "dropout": 0.5}},
    ],
    ids=str,
)
def test_dropout_is_for_training_alone(given: dict[str, Any]) -> None:
    config = tiny_config(**given)
    model, batch = double(config), inputs(config, [6, 9])
    still = run(model, batch)
    assert torch.equal(run(model, batch), still)
    model.train()
    assert not torch.allclose(run(model, batch), run(model, batch))
    without = dataclasses.replace(
        config, attention_dropout=0.0, decoder={}, head={**config.head, **({"dropout": 0.0} if config.head else {})}
    )
    other = Transformer(without).double().train()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(run(other, batch), still, atol=1e-12, rtol=0)


def test_one_stack_takes_one_text_and_two_take_two() -> None:
    one, two = build(tiny_config(decoder_layers=0)), build(tiny_config())
    ids, layout = pack(random_sentences([3]))
    with pytest.raises(ValueError, match="a model of one stack takes one text"):
        one(ids, layout, ids, layout)
    with pytest.raises(ValueError, match="a model of two stacks takes source and target"):
        two(ids, layout)
    with pytest.raises(ValueError, match="a head of kind 'tags' has no logits of tokens"):
        build(tiny_config(**HEADS["tags"])).logits(torch.zeros(1, 32))


def test_hidden_and_output_weight_are_the_logits() -> None:
    for name in ("bert", "palm", "gptj", "t5", "bart"):
        config = tiny_config(**(TWO_STACKS | ONE_STACK)[name])
        model, batch = double(config), inputs(config, [4, 2])
        packed = [part for side in zip(*batch, strict=True) for part in pack(side)]
        torch.testing.assert_close(model.hidden(*packed) @ model.output_weight.T, run(model, batch), atol=1e-12, rtol=0)


def test_a_model_of_one_stack_starts_as_bert_and_gpt_2_do() -> None:
    torch.manual_seed(0)
    config = tiny_config(**ONE_STACK["gpt2"], d_model=128, d_ff=512, vocab_size=1000)
    model = Transformer(config)
    layer: Any = model.decoder.layers[0]
    for weight in (model.embedding.weight, layer.self_attention.qkv.weight, layer.feed_forward.inner.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    for weight in (layer.self_attention.out.weight, layer.feed_forward.outer.weight):
        assert float(weight.detach().std()) == pytest.approx(0.02 / (2 * 2) ** 0.5, rel=0.05)
    assert not layer.self_attention.qkv.bias.any() and (layer.self_residual.norm.weight == 1).all()


# Random settings

CHOICES: dict[str, Any] = {
    "d_ff": [16, 24],
    "num_heads": [1, 2, 4],
    "num_kv_heads": [0, 1, 2],
    "d_head": [0, 4, 6],
    "dropout": [0.0, 0.3],
    "attention_dropout": [0.0, 0.2],
    "norm_position": ["post", "pre"],
    "norm": ["layer", "rms"],
    "norm_eps": [1e-5, 1e-3],
    "norm_bias": [True, False],
    "final_norm": [None, True, False],
    "activation": ["relu", "gelu", "silu", "swiglu", "gelu_tanh", "geglu", "geglu_tanh"],
    "positions": ["sinusoidal", "learned", "rotary", "relative", "none"],
    "max_positions": [32],
    "position_offset": [0, 2],
    "rotary_base": [10_000.0, 50.0],
    "rotary_pairing": ["pairs", "halves"],
    "rotary_dim": [0, 2, 4],
    "rotary_scaling": [{}, {"kind": "linear", "factor": 2.0}],
    "relative_buckets": [4, 32],
    "relative_max_distance": [20, 128],
    "attention_bias": ["all", "none", "qkv", "no_key"],
    "feed_forward_bias": [True, False],
    "embedding_scale": [True, False],
    "embedding_norm": [True, False],
    "parallel": [False, True],
    "score_scale": [0.0, 1.0],
    "share_layers": [False, True],
}
HEAD: dict[str, Any] = {
    "kind": ["tokens", "classes", "tags", "vector", "none"],
    "transform": [True],
    "logit_scale": [0.5],
    "labels": [["a", "b"]],
    "pooling": ["first", "mean", "tanh-first"],
    "normalize": [True],
    "dropout": [0.1],
}
FRONT: dict[str, Any] = {"d_embedding": [8, 16], "token_types": [2]}


def some(choices: dict[str, list[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few settings, each with one of its values."""
    names = st.lists(st.sampled_from(sorted(choices)), max_size=most, unique=True)
    return names.flatmap(lambda keys: st.fixed_dictionaries({key: st.sampled_from(choices[key]) for key in keys}))


@st.composite
def nested_settings(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.sampled_from([(2, 0), (0, 2), (1, 2)]))
    top = {"tie_embeddings": [True, False], "output_bias": [True, False]}
    return {
        "encoder_layers": layers[0],
        "decoder_layers": layers[1],
        **draw(some(CHOICES | top, 12)),
        "encoder": draw(some(CHOICES, 3)) if layers[0] else {},
        "decoder": draw(some(CHOICES, 3)) if layers[1] else {},
        "front": draw(some(FRONT, 1)),
        "head": draw(some(HEAD, 2)),
    }


def built_or_refused(given: dict[str, Any]) -> ModelConfig | None:
    try:
        return ModelConfig(53, d_model=16, **{"num_heads": 2, "d_ff": 16, "relative_max_distance": 128, **given})
    except UserError as refusal:
        reason = str(refusal)
    assert reason.startswith("model.") and "\n" not in reason
    return None


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(given=nested_settings(), seed=st.integers(0, 1000))
def test_random_settings_run_or_are_refused_with_a_reason(
    given: dict[str, Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = built_or_refused(given)
    if config is None:
        return
    model = double(config, seed)
    batch = inputs(config, [5, 1, 8], seed)
    with torch.no_grad():
        together = run(model, batch)
        assert together.isfinite().all()
        alone = torch.cat([run(model, [one]) for one in batch])
        torch.testing.assert_close(together, alone, atol=1e-9, rtol=1e-9)
        # Any combination that is not refused is what the plain formulas say; the tables of positions are in float32.
        formula = torch.cat([plain.answer(model.state_dict(), config, *one) for one in batch])
        torch.testing.assert_close(together, formula, atol=1e-4 * float(formula.abs().max()), rtol=0)
        if config.decoder_layers:
            assert_future_is_hidden(model, batch, together)
        assert torch.equal(run(saved_and_loaded(model, tmp_path_factory.getbasetemp()), batch), together)
    model.train()
    run(model, batch).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def assert_future_is_hidden(model: Transformer, batch: list[list[Tensor]], before: Tensor) -> None:
    """Another last token of the last sequence changes nothing before it."""
    other = [*batch[:-1], [*batch[-1][:-1], torch.cat((batch[-1][-1][:-1], (batch[-1][-1][-1:] + 1) % 53))]]
    after = run(model, other)
    torch.testing.assert_close(after[:-1], before[:-1], atol=1e-12, rtol=0)
    assert not torch.equal(after[-1], before[-1])


def saved_and_loaded(model: Transformer, folder: Path) -> Transformer:
    """As a bundle does it: settings as JSON, weights as safetensors."""
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, str(folder / "model.safetensors")
    )
    read = Transformer(ModelConfig(**json.loads(json.dumps(model.config.to_dict())))).double().eval()
    read.load_state_dict(load_file(str(folder / "model.safetensors")))
    return read

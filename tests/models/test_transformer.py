from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.errors import UserError
from regard.layout import SequenceLayout
from regard.models.loss import linear_cross_entropy
from regard.models.presets import PRESETS
from regard.models.transformer import Transformer
from regard.nn.attention import CrossAttention, SelfAttention, set_kernel
from regard.nn.block import FeedForward, Residual, Sublayer, run_sublayers
from regard.nn.dropout import Dropout
from regard.nn.embedding import sinusoids
from regard.nn.kernels import Kernel
from regard.nn.linear import Linear
from tests.build import SWITCHES, build, pack, random_sentences, tiny_config

CPU_KERNELS: tuple[Kernel, ...] = ("auto", "reference", "sdpa", "matmul", "by_length")


def count_parameters(config: ModelConfig) -> int:
    """What the model has, without the memory to hold it."""
    with torch.device("meta"):
        return Transformer(config).num_parameters()


# Packing


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6), seed=st.integers(0, 99)
)
@torch.no_grad()
def test_packed_sentences_get_what_each_gets_alone(kernel: Kernel, lengths: list[tuple[int, int]], seed: int) -> None:
    model = build(tiny_config()).double()
    set_kernel(model, kernel)
    sources = random_sentences([src for src, _ in lengths], seed=seed)
    targets = random_sentences([tgt for _, tgt in lengths], seed=seed + 1)
    together = model(*pack(sources), *pack(targets))
    alone = [model(*pack([src]), *pack([tgt])) for src, tgt in zip(sources, targets, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-11, rtol=0)


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@torch.no_grad()
def test_packing_changes_nothing_whatever_the_switches(switches: dict[str, Any]) -> None:
    model = build(tiny_config(**switches)).double()
    sources, targets = random_sentences([4, 1, 7], seed=1), random_sentences([2, 6, 1], seed=2)
    together = model(*pack(sources), *pack(targets))
    alone = [model(*pack([src]), *pack([tgt])) for src, tgt in zip(sources, targets, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-11, rtol=0)


@torch.no_grad()
def test_no_place_sees_the_tokens_after_it() -> None:
    model = build(tiny_config())
    src = pack(random_sentences([5, 3], seed=1))
    first, second = random_sentences([6, 4], seed=2)
    changed = torch.cat((first[:3], (first[3:] + 1) % 53))
    before, after = model(*src, *pack([first, second])), model(*src, *pack([changed, second]))
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[6:], after[6:])
    assert not torch.isclose(before[3:6], after[3:6]).all(dim=-1).any(), "while the changed places do change"


@torch.no_grad()
def test_every_target_place_sees_the_whole_source() -> None:
    model = build(tiny_config())
    source, target = random_sentences([5, 4], seed=3)
    before = model(*pack([source]), *pack([target]))
    for place in range(5):
        changed = source.clone()
        changed[place] = (changed[place] + 1) % 53
        after = model(*pack([changed]), *pack([target]))
        assert not torch.isclose(before, after).all(dim=-1).any(), place


# Size


def test_base_with_37000_pieces_has_63_082_496_parameters() -> None:
    assert count_parameters(ModelConfig(vocab_size=37_000, **PRESETS["base"])) == 63_082_496
    assert dataclasses.asdict(ModelConfig(37_000)) == dataclasses.asdict(ModelConfig(37_000, **PRESETS["base"]))


def expected_parameters(vocab_size: int, layers: int = 6, d_model: int = 512, d_ff: int = 2048) -> int:
    """The paper's model counted by hand: every projection with its bias, every norm with its gain and bias."""
    attention = 4 * (d_model * d_model + d_model)  # queries, keys, values, output
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return vocab_size * d_model + layers * (encoder_layer + decoder_layer)


def test_big_is_counted_by_the_formula() -> None:
    config = ModelConfig(vocab_size=37_000, **PRESETS["big"])
    assert count_parameters(config) == expected_parameters(37_000, d_model=1024, d_ff=4096) == 214_245_376


# Table 3 of the paper, in millions. Its rows of d_k 16 and 32 are no ModelConfig: there d_head is d_model / num_heads.
TABLE_3: dict[str, tuple[dict[str, int], int]] = {
    "base": ({}, 65),
    "N = 2": ({"layers": 2}, 36),
    "N = 4": ({"layers": 4}, 50),
    "N = 8": ({"layers": 8}, 80),
    "d_model = 256": ({"d_model": 256}, 28),
    "d_model = 1024": ({"d_model": 1024}, 168),
    "d_ff = 1024": ({"d_ff": 1024}, 53),
    "d_ff = 4096": ({"d_ff": 4096}, 90),
}


@pytest.mark.parametrize(("changes", "millions"), TABLE_3.values(), ids=TABLE_3)
def test_a_vocabulary_near_41000_gives_the_papers_table_3(changes: dict[str, int], millions: int) -> None:
    fields = dict(changes)
    if layers := fields.pop("layers", 0):
        fields |= {"encoder_layers": layers, "decoder_layers": layers}
    counted = count_parameters(ModelConfig(41_000, **fields))
    assert counted == expected_parameters(41_000, **changes)
    assert round(counted / 1e6) == millions


def test_table_3_rounds_right_for_vocabularies_from_40932_to_41160_and_no_others() -> None:
    """So the paper's 65 million are not base with the 37,000 pieces that it names, which has 63.1 million."""
    fitting = [
        vocab_size
        for vocab_size in range(30_000, 50_000)
        if all(round(expected_parameters(vocab_size, **row) / 1e6) == millions for row, millions in TABLE_3.values())
    ]
    assert fitting == list(range(40_932, 41_161))


def test_the_papers_213_million_of_big_are_another_vocabulary() -> None:
    """Big is near its number with 37,000 pieces, and five million above it with 41,000."""
    sizes = [expected_parameters(vocab_size, d_model=1024, d_ff=4096) / 1e6 for vocab_size in (37_000, 41_000)]
    assert sizes == pytest.approx([214.2, 218.3], abs=0.1)


@pytest.mark.parametrize(
    ("switches", "difference"),
    [
        ({"tie_embeddings": False}, 2 * 53 * 32),
        ({"norm_position": "pre"}, 2 * 2 * 32),  # a norm after each stack
        ({"norm": "rms"}, -(2 * 2 + 2 * 3) * 32),  # no bias in ten norms
        ({"activation": "gelu"}, 0),
        ({"activation": "silu"}, 0),
        ({"output_bias": True}, 53),
        ({"activation": "swiglu"}, 4 * (32 * 48 + 48)),  # a gate in four feed-forward networks
        ({"positions": "rotary"}, 0),
        ({"positions": "learned", "max_positions": 64}, 2 * 64 * 32),
        ({"num_kv_heads": 1}, -6 * 2 * (32 * 24 + 24)),  # keys and values of three of the four heads, six times
        ({"decoder_layers": 1}, -(2 * 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 3 * 64)),
    ],
)
def test_a_switch_adds_the_parameters_that_it_should(switches: dict[str, Any], difference: int) -> None:
    assert count_parameters(tiny_config(**switches)) - count_parameters(tiny_config()) == difference


# Embeddings


def logits_for(model: Transformer) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(*pack([torch.tensor([3, 4])]), *pack([torch.tensor([5, 6])]))
    return logits


def test_tied_embeddings_are_one_tensor_that_source_target_and_output_read() -> None:
    model = build(tiny_config())
    assert [name for name, _ in model.named_parameters() if "embedding" in name or "output" in name] == [
        "embedding.weight"
    ]
    before = logits_for(model)

    def change(piece: int) -> Tensor:
        with torch.no_grad():
            saved = model.embedding.weight.clone()
            model.embedding.weight[piece] += 0.5
            changed = logits_for(model)
            model.embedding.weight.copy_(saved)
        return ~torch.isclose(changed, before, atol=1e-6)

    assert change(3).all(), "a piece of the source changes every logit"
    assert change(5).all(), "a piece of the target changes every logit"
    assert change(9).any(dim=0).nonzero().flatten().tolist() == [9], "a piece in neither changes its own logit alone"


def test_separate_embeddings_are_three_tensors() -> None:
    model = build(tiny_config(tie_embeddings=False))
    names = {name for name, _ in model.named_parameters() if "embedding" in name or "output" in name}
    assert names == {"src_embedding.weight", "tgt_embedding.weight", "output.weight"}
    src, tgt = pack([torch.tensor([3, 4])]), pack([torch.tensor([5, 6])])
    model(*src, *tgt).sum().backward()

    def rows_with_gradient(parameter: Tensor) -> list[int]:
        assert parameter.grad is not None
        return parameter.grad.abs().sum(dim=1).nonzero().flatten().tolist()

    assert rows_with_gradient(model.src_embedding.weight) == [3, 4]
    assert rows_with_gradient(model.tgt_embedding.weight) == [5, 6]
    assert rows_with_gradient(model.output.weight) == list(range(53))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@torch.no_grad()
def test_what_enters_a_stack_is_the_scaled_embedding_plus_the_position(side: str) -> None:
    model = build(tiny_config())
    entered: list[Tensor] = []
    getattr(model, side).layers[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    ids, layout = pack(random_sentences([4, 2]))
    model(ids, layout, ids, layout)
    rows = [*range(4), *range(2)]
    expected = model.embedding.weight[ids] * math.sqrt(32) + sinusoids(4, 32)[rows]
    torch.testing.assert_close(entered[0], expected)


# The bias of the output


@torch.no_grad()
def test_an_output_bias_is_added_to_the_logits_in_training_and_in_decoding() -> None:
    model, without = build(tiny_config(output_bias=True)), build(tiny_config())
    without.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name != "output_bias"})
    assert model.output_bias is not None and float(model.output_bias.abs().min()) > 0
    src, tgt = pack(random_sentences([4, 7], seed=1)), pack(random_sentences([3, 3], seed=2))
    expected = without(*src, *tgt) + model.output_bias
    torch.testing.assert_close(model(*src, *tgt), expected, atol=1e-5, rtol=0)
    cache = model.start(model.encode(*src), src[1], beam=1, capacity=8)
    stepped = [model.step(tgt[0][[place, place + 3]], cache) for place in range(3)]
    torch.testing.assert_close(torch.stack(stepped, dim=1).flatten(0, 1), expected, atol=1e-5, rtol=0)


def test_the_loss_learns_an_output_bias_and_all_else_as_torch_would() -> None:
    model = build(tiny_config(output_bias=True)).double()
    src, tgt = pack(random_sentences([4, 7], seed=1)), pack(random_sentences([3, 5], seed=2))
    labels = torch.cat(random_sentences([3, 5], seed=3))

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        loss.backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    expected = nn.functional.cross_entropy(model(*src, *tgt), labels, reduction="sum", label_smoothing=0.1)
    wanted = gradients(expected)
    loss = linear_cross_entropy(model.hidden(*src, *tgt), model.output_weight, labels, 0.1)
    torch.testing.assert_close(loss.total, expected, atol=1e-9, rtol=0)
    found = gradients(loss.total)
    assert float(wanted["output_bias"].abs().sum()) > 1
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=0, msg=name)


# Norms and dropout


def test_only_the_rows_that_are_asked_for_go_through_the_head() -> None:
    """The same states and gradients as those of all rows; a row may be asked for several times."""
    model = build(tiny_config(decoder_layers=0, output_bias=True, head={"transform": True})).double()
    ids, layout = pack([torch.tensor([5, 6, 7, 8]), torch.tensor([9, 10, 11])])
    rows = torch.tensor([2, 6, 0, 0, 2], dtype=torch.int32)  # as slots have them
    results = []
    for states in (lambda: model.hidden(ids, layout, rows=rows), lambda: model.hidden(ids, layout)[rows.long()]):
        model.zero_grad()
        found = states()
        (found * torch.arange(found.numel()).view_as(found)).sum().backward()
        results.append([found.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    assert len(results[0]) == len(results[1]) > 10
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_only_pre_norm_has_a_norm_after_the_last_layer(norm: Any) -> None:
    kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
    post, pre = build(tiny_config(norm=norm)), build(tiny_config(norm=norm, norm_position="pre"))
    for model, extra in ((post, 0), (pre, 2)):
        assert sum(isinstance(module, kind) for module in model.modules()) == 2 * 2 + 2 * 3 + extra
    assert isinstance(post.encoder.final_norm, nn.Identity)
    assert isinstance(post.decoder.final_norm, nn.Identity)
    ids, layout = pack(random_sentences([3]))
    last: list[Tensor] = []
    pre.encoder.layers[-1].register_forward_hook(lambda _, inputs, output: last.append(output[0]))
    torch.testing.assert_close(pre.encode(ids, layout), pre.encoder.final_norm(last[0]))


def test_dropout_is_on_each_sublayers_output_and_on_the_embedded_input_and_nowhere_else() -> None:
    model = Transformer(tiny_config(dropout=0.25))
    dropouts = {name: module for name, module in model.named_modules() if isinstance(module, (Dropout, nn.Dropout))}
    expected = {f"{side}.dropout" for side in ("encoder", "decoder")}
    for layer in range(2):
        expected |= {f"encoder.layers.{layer}.{sub}_residual.dropout" for sub in ("self", "feed_forward")}
        expected |= {f"decoder.layers.{layer}.{sub}_residual.dropout" for sub in ("self", "cross", "feed_forward")}
    assert set(dropouts) == expected
    assert all(module.probability == 0.25 for module in dropouts.values())


def test_without_those_dropouts_training_is_evaluation() -> None:
    """Nothing else is random in training: no attention weight and no inner activation is dropped."""
    model = build(tiny_config(dropout=0.5)).train()
    batch = (*pack(random_sentences([4, 3], seed=1)), *pack(random_sentences([2, 5], seed=2)))
    assert not torch.equal(model(*batch), model(*batch))
    for module in model.modules():
        if isinstance(module, Dropout):
            module.probability = 0.0
    for kernel in CPU_KERNELS:
        set_kernel(model, kernel)
        assert torch.equal(model.train()(*batch), model.eval()(*batch))


def test_dropout_falls_on_the_sublayer_and_not_on_the_residual() -> None:
    residual = Residual(tiny_config(norm_position="pre", dropout=0.5))
    torch.manual_seed(0)
    x = torch.full((500, 32), 10.0)
    # 10 + dropout(1): the sublayer's one is gone or doubled, the residual's ten stays
    y, _ = run_sublayers(x, [Sublayer(residual, Linear(32, 32), lambda normed, add_bias: torch.ones_like(normed))])
    assert set(y.unique().tolist()) == {10.0, 12.0}


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_embeddings_are_scaled_by_the_root_of_d_model_where_they_enter(positions: Any) -> None:
    stack = Transformer(tiny_config(d_model=64, positions=positions)).eval().encoder
    rows, places = torch.randn(3, 64), torch.arange(3)
    added = sinusoids(3, 64) if positions == "sinusoidal" else 0.0
    assert torch.equal(stack.enter(rows, places, 3), rows * 8.0 + added)


# Initial weights


def test_the_seed_decides_the_initial_weights() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return Transformer(tiny_config()).state_dict()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def uniform_bound(weight: Tensor) -> float:
    """The bound of the uniform distribution that `weight` was drawn from, from its largest element."""
    return float(weight.detach().abs().max())


@pytest.mark.parametrize("num_kv_heads", [0, 2, 1])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_every_projection_is_initialised_by_its_own_shape(num_kv_heads: int, activation: Any) -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        100, d_model=128, d_ff=256, num_heads=4, num_kv_heads=num_kv_heads, activation=activation, encoder_layers=1
    )
    model = Transformer(config)
    d_key = config.kv_heads * config.head_width

    def glorot(fan_in: int, fan_out: int) -> float:
        return math.sqrt(6 / (fan_in + fan_out))

    for module in model.modules():
        if isinstance(module, SelfAttention):
            blocks = module.qkv.weight.split([128, d_key, d_key])
        elif isinstance(module, CrossAttention):
            blocks = (module.q.weight, *module.kv.weight.split([d_key, d_key]))
        else:
            continue
        for block in blocks:
            assert uniform_bound(block) == pytest.approx(glorot(128, block.shape[0]) / math.sqrt(2), rel=0.01)
        assert uniform_bound(module.out.weight) == pytest.approx(glorot(128, 128), rel=0.01)
    feed_forward = model.encoder.layers[0].feed_forward
    assert isinstance(feed_forward, FeedForward)
    for block in feed_forward.inner.weight.split(256):
        assert uniform_bound(block) == pytest.approx(glorot(128, 256), rel=0.01)
    assert uniform_bound(feed_forward.outer.weight) == pytest.approx(glorot(128, 256), rel=0.01)
    assert float(model.embedding.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.05)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.all(parameter == (1.0 if name.endswith("norm.weight") else 0.0)), name


# Configuration


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be at least 1, but is 0"),
        ({"encoder_layers": -1}, "encoder_layers must not be negative, but is -1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, but is 1.0"),
        ({"d_model": 30}, r"d_model must be a multiple of model.num_heads \(4\), but is 30"),
        ({"d_model": 9, "num_heads": 3}, "d_model must be even .*, but is 9"),
        ({"num_kv_heads": 3}, r"num_kv_heads must divide model.num_heads \(4\), but is 3"),
        ({"num_kv_heads": -1}, r"num_kv_heads must divide model.num_heads \(4\), but is -1"),
        (
            {"d_model": 12, "positions": "rotary"},
            "d_model / model.num_heads must be even with rotary positions, but is 3",
        ),
        ({"norm": "batch"}, "norm must be one of layer, rms, but is 'batch'"),
        ({"norm_position": "middle"}, "norm_position must be one of post, pre, but is 'middle'"),
        (
            {"activation": "tanh"},
            "activation must be one of relu, gelu, silu, swiglu, gelu_tanh, geglu, geglu_tanh, but is 'tanh'",
        ),
        ({"positions": "both"}, "positions must be one of sinusoidal, learned, rotary, relative, none, but is 'both'"),
    ],
)
def test_an_impossible_shape_is_refused_with_the_field_the_rule_and_the_value(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^model.{message}$"):
        tiny_config(**changes)


def test_no_paper_preset_turns_a_switch_on() -> None:
    switches = {field.name for field in dataclasses.fields(ModelConfig)} - {
        *("vocab_size", "d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout")
    }
    for preset in ("base", "big"):
        assert not switches & set(PRESETS[preset]), preset
    for fields in PRESETS.values():
        ModelConfig(vocab_size=1000, **fields)


# Training and evaluation in turn


def test_a_batch_that_was_evaluated_can_be_trained_on() -> None:
    """Layouts and tables remember what they computed; what they computed in inference mode must not spoil training."""
    model = build(tiny_config())
    src, src_layout = pack(random_sentences([4, 600, 2], seed=1))
    tgt, tgt_layout = pack(random_sentences([3, 5, 7], seed=2))
    for kernel in CPU_KERNELS:
        set_kernel(model, kernel)
        layouts = SequenceLayout.from_lengths(src_layout.lengths), SequenceLayout.from_lengths(tgt_layout.lengths)
        with torch.inference_mode():
            before = model(src, layouts[0], tgt, layouts[1])
        after = model(src, layouts[0], tgt, layouts[1])
        after.sum().backward()
        torch.testing.assert_close(after.detach(), before)

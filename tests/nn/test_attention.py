"""Every kernel is held to softmax(Q K^T / sqrt(d_head)) V, written here once more: in float64, over all tokens at once,
with a dense mask. That is the one way in which no kernel works."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.layout import SequenceLayout, SlotLayout
from regard.nn.attention import CrossAttention, Recorder, SelfAttention, set_kernel
from regard.nn.kernels import Kernel, attention, choose
from tests.build import build, pack, random_sentences, tiny_config

CPU_KERNELS: tuple[Kernel, ...] = ("reference", "sdpa", "matmul", "by_length", "dense")


@dataclass(frozen=True)
class Case:
    """One attention problem: `kind` is self, causal or cross."""

    kind: str
    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    num_heads: int
    kv_heads: int
    d_head: int
    seed: int
    tile_sizes: tuple[int, ...] = ()

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and the gradient that comes back into the output, all float64."""
        generator = torch.Generator().manual_seed(self.seed)

        def random(rows: int, heads: int) -> Tensor:
            return torch.randn(rows, heads, self.d_head, generator=generator, dtype=torch.float64)

        q = random(sum(self.q_lengths), self.num_heads)
        k = random(sum(self.k_lengths), self.kv_heads)
        v = random(sum(self.k_lengths), self.kv_heads)
        return q, k, v, random(sum(self.q_lengths), self.num_heads)

    @property
    def layouts(self) -> tuple[SequenceLayout, SequenceLayout]:
        q_layout, k_layout = (
            SequenceLayout.from_lengths(lengths, tile_sizes=self.tile_sizes)
            for lengths in (self.q_lengths, self.k_lengths)
        )
        return q_layout, k_layout if self.kind == "cross" else q_layout


@st.composite
def cases(draw: st.DrawFn, empty: bool = False, tiles: bool = False) -> Case:
    kind = draw(st.sampled_from(("self", "causal", "cross")))
    length = st.integers(0 if empty else 1, 9)
    q_lengths = draw(st.lists(length, min_size=1, max_size=6).filter(any))
    k_lengths = q_lengths
    if kind == "cross":
        # A query needs a key to attend to; only a sequence without queries may have none.
        k_lengths = [draw(length if q_length == 0 else st.integers(1, 9)) for q_length in q_lengths]
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    d_head, seed = draw(st.sampled_from((2, 5, 8, 16))), draw(st.integers(0, 10_000))
    sizes: list[int] = []
    while tiles and sum(sizes) < len(q_lengths):
        sizes.append(draw(st.integers(1, len(q_lengths) - sum(sizes))))
    return Case(kind, tuple(q_lengths), tuple(k_lengths), kv_heads * group, kv_heads, d_head, seed, tuple(sizes))


def expected_output(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    q_owner = torch.tensor([n for n, length in enumerate(case.q_lengths) for _ in range(length)])
    k_owner = torch.tensor([n for n, length in enumerate(case.k_lengths) for _ in range(length)])
    allowed = q_owner[:, None] == k_owner[None, :]
    if case.kind == "causal":
        # Within a sequence, packed rows are in order: a later row is a later place.
        allowed &= torch.arange(len(q_owner))[:, None] >= torch.arange(len(k_owner))[None, :]
    heads = []
    for head in range(case.num_heads):
        kv_head = head // (case.num_heads // case.kv_heads)
        scores = q[:, head] @ k[:, kv_head].T / math.sqrt(case.d_head)
        exponentials = torch.where(allowed, torch.exp(scores), torch.zeros_like(scores))
        heads.append(exponentials / exponentials.sum(dim=1, keepdim=True) @ v[:, kv_head])
    return torch.stack(heads, dim=1)


def with_gradients(function: Any, case: Case, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Output and the gradients of q, k and v, each as float64."""
    *inputs, incoming = (tensor.to(device, dtype) for tensor in case.tensors())
    for tensor in inputs:
        tensor.requires_grad_()
    output = function(*inputs)
    output.backward(incoming)
    return [tensor.detach().cpu().double() for tensor in (output, *(tensor.grad for tensor in inputs))]


def run_kernel(kernel: Kernel, case: Case, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    q_layout, k_layout = (layout.to(device) for layout in case.layouts)
    causal = case.kind == "causal"
    return with_gradients(lambda q, k, v: attention(q, k, v, q_layout, k_layout, causal, kernel), case, dtype, device)


def run_expected(case: Case) -> list[Tensor]:
    return with_gradients(lambda q, k, v: expected_output(q, k, v, case), case, torch.float64)


def assert_close(results: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for name, result, wanted in zip(("output", "d q", "d k", "d v"), results, expected, strict=True):
        torch.testing.assert_close(result, wanted, atol=tolerance, rtol=tolerance, msg=partial("{}: {}".format, name))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_kernel_equals_the_formula_in_float64(kernel: Kernel, case: Case) -> None:
    assert_close(run_kernel(kernel, case, torch.float64), run_expected(case), 1e-12)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_kernel_equals_the_formula_in_float32(kernel: Kernel, case: Case) -> None:
    assert_close(run_kernel(kernel, case, torch.float32), run_expected(case), 1e-5)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@settings(max_examples=30, deadline=None)
@given(case=cases(empty=True))
def test_empty_sequences_are_lawful(kernel: Kernel, case: Case) -> None:
    assert_close(run_kernel(kernel, case, torch.float64), run_expected(case), 1e-12)


@pytest.mark.parametrize("kernel", ["sdpa", "matmul"])
@settings(max_examples=100, deadline=None)
@given(case=cases(tiles=True))
def test_sequences_that_share_a_tile_do_not_see_each_other(kernel: Kernel, case: Case) -> None:
    assert_close(run_kernel(kernel, case, torch.float64), run_expected(case), 1e-12)


@pytest.mark.parametrize("kind", ["self", "causal"])
@pytest.mark.parametrize("kernel", ["sdpa", "matmul"])
def test_tiles_of_very_different_lengths_are_padded_apart(kernel: Kernel, kind: str) -> None:
    lengths = (40, 20, 15, 9, 8, 3, 5, 4, 6)
    case = Case(kind, lengths, lengths, 4, 2, 8, 0, tile_sizes=(1, 2, 2, 3, 1))
    layout = case.layouts[0]
    assert [part.tile_sizes for _, part in layout.parts] == [(1, 2), (2, 3), (1,)]
    assert [(rows.start, rows.stop) for rows, _ in layout.parts] == [(0, 75), (75, 104), (104, 110)]
    assert_close(run_kernel(kernel, case, torch.float64), run_expected(case), 1e-12)


def test_tiles_of_similar_length_are_padded_together() -> None:
    layout = SequenceLayout.from_lengths([40, 39, 21, 9, 8, 5, 20], tile_sizes=(1, 1, 2, 1, 1, 1))
    assert SequenceLayout.from_lengths([5, 3, 1]).parts == []
    assert [(rows.stop, part.tile_sizes) for rows, part in layout.parts] == [(109, (1, 1, 2)), (142, (1, 1, 1))]
    # The last tile of a batch is often short: to pad it apart would save little and copy everything.
    last = SequenceLayout.from_lengths([40, 39, 38, 37, 36, 35, 9], tile_sizes=(1,) * 7)
    assert last.parts == []


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_matmul_kernel_in_bf16_is_near_the_formula(case: Case) -> None:
    assert_close(run_kernel("matmul", case, torch.bfloat16), run_expected(case), 6e-2)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_long_sequences(kernel: Kernel) -> None:
    """Beyond one tile of torch's kernels, whose blocks are 32 to 512 rows long."""
    for kind, k_lengths in (("self", (300, 40)), ("causal", (300, 40)), ("cross", (40, 700))):
        case = Case(kind, (300, 40), k_lengths, 2, 2, 16, seed=1)
        assert_close(run_kernel(kernel, case, torch.float32), run_expected(case), 2e-5)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_large_scores_do_not_overflow(kernel: Kernel) -> None:
    """Scores in the millions leave one key with all the weight: its value comes out as it went in."""
    q, k, v = (torch.randn(rows, 1, 8) for rows in (6, 9, 9))
    layouts = SequenceLayout.from_lengths([4, 2]), SequenceLayout.from_lengths([3, 6])
    output = attention(q * 1e3, k * 1e3, v, *layouts, False, kernel)
    scores = q[:, 0] @ k[:, 0].T
    scores[:4, 3:] = scores[4:, :3] = -math.inf
    assert torch.equal(output, v[scores.argmax(dim=1)])


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("threads", [1, 8])
def test_by_length_gives_a_sequence_the_same_bits_in_any_company(threads: int, num_heads: int) -> None:
    torch.set_num_threads(threads)
    lengths = [7, 30, 7, 1, 104, 30, 12]
    layout = SequenceLayout.from_lengths(lengths)
    for d_head in (16, 24, 48):
        q, k, v = torch.randn(3, layout.num_tokens, num_heads, d_head).unbind()
        together = attention(q, k, v, layout, layout, False, "by_length")
        for rows, length in zip(torch.arange(layout.num_tokens).split(lengths), lengths, strict=True):
            own = SequenceLayout.from_lengths([length])
            alone = attention(q[rows], k[rows], v[rows], own, own, False, "by_length")
            assert torch.equal(alone, together[rows]), (d_head, length)


def test_the_kernel_is_chosen_by_device_and_precision() -> None:
    lengths = SequenceLayout.from_lengths([1])
    assert choose(torch.device("cpu"), torch.float32, lengths) == "sdpa"
    assert choose(torch.device("cpu"), torch.bfloat16, lengths) == "matmul"
    slots = SlotLayout(lengths.positions.int(), lengths.sequence_ids.int(), lengths.offsets, 1)
    assert choose(torch.device("cpu"), torch.float32, slots) == "dense"


@pytest.mark.gpu
def test_half_precision_on_a_gpu_takes_the_varlen_kernel() -> None:
    lengths = SequenceLayout.from_lengths([1], "cuda")
    assert choose(torch.device("cuda"), torch.bfloat16, lengths) == "varlen"
    assert choose(torch.device("cuda"), torch.float16, lengths) == "varlen"
    assert choose(torch.device("cuda"), torch.float32, lengths) == "sdpa"
    slots = SlotLayout(lengths.positions.int(), lengths.sequence_ids.int(), lengths.offsets, 1)
    assert choose(torch.device("cuda"), torch.bfloat16, slots) == "triton"


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["varlen", "sdpa", "by_length", "reference"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_gpu_kernel_in_bf16_is_near_the_formula(kind: str, kv_heads: int, kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(3)
    q_lengths = tuple(torch.randint(1, 70, (17,), generator=generator).tolist())
    k_lengths = tuple(torch.randint(1, 70, (17,), generator=generator).tolist()) if kind == "cross" else q_lengths
    case = Case(kind, q_lengths, k_lengths, 4, kv_heads, 64, seed=4)
    assert_close(run_kernel(kernel, case, torch.bfloat16, "cuda"), run_expected(case), 6e-2)


# Multi-head attention and its recorder


def packed_heads(linear: torch.nn.Linear, x: Tensor, d_head: int) -> Tensor:
    return (x @ linear.weight.T + linear.bias).view(x.shape[0], -1, d_head)


@pytest.mark.parametrize("num_kv_heads", [0, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_projects_attends_and_projects_back(num_kv_heads: int, causal: bool) -> None:
    config = tiny_config(num_kv_heads=num_kv_heads)
    model = build(config).double()
    module = (model.decoder if causal else model.encoder).layers[0].self_attention
    assert isinstance(module, SelfAttention)
    lengths = (4, 1, 6)
    case = Case("causal" if causal else "self", lengths, lengths, 4, config.kv_heads, 8, seed=0)
    x = torch.randn(11, 32, dtype=torch.float64)
    heads = packed_heads(module.qkv, x, 8)
    q, k, v = heads[:, :4], heads[:, 4 : 4 + config.kv_heads], heads[:, 4 + config.kv_heads :]
    expected = expected_output(q, k, v, case).flatten(1) @ module.out.weight.T + module.out.bias
    torch.testing.assert_close(module(x, case.layouts[0]), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("num_kv_heads", [0, 2, 1])
def test_cross_attention_asks_the_target_and_answers_from_the_memory(num_kv_heads: int) -> None:
    config = tiny_config(num_kv_heads=num_kv_heads)
    module = build(config).double().decoder.layers[1].cross_attention
    assert isinstance(module, CrossAttention)
    case = Case("cross", (4, 1, 6), (2, 5, 3), 4, config.kv_heads, 8, seed=0)
    x, memory = torch.randn(11, 32, dtype=torch.float64), torch.randn(10, 32, dtype=torch.float64)
    keys_values = packed_heads(module.kv, memory, 8)
    k, v = keys_values[:, : config.kv_heads], keys_values[:, config.kv_heads :]
    expected = expected_output(packed_heads(module.q, x, 8), k, v, case).flatten(1) @ module.out.weight.T
    result = module(x, case.layouts[0], memory, case.layouts[1])
    torch.testing.assert_close(result, expected + module.out.bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", ["sdpa", "matmul", "by_length", "varlen"])
def test_a_recorder_on_a_fast_kernel_is_refused_by_name(kernel: Kernel) -> None:
    model = build(tiny_config())
    set_kernel(model, kernel)
    src, layout = pack(random_sentences([3, 2]))
    with pytest.raises(ValueError, match=f"the {kernel} kernel cannot record attention weights"):
        model.encode(src, layout, Recorder())


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_recorded_weights_are_distributions_that_reproduce_the_output(case: Case) -> None:
    q, k, v, _ = case.tensors()
    recorder = Recorder()
    causal = case.kind == "causal"
    output = attention(q, k, v, *case.layouts, causal, "auto", recorder.hook("layer"))
    weights = recorder.weights["layer"]
    assert sorted(weights) == list(range(len(case.q_lengths)))
    values = v.repeat_interleave(case.num_heads // case.kv_heads, dim=1)
    rows = zip(torch.split(values, list(case.k_lengths)), torch.split(output, list(case.q_lengths)), strict=True)
    for number, (value, result) in enumerate(rows):
        assert weights[number].shape == (case.num_heads, case.q_lengths[number], case.k_lengths[number])
        assert (weights[number] >= 0).all()
        torch.testing.assert_close(weights[number].sum(dim=-1), torch.ones(weights[number].shape[:2]).double())
        assert not causal or weights[number].triu(1).eq(0).all()
        # (heads, q_len, k_len) @ (heads, k_len, d_head) -> (q_len, heads, d_head)
        torch.testing.assert_close((weights[number] @ value.transpose(0, 1)).transpose(0, 1), result)
    torch.testing.assert_close(output, expected_output(q, k, v, case), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_the_recorder_hears_every_layer_and_changes_nothing(kernel: Kernel) -> None:
    model = build(tiny_config(encoder_layers=2, decoder_layers=3))
    set_kernel(model, kernel)
    src, src_layout = pack(random_sentences([3, 5], seed=1))
    tgt, tgt_layout = pack(random_sentences([4, 2], seed=2))
    recorder = Recorder()
    memory = model.encode(src, src_layout, recorder)
    hidden = model.decode(tgt, tgt_layout, memory, src_layout, recorder)
    torch.testing.assert_close(hidden, model.hidden(src, src_layout, tgt, tgt_layout), atol=1e-5, rtol=0)
    expected = {f"encoder.{n}.self": [(4, 3, 3), (4, 5, 5)] for n in range(2)}
    expected |= {f"decoder.{n}.self": [(4, 4, 4), (4, 2, 2)] for n in range(3)}
    expected |= {f"decoder.{n}.cross": [(4, 4, 3), (4, 2, 5)] for n in range(3)}
    heard = {name: [tuple(by[n].shape) for n in sorted(by)] for name, by in recorder.weights.items()}
    assert heard == expected


def test_an_unknown_number_of_sequences_is_no_batch() -> None:
    q, k = torch.randn(4, 2, 8), torch.randn(5, 2, 8)
    three, two = SequenceLayout.from_lengths([1, 1, 2]), SequenceLayout.from_lengths([2, 3])
    for kernel in ("reference", "by_length"):
        with pytest.raises(ValueError, match=r"shorter|longer"):
            attention(q, k, k, three, two, kernel=kernel)


@torch.no_grad()
def test_keys_without_a_bias_are_whispers() -> None:
    """No family here has them yet, so the attention of transformers' Whisper stands in for one."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    torch.manual_seed(1)
    config = WhisperConfig()
    config._attn_implementation = "eager"
    theirs = WhisperAttention(32, 4, config=config).eval()
    stack = tiny_config(d_model=32, num_heads=4, decoder_layers=0, attention_bias="no_key").encoder_stack
    assert stack is not None
    ours = SelfAttention(stack).eval()
    ours.load_state_dict(
        {
            "qkv.weight": torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]),
            "qkv.bias": torch.cat([theirs.q_proj.bias, theirs.v_proj.bias]),
            "out.weight": theirs.out_proj.weight,
            "out.bias": theirs.out_proj.bias,
        }
    )
    x = torch.randn(7, 32)
    torch.testing.assert_close(ours(x, SequenceLayout.from_lengths([7])), theirs(x[None])[0][0], atol=1e-5, rtol=0)

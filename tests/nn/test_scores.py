"""What attention may change about its scores: every kernel that takes it gives the formula, every other refuses it by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.layout import SequenceLayout, SlotLayout
from regard.nn.kernels import _TAKES, LONG, Kernel, attention, choose
from regard.nn.kernels.scores import Mask, PairBias, paper_scale
from regard.nn.relative import RelativePositions
from tests.build import tiny_config
from tests.nn.test_attention import CPU_KERNELS, Case, assert_close, cases, run_expected, with_gradients

CPU = torch.device("cpu")


def relative(num_heads: int, causal: bool, seed: int = 0) -> RelativePositions:
    config = tiny_config(
        positions="relative", num_heads=num_heads, d_head=4, relative_buckets=8, relative_max_distance=5
    )
    stack = config.stacks["decoder" if causal else "encoder"]
    module = RelativePositions(stack).double()
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(seed))
    return module


def formula(
    q: Tensor, k: Tensor, v: Tensor, case: Case, scale: float, added: list[Tensor] | None, visible: list[Tensor] | None
) -> Tensor:
    """One sequence and one head at a time, exponentials and their sum written out."""
    outputs = []
    sequences = zip(q.split(case.q_lengths), k.split(case.k_lengths), v.split(case.k_lengths), strict=True)
    for number, (q_one, k_one, v_one) in enumerate(sequences):
        seen = torch.ones(len(q_one), len(k_one), dtype=torch.bool)
        if case.kind == "causal":
            seen = seen.tril()
        if visible is not None:
            seen = seen & visible[number]
        heads = []
        for head in range(case.num_heads):
            kv_head = head // (case.num_heads // case.kv_heads)
            scores = scale * q_one[:, head] @ k_one[:, kv_head].T
            if added is not None:
                scores = scores + added[number][head]
            weights = torch.exp(scores) * seen
            total = weights.sum(dim=1, keepdim=True)
            heads.append(weights / torch.where(total > 0, total, 1.0) @ v_one[:, kv_head])
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


def compare(kernel: Kernel, case: Case, scale: float | None, bias: Any = None, mask: Mask | None = None) -> None:
    """Output and gradients, also those of the bias."""
    *inputs, incoming = case.tensors()
    leaves = [*(bias.parameters() if isinstance(bias, RelativePositions) else bias.matrices if bias else ())]
    results = []
    for is_formula in (False, True):
        q, k, v = (tensor.clone().requires_grad_() for tensor in inputs)
        for leaf in leaves:
            leaf.grad = None
        if is_formula:
            added = None
            if isinstance(bias, RelativePositions):
                pairs = zip(case.q_lengths, case.k_lengths, strict=True)
                added = [bias(torch.arange(q_length), torch.arange(k_length)) for q_length, k_length in pairs]
            elif bias is not None:
                added = list(bias.matrices)
            wanted_scale = 1 / math.sqrt(case.d_head) if scale is None else scale
            output = formula(q, k, v, case, wanted_scale, added, list(mask.visible) if mask else None)
        else:
            causal = case.kind == "causal"
            output = attention(q, k, v, *case.layouts, causal, kernel, scale=scale, bias=bias, mask=mask)
        output.backward(incoming)
        results.append([output, q.grad, k.grad, v.grad, *(leaf.grad for leaf in leaves)])
    for got, wanted in zip(*results, strict=True):
        if wanted is not None:  # a bucket of a distance that does not occur
            torch.testing.assert_close(got, wanted, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@settings(max_examples=25, deadline=None)
@given(case=cases(), scale=st.sampled_from([None, 1.0, 0.1]))
def test_every_kernel_takes_a_scale(kernel: Kernel, case: Case, scale: float | None) -> None:
    compare(kernel, case, scale)


@pytest.mark.parametrize("kernel", [kernel for kernel in CPU_KERNELS if "position bias" in _TAKES[kernel]])
@pytest.mark.parametrize("tiles", [False, True])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_a_bias_of_positions_is_added_to_the_scores(
    kernel: Kernel, tiles: bool, data: st.DataObject, seed: int
) -> None:
    case = data.draw(cases(tiles=tiles and kernel in ("sdpa", "matmul")))
    compare(kernel, case, 1.0, relative(case.num_heads, case.kind == "causal", seed))


@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_the_reference_takes_a_bias_of_pairs_and_a_mask(case: Case, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = list(zip(case.q_lengths, case.k_lengths, strict=True))
    matrices = [torch.randn(case.num_heads, *size, generator=generator, dtype=torch.float64) for size in sizes]
    bias = PairBias([matrix.requires_grad_() for matrix in matrices])
    mask = Mask([torch.rand(size, generator=generator) < 0.7 for size in sizes])
    compare("reference", case, None, bias)
    compare("reference", case, None, None, mask)
    compare("auto", case, 0.5, bias, mask)


@pytest.mark.parametrize("kernel", [kernel for kernel in CPU_KERNELS if "dropout" in _TAKES[kernel]])
def test_dropout_drops_weights_and_scales_the_others(kernel: Kernel) -> None:
    """With values that are unit vectors, the output of a query is its weights."""
    torch.manual_seed(0)
    layout = SequenceLayout.from_lengths([40, 40])
    q, k = torch.randn(2, 80, 3, 8)
    v = torch.eye(40).repeat(2, 1)[:, None].expand(-1, 3, -1)
    q, k = (torch.nn.functional.pad(tensor, (0, 32)) for tensor in (q, k))
    whole = attention(q, k, v, layout, layout, kernel=kernel, scale=0.3)
    dropped = attention(q, k, v, layout, layout, kernel=kernel, scale=0.3, dropout=0.25)
    kept = dropped != 0
    assert 0.70 < float(kept.float().mean()) < 0.80
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75, atol=1e-4, rtol=1e-3)


EXTRAS: dict[str, dict[str, Any]] = {
    "position bias": {"bias": lambda q_positions, k_positions: torch.zeros(2, len(q_positions), len(k_positions))},
    "pair bias": {"bias": PairBias([torch.zeros(2, 3, 3)])},
    "mask": {"mask": Mask([torch.ones(3, 3, dtype=torch.bool)])},
    "dropout": {"dropout": 0.5},
    "weights": {"hook": lambda number, weights: None},
}


@pytest.mark.parametrize("kernel", [kernel for kernel in _TAKES if kernel != "reference"])
@pytest.mark.parametrize("asked", EXTRAS)
def test_a_kernel_refuses_by_name_what_it_does_not_take(kernel: Kernel, asked: str) -> None:
    q, layout = torch.randn(3, 2, 8), SequenceLayout.from_lengths([3])
    if asked in _TAKES[kernel]:
        attention(q, q, q, layout, layout, kernel=kernel, **EXTRAS[asked])
        return
    with pytest.raises(
        ValueError, match=rf"^the {kernel} kernel (takes no|has no|cannot) .*; use kernel = .*reference"
    ):
        attention(q, q, q, layout, layout, kernel=kernel, **EXTRAS[asked])


@pytest.mark.parametrize("kernel", [kernel for kernel in _TAKES if "slots" not in _TAKES[kernel]])
def test_a_kernel_that_plans_by_lengths_refuses_slots(kernel: Kernel) -> None:
    q = torch.randn(3, 2, 8)
    with pytest.raises(ValueError, match=rf"the {kernel} kernel needs lengths, which a SlotLayout does not have"):
        attention(q, q, q, slots(3), slots(3), kernel=kernel)


def slots(max_length: int, with_offsets: bool = False) -> SlotLayout:
    offsets = torch.tensor([0, 3], dtype=torch.int32)
    return SlotLayout(
        torch.arange(3).int(), torch.zeros(3).int(), offsets, max_length, offsets if with_offsets else None
    )


def test_a_kernel_is_chosen_that_takes_what_is_asked_for() -> None:
    layout, half = SequenceLayout.from_lengths([3]), torch.bfloat16
    assert choose(CPU, half, layout, ["dropout"]) == "matmul"
    assert choose(CPU, torch.float32, layout, ["position bias", "dropout"]) == "sdpa"
    assert choose(CPU, torch.float32, layout, ["mask"]) == "reference"
    assert choose(CPU, torch.float32, slots(3), ["position bias", "slots"]) == "dense"
    with pytest.raises(ValueError, match="no attention kernel for this layout takes mask and slots"):
        choose(CPU, torch.float32, slots(3), ["mask", "slots"])


def test_long_sequences_take_a_kernel_for_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: whether there is one is all that the choice asks of the machine."""
    half = torch.bfloat16
    assert choose(CPU, half, SequenceLayout.from_lengths([LONG - 1])) == "matmul"
    assert choose(CPU, half, SequenceLayout.from_lengths([LONG])) == "sdpa"
    monkeypatch.setattr("regard.nn.kernels.on_triton", lambda device: True)
    monkeypatch.setattr("regard.nn.kernels.varlen.available", lambda device, dtype: True)
    gpu = torch.device("cuda")
    assert choose(gpu, half, slots(LONG - 1, with_offsets=True), ["slots"]) == "triton"
    assert choose(gpu, half, slots(LONG, with_offsets=True), ["slots"]) == "varlen"
    assert choose(gpu, half, slots(LONG), ["slots"]) == "triton", "which does without offsets"
    assert choose(gpu, half, slots(LONG, with_offsets=True), ["slots", "dropout"]) == "dense"
    assert choose(gpu, half, SequenceLayout.from_lengths([3]), ["position bias"]) == "sdpa"


def test_the_papers_scale_is_one_over_the_root_of_d_head() -> None:
    assert paper_scale(64) == 0.125 and paper_scale(48) == 1 / math.sqrt(48)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_long_rows_in_slots_take_flash_attention(causal: bool) -> None:
    """Output and gradients are the formula's, and what empty rows hold is finite: nothing else of them is ever used."""
    lengths, rows = (1100, 40, 300), 1536
    case = Case("causal" if causal else "self", lengths, lengths, 4, 2, 64, seed=0)
    used = SequenceLayout.from_lengths(lengths)
    empty = rows - used.num_tokens
    offsets = torch.cat((used.offsets, torch.tensor([rows, rows], dtype=torch.int32))).cuda()
    positions, ids = (
        torch.nn.functional.pad(each, (0, empty), value=value).int().cuda()
        for each, value in ((used.positions, 0), (used.sequence_ids, -1))
    )
    layout = SlotLayout(positions, ids, offsets, LONG + 100, offsets)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (torch.nn.functional.pad(each, (0, 0, 0, 0, 0, empty)) for each in (q, k, v))
        output = attention(q, k, v, layout, layout, causal, "triton")
        assert output.isfinite().all()
        return output[: used.num_tokens]

    results = with_gradients(run, case, torch.bfloat16, "cuda")
    assert_close(results, run_expected(case), 6e-2)

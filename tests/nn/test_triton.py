"""The Triton kernels beside their twins: forward and gradients.

On a machine without a GPU they run through Triton's interpreter, in a process of its own (the interpreter is chosen when
Triton is imported) and in fp32 and fp16, since it computes bf16 products wrongly. On a GPU (`make test-gpu`) they run in
bf16 and fp16.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.generate.engines.slot_search import SlotState, advance
from regard.generate.options import SearchOptions
from regard.layout import Layout, SequenceLayout, SlotLayout, tile_groups
from regard.models.loss import backward_linear_cross_entropy, linear_cross_entropy
from regard.nn import kernels
from regard.nn.activations import activate
from regard.nn.attention import set_joined, set_kernel
from regard.nn.block import FUSED_ACTIVATIONS, set_fused
from regard.nn.kernels import attention, residual
from regard.nn.rotary import Rotary
from regard.nn.slot_cache import gathered_attention
from regard.settings import Activation, RotaryPairing
from tests.build import SWITCHES, build, tiny_config
from tests.nn.test_attention import Case, assert_close, run_expected, with_gradients

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 2e-5, FP16: 4e-3, BF16: 3e-2}

interpreted = [pytest.param("cpu", dtype) for dtype in (FP32, FP16) if INTERPRETED]
on_gpu = [pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in (BF16, FP16)]
everywhere = pytest.mark.parametrize(("device", "dtype"), interpreted + on_gpu)


if INTERPRETED:  # its loops end at int(array of one element), which numpy has refused since 2.4
    import triton.language as tl
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_index(tensor: type, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_index
    patch_language = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        """What a kernel calls finds the language patched already: to do it again for each call takes longer than the kernel."""
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(module.load) for module in modules):
            return patch_language(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux")
def test_the_kernels_pass_through_the_interpreter() -> None:
    """Runs this file once more, interpreted; at least as many tests as there are cases must have run there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= len(CASES) * 2 + 20 and "skipped" not in done.stdout, done.stdout[-1000:]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux")
def test_every_kernel_compiles_for_gpus() -> None:
    """Down to machine code, which needs no GPU: the interpreter takes what the compiler refuses."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.nn.compile_kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr[-4000:]
    folder = Path(kernels.__file__).parent
    written = {
        name for file in folder.glob("triton_*.py") for name in re.findall(r"def (\w+_kernel)\(", file.read_text())
    }
    assert len(written) > 10
    assert json.loads(done.stdout.splitlines()[-1]) == {name: [80, 90] for name in written}


CASES = [
    Case("self", (5, 1, 9, 3), (5, 1, 9, 3), 2, 2, 16, seed=1),
    Case("causal", (5, 1, 9, 3), (5, 1, 9, 3), 2, 2, 16, seed=2),
    Case("cross", (5, 1, 9, 3), (2, 8, 1, 11), 2, 2, 16, seed=3),
    Case("self", (70, 3, 130, 1, 64), (70, 3, 130, 1, 64), 1, 1, 16, seed=4),  # longer than a tile, across tiles
    Case("causal", (70, 3, 130, 1, 64), (70, 3, 130, 1, 64), 1, 1, 16, seed=5),
    Case("cross", (1, 150, 64, 2), (140, 1, 3, 65), 1, 1, 16, seed=6),
    Case("causal", (28,) * 9, (28,) * 9, 4, 2, 8, seed=7),  # groups of heads share keys
    Case("cross", (28,) * 5, (31,) * 5, 4, 1, 8, seed=8),
    Case("self", (3, 4), (3, 4), 2, 2, 48, seed=9),  # a head that is no power of two
    Case("cross", (0, 4, 0), (3, 2, 1), 2, 2, 16, seed=10),  # keys that nobody asks
]


def layouts(case: Case, device: str) -> tuple[Layout, Layout]:
    q_layout, k_layout = (layout.to(device) for layout in case.layouts)
    return q_layout, k_layout if case.kind == "cross" else q_layout


@everywhere
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}{case.seed}")
def test_attention_is_the_formula(case: Case, device: str, dtype: torch.dtype) -> None:
    q_layout, k_layout = layouts(case, device)
    function = partial(run_triton, q_layout, k_layout, case.kind == "causal")
    assert_close(with_gradients(function, case, dtype, device), run_expected(case), 4 * TOLERANCE[dtype])


def run_triton(q_layout: Layout, k_layout: Layout, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, q_layout, k_layout, causal, "triton")


def slot_layout(lengths: tuple[int, ...], groups: list[int], tokens: int, sequences: int, device: str) -> SlotLayout:
    """So many rows and places for sequences, the last ones empty."""
    packed, empty = SequenceLayout.from_lengths(lengths), tokens - sum(lengths)
    positions = torch.cat([packed.positions.int(), torch.zeros(empty, dtype=torch.int32)])
    ids = torch.cat([packed.sequence_ids.int(), torch.full((empty,), -1, dtype=torch.int32)])
    rows = torch.cat([packed.offsets[groups], packed.offsets[-1:].repeat(sequences + 1 - len(groups))])
    return SlotLayout(positions.to(device), ids.to(device), rows.to(device), max(lengths))


@everywhere
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_empty_rows_give_nothing_and_take_nothing(kind: str, device: str, dtype: torch.dtype) -> None:
    """Slots, several sentences in a group: the used rows get what they get alone, whatever lies in the empty ones; those get
    zero."""
    q_lengths, k_lengths = (7, 61, 2, 20, 30, 90, 3, 4), (7, 61, 2, 20, 30, 90, 3, 4)
    if kind == "cross":
        k_lengths = (30, 2, 9, 11, 40, 70, 1, 60)
    groups = tile_groups(k_lengths, q_lengths)
    assert 3 < len(groups) < 9
    case = Case(kind, q_lengths, k_lengths, 2, 2, 16, seed=11)
    q_used, k_used = sum(q_lengths), sum(k_lengths)
    q_layout: Layout = slot_layout(q_lengths, groups, q_used + 75, 12, device)
    k_layout: Layout = slot_layout(k_lengths, groups, k_used + 75, 12, device) if kind == "cross" else q_layout

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (torch.cat([t, torch.full_like(t[:1], 7.0).expand(75, -1, -1)]) for t in (q, k, v))
        for tensor in (q, k, v):
            tensor.retain_grad()
        whole = attention(q, k, v, q_layout, k_layout, kind == "causal", "triton")
        assert whole[q_used:].abs().max() == 0.0
        whole.register_hook(lambda _: kept.extend((q, k, v)))
        return whole[:q_used]

    kept: list[Tensor] = []
    assert_close(with_gradients(function, case, dtype, device), run_expected(case), 4 * TOLERANCE[dtype])
    for tensor, used in zip(kept, (q_used, k_used, k_used), strict=True):
        assert tensor.grad is not None and tensor.grad[used:].abs().max() == 0.0


@everywhere
@pytest.mark.parametrize("keep_sum", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize(("rows", "d_model", "probability"), [(13, 64, 0.3), (300, 48, 0.0), (1, 512, 0.1)])
def test_add_norm_is_its_twin(
    rows: int, d_model: int, probability: float, rms: bool, keep_sum: bool, device: str, dtype: torch.dtype
) -> None:
    from regard.nn.kernels import triton_residual

    generator = torch.Generator().manual_seed(rows)
    x, y, d_sum, d_normed = (torch.randn(rows, d_model, generator=generator) for _ in range(4))
    y_bias, weight, bias = (torch.randn(d_model, generator=generator) for _ in range(3))
    seed = torch.tensor(-(2**62) + 12345, device=device)

    def run(function: object, dtype: torch.dtype, *extra: bool) -> list[Tensor]:
        inputs = [tensor.detach().clone().to(device, dtype).requires_grad_() for tensor in (x, y)]
        parameters = [
            tensor.detach().clone().to(device).requires_grad_() for tensor in (y_bias, weight, bias)[: 2 if rms else 3]
        ]
        norm = (*parameters, None)[:3]
        added, normed = function(*inputs, *norm, seed, probability, 1e-5, *extra)  # type: ignore[operator]
        loss = (normed.float() * d_normed.to(device)).sum()
        if keep_sum:
            loss = loss + (added.float() * d_sum.to(device)).sum()
        loss.backward()
        results = [normed, *([added] if keep_sum else []), *(t.grad for t in (*inputs, *parameters))]
        return [tensor.detach().float().cpu() for tensor in results]

    expected = run(residual.add_norm, FP32)
    for number, (got, wanted) in enumerate(zip(run(triton_residual.add_norm, dtype, keep_sum), expected, strict=True)):
        error = (got - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[dtype], f"result {number}: {error}"


@everywhere
def test_dropout_drops_what_its_twin_drops_and_as_often_as_asked(device: str, dtype: torch.dtype) -> None:
    from regard.nn.kernels import triton_residual

    zeros = torch.zeros(64, 512, device=device, dtype=dtype)
    weight, masks = torch.ones(512, device=device), []
    for value in (1, 2, -1, 2**40, 2**40 + 1):
        seed = torch.tensor(value, device=device)
        added, _ = triton_residual.add_norm(zeros, zeros, weight, weight, None, seed, 0.25, 1e-5, True)
        mask = added != 0
        assert torch.equal(mask, residual.keep_mask((64, 512), seed, 0.25))
        masks.append(mask.float().flatten())
        assert abs(float(mask.float().mean()) - 0.75) < 0.01  # 4 standard deviations of 32,768 draws
    for number, mask in enumerate(masks):  # neither seeds nor neighbouring elements go together
        for other in (*masks[:number], mask.roll(1), mask.roll(512)):
            assert abs(float(torch.corrcoef(torch.stack([mask, other]))[0, 1])) < 0.025


@everywhere
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("vocab_size", "width"), [(37, 16), (5000, 16), (37, 17), (4099, 25)])
def test_the_loss_is_its_twin(vocab_size: int, width: int, smoothing: float, device: str, dtype: torch.dtype) -> None:
    """Also where products need zeros after rows and columns: odd vocabularies, and states with a 1 for the bias."""
    generator = torch.Generator().manual_seed(vocab_size)
    hidden, weight = torch.randn(70, width, generator=generator), torch.randn(vocab_size, width, generator=generator)
    labels = torch.randint(vocab_size, (70,), generator=generator, dtype=torch.int32)
    labels[::9] = -1

    def run(dtype: torch.dtype, fused: bool) -> list[Tensor]:
        inputs = [tensor.detach().clone().to(device, dtype).requires_grad_() for tensor in (hidden, weight)]
        target = (inputs[0] * 1.0, inputs[1], labels.to(device), smoothing)
        if fused:
            loss = backward_linear_cross_entropy(*target, torch.tensor(1.0 / 3.0, device=device))
        else:
            loss = linear_cross_entropy(*target)
            (loss.total / 3.0).backward()
        return [t.detach().double().cpu() for t in (loss.total, loss.nll, inputs[0].grad, inputs[1].grad)]

    for number, (got, wanted) in enumerate(zip(run(dtype, True), run(torch.float64, False), strict=True)):
        error = (got - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[dtype], f"result {number}: {error}"


@everywhere
@pytest.mark.parametrize("activation", FUSED_ACTIVATIONS)
@pytest.mark.parametrize(("rows", "d_ff"), [(3, 16), (70, 80), (33, 1040)])
def test_the_first_half_of_a_feed_forward_network_is_its_twin(
    rows: int, d_ff: int, activation: Activation, device: str, dtype: torch.dtype
) -> None:
    from regard.nn.kernels.triton_activation import linear_activation

    generator = torch.Generator().manual_seed(rows)
    # Rounded first: a sum near zero must have the same sign in both.
    problem = [torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, 16), (d_ff, 16), (d_ff,))]
    incoming = torch.randn(rows, d_ff, generator=generator)

    def run(function: Any, dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.detach().clone().to(device, dtype).requires_grad_() for tensor in problem]
        output = function(*inputs)
        output.backward(incoming.to(device, dtype))
        return [t.detach().double().cpu() for t in (output, *(tensor.grad for tensor in inputs))]

    plain = run(lambda *inputs: activate(torch.nn.functional.linear(*inputs), activation), torch.float64)
    fused = run(partial(linear_activation, activation=activation), dtype)
    for number, (got, wanted) in enumerate(zip(fused, plain, strict=True)):
        error = (got - wanted).norm() / wanted.norm()
        assert error < 2 * TOLERANCE[dtype], f"result {number}: {error}"


@everywhere
@pytest.mark.parametrize(("rows", "d_query", "d_key"), [(3, 16, 8), (70, 320, 320), (33, 264, 24)])
def test_the_projection_to_queries_keys_and_values_is_its_twin(
    rows: int, d_query: int, d_key: int, device: str, dtype: torch.dtype
) -> None:
    from regard.nn.kernels.triton_projection import projection

    generator, width = torch.Generator().manual_seed(rows), d_query + 2 * d_key
    problem = [torch.randn(*shape, generator=generator) for shape in ((rows, 16), (width, 16), (width,))]
    incoming = torch.randn(rows, width, generator=generator)

    def run(function: Any, dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.detach().clone().to(device, dtype).requires_grad_() for tensor in problem]
        q, k, v = function(*inputs)
        # Attention gives one gradient with its columns in another order, which the kernel must not mind.
        d_q, d_k, d_v = incoming.to(device, dtype).split((d_query, d_key, d_key), dim=1)
        torch.autograd.backward((q, k, v), (d_q.t().contiguous().t(), d_k, d_v))
        return [t.detach().double().cpu() for t in (q, k, v, *(tensor.grad for tensor in inputs))]

    plain = run(lambda *inputs: torch.nn.functional.linear(*inputs).split((d_query, d_key, d_key), 1), torch.float64)
    for number, (got, wanted) in enumerate(zip(run(partial(projection, d_query=d_query), dtype), plain, strict=True)):
        error = (got - wanted).norm() / wanted.norm()
        assert error < TOLERANCE[dtype], f"result {number}: {error}"


@everywhere
@pytest.mark.parametrize(("d_head", "rotary_dim"), [(16, 16), (20, 12)])
@pytest.mark.parametrize("pairing", ["pairs", "halves"])
def test_rotary_positions_in_place_are_their_twin(
    pairing: RotaryPairing, d_head: int, rotary_dim: int, device: str, dtype: torch.dtype
) -> None:
    config = tiny_config(positions="rotary", rotary_pairing=pairing, d_head=d_head, rotary_dim=rotary_dim)
    rotary = Rotary(config.stacks["decoder"])
    generator = torch.Generator().manual_seed(d_head)
    heads = torch.randn(5, 9, d_head, generator=generator).to(device, dtype)
    positions = torch.tensor([0, 7, 3, 1000, 2], device=device)
    expected = torch.cat((rotary(heads[:, :7].float(), positions), heads[:, 7:].float()), dim=1)
    got = rotary.rotate_heads(heads, 7, positions)
    assert got is heads
    assert (got.float() - expected).norm() / expected.norm() < TOLERANCE[dtype]


@everywhere
@pytest.mark.parametrize("with_ancestors", [False, True])
@pytest.mark.parametrize(("num_heads", "kv_heads", "d_head"), [(4, 4, 16), (4, 2, 8), (3, 1, 48)])
def test_attention_over_a_cache_is_its_twin(
    num_heads: int, kv_heads: int, d_head: int, with_ancestors: bool, device: str, dtype: torch.dtype
) -> None:
    from regard.nn.kernels.triton_decode import decode_attention

    beam, slots, capacity = 3, 5, 40
    generator = torch.Generator().manual_seed(d_head)
    q = torch.randn(slots * beam, num_heads, d_head, generator=generator).to(device, dtype)
    entries = slots * beam if with_ancestors else slots
    keys, values = (
        torch.randn(entries, capacity, kv_heads, d_head, generator=generator).to(device, dtype) for _ in range(2)
    )
    lengths = torch.tensor([1, 40, 32, 33, 7], device=device)
    ancestors = torch.randint(entries, (slots * beam, capacity), generator=generator, dtype=torch.int32).to(device)
    arguments = (lengths, ancestors if with_ancestors else None, beam, 0.4)
    got = decode_attention(q, keys, values, *arguments)
    wanted = gathered_attention(q.double(), keys.double(), values.double(), *arguments)
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error < TOLERANCE[dtype], error


@everywhere
@pytest.mark.parametrize(("num_heads", "kv_heads", "d_head"), [(4, 4, 16), (4, 2, 8), (3, 1, 48)])
def test_extending_a_cache_is_its_twin(
    num_heads: int, kv_heads: int, d_head: int, device: str, dtype: torch.dtype
) -> None:
    """Queries, keys and values as one projection gives them, side by side; every place but a row's own stays as it was."""
    from regard.nn.kernels.triton_decode import extend_attention

    beam, slots, capacity = 3, 5, 40
    generator = torch.Generator().manual_seed(d_head)
    rows = slots * beam
    heads = torch.randn(rows, num_heads + 2 * kv_heads, d_head, generator=generator).to(device, dtype)
    q, k, v = heads.split((num_heads, kv_heads, kv_heads), dim=1)
    keys, values = (
        torch.randn(rows, capacity, kv_heads, d_head, generator=generator).to(device, dtype) for _ in range(2)
    )
    positions = torch.tensor([0, 39, 32, 31, 7], device=device)
    # Places lie with hypotheses of the same sentence, all of which write to the same new one now.
    at = (torch.arange(rows, device=device), positions.repeat_interleave(beam))
    ancestors = torch.randint(beam, (rows, capacity), generator=generator, dtype=torch.int32).to(device)
    ancestors += (at[0] // beam * beam).int()[:, None]
    ancestors[at] = at[0].int()
    after = [cache.index_put(at, new) for cache, new in ((keys, k), (values, v))]
    wanted = gathered_attention(q.double(), after[0].double(), after[1].double(), positions + 1, ancestors, beam, 0.4)
    got = extend_attention(q, k, v, keys, values, positions, ancestors, beam, 0.4)
    assert (got.double() - wanted).norm() / wanted.norm() < TOLERANCE[dtype]
    assert torch.equal(keys, after[0]) and torch.equal(values, after[1])


@everywhere
@pytest.mark.parametrize(("kv_heads", "d_head"), [(4, 16), (3, 8)])
def test_sentences_are_put_where_their_twin_puts_them(
    kv_heads: int, d_head: int, device: str, dtype: torch.dtype
) -> None:
    from regard.nn.kernels.triton_decode import put

    generator = torch.Generator().manual_seed(0)
    kv = torch.randn(9, 2 * kv_heads, d_head, generator=generator).to(device, dtype)
    slots = torch.tensor([2, 2, 0, 0, 0, 1, 3, 3, 3], device=device)
    positions = torch.tensor([0, 1, 0, 1, 2, 0, 4, 5, 6], device=device)
    caches = [torch.zeros(4, 7, kv_heads, d_head, dtype=dtype, device=device) for _ in range(2)]
    put(kv, caches[0], caches[1], slots, positions)
    for cache, new in zip(caches, kv.chunk(2, dim=1), strict=True):
        assert torch.equal(cache, torch.zeros_like(cache).index_put((slots, positions), new))


@everywhere
@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize(("vocab_size", "beam", "nbest"), [(53, 1, 1), (300, 2, 1), (53, 3, 3), (9, 5, 2)])
def test_a_step_of_the_search_is_its_twin(
    vocab_size: int, beam: int, nbest: int, is_free: bool, device: str, dtype: torch.dtype
) -> None:
    """A whole search, beside each other: sentences that end by themselves, at their limits, and places that are empty."""
    from regard.nn.kernels import triton_beam

    slots, capacity, eos = 5, 9, 2
    generator = torch.Generator().manual_seed(vocab_size)
    options = SearchOptions(beam=beam, nbest=nbest, alpha=0.6)
    allowed = torch.ones(vocab_size, dtype=torch.uint8, device=device)
    allowed[[0, 1]] = 0
    width = min(2 * beam, vocab_size - 2)
    states = [SlotState.empty(slots, beam, capacity, torch.device(device)) for _ in range(2)]
    for state in states:
        # The last slot stays empty.
        ones = torch.ones(4, dtype=torch.int64, device=device)
        state.admit(torch.arange(4, device=device), torch.tensor([0, 3, 8, 6], device=device), ones)
    ended = set()
    for length in range(9):
        # Steps of 1/64, none twice in a row, and a forbidden token that makes every row's normaliser another one: no ties,
        # not even in half precision. The end gets likelier.
        ranks = torch.stack([torch.randperm(vocab_size, generator=generator) for _ in range(slots * beam)]).double()
        logits = (ranks / 64.0 - vocab_size / 64.0).clamp(min=-20.0)
        logits[:, 0] = 2.0 * torch.rand(slots * beam, generator=generator).double()
        logits[:, eos] += 0.3 * length * vocab_size / 64.0
        logits = logits.to(device, dtype)
        plain = advance(states[0], logits, allowed, width, options, eos, is_free)
        given = {"width": width, "alpha": 0.6, "eos_id": eos, "nbest": nbest, "is_free": is_free}
        got = triton_beam.advance(logits, allowed, **vars(states[1]), **given)
        running = ~states[0].done
        assert torch.equal(states[0].done, states[1].done), length
        assert torch.equal(got[running], plain[running]), length
        assert torch.equal(states[0].newest.view(slots, beam)[running], states[1].newest.view(slots, beam)[running])
        torch.testing.assert_close(states[0].log_probs[running], states[1].log_probs[running], rtol=1e-4, atol=1e-4)
        assert torch.equal(states[0].length, states[1].length)
        ended |= {slot for slot in range(4) if not running[slot]}
        for state in states:
            # As the twin's pool is in order and the kernel's is not, it is compared in order.
            order = state.pool_scores.argsort(dim=1, descending=True)
            for field in ("pool_scores", "pool_log_probs", "pool_lengths", "pool_rows"):
                getattr(state, field).copy_(getattr(state, field).gather(1, order))
        filled = states[0].pool_scores > -math.inf
        for field in ("pool_scores", "pool_log_probs", "pool_lengths", "pool_rows"):
            one, other = (getattr(state, field)[filled].float() for state in states)
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
        assert torch.equal(filled, states[1].pool_scores > -math.inf)
    assert ended == set(range(4))
    for slot in range(4):
        kept = int(states[0].length[slot]) - 1
        for field in ("tokens", "parents"):
            assert torch.equal(getattr(states[0], field)[slot, :kept], getattr(states[1], field)[slot, :kept])


# What the fused parts of a layer may meet: no biases to add, a norm without one, a parallel layer, which has no such part.
FUSED: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {
        **SWITCHES["pre-norm"],
        "decoder_layers": 2,
        "activation": "gelu",
    },  # a layer hands its norm to the next
    "modern": {**SWITCHES["modern"], "num_kv_heads": 1},
    "no-biases": {"attention_bias": "none", "feed_forward_bias": False, "norm_bias": False, "score_scale": 1.0},
    "decoder": {
        "encoder_layers": 0,
        "norm_position": "pre",
        "parallel": True,
        "attention_bias": "none",
        "d_head": 12,
        "activation": "gelu_tanh",
        "head": {"logit_scale": 0.5},
    },
}


@everywhere
def test_full_rows_with_joined_gradients_are_the_plain_model(device: str, dtype: torch.dtype) -> None:
    """A decoder on rows of one length, whose attention takes queries, keys and values apart."""
    layout = slot_layout((32, 32), tile_groups((32, 32), (32, 32)), 64, 2, device)
    ids = torch.randint(53, (64,), generator=torch.Generator().manual_seed(4)).to(device)

    def run(dtype: torch.dtype, joined: bool) -> list[Tensor]:
        model = build(tiny_config(encoder_layers=0, decoder_layers=2, norm_position="pre")).to(device, dtype).train()
        set_kernel(model, "dense")
        set_joined(model, joined)
        assert all(layer.self_attention.joined == joined for layer in model.decoder.sequence)
        model(ids, layout).double().square().sum().backward()
        return [parameter.grad.double().cpu() for parameter in model.parameters() if parameter.grad is not None]

    for number, (got, wanted) in enumerate(zip(run(dtype, True), run(torch.float32, False), strict=True)):
        error = (got - wanted).norm() / wanted.norm()
        assert error < 8 * TOLERANCE[dtype], f"gradient {number}: {error}"


@everywhere
@pytest.mark.parametrize("switch", FUSED)
def test_a_whole_model_with_all_kernels_is_the_plain_one(switch: str, device: str, dtype: torch.dtype) -> None:
    """Loss and all gradients, with sentences in groups and empty rows."""
    src_lengths, tgt_lengths = (7, 2, 70), (9, 1, 66)
    groups = tile_groups(src_lengths, tgt_lengths)
    src_layout = slot_layout(src_lengths, groups, sum(src_lengths) + 9, 8, device)
    tgt_layout = slot_layout(tgt_lengths, groups, sum(tgt_lengths) + 11, 8, device)
    generator = torch.Generator().manual_seed(4)
    src, tgt, labels = (
        torch.randint(53, (layout.num_tokens,), generator=generator, dtype=torch.int32).to(device)
        for layout in (src_layout, tgt_layout, tgt_layout)
    )
    labels[sum(tgt_lengths) :] = -1

    def run(dtype: torch.dtype, fused: bool) -> list[Tensor]:
        shape = {"d_model": 16, "d_ff": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
        model = build(tiny_config(**{**shape, **FUSED[switch]})).to(device, dtype).train()
        set_kernel(model, "triton" if fused else "dense")
        set_fused(model, residual=fused, feed_forward=fused)
        sides = (src, src_layout, tgt, tgt_layout) if model.config.encoder_layers else (tgt, tgt_layout)
        target = (model.hidden(*sides), model.output_weight, labels, 0.1)
        if fused:
            loss = backward_linear_cross_entropy(*target, torch.tensor(0.01, device=device))
        else:
            loss = linear_cross_entropy(*target)
            (loss.total * 0.01).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        return [tensor.detach().double().cpu() for tensor in (loss.total, loss.nll, *gradients)]

    plain = run(torch.float32, False)
    scale = max(float(gradient.norm()) for gradient in plain[2:])
    for number, (got, wanted) in enumerate(zip(run(dtype, True), plain, strict=True)):
        error = (got - wanted).norm() / max(float(wanted.norm()), 0.02 * scale)
        assert error < 8 * TOLERANCE[dtype], f"result {number}: {error}"

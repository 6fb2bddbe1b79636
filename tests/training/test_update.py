"""The two ways of an update beside each other, compiled and captured, and which parts of the fast path a recipe gets."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.config import ModelConfig
from regard.data.masking import MaskedSlots
from regard.data.pair_slots import PairSlots
from regard.data.pairs import PairBatch, make_batch
from regard.data.rows import TextSlots
from regard.errors import UserError
from regard.models.rdrop import _chunk_loss
from regard.models.transformer import Transformer
from regard.nn import block
from regard.nn.attention import Attention
from regard.recipe import FAST_PARTS, TrainRecipe
from regard.tasks.translate import loss
from regard.training.checkpoint import _load_optimizer, _optimizer_tensors
from regard.training.fast import KERNELS, FastPath, fast_path, plain_path_field
from regard.training.muon import MuonWithAdamW
from regard.training.optimizer import make_optimizer, set_learning_rate
from regard.training.update import WARM_UPDATES, PlainUpdate, SlotUpdate, UpdateOptions, UpdateResult
from tests.build import build, tiny_config

BOS, EOS = 1, 2
SLOTS = PairSlots(src_tokens=70, tgt_tokens=60, pairs=12, max_length=16)
Pairs = list[tuple[list[int], list[int]]]
compiling = pytest.mark.filterwarnings("ignore:::torch")  # while torch compiles, it warns about its own code


def make_pairs(number: int, vocab_size: int, seed: int, longest: int = 14) -> Pairs:
    """Sentences of all lengths, the empty one among them, each with its reversal; few of the words, so that there is
    something to learn at once."""
    draw = np.random.default_rng(seed)
    sources = [draw.integers(3, vocab_size // 3, draw.integers(0, longest)).tolist() for _ in range(number)]
    return [(source, source[::-1][: max(1, len(source) - 1)]) for source in sources]


def gathered(pairs: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `Store.gather` would give."""
    src, tgt = (
        (np.array([i for sentence in side for i in sentence], np.int64), np.array([*map(len, side)], np.int64))
        for side in zip(*pairs, strict=True)
    )
    return *src, *tgt


def both_kinds(parts: list[Pairs], slots: PairSlots) -> tuple[list[PairBatch], list[Tensor], int]:
    """An update's parts as batches and as words of slots, and its target tokens."""
    count = sum(len(tgt) + 1 for pairs in parts for _, tgt in pairs)
    batches = [make_batch(*gathered(pairs), BOS, EOS) for pairs in parts]
    return batches, [slots.pack(*gathered(pairs), BOS, EOS, count) for pairs in parts], count


def updates(number: int, accumulate: int, vocab_size: int) -> list[list[Pairs]]:
    """Of 2 to 6 pairs a part: every part leaves rows and places for pairs empty, each time others."""
    return [[make_pairs(2 + (n + m) % 5, vocab_size, 10 * n + m) for m in range(accumulate)] for n in range(number)]


def twins(
    config: ModelConfig, device: str = "cpu", dtype: torch.dtype = torch.float64, optimizer: Any = "adam"
) -> Iterator[Any]:
    """Twice the same model with an optimizer; in float64, where not even Adam makes much of rounding errors."""
    for _ in range(2):
        model = build(config).to(device, dtype).train()
        made = make_optimizer(model, TrainRecipe(steps=1, optimizer=optimizer))
        set_learning_rate(made, 3e-3)
        yield model, made


def assert_same_results(one: UpdateResult, other: UpdateResult) -> None:
    for field in dataclasses.fields(UpdateResult):
        torch.testing.assert_close(getattr(one, field.name), getattr(other, field.name), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("switches", [{}, {"norm_position": "pre", "positions": "rotary", "num_kv_heads": 2}], ids=str)
def test_slots_learn_what_batches_of_any_shape_learn(switches: dict[str, Any], clip: float, accumulate: int) -> None:
    config = tiny_config(**switches)
    options = UpdateOptions(0.1, clip, None)
    (model, optimizer), (slot_model, slot_optimizer) = twins(config)
    plain = PlainUpdate(loss, model, optimizer, options)
    slotted = SlotUpdate(loss, slot_model, slot_optimizer, options, SLOTS, accumulate, FastPath())
    totals = []
    for parts in updates(6, accumulate, config.vocab_size):
        batches, words, count = both_kinds(parts, SLOTS)
        expected = plain(batches, count)
        assert_same_results(slotted(words, count), expected)
        totals.append(float(expected.total) / count)
        applied = torch.cat([parameter.grad.flatten() for parameter in slot_model.parameters()]).norm()
        assert float(applied) == pytest.approx(min(float(expected.norm), clip or math.inf), rel=1e-5)
    assert totals[-1] < 0.9 * totals[0]  # it learns, so that wrong gradients would show
    for (name, weight), other in zip(model.named_parameters(), slot_model.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=0.0, atol=1e-9, msg=name)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_slots_in_half_precision_learn_what_autocast_learns(accumulate: int) -> None:
    options = UpdateOptions(0.1, 1.0, torch.bfloat16)
    (model, optimizer), (slot_model, slot_optimizer) = twins(tiny_config(), dtype=torch.float32)
    plain = PlainUpdate(loss, model, optimizer, options)
    slotted = SlotUpdate(loss, slot_model, slot_optimizer, options, SLOTS, accumulate, FastPath())
    losses = []
    for parts in updates(12, accumulate, 53):
        batches, words, count = both_kinds(parts, SLOTS)
        expected, found = plain(batches, count), slotted(words, count)
        losses.append((float(expected.total) / count, float(found.total) / count))
        assert float(found.norm) == pytest.approx(float(expected.norm), rel=0.1), losses
    assert losses[-1][0] < 0.85 * losses[0][0], losses
    for one, other in losses:
        assert other == pytest.approx(one, rel=0.02), losses
    assert {parameter.dtype for parameter in slot_model.parameters()} == {torch.float32}


def test_muon_learns_the_same_in_slots_and_in_batches() -> None:
    (model, optimizer), (slot_model, slot_optimizer) = twins(tiny_config(), dtype=torch.float32, optimizer="muon")
    options = UpdateOptions(0.1, 1.0, None)
    plain = PlainUpdate(loss, model, optimizer, options)
    slotted = SlotUpdate(loss, slot_model, slot_optimizer, options, SLOTS, 2, FastPath())
    losses = []
    for parts in updates(12, 2, 53):
        batches, words, count = both_kinds(parts, SLOTS)
        losses.append((float(plain(batches, count).total) / count, float(slotted(words, count).total) / count))
    assert losses[-1][0] < 0.85 * losses[0][0]
    for one, other in losses:
        assert other == pytest.approx(one, rel=0.01), losses


def test_rdrop_draws_two_passes_together() -> None:
    """With dropout, what two passes answer to the same batch comes nearer, in slots as on the plain path."""
    apart = {}
    for rdrop in (0.0, 20.0):
        (model, optimizer), (slot_model, slot_optimizer) = twins(tiny_config(dropout=0.3))
        options = UpdateOptions(0.1, 1.0, None, rdrop)
        plain = PlainUpdate(loss, model, optimizer, options)
        slotted = SlotUpdate(loss, slot_model, slot_optimizer, options, SLOTS, 2, FastPath())
        torch.manual_seed(1)
        for parts in updates(25, 2, 53):
            batches, words, count = both_kinds(parts, SLOTS)
            plain(batches, count)
            slotted(words, count)
        batch = batches[0]
        for each in (model, slot_model):
            each.train()
            passes = [each(batch.src, batch.src_layout, batch.tgt_in, batch.tgt_layout) for _ in range(20)]
            answers = torch.stack(passes).detach().softmax(-1)
            apart[rdrop, each is model] = float(
                (answers - answers.mean(dim=0)).abs().mean() / answers.std(dim=-1).mean()
            )
    for is_plain in (True, False):
        assert apart[20.0, is_plain] < 0.8 * apart[0.0, is_plain], apart


@pytest.mark.parametrize(
    ("path", "device"),
    [
        (FastPath(), "cpu"),
        pytest.param("everything", "cuda", marks=[pytest.mark.gpu, compiling]),
    ],
)
def test_the_two_passes_of_rdrop_drop_other_elements(path: Any, device: str) -> None:
    """At a learning rate of 0 on one batch: how much alpha weighs shows how far two passes are apart, in every replay anew."""
    slots = SLOTS if device == "cpu" else GPU_SLOTS
    [parts] = updates(1, 1, 53) if device == "cpu" else gpu_updates(1, 1)
    _, words, count = both_kinds(parts, slots)
    means = {}
    for dropout in (0.0, 0.3):
        for alpha in (1e-3, 100.0):
            config = (tiny_config if device == "cpu" else gpu_config)(dropout=dropout)
            (model, optimizer), _ = twins(config, device, torch.float32)
            set_learning_rate(optimizer, 0.0)
            made = dataclasses.replace(EVERYTHING, loss=False) if path == "everything" else path
            autocast = torch.bfloat16 if device == "cuda" else None
            update = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, autocast, alpha), slots, 1, made)
            totals = [float(update(words, count).total) / count for _ in range(WARM_UPDATES + 8)][WARM_UPDATES:]
            assert (update._graph is not None) == (device == "cuda")
            assert len(set(totals)) == (8 if dropout else 1), totals
            means[dropout, alpha] = sum(totals) / len(totals)
    assert means[0.0, 100.0] == pytest.approx(means[0.0, 1e-3], rel=1e-3)
    assert means[0.3, 100.0] > 1.1 * means[0.3, 1e-3]


def test_muon_and_rdrop_never_ask_for_a_value() -> None:
    """A captured graph has none to give: on the meta device, where nothing has a value, the same code runs through."""
    with torch.device("meta"):
        model = Transformer(tiny_config())
        rate = torch.zeros(())
        logits, labels = [torch.randn(60, 53) for _ in range(2)], torch.zeros(60, 1, dtype=torch.int64)
    optimizer = make_optimizer(model, TrainRecipe(steps=1, optimizer="muon", weight_decay=0.1))
    assert isinstance(optimizer, MuonWithAdamW)
    matrices = optimizer.param_groups[0]
    matrices["lr"] = rate
    for parameter in matrices["params"]:
        parameter.grad = torch.empty_like(parameter)
    with torch.no_grad():
        optimizer._muon_step(matrices)
    losses, gradients = _chunk_loss(logits[0], logits[1], labels, 0.1, 5.0)
    assert [gradient.shape for gradient in gradients] == [(60, 53)] * 2
    with pytest.raises(RuntimeError, match="meta"):  # as asking would
        float(losses[0])


# --- compiled ---


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """What was compiled, with a backend that takes no time to compile."""
    from torch._dynamo.backends.debugging import aot_eager

    compiled: list[torch.fx.GraphModule] = []
    compile_ = torch.compile

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(torch, "compile", lambda *args, **options: compile_(*args, backend=backend, **options))
    yield compiled
    torch._dynamo.reset()


@compiling
@pytest.mark.slow
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_one_compilation_serves_all_layers_of_a_stack_and_all_batches(
    norm_position: Any, graphs: list[torch.fx.GraphModule]
) -> None:
    config = tiny_config(norm_position=norm_position)
    options = UpdateOptions(0.1, 1.0, None)
    (model, optimizer), (slot_model, slot_optimizer) = twins(config)
    plain = PlainUpdate(loss, model, optimizer, options)
    said: list[str] = []
    slotted = SlotUpdate(loss, slot_model, slot_optimizer, options, SLOTS, 2, FastPath(compile=True), said.append)
    for number, parts in enumerate(updates(4, 2, config.vocab_size)):
        batches, words, count = both_kinds(parts, SLOTS)
        assert_same_results(slotted(words, count), plain(batches, count))
        assert len(graphs) == 4, f"update {number}"  # a layer of each stack, and where each stack is entered
    assert len(said) == 1 and said[0].startswith("compiled 4 graphs; first update after")


@compiling
def test_compiled_updates_draw_their_dropout_anew(graphs: list[torch.fx.GraphModule]) -> None:
    (model, optimizer), _ = twins(tiny_config(dropout=0.3))
    set_learning_rate(optimizer, 0.0)
    slotted = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, None), SLOTS, 1, FastPath(compile=True))
    _, words, count = both_kinds(updates(1, 1, 53)[0], SLOTS)
    totals = [float(slotted(words, count).total) for _ in range(3)]
    assert len(graphs) == 4 and len(set(totals)) == 3


@compiling
def test_what_breaks_a_graph_is_refused(graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch) -> None:
    run_sublayers = block.run_sublayers

    def broken(*args: Any) -> tuple[Tensor, Tensor | None]:
        torch._dynamo.graph_break()
        return run_sublayers(*args)

    monkeypatch.setattr(block, "run_sublayers", broken)
    (model, optimizer), _ = twins(tiny_config())
    slotted = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, None), SLOTS, 1, FastPath(compile=True))
    _, words, count = both_kinds(updates(1, 1, 53)[0], SLOTS)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        slotted(words, count)


# --- which parts ---


def test_a_cpu_takes_the_plain_path_unless_it_is_told_otherwise() -> None:
    cpu = torch.device("cpu")
    for dtype in (None, torch.bfloat16):
        assert fast_path("auto", cpu, dtype) is None
        assert fast_path("off", cpu, dtype) is None
        assert fast_path("slots", cpu, dtype) == FastPath()
        assert fast_path("slots, compile", cpu, dtype) == fast_path("compile", cpu, dtype) == FastPath(compile=True)


@pytest.mark.parametrize("name", [*KERNELS, "graph"])
def test_what_a_cpu_cannot_do_is_refused_by_name(name: str) -> None:
    message = rf"^train\.fast: {name} needs a CUDA device; remove it, or use auto$"
    with pytest.raises(UserError, match=message):
        fast_path(f"slots,{name}", torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"attention_dropout": 0.1}, "model.attention_dropout"),
        ({"positions": "relative"}, "model.positions = 'relative'"),
    ],
)
def test_a_model_that_the_kernels_cannot_compute_takes_the_plain_path(settings: dict[str, Any], named: str) -> None:
    assert plain_path_field(TrainRecipe(), tiny_config(decoder=settings)) == named
    assert (
        plain_path_field(TrainRecipe(), tiny_config(norm_position="pre", attention_bias="none", norm_bias=False)) == ""
    )
    assert plain_path_field(TrainRecipe(anchor="en"), tiny_config()) == "train.anchor"
    assert fast_path("auto", torch.device("cuda"), torch.bfloat16, plain_path_field=named) is None
    with pytest.raises(
        UserError, match=rf"train\.fast must be auto or off, since {re.escape(named)} needs the plain path"
    ):
        fast_path("slots", torch.device("cuda"), torch.bfloat16, plain_path_field=named)


def test_rdrop_goes_without_the_fused_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.fast.has_triton", lambda: True)
    path = fast_path("auto", torch.device("cuda"), torch.bfloat16, rdrop=True)
    assert path is not None and path.graph and path.attention and not path.loss
    with pytest.raises(UserError, match=r"train\.fast: loss works with one pass"):
        fast_path("slots,loss", torch.device("cuda"), torch.bfloat16, rdrop=True)


def test_a_gpu_takes_all_parts_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.fast.has_triton", lambda: True)
    gpu, dtype = torch.device("cuda"), torch.bfloat16
    parts = [field.name for field in dataclasses.fields(FastPath)]
    assert ["slots", *parts] == list(FAST_PARTS)
    assert fast_path("auto", gpu, dtype) == FastPath(**dict.fromkeys(parts, True))
    assert fast_path("off", gpu, dtype) is None
    assert fast_path("slots", gpu, dtype) == FastPath()
    for name in parts:
        assert fast_path(name, gpu, dtype) == FastPath(**{name: True})


@pytest.mark.parametrize(("dtype", "triton"), [(None, True), (torch.bfloat16, False)])
def test_a_gpu_without_bf16_or_triton_takes_the_plain_path(
    dtype: torch.dtype | None, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.training.fast.has_triton", lambda: triton)
    gpu = torch.device("cuda")
    assert fast_path("auto", gpu, dtype) is None
    assert fast_path("compile", gpu, dtype) == FastPath(compile=True)
    with pytest.raises(UserError, match="attention needs "):
        fast_path("attention,loss", gpu, dtype)


@pytest.mark.parametrize(
    ("made", "kernel"),
    [
        (lambda: SLOTS, "triton"),
        (lambda: PairSlots(4096, 4096, 64, max_length=2048), "triton"),
        (lambda: TextSlots(4096, 64, 1024), "varlen"),
        (lambda: TextSlots(4096, 64, 1024, is_uniform=True), "sdpa"),
        (lambda: TextSlots(4096, 64, 512), "triton"),
        (lambda: MaskedSlots(4096, 128, 640, 128), "triton"),
        (lambda: MaskedSlots(4096, 128, 640, 1024), "varlen"),
    ],
    ids=["pairs", "long-pairs", "rows", "full-rows", "short-rows", "pieces", "long-pieces"],
)
def test_the_kernel_for_attention_suits_the_batches(made: Any, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: whether there is one is all that the choice asks of the machine."""
    monkeypatch.setattr("regard.nn.kernels.on_triton", lambda device: True)
    monkeypatch.setattr("regard.nn.kernels.varlen.available", lambda device, dtype: dtype == torch.bfloat16)
    for path, expected in ((FastPath(attention=True), kernel), (FastPath(), "dense")):
        [(model, optimizer), _] = twins(tiny_config(), dtype=torch.float32)
        update = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, torch.bfloat16), made(), 1, path)
        assert update.copy is not None
        kernels = {module.kernel for module in update.copy.model.modules() if isinstance(module, Attention)}
        assert kernels == {expected}


# --- on a GPU ---

EVERYTHING = FastPath(**{field.name: True for field in dataclasses.fields(FastPath)})
GPU_SLOTS = PairSlots(src_tokens=1536, tgt_tokens=1408, pairs=64, max_length=80)


def gpu_config(**changes: Any) -> ModelConfig:
    return tiny_config(vocab_size=208, d_model=128, d_ff=256, num_heads=4, **changes)


def gpu_updates(number: int, accumulate: int) -> list[list[Pairs]]:
    """Sentences of up to 79 tokens: longer ones than a tile among them."""
    return [[make_pairs(20 + (n + m) % 5, 208, 10 * n + m, 80) for m in range(accumulate)] for n in range(number)]


@pytest.fixture
def pinning() -> Iterator[None]:
    """Another thread takes and returns page-locked memory all the time, as the feed does; a capture must bear it."""
    done = threading.Event()

    def pin() -> None:
        kept: deque[Tensor] = deque(maxlen=50)
        for number in itertools.count():
            if done.wait(0.0005):
                return
            kept.append(torch.zeros(1 << 10 + number % 8).pin_memory())

    thread = threading.Thread(target=pin, daemon=True)
    thread.start()
    yield
    done.set()
    thread.join()


def weights(model: Transformer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


@compiling
@pytest.mark.gpu
@pytest.mark.usefixtures("pinning")
@pytest.mark.parametrize(
    ("switches", "accumulate"),
    [({}, 1), ({"norm_position": "pre"}, 2), ({"norm_position": "pre", "norm": "rms", "num_kv_heads": 2}, 1)],
)
def test_the_whole_fast_path_learns_what_the_plain_one_learns(switches: dict[str, Any], accumulate: int) -> None:
    options = UpdateOptions(0.1, 1.0, torch.bfloat16)
    (model, optimizer), (fast_model, fast_optimizer) = twins(gpu_config(**switches), "cuda", torch.float32)
    plain = PlainUpdate(loss, model, optimizer, options)
    fast = SlotUpdate(loss, fast_model, fast_optimizer, options, GPU_SLOTS, accumulate, EVERYTHING)
    losses: list[tuple[float, float, int]] = []
    for number, parts in enumerate(gpu_updates(20, accumulate)):
        for each in (optimizer, fast_optimizer):  # the captured update must see that it changes
            set_learning_rate(each, 3e-4 * min(number + 1, 10))
        batches, words, count = both_kinds(parts, GPU_SLOTS)
        expected, found = plain(batches, count), fast([part.pin_memory() for part in words], count)
        losses.append((float(expected.total) / count, float(found.total) / count, number))
        assert float(found.nll) == pytest.approx(float(expected.nll), rel=0.02), losses
        assert float(found.norm) == pytest.approx(float(expected.norm), rel=0.1), losses
    assert fast._graph is not None and losses[-1][0] < 0.85 * losses[0][0], losses
    for one, other, _ in losses:
        assert other == pytest.approx(one, rel=0.02), losses


@compiling
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_a_replayed_update_changes_the_weights_and_obeys_the_learning_rate(name: str) -> None:
    (model, optimizer), _ = twins(gpu_config(), "cuda", torch.float32, name)
    fast = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, torch.bfloat16), GPU_SLOTS, 1, EVERYTHING)
    for number, parts in enumerate(gpu_updates(WARM_UPDATES + 4, 1)):
        _, words, count = both_kinds(parts, GPU_SLOTS)
        rate = 0.0 if number in (WARM_UPDATES - 1, WARM_UPDATES + 2) else 1e-3
        set_learning_rate(optimizer, rate)
        before = weights(model)
        fast(words, count)
        assert (fast._graph is not None) == (number >= WARM_UPDATES)
        assert same(before, weights(model)) == (rate == 0.0), f"update {number}"


@compiling
@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_replayed_update_draws_its_dropout_anew(dropout: float) -> None:
    """On one batch and at a learning rate of 0, nothing but dropout tells one update's loss from the next."""
    (model, optimizer), _ = twins(gpu_config(dropout=dropout), "cuda", torch.float32)
    set_learning_rate(optimizer, 0.0)
    fast = SlotUpdate(loss, model, optimizer, UpdateOptions(0.1, 1.0, torch.bfloat16), GPU_SLOTS, 1, EVERYTHING)
    _, words, count = both_kinds(gpu_updates(1, 1)[0], GPU_SLOTS)
    totals = [float(fast(words, count).total) for _ in range(WARM_UPDATES + 8)][WARM_UPDATES:]
    assert fast._graph is not None
    assert len(set(totals)) == (8 if dropout else 1), totals


@compiling
@pytest.mark.gpu
@pytest.mark.parametrize("rdrop", [0.0, 5.0])
def test_a_captured_update_with_muon_and_rdrop_learns_what_the_plain_one_learns(rdrop: float) -> None:
    options = UpdateOptions(0.1, 1.0, torch.bfloat16, rdrop)
    both = twins(gpu_config(norm_position="pre", norm="rms"), "cuda", torch.float32, "muon")
    (model, optimizer), (fast_model, fast_optimizer) = both
    plain = PlainUpdate(loss, model, optimizer, options)
    path = dataclasses.replace(EVERYTHING, loss=not rdrop)
    fast = SlotUpdate(loss, fast_model, fast_optimizer, options, GPU_SLOTS, 1, path)
    losses = []
    for number, parts in enumerate(gpu_updates(20, 1)):
        for each in (optimizer, fast_optimizer):
            set_learning_rate(each, 2e-4 * min(number + 1, 10))
        batches, words, count = both_kinds(parts, GPU_SLOTS)
        expected, found = plain(batches, count), fast([part.pin_memory() for part in words], count)
        losses.append((float(expected.total) / count, float(found.total) / count))
    assert fast._graph is not None and losses[-1][0] < 0.85 * losses[0][0], losses
    for one, other in losses:
        assert other == pytest.approx(one, rel=0.03), losses


@compiling
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_a_captured_run_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    """The graph is captured anew, over an optimizer whose state and learning rate were put in place from outside."""
    options = UpdateOptions(0.1, 1.0, torch.bfloat16)
    (model, optimizer), (other_model, other_optimizer) = twins(gpu_config(), "cuda", torch.float32, name)
    fast = SlotUpdate(loss, model, optimizer, options, GPU_SLOTS, 1, EVERYTHING)
    all_updates = [both_kinds(parts, GPU_SLOTS)[1:] for parts in gpu_updates(2 * WARM_UPDATES + 8, 1)]
    half = WARM_UPDATES + 4
    for words, count in all_updates[:half]:
        fast(words, count)
    other_model.load_state_dict(model.state_dict())
    save_file({key: tensor.cpu() for key, tensor in _optimizer_tensors(optimizer).items()}, tmp_path / "optimizer")
    _load_optimizer(other_optimizer, tmp_path / "optimizer")
    other = SlotUpdate(loss, other_model, other_optimizer, options, GPU_SLOTS, 1, EVERYTHING)
    losses = []
    for number, (words, count) in enumerate(all_updates[half:]):
        for each in (optimizer, other_optimizer):
            set_learning_rate(each, 3e-3 / (number + 1))
        losses.append((float(fast(words, count).total) / count, float(other(words, count).total) / count))
    assert fast._graph is not None and other._graph is not None
    for one, two in losses:
        assert two == pytest.approx(one, rel=0.01), losses

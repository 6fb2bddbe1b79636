"""Where the time of a training step goes, by group of kernels.

    python -m benchmarks.profile_step --contender regard --preset base

One contender of benchmarks/train_throughput.py is warmed up and timed; then a pass over its batches is traced. On CUDA the
times are those of kernels on the device, and the rest of the wall-clock time is idle time of the device. On the CPU they
are the self times of operators, which do not show what happens inside compiled code.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import machine, print_facts, print_table, synchronize, time_rounds, write_json
from benchmarks.contenders import CONTENDERS
from benchmarks.lengths import make_batches
from regard.config import ModelConfig
from regard.device import compute_dtype, pick_device
from regard.models.presets import PRESETS

OTHER = "other element-wise"

# A kernel belongs to the first group whose expression is found in its name, in any case; to OTHER if none is. The names of
# kernels that torch.compile made list what is fused into them and often the products or the attention beside them too, so
# those two groups leave such names alone.
FUSED = r"^triton_(poi|per|red|for)_"
NOT_FUSED = r"^(?!triton_(poi|per|red|for)_).*"
GROUPS = [
    ("optimizer and clipping", r"adam|multi_tensor|foreach|lerp|vector_norm|clip_grad"),
    ("attention", NOT_FUSED + r"(attention|attn|flash|fmha|sdpa)"),
    ("loss", r"softmax|cross_?entropy|nll|logsumexp|_loss"),
    ("feed-forward, element-wise", r"_relu_backward_kernel|triton_poi_fused_(relu|threshold_backward)_\d+"),
    ("residual and norm", r"add_norm|layer_?norm|rms_?norm|residual|dropout|GammaBeta|RowwiseMoments|cuCompute"),
    ("embedding", r"embedding|compute_grad_weight|index_?(select|add|put|func)|sum_and_scatter|krn_partial|radixsort"),
    ("copies and casts", r"memcpy|memset|^triton_poi_fused__to_copy_\d+"),
    (OTHER, FUSED),
    (
        "matrix products",
        r"gemm|gemv|cutlass|cublas|nvjet|xmma|matmul|split_?k|triton_tem|\b(add|b|addb|baddb)?mm\b|mkldnn",
    ),
    ("copies and casts", r"copy|(?<!broad)cast|fill|zero_"),
]


@dataclass(frozen=True)
class Span:
    """One run of one kernel, in milliseconds; of an operator on the CPU, all its runs together."""

    name: str
    begin: float
    duration: float
    calls: int = 1


def group_of(name: str) -> str:
    """
    >>> group_of("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"), group_of("Memcpy DtoD (Device -> Device)")
    ('matrix products', 'copies and casts')
    >>> [group_of(f"_{name}_kernel") for name in ("attention_backward", "add_norm", "relu_backward", "cross_entropy")]
    ['attention', 'residual and norm', 'feed-forward, element-wise', 'loss']
    """
    return next((group for group, pattern in GROUPS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def device_spans(profiler: profile) -> list[Span]:
    """What ran on the CUDA device. Read from the trace, whose categories tell kernels from the ranges drawn around them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)["traceEvents"]
    categories = ("kernel", "gpu_memcpy", "gpu_memset")
    return [
        Span(event["name"], float(event["ts"]) / 1e3, float(event["dur"]) / 1e3)
        for event in events
        if event.get("cat") in categories and "dur" in event
    ]


def operator_spans(profiler: profile) -> list[Span]:
    """Self times of operators on the CPU."""
    rows = profiler.key_averages()
    return [Span(row.key, 0.0, row.self_cpu_time_total / 1e3, row.count) for row in rows]


def trace(update: Callable[[int], object], steps: int, device: torch.device) -> list[Span]:
    """Run updates 0 to steps - 1 under the profiler."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    for numbers in (range(1), range(steps)):  # the first one loads the profiler and is discarded
        with profile(activities=activities) as profiler:
            for number in numbers:
                update(number)
            synchronize(device)
    return device_spans(profiler) if on_cuda else operator_spans(profiler)


def busy(spans: Iterable[Span]) -> float:
    """Milliseconds in which at least one kernel ran.

    >>> busy([Span("a", 0.0, 2.0), Span("b", 1.0, 2.0), Span("c", 5.0, 1.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        stop = span.begin + span.duration
        total += max(0.0, stop - max(span.begin, end))
        end = max(end, stop)
    return total


def sums(spans: Sequence[Span], key: Callable[[str], str], steps: int) -> list[dict[str, Any]]:
    """Time and launches per step, grouped by key, the costliest first."""
    milliseconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for span in spans:
        milliseconds[key(span.name)] += span.duration
        calls[key(span.name)] += span.calls
    total = sum(milliseconds.values()) or 1.0
    return [
        {
            "ms a step": value / steps,
            "%": 100 * value / total,
            "launches a step": calls[name] / steps,
            "name": name,
        }
        for name, value in sorted(milliseconds.items(), key=lambda item: -item[1])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", choices=list(CONTENDERS), default="regard")
    parser.add_argument("--preset", choices=list(PRESETS), help="default: base on CUDA, else tiny")
    parser.add_argument("--vocab", type=int, help="default: 37,000 on CUDA, else 8,000")
    parser.add_argument("--tokens", type=int, help="target tokens in an update (default: 25,000 on CUDA, else 2,000)")
    parser.add_argument("--batches", type=int, default=4, help="steps to trace, each on its own batch")
    parser.add_argument("--kernels", type=int, default=25, help="number of the costliest kernels to list")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/profile_step.json)")
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    on_cuda = device.type == "cuda"
    dtype = compute_dtype(arguments.precision, device)
    preset = arguments.preset or ("base" if on_cuda else "tiny")
    vocab_size = arguments.vocab or (37_000 if on_cuda else 8_000)
    batches = make_batches(arguments.tokens or (25_000 if on_cuda else 2_000), arguments.batches)
    contender = CONTENDERS[arguments.contender]
    torch.manual_seed(1)
    update = contender.build(ModelConfig(vocab_size, **PRESETS[preset]), batches, device, dtype)

    def one_pass() -> None:
        for number in range(len(batches)):
            update(number)

    # Without the profiler, which slows the host; the first two passes warm up.
    wall = 1e3 * time_rounds({"pass": one_pass}, 3, device)["pass"] / len(batches)
    spans = trace(update, len(batches), device)
    facts: dict[str, Any] = {
        **machine(device, ("transformers", "triton")),
        "contender": contender.name,
        "preset": preset,
        "vocabulary": vocab_size,
        "precision": "fp32" if dtype is None else "bf16",
        "target tokens a step": round(sum(batch.tgt_tokens for batch in batches) / len(batches)),
        "wall ms a step": wall,
        "kernel ms a step": sum(span.duration for span in spans) / len(batches),
    }
    if on_cuda:
        facts["busy ms a step"] = busy(spans) / len(batches)
        facts["idle %"] = max(0.0, 100 * (1 - facts["busy ms a step"] / wall))
    print_facts(facts)
    if not spans:
        raise SystemExit("the profiler saw no kernel")
    groups = sums(spans, group_of, len(batches))
    kernels = [{**row, "group": group_of(row["name"])} for row in sums(spans, lambda name: name, len(batches))]
    print()
    print_table(groups)
    print()
    print_table([{**row, "name": row["name"][:110]} for row in kernels[: arguments.kernels]])
    rows = [{"kind": "group", **row} for row in groups] + [{"kind": "kernel", **row} for row in kernels]
    print(f"\nwritten to {write_json('profile_step', rows, facts, arguments.out)}")


if __name__ == "__main__":
    main()

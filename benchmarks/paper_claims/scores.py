"""Section 3.2.1 of the paper: dot-product against additive attention in time and memory, and why scores are divided by sqrt(d_k).

Additive attention (Bahdanau et al., 2015) scores a query and a key by v . tanh(q + k), after both were projected; it needs an
n x n x d_k tensor where the dot product needs n x n. The training comparison is associative recall (recall.py) at a short distance
with a small Transformer of Regard, whose queries and keys start with variance 1, as the paper's footnote 4 assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import print_table
from benchmarks.paper_claims.bench import GIB, Bench, Row, Rows, peak_gib, rounded, time_calls
from benchmarks.paper_claims.recall import Answers, TransformerReader, accuracy, make_task, train_updates
from regard.config import ModelConfig
from regard.nn.attention import SelfAttention

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
D_KS = (16, 64, 256, 1024)
HEADS = 8  # batch times heads
MAX_GIB = 24  # for the n x n x d_k tensors of additive attention
SECONDS = 0.05
DOT, FUSED, ADDITIVE = "dot product", "dot product, fused", "additive"
QUERIES, KEYS = 4096, 64  # random ones, for the softmax of unscaled scores
UPDATES = 300


def attend_by(name: str, d_k: int, bench: Bench) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention as a function of queries, keys and values, (heads, n, d_k) each."""
    direction = torch.randn(d_k, device=bench.device, dtype=bench.number_format).requires_grad_()

    def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # (heads, n, 1, d_k) + (heads, 1, n, d_k) -> (heads, n, n, d_k) -> (heads, n, n)
        scores = torch.tanh(q[:, :, None] + k[:, None]) @ direction
        return scores.softmax(-1) @ v

    def dot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) / math.sqrt(d_k)).softmax(-1) @ v

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    return {ADDITIVE: additive, DOT: dot, FUSED: fused}[name]


def compare_functions(bench: Bench, rows: Rows) -> None:
    """Time and memory, forward and backward, over length and d_k."""
    lengths, widths = ((8, 16), (4, 8)) if bench.smoke else (LENGTHS, D_KS)
    for d_k in widths:
        for length in lengths:
            for name in (DOT, FUSED, ADDITIVE):
                key = {"kind": "function", "attention": name, "d_k": d_k, "n": length}
                rows.measured(key, _cost, key, bench)


def _cost(key: Row, bench: Bench) -> Row:
    """Milliseconds and GiB of one kind of attention; None where it would take more memory than MAX_GIB."""
    name, d_k, length, heads = key["attention"], key["d_k"], key["n"], 2 if bench.smoke else HEADS
    if name == ADDITIVE and 4 * heads * length**2 * d_k * bench.number_format.itemsize > MAX_GIB * GIB:
        return {"ms": None, "GiB": None}
    torch.manual_seed(bench.seed)
    shape = (heads, length, d_k)
    q, k, v = (torch.randn(shape, device=bench.device, dtype=bench.number_format) for _ in range(3))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    attend = attend_by(name, d_k, bench)

    def run() -> None:
        torch.autograd.grad(attend(q, k, v).sum(), (q, k, v))

    seconds = time_calls(run, bench.device, SECONDS / (10 if bench.smoke else 1), 1 if bench.smoke else 3)
    return rounded({"ms": 1e3 * seconds, "GiB": peak_gib(run, bench.device)})


def softmax_of_scores(bench: Bench) -> list[Row]:
    """Random queries and keys of variance 1: variance of the scores, entropy of the softmax, and the size of its gradient, each
    with and without the scale."""
    rows: list[Row] = []
    for d_k in D_KS:
        for scaled in (True, False):
            torch.manual_seed(bench.seed)
            queries = 64 if bench.smoke else QUERIES
            q, k = torch.randn(queries, d_k, device=bench.device), torch.randn(queries, KEYS, d_k, device=bench.device)
            scores = torch.einsum("qd,qkd->qk", q, k) * (d_k**-0.5 if scaled else 1.0)
            weights = scores.softmax(-1)
            # The Jacobian of a softmax is diag(p) - p p^T; the square of its Frobenius norm is
            # sum p^2 - 2 sum p^3 + (sum p^2)^2.
            squares = weights.square().sum(-1)
            jacobian = (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp_min(0).sqrt()
            row = {
                "kind": "softmax",
                "d_k": d_k,
                "scores": "scaled" if scaled else "unscaled",
                "variance": float(scores.var()),
                "entropy, nats": float(-(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()),
                "largest weight": float(weights.max(-1).values.mean()),
                "gradient of the softmax": float(jacobian.median()),
            }
            rows.append(rounded(row))
    return rows


def unit_queries_and_keys(model: nn.Module, d_model: int) -> None:
    """Queries and keys of inputs with variance 1 start with variance 1."""
    for module in model.modules():
        if isinstance(module, SelfAttention):
            with torch.no_grad():
                module.qkv.weight[: module.d_query + module.d_key].normal_(std=d_model**-0.5)


def train_scaled(bench: Bench, rows: Rows) -> None:
    """The loss of a small Transformer after UPDATES updates, scaled and unscaled."""
    for d_k in D_KS[:2] if bench.smoke else D_KS:
        for name in ("scaled", "unscaled"):
            key = {"kind": "training", "d_k": d_k, "scores": name}
            rows.measured(key, _trained, key, bench)


def _trained(key: Row, bench: Bench) -> Row:
    """The loss and the accuracy of one Transformer."""
    task, updates = make_task(bench), 3 if bench.smoke else UPDATES
    torch.manual_seed(bench.seed)
    config = ModelConfig(
        task.vocab_size, d_model=128, d_ff=512, num_heads=4, d_head=key["d_k"], encoder_layers=0, decoder_layers=2,
        dropout=0.0, norm_position="pre", score_scale=0.0 if key["scores"] == "scaled" else 1.0,
    )  # fmt: skip
    model = Answers(TransformerReader(config), config.d_model, task)
    unit_queries_and_keys(model, config.d_model)
    model.to(bench.device).train()
    losses = train_updates(model, task, bench, 1e-3, updates, distance=16)
    row = {
        "updates": updates,
        "loss": sum(losses[-20:]) / len(losses[-20:]),
        "accuracy, %": 100 * accuracy(model, task, bench, distance=16),
    }
    return {**rounded(row), "losses": [round(loss, 4) for loss in losses]}


def measure(bench: Bench, rows: Rows) -> list[Row]:
    compare_functions(bench, rows)
    print("dot product and additive: done", flush=True)
    for row in softmax_of_scores(bench):
        rows.measured({key: row[key] for key in ("kind", "d_k", "scores")}, dict, row)
    train_scaled(bench, rows)
    return rows.rows


def show(rows: Sequence[Row]) -> None:
    functions = [row for row in rows if row["kind"] == "function"]
    for figure in ("ms", "GiB"):
        if all(row[figure] is None for row in functions):
            continue
        print(f"\nforward and backward, {figure}, over n")
        table: dict[tuple[str, int], Row] = {}
        for row in functions:
            entry = table.setdefault((row["attention"], row["d_k"]), {"attention": row["attention"], "d_k": row["d_k"]})
            entry[str(row["n"])] = "-" if row[figure] is None else f"{row[figure]:.3g}"
        print_table(list(table.values()))
    for kind, title in (("softmax", "random queries and keys"), ("training", "associative recall")):
        print(f"\n{title}")
        print_table(
            [{k: v for k, v in row.items() if k not in ("kind", "losses")} for row in rows if row["kind"] == kind]
        )

"""Label-smoothed cross-entropy (section 5.4 of the paper), computed from decoder states in chunks: the logits of all tokens
never exist at once.

With smoothing e over a vocabulary of V, the target distribution is (1 - e) on the label plus e / V on every token, so that

    loss = logsumexp(z) - (1 - e) z_label - e mean(z)          d loss / d z = softmax(z) - (1 - e) [label] - e / V

mean(z) is one product with the mean row of the output matrix, and the last two terms of the gradient are a gather and a
constant. So each chunk of logits takes one softmax and two matrix products, and is then thrown away. With Triton, one kernel
turns a chunk of logits into its gradient. A loss is a sum and a count; the training loop divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 28}  # logits held at a time: fit the cache, or fill a GPU
VECTOR = 8  # numbers of half precision that a GPU loads at once
VOCABULARY_STEP = 64
FUSED_CHUNK_ELEMENTS = 1 << 29  # likewise with Triton, which holds no second tensor of that size


@dataclass(frozen=True)
class Loss:
    """Sums over the tokens of a batch, and the number of tokens."""

    total: Tensor  # the objective, which is differentiated: cross-entropy, label-smoothed or with what the task adds
    nll: Tensor  # negative log-likelihood of the labels, with nothing added: what perplexity is computed from
    count: int


@dataclass
class _Sums:
    """Running sums over the chunks, in float32 or wider, and the gradients if they are needed."""

    total: Tensor
    nll: Tensor
    d_hidden: Tensor | None
    d_weight: Tensor | None

    @classmethod
    def zeros(cls, hidden: Tensor, weight: Tensor, with_gradients: bool) -> _Sums:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return cls(
            hidden.new_zeros((), dtype=wide),
            hidden.new_zeros((), dtype=wide),
            torch.empty_like(hidden) if with_gradients else None,
            torch.zeros_like(weight, dtype=wide) if with_gradients else None,
        )


class _LinearCrossEntropy(torch.autograd.Function):
    """The forward pass computes both gradients, while it has the logits; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        sums = _Sums.zeros(hidden, weight, ctx.needs_input_grad[0] or ctx.needs_input_grad[1])
        with torch.autocast(device, enabled=False):
            _sum_chunks(sums, hidden, weight, labels, smoothing, chunk, dtype)
        if sums.d_hidden is not None and sums.d_weight is not None:
            ctx.save_for_backward(sums.d_hidden, sums.d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(sums.nll)
        return sums.total, sums.nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        d_hidden, d_weight = ctx.saved_tensors
        scale = gradients[0]
        return d_hidden * scale, d_weight * scale, None, None, None


def _sum_chunks(
    sums: _Sums, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int, dtype: torch.dtype
) -> None:
    wide = sums.total.dtype
    compute_weight = weight.to(dtype)
    mean_row = weight.to(wide).mean(dim=0)  # (d_model,): hidden @ mean_row is the mean of the logits
    for begin in range(0, hidden.shape[0], chunk):
        part = hidden[begin : begin + chunk]
        label = labels[begin : begin + chunk, None].long()
        used = label >= 0  # (chunk, 1): rows without a label do not count
        label = label.clamp(min=0)
        compute_part = part.to(dtype)
        # (chunk, d_model) -> (chunk, vocab_size)
        logits = compute_part @ compute_weight.t()
        picked = logits.gather(1, label).to(wide)
        if sums.d_hidden is not None:
            probabilities = torch.softmax(logits, dim=-1)
            normaliser = _normaliser(logits, probabilities, wide)
        else:
            normaliser = torch.logsumexp(logits.to(wide), dim=-1, keepdim=True)
        mean_logits = (part.to(wide) @ mean_row)[:, None]
        sums.nll += ((normaliser - picked) * used).sum()
        sums.total += ((normaliser - (1.0 - smoothing) * picked - smoothing * mean_logits) * used).sum()
        if sums.d_hidden is not None and sums.d_weight is not None:
            probabilities.mul_(used)
            pull = (weight[label[:, 0]].to(wide) * (1.0 - smoothing) + mean_row * smoothing) * used
            sums.d_hidden[begin : begin + chunk] = (probabilities @ compute_weight).to(wide) - pull
            sums.d_weight += (probabilities.t() @ compute_part).to(wide)
            pushed = part.to(wide) * used
            sums.d_weight -= pushed.sum(dim=0) * (smoothing / weight.shape[0])
            sums.d_weight.index_add_(0, label[:, 0], pushed, alpha=-(1.0 - smoothing))


def _normaliser(logits: Tensor, probabilities: Tensor, wide: torch.dtype) -> Tensor:
    """logsumexp of each row, (chunk, 1), without exponentiating again: z_max - log p_max, where p_max is at least 1 / V."""
    p_max, argmax = probabilities.max(dim=-1, keepdim=True)
    return logits.gather(1, argmax).to(wide) - p_max.to(wide).log()


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
    """The loss of decoder states (tokens, d_model) under the output matrix (vocab_size, d_model), with labels (tokens,). A
    label of -1 marks an empty row."""
    total, nll = _LinearCrossEntropy.apply(hidden, weight, labels, smoothing, chunk_rows(hidden, weight))  # type: ignore[no-untyped-call]
    return Loss(total, nll, labels.shape[0])


def backward_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, scale: Tensor
) -> Loss:
    """The same loss with Triton, and at once the backward pass of `scale` times the loss through `hidden` and the weight, which
    must be a leaf. The kernel scales the gradients itself, which saves a pass over them."""
    from regard.nn.kernels.triton_loss import cross_entropy_

    vocab_size, width = weight.shape
    with torch.no_grad():
        states, matrix = _aligned(hidden, (1, VECTOR)), _aligned(weight, (VOCABULARY_STEP, VECTOR))
        sums = _Sums.zeros(states, matrix, with_gradients=True)
        assert sums.d_hidden is not None and sums.d_weight is not None
        chunk = _chunk(states, matrix, FUSED_CHUNK_ELEMENTS)
        for begin in range(0, states.shape[0], chunk):
            part = states[begin : begin + chunk]
            # (chunk, d_model) -> (chunk, vocab_size)
            logits = part @ matrix.t()
            losses = cross_entropy_(logits, labels[begin : begin + chunk], smoothing, scale, vocab_size).sum(dim=0)
            sums.total += losses[0]
            sums.nll += losses[1]
            # The kernel has left the gradient in place of the logits. Beyond the vocabulary these are 0 and stay so.
            sums.d_hidden[begin : begin + chunk] = logits @ matrix
            _add_product(sums.d_weight, logits.t(), part)
    d_weight = sums.d_weight[:vocab_size, :width].to(weight.dtype)
    torch.autograd.backward((hidden, weight), (sums.d_hidden[:, :width], d_weight))
    return Loss(sums.total, sums.nll, labels.shape[0])


def _aligned(matrix: Tensor, steps: tuple[int, int]) -> Tensor:
    """The matrix with zeros after its rows and columns, so that their numbers are multiples of `steps`; those that are multiples of
    VECTOR stay. Elsewhere products take several times as long, since a row does not begin at a whole vector."""
    rows, columns = (-size % step if size % VECTOR else 0 for size, step in zip(matrix.shape, steps, strict=True))
    return torch.nn.functional.pad(matrix, (0, columns, 0, rows)) if rows or columns else matrix


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; on a GPU as one product that accumulates in float32."""
    if total.device.type == "cuda" and total.dtype == torch.float32 and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total += a @ b


def chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """How many rows of logits to hold at a time on this device."""
    return _chunk(hidden, weight, CHUNK_ELEMENTS.get(hidden.device.type, CHUNK_ELEMENTS["cuda"]))


def _chunk(hidden: Tensor, weight: Tensor, elements: int) -> int:
    """Rows per chunk of at most this many logits, split evenly so that the last chunk is no small remainder."""
    rows = max(1, hidden.shape[0])
    chunks = -(-rows * weight.shape[0] // elements)
    return max(64, -(-rows // chunks))

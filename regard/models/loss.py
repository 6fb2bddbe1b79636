"""Label-smoothed cross-entropy, straight from hidden states: the logits of all tokens never exist at once.

With smoothing e over a vocabulary of V, the target distribution is (1 - e) on the label plus e / V on every piece, so
that

    loss = logsumexp(z) - (1 - e) z_label - e mean(z)          d loss / d z = softmax(z) - (1 - e) [label] - e / V

The mean over the vocabulary is one product with the mean row of the output matrix, and the last two terms of the
gradient are a gather and a constant, so a chunk of logits is used for one softmax and two products and thrown away. A
loss is a sum with a count beside it; who divides, and by what, is the training loop's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 28}  # logits held at a time: cache-sized, or enough to fill a GPU


@dataclass(frozen=True)
class Loss:
    total: Tensor  # label-smoothed, summed over tokens: what is differentiated
    nll: Tensor  # negative log-likelihood of the labels, summed, without smoothing: what is reported as perplexity
    count: int  # tokens


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int) -> Any:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        with torch.autocast(device, enabled=False):
            return _LinearCrossEntropy._forward(ctx, hidden, weight, labels, smoothing, chunk, dtype)

    @staticmethod
    def _forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        wide = torch.promote_types(
            hidden.dtype, torch.float32
        )  # what is summed over tokens is summed in at least float32
        compute_weight = weight.to(dtype)
        mean_row = weight.to(wide).mean(dim=0)  # (d_model,): hidden @ mean_row = mean of the logits
        total = hidden.new_zeros((), dtype=wide)
        nll = hidden.new_zeros((), dtype=wide)
        d_hidden = torch.empty_like(hidden) if needs_grad else None
        d_weight = torch.zeros_like(weight, dtype=wide) if needs_grad else None
        for begin in range(0, hidden.shape[0], chunk):
            part = hidden[begin : begin + chunk]
            label = labels[begin : begin + chunk, None]
            compute_part = part.to(dtype)
            logits = compute_part @ compute_weight.t()  # (chunk, vocab_size)
            picked = logits.gather(1, label).to(wide)
            if needs_grad:
                probabilities = torch.softmax(logits, dim=-1)
                normaliser = _normaliser(logits, probabilities, wide)
            else:
                normaliser = torch.logsumexp(logits.to(wide), dim=-1, keepdim=True)
            nll += (normaliser - picked).sum()
            mean_logits = (part.to(wide) @ mean_row).sum()
            total += normaliser.sum() - (1.0 - smoothing) * picked.sum() - smoothing * mean_logits
            if d_hidden is not None and d_weight is not None:
                pull = weight[label[:, 0]].to(wide) * (1.0 - smoothing) + mean_row * smoothing
                d_hidden[begin : begin + chunk] = (probabilities @ compute_weight).to(wide) - pull
                d_weight += (probabilities.t() @ compute_part).to(wide)
        if d_hidden is not None and d_weight is not None:
            d_weight -= hidden.to(wide).sum(dim=0) * (smoothing / weight.shape[0])
            d_weight.index_add_(0, labels, hidden.to(wide), alpha=-(1.0 - smoothing))
            ctx.save_for_backward(d_hidden, d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        d_hidden, d_weight = ctx.saved_tensors
        scale = gradients[0]
        return d_hidden * scale, d_weight * scale, None, None, None


def _normaliser(logits: Tensor, probabilities: Tensor, wide: torch.dtype) -> Tensor:
    """logsumexp of each row without another pass of exponentials: z_max - log p_max, where p_max is at least 1 / V."""
    p_max, place = probabilities.max(dim=-1, keepdim=True)
    return logits.gather(1, place).to(wide) - p_max.to(wide).log()


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
    """Loss of hidden states (tokens, d_model) under the output matrix (vocab_size, d_model)."""
    elements = CHUNK_ELEMENTS.get(hidden.device.type, CHUNK_ELEMENTS["cuda"])
    chunk = max(64, elements // weight.shape[0])
    total, nll = _LinearCrossEntropy.apply(hidden, weight, labels, smoothing, chunk)  # type: ignore[no-untyped-call]
    return Loss(total, nll, labels.shape[0])

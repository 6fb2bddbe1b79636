"""R-Drop (Liang et al., 2021): the same batch twice with different dropout, and a loss that pulls both predictions together.

    loss = 1/2 (CE(z1) + CE(z2)) + alpha/2 * 1/2 (KL(p1 || p2) + KL(p2 || p1))

This is half of that paper's loss, which keeps it comparable with a loss without R-Drop; alpha is theirs. With
d = log p1 - log p2,

    d KL(p1 || p2) / d z1 = p1 (d - KL(p1 || p2))          d KL(p2 || p1) / d z1 = p1 - p2

and the same with 1 and 2 exchanged. So each chunk of logits yields its gradient at once and is thrown away, as in `loss.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.models.loss import Loss, chunk_rows

LIVE_TENSORS = 8  # tensors as large as a chunk's logits that are alive at a time, in float32


class _RDrop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, one: Tensor, two: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        device = one.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else one.dtype
        wide = torch.promote_types(one.dtype, torch.float32)
        sums = one.new_zeros(2, dtype=wide)
        d_hidden = torch.empty_like(one), torch.empty_like(two)
        d_weight = torch.zeros_like(weight, dtype=wide)
        with torch.autocast(device, enabled=False):
            compute_weight = weight.to(dtype)
            for begin in range(0, one.shape[0], chunk):
                rows = slice(begin, begin + chunk)
                parts = [hidden[rows].to(dtype) for hidden in (one, two)]
                logits = [(part @ compute_weight.t()).to(wide) for part in parts]  # (chunk, vocab_size)
                losses, gradients = _chunk_loss(logits[0], logits[1], labels[rows, None].long(), smoothing, alpha)
                sums += losses
                for part, gradient, d_part in zip(parts, gradients, d_hidden, strict=True):
                    gradient = gradient.to(dtype)
                    d_part[rows] = gradient @ compute_weight
                    d_weight += gradient.t() @ part
        ctx.save_for_backward(*d_hidden, d_weight.to(weight.dtype))
        total, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        scale = gradients[0]
        return *(saved * scale for saved in ctx.saved_tensors), None, None, None, None


def _chunk_loss(
    one: Tensor, two: Tensor, label: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Loss and negative log-likelihood (2,) of two sets of logits (chunk, vocab_size) for the same labels (chunk, 1), and the
    gradients of both."""
    used = (label >= 0).to(one.dtype)  # (chunk, 1): rows without a label do not count
    label = label.clamp(min=0)
    log_p = one.log_softmax(dim=-1), two.log_softmax(dim=-1)
    p = log_p[0].exp(), log_p[1].exp()
    log_ratio = log_p[0] - log_p[1]
    kl = (p[0] * log_ratio).sum(dim=-1, keepdim=True), -(p[1] * log_ratio).sum(dim=-1, keepdim=True)
    nll = -0.5 * (log_p[0].gather(1, label) + log_p[1].gather(1, label))
    uniform = -0.5 * (log_p[0].mean(dim=-1, keepdim=True) + log_p[1].mean(dim=-1, keepdim=True))
    loss = (1.0 - smoothing) * nll + smoothing * uniform + 0.25 * alpha * (kl[0] + kl[1])
    target = torch.full_like(one, smoothing / one.shape[-1]).scatter_add_(
        1, label, torch.full_like(nll, 1.0 - smoothing)
    )
    gradients = [
        (0.5 * (mine - target) + 0.25 * alpha * (mine * (sign * log_ratio - own_kl) + mine - other)) * used
        for mine, other, sign, own_kl in ((p[0], p[1], 1.0, kl[0]), (p[1], p[0], -1.0, kl[1]))
    ]
    return torch.stack(((loss * used).sum(), (nll * used).sum())), (gradients[0], gradients[1])


def rdrop_cross_entropy(
    one: Tensor, two: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float
) -> Loss:
    """The loss of two passes over the same batch, each (tokens, d_model), under the output matrix (vocab_size, d_model)."""
    chunk = chunk_rows(one, weight)
    if one.device.type != "cpu":  # a CUDA graph would keep that memory for good
        chunk = max(64, chunk // LIVE_TENSORS)
    total, nll = _RDrop.apply(one, two, weight, labels, smoothing, alpha, chunk)  # type: ignore[no-untyped-call]
    return Loss(total, nll, labels.shape[0])

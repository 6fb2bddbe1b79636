from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.models import loss as loss_module
from regard.models.loss import linear_cross_entropy


def problem(
    tokens: int, d_model: int = 16, vocab_size: int = 37, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, d_model, generator=generator, dtype=torch.float64) * scale
    weight = torch.randn(vocab_size, d_model, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocab_size, (tokens,), generator=generator)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def torchs(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T
    total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    return total, F.cross_entropy(logits, labels, reduction="sum")


def assert_equals_torchs(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, tolerance: float, factor: float = 1.0
) -> None:
    total, nll = torchs(hidden, weight, labels, smoothing)
    expected = torch.autograd.grad(total * factor, (hidden, weight))
    loss = linear_cross_entropy(hidden, weight, labels, smoothing)
    gradients = torch.autograd.grad(loss.total * factor, (hidden, weight))
    assert loss.count == len(labels)
    torch.testing.assert_close(loss.total, total, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(loss.nll, nll, rtol=tolerance, atol=tolerance)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_loss_and_gradients_are_torchs(tokens: int, smoothing: float) -> None:
    assert_equals_torchs(*problem(tokens), smoothing, tolerance=2e-5)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 200),
    vocab_size=st.integers(2, 60),
    smoothing=st.floats(0, 0.9),
    factor=st.floats(-3, 3).filter(lambda x: abs(x) > 0.01),
)
def test_loss_and_gradients_are_torchs_to_float64(
    tokens: int, vocab_size: int, smoothing: float, factor: float
) -> None:
    assert_equals_torchs(*problem(tokens, 8, vocab_size, dtype=torch.float64), smoothing, 1e-10, factor)


def test_the_loss_is_the_formula_written_out() -> None:
    """Cross-entropy against (1 - e) on the label plus e / V on every piece."""
    smoothing = 0.1
    hidden, weight, labels = problem(9, d_model=4, vocab_size=6, dtype=torch.float64)
    total = nll = 0.0
    for state, label in zip(hidden.tolist(), labels.tolist(), strict=True):
        logits = [sum(a * b for a, b in zip(state, row, strict=True)) for row in weight.tolist()]
        normaliser = math.log(sum(math.exp(logit) for logit in logits))
        for piece, logit in enumerate(logits):
            target = (1 - smoothing) * (piece == label) + smoothing / 6
            total -= target * (logit - normaliser)
        nll -= logits[label] - normaliser
    loss = linear_cross_entropy(hidden, weight, labels, smoothing)
    assert loss.total.item() == pytest.approx(total, rel=1e-12)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-12)
    assert loss.count == 9


def test_gradients_are_the_numerical_ones() -> None:
    hidden, weight, labels = problem(5, d_model=3, vocab_size=7, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, labels, 0.2).total, (hidden, weight), atol=1e-7
    )


@pytest.mark.parametrize("tokens", [63, 64, 65, 128, 200])
def test_chunks_make_no_difference(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_problem = problem(tokens)
    whole = linear_cross_entropy(*whole_problem, 0.1)
    whole_gradients = torch.autograd.grad(whole.total, whole_problem[:2])
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", {"cpu": 1, "cuda": 1})  # 64 tokens at a time, the least
    assert_equals_torchs(*whole_problem, 0.1, tolerance=2e-5)
    parts = linear_cross_entropy(*whole_problem, 0.1)
    torch.testing.assert_close(parts.total, whole.total)
    for part, one in zip(torch.autograd.grad(parts.total, whole_problem[:2]), whole_gradients, strict=True):
        torch.testing.assert_close(part, one, atol=1e-4, rtol=1e-4)


def test_logits_exist_only_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    softmax = torch.softmax

    def watched(logits: Tensor, dim: int) -> Tensor:
        sizes.append(tuple(logits.shape))
        return softmax(logits, dim=dim)

    monkeypatch.setattr(torch, "softmax", watched)
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", {"cpu": 100 * 37, "cuda": 1})
    linear_cross_entropy(*problem(250), 0.1)
    assert sizes == [(84, 37), (84, 37), (82, 37)]  # as few as can be, and equally large


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_gradients_the_numbers_are_the_same(mode, smoothing: float) -> None:
    hidden, weight, labels = problem(150)
    learned = linear_cross_entropy(hidden, weight, labels, smoothing)
    with mode():
        only_measured = linear_cross_entropy(hidden, weight, labels, smoothing)
    assert not only_measured.total.requires_grad
    torch.testing.assert_close(only_measured.total, learned.total.detach())
    torch.testing.assert_close(only_measured.nll, learned.nll)


def test_the_reported_likelihood_has_no_gradient() -> None:
    loss = linear_cross_entropy(*problem(5), 0.1)
    assert loss.total.requires_grad
    assert not loss.nll.requires_grad


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_one_side_may_be_frozen(frozen: str) -> None:
    hidden, weight, labels = problem(20)
    total, _ = torchs(hidden, weight, labels, 0.1)
    expected = torch.autograd.grad(total, (hidden, weight))
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    linear_cross_entropy(hidden, weight, labels, 0.1).total.backward()
    for tensor, wanted in zip((hidden, weight), expected, strict=True):
        if tensor.requires_grad:
            torch.testing.assert_close(tensor.grad, wanted, atol=1e-4, rtol=1e-4)
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("learned", [True, False])
def test_extreme_logits_stay_finite(learned: bool) -> None:
    """Logits of tens of thousands: the label's own probability underflows, the loss does not."""
    hidden, weight, labels = problem(100, scale=3e3)
    if not learned:
        hidden, weight = hidden.detach(), weight.detach()
    loss = linear_cross_entropy(hidden, weight, labels, 0.1)
    expected, nll = torchs(hidden.double(), weight.double(), labels, 0.1)
    torch.testing.assert_close(loss.total.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.nll.double(), nll, rtol=1e-5, atol=0)
    assert loss.nll > 1e6, "the case is as extreme as it says"
    if learned:
        for gradient in torch.autograd.grad(loss.total, (hidden, weight)):
            assert gradient.isfinite().all()


def test_certain_predictions_cost_nothing() -> None:
    hidden, weight = torch.eye(5) * 200.0, torch.eye(5)
    loss = linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), torch.arange(5))
    assert loss.total.item() == loss.nll.item() == 0.0


@pytest.mark.parametrize("learned", [True, False])
def test_under_bf16_autocast_it_is_near_and_gives_float32_gradients(learned: bool) -> None:
    hidden, weight, labels = problem(400, d_model=64, vocab_size=500, scale=0.3)
    expected, nll = torchs(hidden, weight, labels, 0.1)
    wanted = torch.autograd.grad(expected, (hidden, weight))
    if not learned:
        hidden, weight = hidden.detach(), weight.detach()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, labels, 0.1)
    assert loss.total.dtype == loss.nll.dtype == torch.float32
    torch.testing.assert_close(loss.total, expected, rtol=3e-3, atol=0)
    torch.testing.assert_close(loss.nll, nll, rtol=3e-3, atol=0)
    if learned:
        for gradient, other in zip(torch.autograd.grad(loss.total, (hidden, weight)), wanted, strict=True):
            assert gradient.dtype == torch.float32
            assert float((gradient - other).norm() / other.norm()) < 1e-2


def test_an_empty_batch_costs_nothing() -> None:
    hidden, weight, labels = problem(3)
    loss = linear_cross_entropy(hidden[:0], weight, labels[:0], 0.1)
    loss.total.backward()
    assert (loss.total.item(), loss.nll.item(), loss.count) == (0.0, 0.0, 0)
    assert weight.grad is not None
    assert weight.grad.eq(0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_same_loss_and_gradients(dtype: torch.dtype) -> None:
    hidden, weight, labels = problem(1000, d_model=64, vocab_size=2000, scale=0.3)
    expected, nll = torchs(hidden, weight, labels, 0.1)
    wanted = torch.autograd.grad(expected, (hidden, weight))
    there = hidden.detach().cuda().requires_grad_(), weight.detach().cuda().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = linear_cross_entropy(*there, labels.cuda(), 0.1)
    torch.testing.assert_close(loss.total.cpu(), expected, rtol=3e-3, atol=0)
    torch.testing.assert_close(loss.nll.cpu(), nll, rtol=3e-3, atol=0)
    for gradient, other in zip(torch.autograd.grad(loss.total, there), wanted, strict=True):
        assert float((gradient.cpu() - other).norm() / other.norm()) < (1e-2 if dtype == torch.bfloat16 else 1e-3)

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from regard.nn.dropout import Dropout, dropout

SIZE = 1 << 20


def within_chance(kept: float, probability: float, size: int = SIZE) -> bool:
    """Whether the share of kept elements is within five standard deviations of what it should be."""
    deviation = math.sqrt(probability * (1 - probability) / size)
    return abs(kept - (1 - probability)) < 5 * deviation


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("function", [lambda x, p: dropout(x, p, training=True), F.dropout], ids=["ours", "torch"])
def test_rate_and_scale_are_those_of_torch(function, probability: float) -> None:
    torch.manual_seed(1)
    y = function(torch.ones(SIZE), probability)
    assert within_chance(float(y.ne(0).float().mean()), probability)
    kept = y[y != 0]
    assert torch.all(kept == kept[0]), "every survivor is scaled alike"
    assert float(kept[0]) == pytest.approx(1 / (1 - probability), rel=1e-3)
    # The mean of many elements stays: each has variance p / (1 - p).
    assert float(y.mean()) == pytest.approx(1.0, abs=5 * math.sqrt(probability / (1 - probability) / SIZE) + 1e-5)


@pytest.mark.parametrize("probability", [0.1, 0.3])
def test_elements_are_dropped_independently_of_their_neighbours(probability: float) -> None:
    """Four elements come from one random word, so neighbours at distances 1 to 4 are where dependence would show."""
    torch.manual_seed(2)
    dropped = dropout(torch.ones(SIZE), probability, training=True).eq(0)
    for distance in (1, 2, 3, 4, 5, 64):
        both = float((dropped[distance:] & dropped[:-distance]).float().mean())
        deviation = math.sqrt(probability**2 * (1 - probability**2) / SIZE)
        assert abs(both - probability**2) < 6 * deviation, distance
    for lane in range(4):
        assert within_chance(float((~dropped[lane::4]).float().mean()), probability, SIZE // 4), lane


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (5, 7), (2, 3, 5)])
def test_any_number_of_elements(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    seen = torch.stack([dropout(torch.ones(shape), 0.5, training=True) for _ in range(64)])
    assert seen.shape == (64, *shape)
    assert set(seen.flatten().tolist()) == {0.0, 2.0}
    assert seen.eq(0).any(dim=0).all(), "every place is dropped now and then"
    assert seen.ne(0).any(dim=0).all(), "and kept now and then"


def test_the_gradient_goes_through_the_same_mask() -> None:
    torch.manual_seed(4)
    x = torch.randn(100, 7, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    incoming = torch.randn_like(y)
    y.backward(incoming)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, incoming / (1 - 0.4)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True), (0.0, False)])
def test_evaluation_and_a_rate_of_zero_change_nothing(probability: float, training: bool) -> None:
    x = torch.randn(10)
    state = torch.get_rng_state()
    assert dropout(x, probability, training) is x
    module = Dropout(probability).train(training)
    assert module(x) is x
    assert torch.equal(torch.get_rng_state(), state), "nor is randomness used up"


def test_the_module_drops_in_training_and_says_its_rate() -> None:
    module = Dropout(0.5)
    assert module(torch.ones(1000)).eq(0).any()
    assert module.eval()(torch.ones(1000)).eq(1).all()
    assert str(module) == "Dropout(p=0.5)"


def test_the_seed_decides_the_mask() -> None:
    x = torch.ones(1000)

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([dropout(x, 0.3, training=True), dropout(x, 0.3, training=True)])

    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))
    first, second = draw(5).chunk(2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_probability_is_rounded_to_a_65536th_and_the_scale_follows(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    y = dropout(torch.ones(4096, dtype=dtype), 1 / 3, training=True)
    assert y.dtype == dtype
    scale = torch.tensor(65536 / (65536 - 21845), dtype=dtype)  # 65536 / 3 = 21845.33
    assert set(y.tolist()) == {0.0, float(scale)}


def test_a_rate_that_rounds_to_one_still_keeps_something_finite() -> None:
    torch.manual_seed(7)
    y = dropout(torch.ones(SIZE), 1 - 1e-9, training=True)
    assert y.isfinite().all()
    assert float(y.mean()) == pytest.approx(1.0, abs=5 * math.sqrt(65536 / SIZE))


@pytest.mark.gpu
def test_a_gpu_drops_at_the_same_rate() -> None:
    torch.manual_seed(8)
    y = dropout(torch.ones(SIZE, device="cuda"), 0.3, training=True)
    assert within_chance(float(y.ne(0).float().mean()), 0.3)

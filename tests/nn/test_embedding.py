from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import ModelConfig
from regard.nn.embedding import LearnedPositions, NoPositions, SinusoidalPositions, sinusoids
from regard.nn.rotary import Rotary


def make_rotary(d_head: int, **settings: Any) -> Rotary:
    stack = ModelConfig(9, d_model=d_head, num_heads=1, positions="rotary", **settings).encoder_stack
    assert stack is not None
    return Rotary(stack)


@pytest.mark.parametrize("d_model", [2, 6, 64, 512])
def test_sinusoids_are_the_papers_formula(d_model: int) -> None:
    table = sinusoids(2001, d_model)
    assert table.dtype == torch.float32
    for position in (0, 1, 2, 17, 511, 512, 2000):
        for pair in {0, d_model // 4, d_model // 2 - 1}:
            angle = position / 10_000 ** (2 * pair / d_model)
            assert float(table[position, 2 * pair]) == pytest.approx(math.sin(angle), abs=1e-7)
            assert float(table[position, 2 * pair + 1]) == pytest.approx(math.cos(angle), abs=1e-7)


def test_positions_are_added_row_by_row() -> None:
    x = torch.randn(4, 8)
    places = torch.tensor([0, 1, 0, 5])
    torch.testing.assert_close(SinusoidalPositions(8)(x, places, 6), x + sinusoids(6, 8)[places])
    learned = LearnedPositions(8, 6)
    torch.nn.init.normal_(learned.weight)
    torch.testing.assert_close(learned(x, places, 6), x + learned.weight[places])
    assert NoPositions()(x, places, 6) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_table_of_sinusoids_grows_for_a_longer_sentence(dtype: torch.dtype) -> None:
    positions = SinusoidalPositions(8, length=4).to(dtype)
    x = torch.zeros(9, 8, dtype=dtype)
    result = positions(x, torch.arange(9), 9)
    torch.testing.assert_close(result, sinusoids(9, 8).to(dtype))
    assert result.dtype == dtype, "a model keeps its precision"
    assert positions.state_dict() == {}, "a table that can be computed is not saved"


def test_a_table_that_grew_in_inference_can_be_trained_with() -> None:
    positions = SinusoidalPositions(8, length=4)
    with torch.inference_mode():
        positions(torch.zeros(9, 8), torch.arange(9), 9)
    x = torch.randn(3, 8, requires_grad=True)
    positions(x, torch.arange(3), 3).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(1).all()


def test_learned_positions_have_a_limit_and_say_so() -> None:
    positions = LearnedPositions(8, 5)
    torch.nn.init.zeros_(positions.weight)
    positions(torch.zeros(5, 8), torch.arange(5), 5)
    with pytest.raises(ValueError, match="a sequence of 6 tokens is longer than max_positions = 5"):
        positions(torch.zeros(6, 8), torch.arange(6), 6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200), st.sampled_from([2, 6, 16, 64]))
def test_rotated_dot_products_depend_only_on_the_distance(m: int, n: int, shift: int, d_head: int) -> None:
    q, k = torch.randn(2, 1, 3, d_head, dtype=torch.float64)
    rotary = make_rotary(d_head)

    def product(q_place: int, k_place: int) -> torch.Tensor:
        return (rotary(q, torch.tensor([q_place])) * rotary(k, torch.tensor([k_place]))).sum(dim=-1)

    torch.testing.assert_close(product(m, n), product(m + shift, n + shift), atol=1e-3, rtol=0)


def test_rotation_turns_each_pair_by_its_own_angle() -> None:
    x = torch.randn(1, 2, 6, dtype=torch.float64)
    turned = make_rotary(6)(x, torch.tensor([7]))
    for head in range(2):
        for pair in range(3):
            angle = 7 / 10_000 ** (2 * pair / 6)
            even, odd = float(x[0, head, 2 * pair]), float(x[0, head, 2 * pair + 1])
            expected_even = even * math.cos(angle) - odd * math.sin(angle)
            expected_odd = even * math.sin(angle) + odd * math.cos(angle)
            assert float(turned[0, head, 2 * pair]) == pytest.approx(expected_even, abs=1e-6)
            assert float(turned[0, head, 2 * pair + 1]) == pytest.approx(expected_odd, abs=1e-6)


def test_rotation_keeps_lengths_and_tells_places_apart() -> None:
    x = torch.randn(1, 1, 16, dtype=torch.float64).expand(5, 1, 16)
    turned = make_rotary(16)(x, torch.arange(5))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(turned[0], x[0])
    assert all(not torch.allclose(turned[a], turned[b], atol=1e-2) for a in range(5) for b in range(a))

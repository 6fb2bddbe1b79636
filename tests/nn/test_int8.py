"""Linear layers in int8: exact sums of integers, so that a row does not depend on its company."""

from __future__ import annotations

import pytest
import torch

from regard.layout import SequenceLayout
from regard.models.int8 import to_int8
from regard.models.recording import reference_copy
from regard.nn import int8
from regard.nn.int8 import Int8Weight, int8_refusal
from tests.build import LATER, build, tiny_config

pytestmark = pytest.mark.skipif(int8_refusal() is not None, reason=str(int8_refusal()))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_products_are_those_of_the_rounded_integers() -> None:
    x, weight, bias = drawn(9, 96), drawn(40, 96), drawn(40)

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().amax(1, keepdim=True) / 127
        return (rows / scale).round().double() * scale

    expected = rounded(x) @ rounded(weight).T + bias
    torch.testing.assert_close(Int8Weight(weight)(x, bias).double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(Int8Weight(weight)(x), x @ weight.T, atol=0.3, rtol=0.02)


def test_a_row_does_not_depend_on_its_company() -> None:
    x, product = drawn(70, 64) * torch.arange(1, 71)[:, None], Int8Weight(drawn(48, 64))
    together = product(x)
    for begin, rows in [(0, 1), (69, 1), (3, 2), (10, 16), (5, 33)]:
        assert torch.equal(product(x[begin : begin + rows].clone()), together[begin : begin + rows])


def test_zeros_stay_zero_and_nothing_hides_what_is_not_finite() -> None:
    x = drawn(4, 32)
    x[0], x[1, 3], x[2, 5] = 0.0, float("nan"), float("inf")
    found = Int8Weight(drawn(8, 32))(x)
    assert found[0].eq(0).all() and not found[1:3].isfinite().any() and found[3].isfinite().all()


@pytest.mark.parametrize("name", ["no-norm-bias", "no-key-bias", "relative"])
def test_a_whole_model_is_close_to_itself(name: str) -> None:
    model = build(tiny_config(d_model=64, num_heads=4, encoder_layers=0, **LATER[name])).eval()
    ids = torch.arange(3, 33)
    layout = SequenceLayout.from_lengths([len(ids)])
    with torch.inference_mode():
        expected = model(ids, layout)
        to_int8(model)
        found = model(ids, layout)
        torch.testing.assert_close(reference_copy(model)(ids, layout), found, atol=1e-4, rtol=1e-4)
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_machine_that_overflows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "adds_int8_exactly", lambda: False)
    assert "has no VNNI" in str(int8_refusal.__wrapped__())
    monkeypatch.setattr(int8, "adds_int8_exactly", lambda: True)
    monkeypatch.setattr(Int8Weight, "__call__", lambda self, x: x @ torch.zeros(64, 16))
    assert "does not add products of 8-bit integers exactly" in str(int8_refusal.__wrapped__())

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.linear import Linear, equal_tiles, linear, set_row_tile
from tests.build import build, tiny_config

TILE = 64


def inputs(d_in: int, rows: int = 200, d_out: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(d_in)
    x = torch.randn(rows, d_in, generator=generator)
    return x, torch.randn(d_out, d_in, generator=generator), torch.randn(d_out, generator=generator)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("d_in", [64, 96, 192, 256, 512, 1024, 2048])
def test_a_row_does_not_depend_on_its_company(d_in: int, threads: int) -> None:
    torch.set_num_threads(threads)
    x, weight, bias = inputs(d_in)
    together = linear(x, weight, bias, TILE)
    for begin, rows in [(0, 1), (199, 1), (7, 2), (63, 3), (64, 5), (13, 17), (5, 63), (1, 64), (9, 65), (0, 131)]:
        alone = linear(x[begin : begin + rows].clone(), weight, bias, TILE)
        assert torch.equal(alone, together[begin : begin + rows]), (begin, rows)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(linear(x[shuffled], weight, bias, TILE), together[shuffled])


def test_tiles_help_where_a_product_depends_on_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a processor's products do is its own affair, so here is one whose products plainly do."""
    product = F.linear

    def moody(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, weight, bias) + x.shape[0]

    monkeypatch.setattr(F, "linear", moody)
    x, weight, bias = inputs(32)
    assert not torch.equal(linear(x[:3], weight, bias), linear(x, weight, bias)[:3])
    assert torch.equal(linear(x[:3], weight, bias, TILE), linear(x, weight, bias, TILE)[:3])


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("with_bias", [True, False])
def test_tiles_compute_the_same_product(rows: int, with_bias: bool) -> None:
    x, weight, bias = (tensor.double() for tensor in inputs(96))
    expected = x[:rows] @ weight.T + (bias if with_bias else 0.0)
    for tile in (0, 16, TILE):
        result = linear(x[:rows], weight, bias if with_bias else None, tile)
        torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


def test_setting_the_tile_reaches_every_linear_layer_and_the_output_matrix() -> None:
    model = build(tiny_config(tie_embeddings=False))
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    # An encoder layer has 4 (qkv, out, inner, outer), a decoder layer 7 (q, kv and out of cross-attention too).
    assert len(layers) == 2 * 4 + 2 * 7
    assert all(module.row_tile == 0 for module in (*layers, model))
    set_row_tile(model, 32)
    assert all(module.row_tile == 32 for module in (*layers, model))
    assert Linear(4, 4).row_tile == 0, "other models are left alone"


@pytest.mark.parametrize("shape", [(48, 32), (513, 777), (96, 576)])
def test_several_tiles_give_the_bits_of_the_largest(shape: tuple[int, int]) -> None:
    """Whatever tiles this machine allows, a row has the same bits among any number of others."""
    generator = torch.Generator().manual_seed(5)
    weight, x = torch.randn(*shape, generator=generator), torch.randn(70, shape[1], generator=generator)
    tiles = equal_tiles([weight], 64)
    assert tiles[-1] == 64 and list(tiles) == sorted(set(tiles))
    whole = linear(x, weight, None, 64)
    for rows in (1, 2, 3, 4, 5, 9, 31, 33, 63, 64, 65, 68, 70):
        assert torch.equal(linear(x[:rows], weight, None, tiles), whole[:rows])


def test_a_tile_with_other_bits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose library sums 8 rows in another order."""
    plain = torch.nn.functional.linear

    def other(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return plain(x, weight, bias) + (1e-6 if x.shape[0] == 8 else 0.0)

    monkeypatch.setattr("regard.nn.linear.F.linear", other)
    assert 8 not in equal_tiles([torch.randn(6, 5)], 32)

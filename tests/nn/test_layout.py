from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layout import GROUP_ROWS, SequenceLayout, tile_groups
from regard.nn.kernels.grid import pad, unpad

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(LENGTHS)
def test_every_row_knows_its_sequence_and_its_place(lengths: list[int]) -> None:
    layout = SequenceLayout.from_lengths(lengths)
    rows = [(sequence, place) for sequence, length in enumerate(lengths) for place in range(length)]
    assert layout.num_sequences == len(lengths)
    assert layout.num_tokens == sum(lengths)
    assert layout.max_length == max(lengths)
    assert layout.sequence_ids.tolist() == [sequence for sequence, _ in rows]
    assert layout.positions.tolist() == [place for _, place in rows]
    assert layout.offsets.tolist() == [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    assert layout.offsets.dtype == torch.int32


@given(LENGTHS)
def test_the_padded_grid_and_the_packed_rows_point_at_each_other(lengths: list[int]) -> None:
    layout = SequenceLayout.from_lengths(lengths)
    assert layout.valid.tolist() == [[place < length for place in range(max(lengths))] for length in lengths]
    assert layout.rows[layout.slots].tolist() == list(range(sum(lengths)))
    assert layout.rows[~layout.valid.flatten()].eq(0).all()


@given(LENGTHS.filter(any))
def test_padding_and_unpadding_gives_the_rows_back_and_so_do_the_gradients(lengths: list[int]) -> None:
    layout = SequenceLayout.from_lengths(lengths)
    packed = torch.randn(layout.num_tokens, 2, 3, dtype=torch.float64, requires_grad=True)
    grid = pad(packed, layout)
    for sequence, rows in enumerate(torch.split(packed, lengths)):
        assert torch.equal(grid[sequence, : lengths[sequence]], rows)
    # What stands in the empty places is never asked for, so nothing may flow back through it.
    weight = torch.randn_like(packed)
    (unpad(grid * 2.0, layout) * weight).sum().backward()
    assert packed.grad is not None
    assert torch.allclose(packed.grad, 2.0 * weight)


def test_the_gradient_of_a_grid_is_zero_where_there_is_no_token() -> None:
    layout = SequenceLayout.from_lengths([1, 3, 0])
    grid = torch.randn(3, 3, 1, 2, requires_grad=True)
    unpad(grid, layout).sum().backward()
    assert grid.grad is not None
    assert torch.equal(grid.grad[:, :, 0, 0], layout.valid.float())


@pytest.mark.parametrize(
    ("lengths", "uniform"), [([3, 3], True), ([3], True), ([0, 0], True), ([3, 2], False), ([], False)]
)
def test_equal_lengths_are_noticed(lengths: list[int], uniform: bool) -> None:
    assert SequenceLayout.from_lengths(lengths).is_uniform is uniform


def test_a_layout_without_sequences_is_lawful() -> None:
    layout = SequenceLayout.from_lengths([])
    assert (layout.num_tokens, layout.num_sequences, layout.max_length) == (0, 0, 0)
    assert layout.offsets.tolist() == [0]
    assert layout.sequence_ids.tolist() == layout.slots.tolist() == layout.rows.tolist() == []


def test_moving_to_the_same_device_is_free() -> None:
    layout = SequenceLayout.from_lengths([2, 1])
    assert layout.to("cpu") is layout


@pytest.mark.gpu
def test_a_layout_moves_to_the_device_with_all_its_tensors() -> None:
    here = SequenceLayout.from_lengths([2, 5, 1])
    there = here.to("cuda")
    assert there.lengths == here.lengths
    for name in ("offsets", "positions", "sequence_ids", "slots", "valid", "rows"):
        moved = getattr(there, name)
        assert moved.is_cuda, name
        assert torch.equal(moved.cpu(), getattr(here, name)), name


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), max_size=60))
def test_groups_are_as_many_neighbours_as_fit_into_a_tile(lengths: list[tuple[int, int]]) -> None:
    src, tgt = [pair[0] for pair in lengths], [pair[1] for pair in lengths]
    starts = tile_groups(src, tgt)
    assert starts[0] == 0 and starts[-1] == len(lengths) and starts == sorted(set(starts))
    for begin, end in itertools.pairwise(starts):
        assert end - begin == 1 or (sum(src[begin:end]) <= GROUP_ROWS and sum(tgt[begin:end]) <= GROUP_ROWS)
        if end < len(lengths):  # the next one did not fit
            assert sum(src[begin : end + 1]) > GROUP_ROWS or sum(tgt[begin : end + 1]) > GROUP_ROWS

"""Places of scale bytes: golden addresses, round trips and padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops.contracts.scale_layouts import SCALE_LAYOUTS, SF_128X4, SF_LINEAR, ScaleLayout, scale_layout
from dspark_ops.errors import ContractError


@pytest.mark.parametrize(
    ("row", "group", "place"),
    [(0, 0, 0), (1, 0, 16), (31, 0, 496), (32, 0, 4), (33, 0, 20), (127, 0, 508), (0, 1, 1), (0, 4, 512),
     (128, 0, 128 * 12)],
)  # fmt: skip
def test_addresses_of_the_tiled_layout_for_nine_groups(row: int, group: int, place: int) -> None:
    assert SF_128X4.index(row, group, 9) == place


@given(row=st.integers(0, 999), group=st.integers(0, 99), more=st.integers(1, 50))
def test_the_tiled_address_is_the_stated_formula(row: int, group: int, more: int) -> None:
    groups = group + more
    padded = 4 * -(-groups // 4)
    place = row // 128 * 128 * padded + group // 4 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4
    assert SF_128X4.index(row, group, groups) == place
    assert SF_LINEAR.index(row, group, groups) == row * groups + group


@given(
    layout=st.sampled_from(list(SCALE_LAYOUTS.values())),
    rows=st.integers(0, 300),
    groups=st.integers(1, 13),
    seed=st.integers(0, 99),
)
def test_scales_come_back_and_lie_at_their_addresses(layout: ScaleLayout, rows: int, groups: int, seed: int) -> None:
    scales = torch.randint(1, 256, (rows, groups), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    data = layout.pack(scales)
    assert data.shape == (layout.size(rows, groups),)
    assert torch.equal(layout.unpack(data, rows, groups), scales)
    expected = torch.zeros_like(data)
    for row in range(rows):
        for group in range(groups):
            expected[layout.index(row, group, groups)] = scales[row, group]
    assert torch.equal(data, expected)


def test_a_flat_tensor_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ContractError, match=r"wanted 512 bytes for 6 rows of 3 groups, got shape \[18\]"):
        SF_128X4.unpack(torch.zeros(18, dtype=torch.uint8), 6, 3)


def test_an_unknown_scale_layout_is_refused_with_the_nearest_name() -> None:
    assert scale_layout("sf_linear") is SF_LINEAR
    with pytest.raises(ContractError, match="did you mean 'sf_128x4'"):
        scale_layout("sf_128x8")

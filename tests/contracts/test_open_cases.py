"""Faults that users of such operators have met, with their numbers, where no other test has them (O01 to O20)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_ops.api import ReasonCode, elements
from dspark_ops.binding.facts import rows_of_inputs
from dspark_ops.contracts import get, names
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.kv_store import k_norm_rope_store
from dspark_ops.contracts.layouts import KV_V4
from dspark_ops.contracts.numerics import ue8m0_decode
from dspark_ops.contracts.quantize import mx_dequantize
from dspark_ops.contracts.rope import rope_table
from dspark_ops.contracts.scale_layouts import SF_128X4, scale_bytes
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("form", ["plain", "bfloat16", "wide row", "strided"])
def test_argmax_of_nan_ties_infinities_and_signed_zeros(form: str) -> None:
    """O01: no index beyond the row either."""
    rows = torch.tensor([
        [NAN] * 8, [1, NAN, 5, NAN, 0, 0, 0, 0], [-INF] * 8, [2, 7, 7, 1, 7, 0, 0, 0],
        [-INF, -INF, -INF, -5, -INF, -INF, -INF, -INF], [INF, 3, INF, NAN, 0, 0, 0, 0],
        [-0.0, 0.0, -0.0, 0, 0, 0, 0, 0],
    ])  # fmt: skip
    if form == "bfloat16":
        rows = rows.bfloat16()
    elif form == "wide row":
        wide = torch.full((7, 129280), -INF)
        wide[:, :8] = rows
        wide[0] = NAN
        rows = wide
    elif form == "strided":
        buffer = torch.full((7, 72), 1e30)
        buffer[:, :8] = rows
        rows = buffer[:, :8]
    got = argmax_rows(rows)
    assert got.tolist() == [0, 1, 0, 1, 3, 3, 0] and got.dtype == torch.int64


@dataclass(frozen=True)
class Facts:
    axes: dict[str, int]
    dtypes: dict[str, str] = field(default_factory=dict)
    strides: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def test_a_kernel_with_32_bit_offsets_is_refused_where_a_row_passes_2_to_the_31_elements() -> None:
    """O02: row 16611 of 129280 columns begins below 2**31 and ends above it."""
    constraint = elements("R*V", below=2**31)
    assert constraint.check(Facts({"R": 16611, "V": 129280})) is None
    reason = constraint.check(Facts({"R": 16612, "V": 129280}))
    assert reason is not None
    assert (reason.code, reason.got) == (ReasonCode.SHAPE, "2147599360")
    assert reason.wanted == "R*V < 2147483648 (int32 offsets)"


def test_powers_of_two_become_their_exponents_and_four_of_them_a_word() -> None:
    """O10 a."""
    packed = scale_bytes(torch.tensor([0.5, 0.5, 2.0, 1.0]))
    assert packed.view(torch.int32).item() == 0x7F807E7E
    ends = torch.tensor([2.0**-127, 2.0**-126, 2.0**127])
    assert scale_bytes(ends).tolist() == [0, 1, 254]
    assert torch.equal(ue8m0_decode(scale_bytes(ends)), ends)


@pytest.mark.parametrize(
    ("scales", "place", "value"),
    [
        ([0.75, 0.5, 3.0, 1.0], 0, "0.75"), ([1.5] * 4, 0, "1.5"), ([0.0, -1.0, NAN, 1.0], 0, r"0\.0"),
        ([1.0, -1.0], 1, r"-1\.0"), ([1.0, 1.0, NAN], 2, "nan"), ([INF], 0, "inf"), ([2.0**-128], 0, "2.9"),
    ],
)  # fmt: skip
def test_scales_that_are_no_powers_of_two_are_refused_with_the_first_place_and_value(
    scales: list[float], place: int, value: str
) -> None:
    """O10 b, c, d: a mantissa is neither dropped nor does it reach the byte beside it."""
    with pytest.raises(ContractError, match=rf"scales\[{place}\]: wanted a power of two from .*, got {value}"):
        scale_bytes(torch.tensor(scales))


def test_padding_of_stored_scales_is_zero_and_not_what_lay_in_the_buffer() -> None:
    """O10 e: three live rows of scale 1 in a buffer of eight rows of 0.3."""
    buffer = torch.full((8, 4), 0.3)
    buffer[:3] = 1.0
    stored = SF_128X4.pack(scale_bytes(buffer[:3]))
    assert stored.unique().tolist() == [0, 0x7F] and int((stored == 0x7F).sum()) == 12
    with pytest.raises(ContractError, match=r"scales\[3, 0\]: .* got 0.3"):
        scale_bytes(buffer)


def test_a_value_is_multiplied_by_its_whole_scale_or_refused() -> None:
    """O10 f: 4 times 0.75 is 3, and a scale byte cannot say so."""
    four = torch.full((1, 32), 4.0).to(torch.float8_e4m3fn)
    assert mx_dequantize(four, scale_bytes(torch.tensor([[0.5]]))).unique().tolist() == [2.0]
    with pytest.raises(ContractError, match=r"scales\[0, 0\].*0\.75"):
        scale_bytes(torch.tensor([[0.75]]))
    (scales,) = (item for item in get("main_projection").arguments if item.name == "scales")
    assert scales.dtypes == ("uint8",)  # a matrix product takes exponents, never a float32 scale to cut


@pytest.mark.parametrize("name", [name for name in names() if not get(name).empty.startswith("is refused")])
def test_every_operator_takes_a_call_without_rows(name: str) -> None:
    """O17: right shapes, no error."""
    contract = get(name)
    empty = next(case for case in contract.cases("small", 0) if rows_of_inputs(contract, case.inputs) == 0)
    returned = contract.reference(**empty.inputs)
    values = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    written = {argument.name for argument in contract.arguments if argument.written}
    for value, output in zip(values, (item for item in contract.outputs if item.name not in written), strict=True):
        if value is not None and contract.rows in output.shape:
            assert value.shape[output.shape.index(contract.rows)] == 0, output.name


def test_only_a_schedule_needs_a_request() -> None:
    assert [name for name in names() if get(name).empty.startswith("is refused")] == ["mla_sched_meta"]


def test_slots_through_a_page_table_with_holes_write_two_rows_and_no_guard() -> None:
    """O20: pages of 4 slots, 3 pages; -1 and a page that is none are dropped, and so is a row without a slot."""
    pages = KV_V4.page_bytes(4)
    pool = torch.full((5, pages), 0xAB, dtype=torch.uint8)
    table = torch.tensor([[2, -1], [0, 1], [3, 0]])
    writes = torch.tensor([[0, 3], [0, 4], [1, 5], [2, 0]])
    slots = table[writes[:, 0], writes[:, 1] // 4] * 4 + writes[:, 1] % 4
    out_loc = torch.cat([slots, torch.tensor([-1])]).int()
    assert out_loc.tolist() == [11, -4, 5, 12, -1]
    rows = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    k_norm_rope_store(
        rows, torch.ones(512).bfloat16(), rope_table(64, 16, 10000.0), torch.arange(5), out_loc, pool[1:-1], 4
    )  # fmt: skip
    data, scales = KV_V4.views(pool[1:-1], 4)
    changed = (data != 0xAB).any(-1) | (scales[..., : KV_V4.scales] != 0xAB).any(-1)
    assert {int(page) * 4 + int(place) for page, place in changed.nonzero()} == {11, 5}
    assert pool[[0, 4]].unique().tolist() == [0xAB]


@pytest.mark.parametrize(("page", "cases"), [("conformance.md", range(1, 22)), ("trust.md", range(22, 29))])
def test_every_test_that_the_table_of_cases_names_exists(page: str, cases: range) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| O\d\d \|", line)]
    assert [row[2:5] for row in rows] == [f"O{number:02}" for number in cases]
    for row in rows:
        file = ""
        for path, name in re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", row):
            file = path or file
            source = (root / "tests" / file).read_text(encoding="utf-8")
            assert not name or f"def {name}(" in source, f"{file}::{name}"

"""Products of stored codes against the cases of their contracts, through values and through codes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_triton.blocks.grid_product import GridProduct, Tiles, line_for, splits_of
from dspark_ops_triton.main_projection import AMD_TILES, HOPPER_TILES, TILES, main_projection, tiles_of

PROJECTION = contracts.get("main_projection")
#: As on the devices that multiply codes, with small tiles.
CODES = (Tiles(rows=16, columns=64, depth=128, splits=8, warps=4, stages=2, codes=True),)
scaled_products = pytest.mark.skipif(
    not hasattr(InterpreterBuilder, "create_dot_scaled"), reason="the interpreter of this Triton has no dot_scaled"
)


def _inputs(rows: int, columns: int, lanes: int, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(columns, lanes, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(115, 124, (columns // 32, lanes // 32), generator=generator).to(torch.uint8)
    return {"x": torch.randn(rows, lanes, generator=generator).bfloat16(), "weight": weight, "scales": scales}


@pytest.mark.parametrize(
    "table", [TILES, HOPPER_TILES, AMD_TILES, tiles_of("gfx942")], ids=["nvidia", "hopper", "amd", "fnuz"]
)
def test_the_projection_of_values_passes_every_case(table: tuple[Tiles, ...]) -> None:
    assert check_numbers(PROJECTION, GridProduct(table)) == []


def test_an_unprepared_projection_is_the_same() -> None:
    given = _inputs(3, 64, 384)
    assert torch.equal(main_projection(**given), GridProduct(TILES)(**given))


@scaled_products
def test_the_projection_of_codes_passes_every_case() -> None:
    assert check_numbers(PROJECTION, GridProduct(CODES), seed=1) == []


@pytest.mark.parametrize(
    "table", [TILES, HOPPER_TILES, pytest.param(CODES, marks=scaled_products)], ids=["values", "words", "codes"]
)
def test_parts_of_k_are_added_up_and_columns_need_not_fill_their_tile(table: tuple[Tiles, ...]) -> None:
    given = _inputs(18, 96, 1536)
    assert splits_of(line_for(table, 18), 1536) > 1
    bound = GridProduct(table)
    bound._scratch.take(2**20, given["x"]).fill_(torch.nan)
    got, wanted = bound(**given).float(), PROJECTION.reference(**given).float()
    assert (got - wanted).norm() <= 2e-3 * wanted.norm()
    # A sharper bound than the contract's: all that is lost is the rounding of the result.
    assert (got - wanted).abs().max() <= 2.0**-7 * wanted.abs().max()


def test_the_order_of_sums_is_the_same_for_every_number_of_rows() -> None:
    for table in (TILES, HOPPER_TILES, AMD_TILES):
        assert len({(tiles.columns, tiles.depth, tiles.splits, tiles.instruction) for tiles in table}) == 1


def test_every_scale_byte_has_its_meaning() -> None:
    given = _inputs(2, 32, 128)
    for byte in random.Random(0).sample(range(2, 230), 4):
        given["scales"] = torch.full_like(given["scales"], byte)
        got, wanted = main_projection(**given).double(), PROJECTION.reference(**given).double()
        assert (got - wanted).norm() <= 2e-3 * wanted.norm()
    given["scales"] = torch.full_like(given["scales"], 255)
    assert main_projection(**given).isnan().all()


def test_a_call_is_three_launches_and_none_for_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    given = _inputs(1, 32, 128)
    main_projection(**given)
    assert seen == ["grid_values_kernel", "value_parts_kernel", "sum_parts_kernel"]
    main_projection(**{**given, "x": given["x"][:0]})
    assert len(seen) == 3


def test_sizes_that_do_not_fit_are_refused() -> None:
    given = _inputs(1, 32, 128)
    with pytest.raises(ValueError, match=r"N in whole 32s and K in whole 128s, got \[1, 96\]"):
        main_projection(given["x"][:, :96], given["weight"][:, :96], given["scales"][:, :3])
    with pytest.raises(ValueError, match="wanted x"):
        main_projection(given["x"], given["weight"], given["scales"][:, :3])


def test_a_table_may_have_one_line_for_all_rows() -> None:
    assert line_for(CODES, 1000) == CODES[0]
    assert splits_of(replace(CODES[0], splits=8), 15360) == 8

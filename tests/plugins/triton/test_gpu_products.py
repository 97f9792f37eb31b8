"""The main projection on a real GPU, by the tiles of its architecture: bits at every number of rows, every code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops_triton.blocks.grid_product import GridProduct
from dspark_ops_triton.main_projection import arch_of, tiles_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def bound() -> GridProduct:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return GridProduct(tiles_of(arch_of(torch.device("cuda"))))


def _inputs(rows: int, columns: int, lanes: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(rows)
    weight = torch.randn(columns, lanes, generator=generator, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.randint(115, 124, (columns // 32, lanes // 32), generator=generator, device="cuda").to(torch.uint8)
    x = torch.randn(rows, lanes, generator=generator, device="cuda").bfloat16()
    return {"x": x, "weight": weight, "scales": scales}


@pytest.mark.parametrize(("columns", "lanes"), [(5120, 15360), (96, 768)])
def test_a_row_of_the_main_projection_is_the_same_in_every_tile(bound: GridProduct, columns: int, lanes: int) -> None:
    given = _inputs(70, columns, lanes)
    together = bound(**given)
    for rows in (1, 6, 16, 17, 32, 33, 64):
        assert torch.equal(bound(**{**given, "x": given["x"][:rows]}), together[:rows])
    assert torch.equal(bound(**{**given, "x": given["x"][69:]}), together[69:])


def test_every_code_and_every_scale_of_the_weight_has_its_meaning(bound: GridProduct) -> None:
    reference = contracts.get("main_projection").reference
    given = _inputs(5, 96, 256)
    codes = torch.arange(256, device="cuda").to(torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    given["weight"] = codes.repeat(96, 1).view(torch.float8_e4m3fn)
    for byte in range(2, 230, 19):
        given["scales"] = torch.full_like(given["scales"], byte)
        got = bound(**given).double().cpu()
        wanted = reference(**{name: value.cpu() for name, value in given.items()}).double()
        assert (got - wanted).norm() <= 2e-3 * wanted.norm()
    given["scales"] = torch.full_like(given["scales"], 255)
    assert bound(**given).isnan().all()

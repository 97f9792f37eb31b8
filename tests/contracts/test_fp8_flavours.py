"""Case O23, the half with numbers: one byte is another number on gfx942 than on gfx950."""

from __future__ import annotations

import struct

import pytest
import torch

from dspark_ops.api import Arch


def _decoded(byte: int, kind: str) -> float:
    return float(torch.tensor([byte], dtype=torch.uint8).view(getattr(torch, kind)).float())


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("gfx950", "float8_e4m3fn", (1.0, 2.0, 448.0, 240.0, -0.0)),
        ("gfx942", "float8_e4m3fnuz", (0.5, 1.0, 224.0, 120.0, float("nan"))),
    ],
)
def test_o23_the_two_parts_read_the_same_bytes_as_different_numbers(
    name: str, kind: str, values: tuple[float, ...]
) -> None:
    assert Arch.parse(name).fp8_dtype == kind
    got = [_decoded(byte, kind) for byte in (0x38, 0x40, 0x7E, 0x77, 0x80)]
    assert [struct.pack("f", value) for value in got[:4]] == [struct.pack("f", value) for value in values[:4]]
    assert struct.pack("f", got[4]) == struct.pack("f", values[4]) or (got[4] != got[4] and values[4] != values[4])

"""The repaired interpreter: right over every value, gone afterwards, and refused where it cannot be proved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops.conformance.interpreter import prove, repaired_interpreter, run_interpreted
from dspark_ops.errors import EvidenceError

PATCHED = ("cast_impl", "create_dot", "create_fma", "binary_op", "unary_op")


def _cast_kernel(source, target, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    tl.store(target + lanes, tl.load(source + lanes).to(target.dtype.element_ty))


def _cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    count = triton.next_power_of_2(values.numel())
    padded = torch.nn.functional.pad(values, (0, count - values.numel()))
    out = torch.empty(count, dtype=dtype)
    InterpretedFunction(_cast_kernel)[(1,)](padded, out, COUNT=count)
    return out[: values.numel()]


def test_every_value_midpoint_and_neighbour_of_three_formats_is_rounded_to_nearest_even() -> None:
    passed = prove()
    assert len(passed) == 8
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        assert f"float32 to {name}, values, midpoints and their neighbours" in passed
        assert f"every finite {name} to float32" in passed


def test_the_carry_out_of_the_mantissa_reaches_the_exponent() -> None:
    values = torch.tensor([31.5, 1.9999, -1.9999, 447.0])
    with repaired_interpreter():
        assert _cast(values, torch.float8_e4m3fn).float().tolist() == [32.0, 2.0, -2.0, 448.0]
        assert _cast(values, torch.bfloat16).float().tolist() == [31.5, 2.0, -2.0, 448.0]


def test_eight_bit_casts_saturate_and_keep_nan() -> None:
    values = torch.tensor([1e9, float("inf"), float("-inf"), float("nan")])
    with repaired_interpreter():
        e4m3 = _cast(values, torch.float8_e4m3fn).float()
        e5m2 = _cast(values, torch.float8_e5m2).float()
    assert e4m3[:3].tolist() == [448.0, 448.0, -448.0]
    assert e5m2[:3].tolist() == [57344.0, 57344.0, -57344.0]
    assert e4m3[3].isnan()
    assert e5m2[3].isnan()


def test_a_float64_on_the_way_to_bfloat16_is_rounded_once() -> None:
    # 1 + 2**-8 is the midpoint of two bfloat16 values; 2**-40 above it, float32 already rounds down to the midpoint.
    value = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 3.0], dtype=torch.float64)
    with repaired_interpreter():
        assert _cast(value, torch.bfloat16).float().tolist() == [1 + 2.0**-7, 1.0, 3.0]


def test_integers_become_bfloat16_values_and_not_bit_patterns() -> None:
    with repaired_interpreter():
        assert _cast(torch.tensor([0, 1, -3, 257, 259]), torch.bfloat16).float().tolist() == [0, 1, -3, 256, 260]


def test_leaving_the_block_restores_the_interpreter_even_after_an_error() -> None:
    before = {name: interpreter.InterpreterBuilder.__dict__[name] for name in PATCHED}
    convert = interpreter._convert_float

    def fail() -> None:
        with repaired_interpreter():
            assert interpreter._convert_float is not convert
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert interpreter._convert_float is convert
    assert {name: interpreter.InterpreterBuilder.__dict__[name] for name in PATCHED} == before


def test_blocks_may_nest() -> None:
    convert = interpreter._convert_float
    with repaired_interpreter(), repaired_interpreter():
        assert _cast(torch.tensor([31.5]), torch.float8_e4m3fn).float().item() == 32.0
    assert interpreter._convert_float is convert


def test_an_interpreter_without_the_known_parts_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interpreter.InterpreterBuilder, "cast_impl")
    with pytest.raises(EvidenceError, match=rf"Triton {triton.__version__}.*cast_impl is missing"):
        prove()


def test_a_conversion_that_truncates_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspark_ops.conformance import interpreter as repair

    def truncate(values: torch.Tensor, name: str) -> torch.Tensor:
        bits = values.float().numpy().view(np.uint32) & np.uint32(0xFFFF0000)
        return torch.from_numpy(bits.view(np.float32)).to(getattr(torch, repair._TORCH_NAMES[name]))

    monkeypatch.setattr(repair, "_narrow", truncate)
    with pytest.raises(EvidenceError, match=r"refused:\n.*float32 to bfloat16.*: wanted 0x.*, got 0x"):
        prove()


def test_a_child_process_interprets() -> None:
    finished = run_interpreted(["-c", "import triton; print(triton.knobs.runtime.interpret)"])
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "True"

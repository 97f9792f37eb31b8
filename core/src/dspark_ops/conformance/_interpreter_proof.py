"""The checks behind `interpreter.prove`: kernels, and tables made from the definitions of the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

#: exponent bits, mantissa bits, bias, largest finite code, code that a value beyond the largest gives
_FORMATS = {
    "bfloat16": (8, 7, 127, 0x7F7F, 0x7F80),
    "float8_e4m3fn": (4, 3, 7, 0x7E, 0x7E),
    "float8_e5m2": (5, 2, 15, 0x7B, 0x7B),
}


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (what is checked, a function that returns what is wrong or an empty text)."""
    for name in _FORMATS:
        yield f"float32 to {name}, values, midpoints and their neighbours", lambda name=name: _check_narrowing(name)
        yield f"every finite {name} to float32", lambda name=name: _check_widening(name)
    yield "tl.dot on bfloat16", _check_dot
    yield "bfloat16 sums, products, comparisons and fma", _check_arithmetic


def _decode(code: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return the values of non-negative finite codes, exactly, in float64."""
    _, mantissa_bits, bias, _, _ = _FORMATS[name]
    exponent = code >> mantissa_bits
    mantissa = code & ((1 << mantissa_bits) - 1)
    normal = exponent > 0
    significand = np.where(normal, mantissa + (1 << mantissa_bits), mantissa).astype(np.float64)
    return np.ldexp(significand, np.where(normal, exponent, 1) - bias - mantissa_bits)


def _narrowing_table(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return float32 inputs and the codes that rounding to nearest even gives them."""
    exponent_bits, mantissa_bits, _, last, beyond = _FORMATS[name]
    code = np.arange(last)
    low, high = _decode(code, name), _decode(code + 1, name)
    middle = ((low + high) / 2).astype(np.float32)  # exact: at most one bit more than the format has
    below, above = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    even = code + (code & 1)
    # Midway past the last value, in units of its spacing; bfloat16 overflows there, the 8-bit formats saturate anyway.
    top = _decode(np.array([last]), name)
    past = (top + (top - _decode(np.array([last - 1]), name)) / 2).astype(np.float32)
    before = np.nextafter(past, np.float32(0))
    ends = np.array([top[0], before[0], past[0], np.finfo(np.float32).max, np.inf], np.float32)
    end_codes = np.array([last, last, beyond, beyond, beyond])
    inputs = np.concatenate((low.astype(np.float32), below, middle, above, ends))
    codes = np.concatenate((code, code, even, code + 1, end_codes))
    sign = 1 << (exponent_bits + mantissa_bits)
    return np.concatenate((inputs, -inputs)), np.concatenate((codes, codes | sign))


def _convert_kernel(source, target, count, BLOCK: tl.constexpr, EXPLICIT: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + lanes, mask=lanes < count)
    if EXPLICIT:
        value = value.to(target.dtype.element_ty)
    tl.store(target + lanes, value, mask=lanes < count)


def _dot_kernel(a, b, out, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tile = lanes[:, None] * SIZE + lanes[None, :]
    tl.store(out + tile, tl.dot(tl.load(a + tile), tl.load(b + tile)))


def _arithmetic_kernel(x, y, total, product, less, fused, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    a = tl.load(x + lanes)
    b = tl.load(y + lanes)
    tl.store(total + lanes, a + b)
    tl.store(product + lanes, a * b)
    tl.store(less + lanes, a < b)
    tl.store(fused + lanes, tl.fma(a, b, a))


def _convert(values: torch.Tensor, dtype: torch.dtype, explicit: bool) -> torch.Tensor:
    out = torch.empty(values.shape, dtype=dtype)
    block = 1 << 16
    grid = (triton.cdiv(values.numel(), block),)
    InterpretedFunction(_convert_kernel)[grid](values, out, values.numel(), BLOCK=block, EXPLICIT=explicit)
    return out


def _codes(values: torch.Tensor) -> np.ndarray[Any, Any]:
    unsigned = torch.uint16 if values.element_size() == 2 else torch.uint8
    return values.view(unsigned).numpy().astype(np.int64)


def _check_narrowing(name: str) -> str:
    inputs, wanted = _narrowing_table(name)
    dtype = getattr(torch, name)
    for explicit in (True, False):
        got = _codes(_convert(torch.from_numpy(inputs), dtype, explicit))
        if (wrong := np.flatnonzero(got != wanted)).size:
            first = wrong[0]
            how = "cast" if explicit else "store"
            example = f"{how} of {inputs[first]!r}: wanted {wanted[first]:#x}, got {got[first]:#x}"
            return f"{wrong.size} of {wanted.size} differ; {example}"
    nan = _convert(torch.tensor([float("nan")]), dtype, True)
    return "" if torch.isnan(nan.float()).all() else f"a NaN became {nan.float().item()}"


def _check_widening(name: str) -> str:
    exponent_bits, mantissa_bits, _, last, _ = _FORMATS[name]
    positive = np.arange(last + 1)
    sign = 1 << (exponent_bits + mantissa_bits)
    codes = np.concatenate((positive, positive | sign)).astype(np.uint16 if name == "bfloat16" else np.uint8)
    values = np.concatenate((_decode(positive, name), -_decode(positive, name))).astype(np.float32)
    got = _convert(torch.from_numpy(codes).view(getattr(torch, name)), torch.float32, True).numpy()
    wrong = np.flatnonzero(got.view(np.uint32) != values.view(np.uint32))
    return f"code {codes[wrong[0]]:#x}: wanted {values[wrong[0]]!r}, got {got[wrong[0]]!r}" if wrong.size else ""


def _check_dot() -> str:
    size = 32
    generator = torch.Generator().manual_seed(0)
    # Eighths of small integers: every partial sum is exact in float32, so the order of summation does not matter.
    a, b = (torch.randint(-64, 65, (size, size), generator=generator).bfloat16() / 8 for _ in range(2))
    out = torch.empty(size, size)
    InterpretedFunction(_dot_kernel)[(1,)](a, b, out, SIZE=size)
    return "" if torch.equal(out.double(), a.double() @ b.double()) else "the product of two 32x32 matrices is wrong"


def _check_arithmetic() -> str:
    count = 1 << 14
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(count, generator=generator).bfloat16() for _ in range(2))
    outs = {name: torch.empty(count, dtype=torch.bfloat16) for name in ("total", "product", "fused")}
    less = torch.empty(count, dtype=torch.bool)
    run = InterpretedFunction(_arithmetic_kernel)[(1,)]
    run(x, y, outs["total"], outs["product"], less, outs["fused"], COUNT=count)
    a, b = x.double(), y.double()
    exact = {"total": a + b, "product": a * b, "fused": a * b + a}
    for name, values in exact.items():
        # Nearest means: no bfloat16 value lies nearer. The two next to the result are one code away.
        error = (outs[name].double() - values).abs()
        for step in (-1, 1):
            beside = (outs[name].view(torch.int16) + step).view(torch.bfloat16).double()
            if (error > (beside - values).abs()).any():
                return f"{name} is not the nearest bfloat16"
    return "" if torch.equal(less, x.double() < y.double()) else "a comparison is wrong"

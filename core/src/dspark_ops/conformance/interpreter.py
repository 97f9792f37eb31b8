"""Triton's CPU interpreter with its float conversions repaired, and the proof that they are right.

As shipped (seen in Triton 3.9) the interpreter truncates float32 to bfloat16 in casts and stores, drops the carry out
of the mantissa in casts to 8-bit floats, and computes on the raw 16-bit patterns of bfloat16 in `tl.dot` and in plain
arithmetic. A kernel's numbers then agree or differ for the wrong reason. Here those places go through torch, and
`prove` checks the result against tables that come from the formats' definitions, not from torch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.errors import EvidenceError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["prove", "repaired_interpreter", "run_interpreted"]

#: Triton's name of each float type whose values torch can hold, and torch's name of it.
_TORCH_NAMES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}
_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_PATCHED = ("cast_impl", "create_dot", "create_fma", "binary_op", "unary_op")


@contextlib.contextmanager
def repaired_interpreter() -> Iterator[None]:
    """Repair the interpreter's float conversions inside a ``with`` block, and put everything back at its end.

    A cast to an 8-bit float saturates at the largest finite value, as the conversion instruction that Triton emits for
    NVIDIA does. A cast that asks for rounding toward zero is left to the interpreter.

    Raises:
        EvidenceError: the installed Triton's interpreter has not the parts that are repaired.
    """
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    missing = [name for name in _PATCHED if not hasattr(builder, name)]
    if missing or not hasattr(interpreter, "_convert_float"):
        raise EvidenceError(
            f"cannot repair the interpreter of Triton {_triton_version()}, so interpreted evidence is refused: wanted "
            f"{', '.join(_PATCHED)} and _convert_float in {interpreter.__file__}, of which "
            f"{', '.join(missing) or '_convert_float'} is missing"
        )
    original = {name: builder.__dict__[name] for name in _PATCHED}
    convert = interpreter._convert_float
    try:
        for name, replacement in _replacements(interpreter, original, convert).items():
            setattr(builder, name, replacement)
        interpreter._convert_float = _converter(interpreter, convert)
        yield
    finally:
        interpreter._convert_float = convert
        for name, method in original.items():
            setattr(builder, name, method)


def prove() -> tuple[str, ...]:
    """Check the repaired interpreter over every bfloat16, e4m3 and e5m2 value, and say what was checked.

    For each pair of neighbours of a format, both signs: the two values, their midpoint (which goes to the even code),
    the float32 values next to it, what lies beyond the largest value, and NaN; casts, stores and widening. Then
    bfloat16 `tl.dot` and arithmetic against exact results.

    Returns:
        One line per check.

    Raises:
        EvidenceError: a check fails, or the interpreter cannot be repaired. No kernel may then claim ``interpreted``.
    """
    from dspark_ops.conformance._interpreter_proof import checks

    passed, failed = [], []
    with repaired_interpreter():
        for name, check in checks():
            try:
                wrong = check()
            except Exception as error:  # a changed interpreter may raise anything: it is a failed check, with its cause
                wrong = f"{type(error).__name__}: {error}"
            (failed if wrong else passed).append(f"{name}: {wrong}" if wrong else name)
    if failed:
        listed = "\n  ".join(failed)
        raise EvidenceError(
            f"the repaired interpreter of Triton {_triton_version()} is wrong, so interpreted evidence is refused:\n"
            f"  {listed}"
        )
    return tuple(passed)


def run_interpreted(arguments: Sequence[str], timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` in a process in which Triton interprets kernels, and return what it printed.

    Triton reads ``TRITON_INTERPRET`` when a kernel is defined, so a process that has imported kernels cannot switch.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def _to_torch(data: np.ndarray[Any, Any], name: str) -> torch.Tensor:
    """Return the torch tensor of an interpreter array, whose small floats are held as unsigned integers."""
    import numpy as np

    contiguous = np.ascontiguousarray(data).reshape(data.shape)
    return torch.from_numpy(contiguous.copy()).view(getattr(torch, _TORCH_NAMES[name]))


def _to_bits(values: torch.Tensor) -> np.ndarray[Any, Any]:
    import numpy as np

    bits = values.reshape(-1).view(torch.uint8).numpy()
    return bits.view(getattr(np, _BITS[values.element_size()])).reshape(tuple(values.shape))


def _narrow(values: torch.Tensor, name: str) -> torch.Tensor:
    """Round to nearest even, once; 8-bit formats saturate."""
    target = getattr(torch, _TORCH_NAMES[name])
    if values.dtype == torch.float64 and target.itemsize < 4:
        values = _round_to_odd(values)
    if target.itemsize == 1:
        limit = torch.finfo(target).max
        values = values.float().clamp(-limit, limit)  # NaN stays NaN
    return values.to(target)


def _round_to_odd(values: torch.Tensor) -> torch.Tensor:
    """Return float32 values that round on to a narrower format as `values` would have: inexact ones are made odd."""
    single = values.float()
    above = single.double().abs() > values.abs()
    bits = single.view(torch.int32)
    toward_zero = torch.where(above, bits - 1, bits)
    inexact = (single.double() != values) & ~torch.isnan(values)
    return torch.where(inexact, toward_zero | 1, toward_zero).view(torch.float32)


def _converter(interpreter: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert_float(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source.name not in _TORCH_NAMES or target.name not in _TORCH_NAMES or rounding_mode == toward_zero:
            return original(data, source, target, rounding_mode)
        return _to_bits(_narrow(_to_torch(data, source.name), target.name))

    return convert_float


def _replacements(interpreter: Any, original: dict[str, Any], convert: Callable[..., Any]) -> dict[str, Any]:
    """Return the methods that replace those of the interpreter's builder."""
    import numpy as np
    import triton.language as tl

    handle = interpreter.TensorHandle
    converter = _converter(interpreter, convert)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        have, want = source.dtype.scalar, target.scalar
        if have.name in _TORCH_NAMES and want.name in _TORCH_NAMES:
            bits = converter(source.data, have, want, None)
            return handle(bits.view(interpreter._get_np_dtype(want)), want)
        if want == tl.bfloat16:  # from an integer
            return cast_impl(self, handle(source.data.astype(np.float64), tl.float64), want)
        return original["cast_impl"](self, source, target)

    def widen(value: Any) -> Any:
        return cast_impl(None, value, tl.float32) if value.dtype.scalar == tl.bfloat16 else value

    def finish(result: Any, kind: Any) -> Any:
        # Each of these operations rounds float32 values of 8 significant bits to 24: rounding on to 8 is then exact.
        if kind != tl.bfloat16 or result.data.dtype == np.bool_:
            return handle(result.data, kind)
        return cast_impl(None, handle(result.data.astype(np.float32), tl.float32), kind)

    def binary_op(self: Any, lhs: Any, rhs: Any, operation: Any) -> Any:
        if lhs.dtype.scalar != tl.bfloat16:
            return original["binary_op"](self, lhs, rhs, operation)
        return finish(original["binary_op"](self, widen(lhs), widen(rhs), operation), tl.bfloat16)

    def unary_op(self: Any, value: Any, operation: Any) -> Any:
        return finish(original["unary_op"](self, widen(value), operation), value.dtype.scalar)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != tl.bfloat16:
            return original["create_fma"](self, x, y, z)
        exact = [widen(value).data.astype(np.float64) for value in (x, y, z)]
        return cast_impl(None, handle(exact[0] * exact[1] + exact[2], tl.float64), tl.bfloat16)

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        return original["create_dot"](self, widen(a), widen(b), d, input_precision, max_num_imprecise_acc)

    return {
        "cast_impl": cast_impl,
        "create_dot": create_dot,
        "create_fma": create_fma,
        "binary_op": binary_op,
        "unary_op": unary_op,
    }

"""Comparing an output with what the contract wants, and saying exactly where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.exactness import Exactness


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between an output and what was wanted.

    Attributes:
        what: ``value``, ``shape``, ``dtype`` or ``type``.
        wanted, got: the two, as text; values in decimal and in the hexadecimal of their bits.
        index: position of the first wrong element (of the worst one where a norm is bounded).
        wrong, total: elements outside the bound, and elements in all.
        bound: the exactness that was asked for, with the size of the difference where that is a number.
    """

    what: str
    wanted: str
    got: str
    index: tuple[int, ...] = ()
    wrong: int = 0
    total: int = 0
    bound: str = ""

    def __str__(self) -> str:
        if self.what != "value":
            return f"{self.what}: wanted {self.wanted}, got {self.got}"
        place = f"[{', '.join(map(str, self.index))}]"
        return f"{self.wrong} of {self.total} wrong by {self.bound}; {place}: wanted {self.wanted}, got {self.got}"


def compare(output: Any, expected: Any, exactness: Exactness, before: Any = None) -> Mismatch | None:
    """Return how `output` fails to be `expected`, or None if it is close enough.

    A NaN equals a NaN whatever its bits, and infinities must be equal, under every exactness. ``law`` compares shape
    and dtype only: equality in distribution takes another kind of test.

    Args:
        output: tensor on any device, or None.
        expected: tensor, or None where the operator returns none.
        exactness: ``bitwise``, ``mismatch``, ``ulp``, ``relative``, ``absolute`` or ``law``.
        before: for ``mismatch`` of a written argument, what it held before the call: the share counts the elements that
            `expected` changes. None: all elements count.

    Raises:
        ContractError: the exactness is ``bitwise_given``, which needs the operator's other outputs, or unknown.
    """
    if exactness.kind not in ("bitwise", "mismatch", "ulp", "relative", "absolute", "law"):
        raise ContractError(f"cannot compare by {exactness}: compute what the output must be, then compare bitwise")
    for what, name in (
        ("type", _type_name),
        ("dtype", lambda x: str(x.dtype)),
        ("shape", lambda x: str(list(x.shape))),
    ):
        wanted, got = name(expected), name(output)
        if wanted != got:
            return Mismatch(what, wanted, got)
        if expected is None:
            return None
    output, expected = output.detach().cpu().contiguous(), expected.detach().cpu().contiguous()
    if exactness.kind == "law" or expected.numel() == 0:
        return None
    if exactness.kind == "mismatch":
        changed = expected.numel() if before is None else int((expected != before.detach().cpu()).sum())
        wrong, bound = _wrong(output, expected, bitwise())
        bound = f"{exactness}, got {int(wrong.sum())} for {changed} changed elements"
        if int(wrong.sum()) <= exactness.amount * changed:
            return None
    else:
        wrong, bound = _wrong(output, expected, exactness)
    if not wrong.any():
        return None
    place = _worst(output, expected) if exactness.kind == "relative" else int(wrong.reshape(-1).int().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), expected.shape))
    return Mismatch(
        "value", _show(expected, place), _show(output, place), index, int(wrong.sum()), expected.numel(), bound
    )


def _wrong(output: Tensor, expected: Tensor, exactness: Exactness) -> tuple[Tensor, str]:
    if not expected.is_floating_point():
        return output != expected, str(exactness)
    x, y = output.double(), expected.double()
    same = (x == y) | (x.isnan() & y.isnan())
    if exactness.kind == "bitwise":
        bits = _bits(output) == _bits(expected)
        return ~(bits | (x.isnan() & y.isnan())), str(exactness)
    finite = x.isfinite() & y.isfinite()
    odd = ~finite & ~same
    if exactness.kind == "ulp":
        steps = (_ordered(output) - _ordered(expected)).abs()
        return odd | (finite & (steps > int(exactness.amount))), str(exactness)
    difference = torch.where(finite, x - y, 0.0)
    if exactness.kind == "absolute":
        return odd | (difference.abs() > exactness.amount), f"{exactness}, largest {float(difference.abs().max()):.3g}"
    scale = float(torch.where(finite, y, 0.0).norm())
    error = float(difference.norm())
    ratio = error / scale if scale else (float("inf") if error else 0.0)
    over = ratio > exactness.amount
    return odd | ((difference != 0) & over), f"{exactness}, got {ratio:.3g}"


def _worst(output: Tensor, expected: Tensor) -> int:
    x, y = output.double(), expected.double()
    same = (x == y) | (x.isnan() & y.isnan())
    distance = torch.where(same, 0.0, (x - y).abs()).nan_to_num(torch.inf, torch.inf)
    return int(distance.reshape(-1).argmax())


def _bits(values: Tensor) -> Tensor:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.view(integer)


def _ordered(values: Tensor) -> Tensor:
    """Map floats to integers that are neighbours where the floats are; both zeros give 0."""
    width = 8 * values.element_size()
    bits = _bits(values).long() & ((1 << (width - 1)) - 1 if width == 64 else (1 << width) - 1)
    if width == 64:
        return torch.where(_bits(values) < 0, -bits, bits)
    sign = 1 << (width - 1)
    return torch.where(bits >= sign, sign - bits, bits)


def _show(values: Tensor, place: int) -> str:
    value = values.reshape(-1)[place]
    if values.dtype == torch.bool:
        return str(value.item())
    digits = 2 * value.element_size()
    raw = int(_bits(value.reshape(1)).item()) & ((1 << (4 * digits)) - 1)
    decimal = f"{float(value):.9g}" if values.is_floating_point() else str(value.item())
    return f"{decimal} (0x{raw:0{digits}x})"


def _type_name(value: Any) -> str:
    return "a tensor" if hasattr(value, "dtype") else type(value).__name__

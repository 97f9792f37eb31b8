"""How much of an operator's work a program takes, as data, for launches that differ by device in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cut:
    """What a program of a launch takes.

    Attributes:
        items: items of a program, a power of two; the operator says of what.
        warps: warps (waves on AMD) that share them, a power of two.
    """

    items: int
    warps: int


def cut_options(cut: Cut) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that contracts name."""
    return {"num_warps": cut.warps, "enable_fp_fusion": False}


def prepared(
    call: Callable[..., Any], compile_calls: Callable[..., None], device: Any, site: Any, rows: Sequence[int]
) -> Callable[..., Any]:
    """Return `call`, after ``compile_calls(call, site, rows)`` has called it once per build that the site needs.

    On a CPU, where an interpreter runs the kernels, nothing is compiled.
    """
    if device.arch.vendor != "cpu":
        compile_calls(call, site, rows)
    return call

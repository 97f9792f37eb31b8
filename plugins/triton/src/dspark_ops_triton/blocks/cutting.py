"""How much of an operator's work a program takes, as data, for launches that differ by device in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_ops_triton.blocks.dependent import pdl_option
from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.tile_table import tiles_for


@dataclass(frozen=True, slots=True)
class Cut:
    """What a program of a launch takes.

    Attributes:
        items: items of a program, a power of two; the operator says of what.
        warps: warps (waves on AMD) that share them, a power of two.
        pdl: the kernel is set up while the one before it runs.
    """

    items: int
    warps: int
    pdl: bool = False


def cut_options(cut: Cut) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that contracts name."""
    return {"num_warps": cut.warps, "enable_fp_fusion": False, **pdl_option(cut.pdl)}


def prepare_cut(
    body: Callable[..., Any], cut: Cut, public: Callable[..., Any], compile_calls: Callable[..., None], device: Any,
    site: Any, rows: Sequence[int],
) -> Callable[..., Any]:  # fmt: skip
    """Return `body` bound to a cut and compiled: `cut`, what the table of tiles has for it, early where the device can.

    Arguments are those of `prepare_launch`; the table is asked for the name of `public`, which is the operator's.
    """
    tiles = tiles_for(public.__name__, device, site, cut)
    return prepare_launch(body, tiles, public, compile_calls, device, site, rows)


def prepared(
    call: Callable[..., Any], compile_calls: Callable[..., None], device: Any, site: Any, rows: Sequence[int]
) -> Callable[..., Any]:
    """Return `call`, after ``compile_calls(call, site, rows)`` has called it once per build that the site needs.

    On a CPU, where an interpreter runs the kernels, nothing is compiled.
    """
    if device.arch.vendor != "cpu":
        compile_calls(call, site, rows)
    return call

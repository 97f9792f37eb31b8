"""What is decided about a launch when a kernel is prepared, and how it is bound to the function that launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_ops_triton.blocks.dependent import pdl_option


@dataclass(frozen=True, slots=True)
class RowTiles:
    """How kernels are launched that give a whole row to a program.

    Attributes:
        warps: warps (waves on AMD) of a program, a power of two.
        pdl: the kernel is set up while the one before it runs.
    """

    warps: int
    pdl: bool = False


def row_options(tiles: RowTiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that contracts name."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def bind_launch(body: Callable[..., Any], choice: Any, public: Callable[..., Any]) -> Callable[..., Any]:
    """Return `body` with its first argument set to `choice`; to its callers it has the signature of `public`.

    Args:
        body: takes the choice and then the arguments of `public`.
        choice: what was decided when the kernel was prepared: tile sizes, whether it is launched early.
        public: the contract's function, which calls `body` with a choice for any device.
    """
    return functools.update_wrapper(functools.partial(body, choice), public)


def prepare_launch(
    body: Callable[..., Any], choice: Any, public: Callable[..., Any], compile_calls: Callable[..., None], device: Any,
    site: Any, rows: Sequence[int],
) -> Callable[..., Any]:  # fmt: skip
    """Return `body` bound to `choice`, after ``compile_calls(bound, site, rows)`` has called it once per build.

    On a CPU, where an interpreter runs the kernels, nothing is compiled and the result is `public`.

    Args:
        body: takes the choice and then the arguments of `public`.
        choice: what was decided for this device and site.
        public: the contract's function.
        compile_calls: calls what it is given once for each build that a call at the site may need.
        device: the planned device.
        site: the place.
        rows: row counts planned there.
    """
    if device.arch.vendor == "cpu":
        return public
    bound = bind_launch(body, choice, public)
    compile_calls(bound, site, rows)
    return bound

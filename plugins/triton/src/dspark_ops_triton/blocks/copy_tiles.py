"""How kernels over the copies of a stream are launched, and inputs that need every build of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton

from dspark_ops_triton.blocks.dependent import pdl_option
from dspark_ops_triton.blocks.launching import bind_launch


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a token is cut.

    Attributes:
        threads: threads of a program.
        pdl: the kernel is set up while the one before it runs.
        programs: programs that share a token, as a cluster of multiprocessors, where its columns can be cut so; NVIDIA
            GPUs of compute capability 9.0 on.
    """

    threads: int
    pdl: bool = False
    programs: int = 1


@dataclass(frozen=True, slots=True)
class ColumnTiles:
    """How a token is cut where each column is computed by itself.

    Attributes:
        block: columns of a program, a power of two.
        threads: threads of a program.
        doubled_from: tokens from which on programs are twice as large, 0 for never. The bits of a column do not depend
            on that.
        pdl: the kernel is set up while the one before it runs.
        same_threads: programs twice as large have as many threads, each of them with twice the columns.
    """

    block: int
    threads: int
    doubled_from: int = 0
    pdl: bool = False
    same_threads: bool = False

    def at(self, tokens: int) -> ColumnTiles:
        """Return the tiles of a launch over `tokens`."""
        if not 0 < self.doubled_from <= tokens:
            return self
        return replace(self, block=2 * self.block, threads=self.threads if self.same_threads else 2 * self.threads)

    def builds(self, rows: Sequence[int]) -> tuple[ColumnTiles, ...]:
        """Return the tiles of all launches over the planned numbers of tokens, each of which is the same for any."""
        return tuple({replace(self.at(count), doubled_from=0): None for count in (1, *rows)})


def launch_options(tiles: Tiles | ColumnTiles, amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": tiles.threads // (64 if amd else 32), "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def shared_options(tiles: Tiles, amd: bool, programs: int) -> dict[str, Any]:
    """Return the compiler options of a launch in which `programs` share a token."""
    options = launch_options(tiles, amd)
    return {**options, "num_ctas": programs} if programs > 1 else options


def prepare_columns(
    body: Callable[..., Any], tiles: ColumnTiles, public: Callable[..., Any], compile_calls: Callable[..., None],
    device: Any, site: Any, rows: Sequence[int],
) -> Callable[..., Any]:  # fmt: skip
    """Return `body` bound to `tiles` and compiled for each size that they have; arguments as of `prepare_launch`."""
    if device.arch.vendor == "cpu":
        return public
    for each in tiles.builds(rows):
        compile_calls(partial(body, each), site, rows)
    return bind_launch(body, tiles, public)


def sample_inputs(site: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield copies and weights for every build that a call may need: rows 16-byte aligned, only the first one, none."""
    copies, hidden = site.axes["N"], site.axes["H"]
    pre = torch.zeros(2, copies, dtype=getattr(torch, site.dtypes.get("pre", "float32")), device="cuda")
    width = triton.cdiv(copies * hidden, 16) * 16
    buffer = torch.zeros(2 * width + 2, dtype=torch.bfloat16, device="cuda")
    for x in (buffer[: 2 * width].view(2, width), buffer.view(2, width + 1), buffer.view(2, width + 1)[:, 1:]):
        yield x[:, : copies * hidden], pre

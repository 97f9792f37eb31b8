"""How kernels over the copies of a stream are launched, and inputs that need every build of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton

from dspark_ops_triton.blocks.dependent import pdl_option


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a token is cut.

    Attributes:
        threads: threads of a program.
        pdl: the kernel is set up while the one before it runs.
    """

    threads: int
    pdl: bool = False


def launch_options(tiles: Tiles, amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": tiles.threads // (64 if amd else 32), "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def sample_inputs(site: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield copies and weights for every build that a call may need: rows 16-byte aligned, only the first one, none."""
    copies, hidden = site.axes["N"], site.axes["H"]
    pre = torch.zeros(2, copies, dtype=getattr(torch, site.dtypes.get("pre", "float32")), device="cuda")
    width = triton.cdiv(copies * hidden, 16) * 16
    buffer = torch.zeros(2 * width + 2, dtype=torch.bfloat16, device="cuda")
    for x in (buffer[: 2 * width].view(2, width), buffer.view(2, width + 1), buffer.view(2, width + 1)[:, 1:]):
        yield x[:, : copies * hidden], pre

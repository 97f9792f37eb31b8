"""``mhc_post`` for gfx950: the portable body, cut for waves of 64 lanes and 256 compute units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.copy_update import Tiles, prepare_update
from dspark_ops_triton.blocks.copy_update import mhc_post as update

#: One wave for 512 columns, 16 bytes of each copy a lane: 24 tokens of 5120 are 240 programs. From 64 tokens on, two
#: waves for 1024 halve the programs, of which there are more than units then.
TILES = Tiles(block=512, threads=64, doubled_from=64)

#: ``mhc_post`` (N3.5) as the contract has it. Launches: 1; 2*H + 4*N*H bytes per token.
mhc_post = partial(update, TILES)


def prepare_mhc_post(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `mhc_post`, compiled for the site's sizes and for tensors that begin on 16 bytes, or not."""
    return mhc_post if device.arch.vendor == "cpu" else prepare_update(TILES, mhc_post, site, rows)

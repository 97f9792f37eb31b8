"""``mxfp8_quantize`` by FlashInfer's CUDA kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.dependent import has_pdl


class FlashInferMxfp8:
    """``mxfp8_quantize`` bound to FlashInfer's function, which builds its kernel at the first call.

    Bytes moved: 3 per value, and the scale bytes. Launches: 1, none for no rows.
    """

    __slots__ = ("_function", "_pdl")

    def __init__(self, pdl: bool = False) -> None:
        # Imported only where it was chosen: it takes seconds, and looks for a CUDA toolkit.
        from flashinfer import mxfp8_quantize

        self._function = mxfp8_quantize
        self._pdl = pdl

    def __call__(self, x: Tensor, layout: str = "sf_128x4") -> tuple[Tensor, Tensor]:
        """Return MXFP8 codes and their scale bytes.

        Args:
            x: [M, K] bfloat16 or float16, contiguous, K divisible by 32; finite.
            layout: ``sf_128x4`` or ``sf_linear``.

        Returns:
            q [M, K] float8_e4m3fn, and scales, uint8 in one dimension, padding 0.

        Raises:
            ValueError: another layout.

        Source: N12.
        """
        if layout not in ("sf_128x4", "sf_linear"):
            raise ValueError(f"mxfp8_quantize: wanted layout sf_128x4 or sf_linear, got {layout!r}")
        if not x.shape[0]:
            empty = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
            return empty.view(torch.float8_e4m3fn), empty.new_empty(0)
        q, scales = self._function(
            x, is_sf_swizzled_layout=layout == "sf_128x4", alignment=32, enable_pdl=self._pdl, backend="cuda"
        )
        return q.view(torch.float8_e4m3fn), scales.view(torch.uint8).reshape(-1)


def mxfp8_quantize(x: Tensor, layout: str = "sf_128x4") -> tuple[Tensor, Tensor]:
    """Return MXFP8 codes and their scale bytes; it is a call of `FlashInferMxfp8`, which states the arguments.

    Source: N12.
    """
    return FlashInferMxfp8()(x, layout)


def prepare_mxfp8_quantize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return ``mxfp8_quantize`` by FlashInfer, built: it compiles its kernel, which takes minutes the first time."""
    bound = FlashInferMxfp8(has_pdl(device))
    dtype = getattr(torch, site.dtypes.get("x", "bfloat16"))
    bound(torch.zeros(1, site.axes["K"], dtype=dtype, device="cuda"), site.options.get("layout", "sf_128x4"))
    return bound

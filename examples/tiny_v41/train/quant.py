"""The quantisers that are part of the model, each with a straight-through gradient.

The cache pages of the inference code hold these very values, so the weights must have been trained on them.
Sources: N0.3 and N0.4 (rounding rules), N7.2 (V4 page), N8.1 (compressed entries).
"""

from __future__ import annotations

import torch

NOPE = 448
"""Lanes of a latent that carry no rotary position; the remaining 64 do."""

E4M3_MAX = 448.0
E2M1_MAX = 6.0


def pow2ceil(t: torch.Tensor) -> torch.Tensor:
    """The least power of two >= ``t``, from the bits of positive normal fp32 values (never through ``log2``)."""
    bits = t.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_e4m3(x: torch.Tensor) -> torch.Tensor:
    """``x`` (fp32) rounded to float8_e4m3fn, saturating at +-448, as fp32."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """``x`` (fp32) rounded to the grid 0, .5, 1, 1.5, 2, 3, 4, 6 (ties to even code), saturating at +-6, as fp32."""
    x = x.clamp(-E2M1_MAX, E2M1_MAX)
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(x / step) * step


def _page_values(x: torch.Tensor) -> torch.Tensor:
    """V4 page: nope lanes e4m3 per 64 with a power-of-two scale, rope lanes bf16."""
    groups = x[..., :NOPE].unflatten(-1, (NOPE // 64, 64))
    scale = pow2ceil(groups.abs().amax(-1, keepdim=True).clamp_min(1e-4) / E4M3_MAX)
    nope = (round_e4m3(groups / scale) * scale).flatten(-2)
    return torch.cat([nope, x[..., NOPE:].to(torch.bfloat16).to(torch.float32)], dim=-1)


def _fp4_values(x: torch.Tensor) -> torch.Tensor:
    """Blocks of 16 lanes: e2m1 codes with an e4m3 scale ``clamp(amax / 6, 2^-9, 448)``."""
    blocks = x.unflatten(-1, (-1, 16))
    scale = round_e4m3((blocks.abs().amax(-1, keepdim=True) / E2M1_MAX).clamp(2.0**-9, E4M3_MAX))
    return (round_e2m1(blocks / scale) * scale).flatten(-2)


def window_page(x: torch.Tensor) -> torch.Tensor:
    """What a window page gives back for rows ``x`` (fp32 ``[..., 512]``, normed, rotated); the gradient passes."""
    with torch.no_grad():
        values = _page_values(x)
    return x + (values - x).detach()


def compressed_page(x: torch.Tensor) -> torch.Tensor:
    """What a compressed page gives back: fp4 fake quantisation, then the V4 page; ``x`` fp32 holding bf16 values."""
    with torch.no_grad():
        values = _page_values(_fp4_values(x))
    return x + (values - x).detach()

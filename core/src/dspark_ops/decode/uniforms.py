"""Uniform numbers of a request: a hash of its seed, a position and a stream, never of the batch it runs in.

A number depends on nothing else, so a request repeated with other neighbours, another batch size or another schedule
of its rows draws the same numbers at the same positions (C2.3.11). Such a run is reproducible; it is not the run that
plain sampling with the same seed gives, because speculation draws other numbers. The two are equal in law.

The generator. Three 64-bit words (seed, position, stream) are absorbed one after the other into a 64-bit state: the
state takes the word by xor, steps by the odd constant 2^64 / golden ratio, and is mixed by the bijection

    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31

(Stafford's thirteenth variant of the MurmurHash3 finaliser, as SplitMix64 uses it), all modulo 2^64. The upper 24 bits
divided by 2^24 are the number: a float32 of [0, 1), never 1. Integers only, so every device gives the same bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Stream", "uniforms"]


class Stream(IntEnum):
    """What a uniform is for; one position has one number per stream."""

    ACCEPT = 0
    FINAL = 1
    DRAFT = 2


def uniforms(seeds: Tensor, positions: Tensor, stream: Stream) -> Tensor:
    """Return one uniform per (seed, position) of a stream.

    Args:
        seeds: int64, the requests' seeds, any shape that broadcasts with `positions`; [R, 1] for a block.
        positions: int64, absolute positions of the tokens that the numbers decide.
        stream: what the numbers decide: a draft's acceptance, a final token, or a draft.

    Returns:
        float32 in [0, 1) of the broadcast shape, on the device of `positions`.

    Source: C2.3.11.
    """
    state = _mix(seeds.to(positions.device).long() + _STEP)
    state = _mix((state ^ positions.long()) + _STEP)
    state = _mix((state ^ int(stream)) + _STEP)
    return _shift(state, 40).float() * 2.0**-24


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_STEP = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, count: int) -> Tensor:
    # int64 shifts copy the sign; the mask makes them logical
    return (x >> count) & ((1 << (64 - count)) - 1)

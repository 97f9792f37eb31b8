"""The sum over a row whose threads are one program or, on NVIDIA GPUs, a cluster of them: each thread gets it.

Triton's own sum of a block goes through shared memory twice, with a barrier each time. In a program of several warps
this one goes there once: each warp leaves its sum, and every thread adds up all of them, in the same order. In a
cluster each warp leaves its sum with every multiprocessor of it, as stores that a barrier object there counts: nobody
waits for memory to settle. That takes blocks of which each warp holds neighbouring lanes, as it does where all accesses
are 16 bytes wide: `programs_of` sees to it.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

#: Warps of a program or of a cluster whose sums are added up so.
SLOTS = (4, 8, 16, 32)


def _open(slots: int) -> str:
    """Return PTX that sets aside a word per warp; $0 is their address."""
    return f"{{ .shared .align 16 .b32 sums[{slots}]; mov.u32 $0, sums; }}"


def _open_cluster(slots: int) -> str:
    """Return PTX that sets aside a word per warp and a barrier object that counts their bytes; $0 is their address.

    All multiprocessors of the cluster wait until that is done everywhere.
    """
    return f"""{{
        .shared .align 16 .b32 sums[{slots + 4}];
        .reg .pred first; .reg .b32 a, t;
        mov.u32 a, sums; mov.u32 $0, a; add.u32 a, a, {4 * slots};
        mov.u32 t, %tid.x; setp.eq.u32 first, t, 0;
        @first mbarrier.init.shared::cta.b64 [a], 1;
        @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [a], {4 * slots};
        @first fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned;
        barrier.cluster.wait.acquire.aligned;
    }}"""


#: A sum $1 is left for the program in the room $2, at the place $3.
_LEAVE: Final = "{ .reg .b32 a; mad.lo.u32 a, $3, 4, $2; st.shared.f32 [a], $1; mov.b32 $0, 0; }"


def _leave_cluster(slots: int) -> str:
    """Return PTX by which the first lanes of a warp leave its sum $1 with each multiprocessor, at the room $2."""
    return f"""{{
        .reg .pred p; .reg .b32 lane, warp, rank, count;
        mov.u32 lane, %tid.x; shr.u32 warp, lane, 5; and.b32 lane, lane, 31;
        mov.u32 count, %cluster_nctarank; setp.lt.u32 p, lane, count;
        mov.u32 rank, %cluster_ctarank; mov.u32 count, %ntid.x; shr.u32 count, count, 5;
        mad.lo.u32 warp, rank, count, warp; mad.lo.u32 warp, warp, 4, $2;
        mapa.shared::cluster.u32 warp, warp, lane;
        add.u32 rank, $2, {4 * slots};
        mapa.shared::cluster.u32 rank, rank, lane;
        @p st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [warp], $1, [rank];
        mov.b32 $0, 0;
    }}"""


def _take(slots: int) -> str:
    """Return PTX that adds up the sums at the room $1, pairs of neighbours first, once all warps have left theirs."""
    lines = [f"ld.shared.v4.f32 {{x{i}, x{i + 1}, x{i + 2}, x{i + 3}}}, [$1 + {4 * i}];" for i in range(0, slots, 4)]
    step = 1
    while step < slots:
        lines += [f"add.f32 x{i}, x{i}, x{i + step};" for i in range(0, slots, 2 * step)]
        step *= 2
    return f"{{ .reg .f32 x<{slots}>; bar.sync 0; {' '.join(lines)} mov.f32 $0, x0; }}"


#: Times that a thread asks for the sums of a cluster, each of which may take microseconds, before it gives up.
TRIES: Final = 1 << 22


def _take_cluster(slots: int) -> str:
    """Return PTX that does the same in a cluster.

    It ends with an error of the GPU, not never, should a compiler lay the lanes out in another way than is meant here.
    """
    wait = f"""
        .reg .pred p; .reg .b32 a, tries; add.u32 a, $1, {4 * slots}; mov.u32 tries, 0;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [a], 0;
        @p bra DONE;
        add.u32 tries, tries, 1; setp.gt.u32 p, tries, {TRIES}; @p trap; bra WAIT;
        DONE:
    """
    return _take(slots).replace("bar.sync 0;", wait)


OPEN = tl.constexpr(tuple(_open(slots) for slots in SLOTS))
OPEN_CLUSTER = tl.constexpr(tuple(_open_cluster(slots) for slots in SLOTS))
LEAVE = tl.constexpr(_LEAVE)
LEAVE_CLUSTER = tl.constexpr(tuple(_leave_cluster(slots) for slots in SLOTS))
TAKE = tl.constexpr(tuple(_take(slots) for slots in SLOTS))
TAKE_CLUSTER = tl.constexpr(tuple(_take_cluster(slots) for slots in SLOTS))


def slot_index(warps: int, programs: int, ptx: bool) -> int:
    """Return the constant SLOT of the functions here: which of SLOTS fits, or -1 where Triton adds up.

    Args:
        warps: warps of a program.
        programs: programs of a cluster, which share a row; 1 without one.
        ptx: the kernel may hold PTX.

    Raises:
        ValueError: programs are to share a row and cannot.
    """
    if ptx and warps * programs in SLOTS:
        return SLOTS.index(warps * programs)
    if programs > 1:
        raise ValueError(f"{programs} programs of {warps} warps cannot share a row: wanted PTX, and {SLOTS} warps")
    return -1


@triton.jit
def open_row(PROGRAMS: tl.constexpr, SLOT: tl.constexpr):
    """Return the room for the sums of a row's warps, for `row_sum`; it stands before the wait for other kernels."""
    if SLOT < 0:
        return 0
    if PROGRAMS == 1:
        return tl.inline_asm_elementwise(OPEN[SLOT], "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    return tl.inline_asm_elementwise(OPEN_CLUSTER[SLOT], "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def warp_sums(values, WARPS: tl.constexpr):
    """Return the sums of float32 lanes over each of WARPS warps, in all of its threads."""
    return tl.sum(tl.reshape(values, (WARPS, values.shape[0] // WARPS)), axis=1)


@triton.jit
def row_sum(values, more, room, PROGRAMS: tl.constexpr, WARPS: tl.constexpr, SLOT: tl.constexpr):
    """Return the sum of a row; it is called once in a kernel.

    Args:
        values: float32 lanes, those of one program after those of the other.
        more: a block of fewer lanes, or None.
        room: from `open_row`.
        PROGRAMS: programs that share the row.
        WARPS: warps of each.
        SLOT: from `slot_index`.
    """
    if SLOT < 0:
        if more is not None:
            # Added up to as many sums as the shorter block has lanes, so that threads reduce, and meet, only once.
            short: tl.constexpr = more.shape[0]
            values = more + tl.sum(tl.reshape(values, (short, values.shape[0] // short)), axis=1)
        return tl.sum(values, axis=0)
    mine = warp_sums(values, PROGRAMS * WARPS)
    if more is not None:
        mine += warp_sums(more, PROGRAMS * WARPS)
    if PROGRAMS == 1:
        place = tl.arange(0, WARPS)
        tl.inline_asm_elementwise(LEAVE, "=r,f,r,r", [mine, room, place], dtype=tl.int32, is_pure=False, pack=1)
        return tl.inline_asm_elementwise(TAKE[SLOT], "=f,r", [room], dtype=tl.float32, is_pure=False, pack=1)
    tl.inline_asm_elementwise(LEAVE_CLUSTER[SLOT], "=r,f,r", [mine, room], dtype=tl.int32, is_pure=False, pack=1)
    return tl.inline_asm_elementwise(TAKE_CLUSTER[SLOT], "=f,r", [room], dtype=tl.float32, is_pure=False, pack=1)

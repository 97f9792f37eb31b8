"""The operators around the experts for gfx950: portable bodies, cut for waves of 64 lanes and 256 compute units."""

from __future__ import annotations

from functools import partial

from dspark_ops_triton.blocks import expert_gate, route_reduce, route_sort
from dspark_ops_triton.blocks.cutting import Cut, prepared
from dspark_ops_triton.blocks.launching import RowTiles

#: 384 experts are six waves of lanes. Two waves hold three each: what they exchange at the end is half of what four do,
#: and both fit one SIMD's registers with room for a second row.
GATE = RowTiles(warps=2)
#: 16 pairs to a program, each on 16 lanes of every wave: 24 rows of 6 are 16 programs, and a lane holds few of the
#: others that it compares them with.
SORT = Cut(items=16, warps=8)
#: One wave and 16 bytes a lane; 24 rows of 5120 are 240 programs on 256 units.
REDUCE = Cut(items=512, warps=1)

#: ``moe_gate_topk`` (A7, N2) as the contract has it: padded rows get `pad_id` and weights of 0 in the same launch.
moe_gate_topk = partial(expert_gate.moe_gate_topk, GATE)
prepare_moe_gate_topk = partial(prepared, moe_gate_topk, expert_gate.compile_moe_gate_topk)

#: ``moe_gate_topk_packed`` (N2) as the contract has it. Launches: 1.
moe_gate_topk_packed = partial(expert_gate.moe_gate_topk_packed, GATE)
prepare_moe_gate_topk_packed = partial(prepared, moe_gate_topk_packed, expert_gate.compile_moe_gate_topk)

#: ``moe_sort`` (A4) as the contract has it. Local ids are counted in the launch: no table, and no number on the host.
moe_sort = partial(route_sort.moe_sort, SORT)
prepare_moe_sort = partial(prepared, moe_sort, route_sort.compile_moe_sort)

#: ``moe_local_reduce`` (A5) as the contract has it: the shared row and the scale are arguments, nothing is zeroed.
moe_local_reduce = partial(route_reduce.moe_local_reduce, REDUCE)
prepare_moe_local_reduce = partial(prepared, moe_local_reduce, route_reduce.compile_moe_local_reduce)

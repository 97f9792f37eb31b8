"""The small operators at the ends of a step for gfx950: portable bodies, cut for waves of 64 lanes.

Each has at most a few hundred elements. What is particular here: one wave to a program, so that no program waits for a
second one, and one element to a lane, so that its loads are under way together.
"""

from __future__ import annotations

from functools import partial

from dspark_ops_triton.blocks import candidate_counts, padded_choices, rank_pairs, step_inputs, varctx_records
from dspark_ops_triton.blocks.cutting import Cut, prepared

#: 64 rows of 6 are 6 programs, one to each of as many of the eight dies.
FLAT = Cut(items=64, warps=1)
#: Slots of one program. All programs search the same least size of a slot, over all requests: what a program adds is
#: its records, and 32 of them leave it one wave and few registers. The source change measured 256 against 32 (A17a).
RECORDS = Cut(items=32, warps=1)

#: ``draft_inputs`` (A12) as the contract has it. Launches: 1; 32 bytes per row.
draft_inputs = partial(step_inputs.draft_inputs, FLAT)
prepare_draft_inputs = partial(prepared, draft_inputs, step_inputs.compile_draft_inputs)

#: ``verify_inputs`` (A12) as the contract has it. Launches: 1; 48 bytes per row.
verify_inputs = partial(step_inputs.verify_inputs, FLAT)
prepare_verify_inputs = partial(prepared, verify_inputs, step_inputs.compile_verify_inputs)

#: ``expand_uniform`` (A3) as the contract has it. Launches: 1; about 12 bytes per row.
expand_uniform = partial(step_inputs.expand_uniform, FLAT)
prepare_expand_uniform = partial(prepared, expand_uniform, step_inputs.compile_expand_uniform)

#: ``candidate_lengths`` (A15) as the contract has it. Launches: 1; 16 bytes per row, the zeroed page table among them.
candidate_lengths = partial(candidate_counts.candidate_lengths, FLAT)
prepare_candidate_lengths = partial(prepared, candidate_lengths, candidate_counts.compile_candidate_lengths)

#: ``fill_padded_topk`` (A6) as the contract has it. Launches: 1; 8 or 12 bytes per padded choice.
fill_padded_topk = partial(padded_choices.fill_padded_topk, FLAT)
prepare_fill_padded_topk = partial(prepared, fill_padded_topk, padded_choices.compile_fill_padded_topk)

#: ``argmax_vocab_parallel`` (A11) as the contract has it. Launches: 1; 16 bytes per row and rank.
argmax_vocab_parallel = partial(rank_pairs.argmax_vocab_parallel, FLAT)
prepare_argmax_vocab_parallel = partial(prepared, argmax_vocab_parallel, rank_pairs.compile_argmax_vocab_parallel)

#: ``varctx_schedule`` (A17a) as the contract has it. Launches: 1; 16 bytes per program.
varctx_schedule = partial(varctx_records.varctx_schedule, RECORDS)
prepare_varctx_schedule = partial(prepared, varctx_schedule, varctx_records.compile_varctx_schedule)

"""The kernels that make the inputs of a forward, against their contracts' cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case
from dspark_ops_triton.inputs import draft_inputs, expand_uniform, verify_inputs
from dspark_ops_triton.mla_schedule import mla_sched_meta


@pytest.mark.parametrize(
    "function", [draft_inputs, verify_inputs, expand_uniform], ids=lambda function: function.__name__
)
def test_a_kernel_passes_every_case_of_its_contract(function) -> None:
    assert check_numbers(contracts.get(function.__name__), function) == []


def test_sizes_that_do_not_fit_are_refused_before_anything_is_launched() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"wanted 3 \(1 or more\) columns in positions and cache_loc, got 2 and 3"):
        draft_inputs(ids[:, 0], ids[:, :2], ids, ids)
    with pytest.raises(ValueError, match=r"width of 1 to W, got .* and width 4"):
        verify_inputs(ids, ids, ids, 4)
    with pytest.raises(ValueError, match="got width 3, padded_rows 5 for 2 requests"):
        expand_uniform(ids[:, 0], ids[:, 0], 3, 5)


def test_more_rows_than_one_program_takes_are_copied() -> None:
    ids = torch.arange(257 * 6).view(257, 6)
    assert torch.equal(verify_inputs(ids, ids + 1, ids + 2, 5)[2], (ids + 2)[:, :5].flatten())
    lens, owners = expand_uniform(ids[:, 0] + 6, ids[:, 0].int(), 6, 1600)
    assert torch.equal(lens[: 257 * 6].view(257, 6), (ids[:, :1] + torch.arange(1, 7)).int())
    assert (lens[257 * 6 :] == 1).all()
    assert (owners[257 * 6 :] == 256 * 6).all()


def test_the_schedule_passes_the_cases_of_its_contract() -> None:
    contract = contracts.get("mla_sched_meta")

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            if index % 4 == 0 or case.name.startswith(("N4", "overhead")):
                yield case

    assert check_numbers(replace(contract, cases=cases), mla_sched_meta) == []


@pytest.mark.parametrize(("batch", "parts"), [(1, 132), (64, 132), (40, 7), (40, 40), (257, 152), (3, 1)])
def test_the_schedule_is_that_of_the_reference_for_lengths_of_any_mixture(batch: int, parts: int) -> None:
    generator = torch.Generator().manual_seed(batch)
    reference = contracts.get("mla_sched_meta").reference
    lengths = torch.randint(0, 3000, (batch,), generator=generator, dtype=torch.int32)
    lengths = torch.where(torch.rand(batch, generator=generator) < 0.3, lengths // 100, lengths)
    lengths[0] *= 40
    forms = ({"form": "dense"}, {"extra_topk": 512}, {"overhead": 1, "block_size": 16})
    for options in forms if batch <= 64 else forms[:1]:
        wanted = torch.full((parts, 8), -7, dtype=torch.int32), torch.full((batch + 1,), -7, dtype=torch.int32)
        got = wanted[0].clone(), wanted[1].clone()
        reference(lengths, *wanted, **options)
        mla_sched_meta(lengths, *got, **options)
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])


def test_a_schedule_that_the_contract_refuses_is_refused() -> None:
    lengths, meta = torch.ones(2, dtype=torch.int32), torch.zeros(4, 8, dtype=torch.int32)
    splits = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="got form 'dense', extra_topk 512, extra_lengths None"):
        mla_sched_meta(lengths, meta, splits, extra_topk=512, form="dense")
    with pytest.raises(ValueError, match="got form 'sparse', extra_topk 0, extra_lengths given"):
        mla_sched_meta(lengths, meta, splits, extra_lengths=lengths)
    with pytest.raises(ValueError, match=r"num_splits \[B \+ 1\], got \[2\], \[4, 8\], \[2\]"):
        mla_sched_meta(lengths, meta, lengths)

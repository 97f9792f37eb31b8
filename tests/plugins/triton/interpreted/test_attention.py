"""The kernels around sparse attention against the cases of their contracts that lie in their regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.binding.facts import facts_of
from dspark_ops.binding.targets import resolve
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.rope import rope_table
from dspark_ops_triton import rope_wo_a
from dspark_ops_triton.attention import TILES, SparseDecode, sparse_mla_decode
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.head_projection import HeadProjection
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.kernels_attention import KERNELS

OPERATORS = {kernel.op: kernel for kernel in KERNELS}
LAUNCHES = {
    "q_rope_store": ["turned_copy_kernel"],
    "rope_tail_copy": ["turned_copy_kernel"],
    "k_norm_rope_store": ["norm_rope_store_kernel"],
    "sparse_mla_decode": ["whole_part_kernel", "merge_kernel"],
    "rope_wo_a": ["head_slice_kernel"],
}


def _function(op: str):
    return resolve(OPERATORS[op].target, op, op)


def _inside(op: str, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    facts = facts_of(contracts.get(op), inputs)
    # The interpreter takes a second per case of the decode: one size of two is enough for it.
    small = op == "sparse_mla_decode" and len(inputs["q"]) == 1 and "lengths" not in inputs
    small |= op == "k_norm_rope_store" and inputs["layout"] != "kv_v4"  # test_kv_v41.py has those
    return None if small or any(constraint.check(facts) for constraint in OPERATORS[op].region) else inputs


def _cases(op: str, seed: int) -> Iterator[dict[str, Any]]:
    cases = contracts.get(op).cases("small", seed)
    return (dict(case.inputs) for case in cases if _inside(op, case.inputs))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


@pytest.mark.parametrize("op", OPERATORS)
def test_a_kernel_passes_every_case_in_its_region(op: str) -> None:
    assert check_numbers(contracts.get(op), _function(op), adapt=lambda inputs: _inside(op, inputs)) == []


@pytest.mark.parametrize("op", OPERATORS)
def test_a_call_is_the_launches_that_the_note_states_and_none_for_no_rows(op: str, launches: list[str]) -> None:
    contract, cases = contracts.get(op), list(_cases(op, seed=1))
    index, dimension = contract.rows_from
    name = contract.parameters[index].name
    empty = next(given for given in cases if given[name].shape[dimension] == 0)
    for inputs, wanted in ((cases[0], LAUNCHES[op]), (empty, [])):
        launches.clear()
        _function(op)(**inputs)
        assert launches == wanted
    assert OPERATORS[op].note.startswith(str(len(LAUNCHES[op])))


@pytest.mark.parametrize("op", OPERATORS)
def test_a_row_does_not_depend_on_the_others(op: str) -> None:
    contract = contracts.get(op)
    inputs = max(_cases(op, seed=2), key=lambda given: given[contract.parameters[contract.rows_from[0]].name].shape[0])
    per_row = {item.name for item in contract.arguments if item.shape[0] == contract.rows}
    row = slice(2, 3)
    alone = {name: value[row].clone() if name in per_row else value for name, value in inputs.items()}
    written = [item.name for item in contract.arguments if item.written]
    for name in written:
        inputs[name], alone[name] = inputs[name].clone(), alone[name].clone()
    before = {name: inputs[name].clone() for name in written}
    together, one = _function(op)(**inputs), _function(op)(**alone)
    for whole, part in zip(_tuple(together), _tuple(one), strict=True):
        assert torch.equal(whole[row], part)
    for name in written:
        if name in per_row:
            assert torch.equal(inputs[name][row], alone[name])
        else:  # what the row alone changes, it changes to the same bytes among others
            changed = alone[name] != before[name]
            assert changed.any()
            assert torch.equal(inputs[name][changed], alone[name][changed])


def _tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    return () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)


def test_a_nan_in_lanes_that_are_copied_keeps_its_bits() -> None:
    bits = torch.full((1, 1, 64), 0x7FE1, dtype=torch.int16)
    q, freqs, zero = bits.view(torch.bfloat16), torch.ones(1, 16), torch.zeros(1, dtype=torch.int64)
    for op in ("q_rope_store", "rope_tail_copy"):
        out = torch.zeros_like(q)
        _function(op)(q, out, freqs, zero)
        assert torch.equal(out[..., :48].view(torch.int16), bits[..., :48])


def test_heads_are_rotated_in_place() -> None:
    inputs = next(_cases("rope_tail_copy", seed=3))
    q = inputs["q"].clone()
    _function("rope_tail_copy")(**{**inputs, "q": q, "out": q})
    _function("rope_tail_copy")(**inputs)
    assert torch.equal(q, inputs["out"])


def test_scratch_memory_is_kept_and_grows() -> None:
    scratch, like = ScratchMemory(), torch.zeros(1)
    first = scratch.take(8, like)
    assert scratch.take(5, like).data_ptr() == first.data_ptr()
    larger = scratch.take(9, like)
    assert larger.numel() == 9
    assert scratch.take(8, like).data_ptr() == larger.data_ptr()
    assert ScratchMemory().take(8, like).data_ptr() != larger.data_ptr()


def test_what_earlier_calls_left_in_scratch_memory_does_not_matter() -> None:
    bound = SparseDecode(TILES)
    for given in list(_cases("sparse_mla_decode", seed=6))[-4:]:
        alone = sparse_mla_decode(**given)
        bound._scratch.take(2**20, given["q"]).fill_(torch.nan)
        assert all(torch.equal(kept, fresh) for kept, fresh in zip(bound(**given), alone, strict=True))


def test_many_parts_of_both_caches_are_merged() -> None:
    contract, generator = contracts.get("sparse_mla_decode"), torch.Generator().manual_seed(4)
    inputs = _cases("sparse_mla_decode", seed=4)
    both = next(given for given in inputs if given.get("sink") is not None and "extra_cache" in given)
    slots = both["cache"].shape[0] * both["page_size"]
    window = torch.randint(-1, slots, (1, 130), generator=generator).int()
    extra = torch.randint(-1, both["extra_cache"].shape[0] * both["page_size"], (1, 600), generator=generator).int()
    extra[:, 64:128] = -1  # a part without entries between others
    given = {**both, "q": both["q"][:1, :2].contiguous(), "sink": both["sink"][:2], "indices": window}
    given |= {"extra_indices": extra, "lengths": torch.tensor([129]).int(), "extra_lengths": torch.tensor([570]).int()}
    function = _function("sparse_mla_decode")
    out, lse = function(**given)
    wanted, wanted_lse = contract.reference(**given)
    assert (out.float() - wanted.float()).norm() <= 1e-2 * wanted.float().norm()
    assert (lse - wanted_lse).abs().max() <= 1e-4


@pytest.mark.parametrize("table", [rope_wo_a.SMALL_TILES, rope_wo_a.AMD_TILES], ids=["small", "amd"])
def test_the_projection_by_slabs_passes_every_case(table: tuple[Any, ...]) -> None:
    bound = HeadProjection(table, ArrivalState(0, torch.device("cpu")))
    assert check_numbers(contracts.get("rope_wo_a"), bound.plain) == []
    assert check_numbers(contracts.get("rope_wo_a_mxfp8"), bound.mxfp8, seed=1) == []


@pytest.mark.parametrize(
    ("heads", "head_dim", "rope"), [(3, 64, 64), (1, 512, 64), (5, 16, 16), (6, 128, 30), (24, 32, 6)]
)
def test_slices_of_the_projection_may_end_inside_a_head(heads: int, head_dim: int, rope: int) -> None:
    contract, generator = contracts.get("rope_wo_a"), torch.Generator().manual_seed(6)
    o = torch.randn(3, 2, heads * head_dim, generator=generator).bfloat16()
    weight = (0.05 * torch.randn(2, 24, heads * head_dim, generator=generator)).bfloat16()
    positions = torch.randint(0, 64, (3,), generator=generator)
    given = {"o": o, "weight": weight, "freqs": rope_table(rope, 64, 10000.0), "positions": positions}
    got = _function("rope_wo_a")(**given, head_dim=head_dim).float()
    wanted = contract.reference(**given, head_dim=head_dim).float()
    assert (got - wanted).norm() <= 3e-3 * wanted.norm()


def test_warps_and_slices_of_the_projection_are_the_same_for_every_number_of_tokens() -> None:
    assert len({(line.warps, line.slices) for line in rope_wo_a.TILES}) == 1


@pytest.mark.parametrize("tokens", [1, 18, 33, 65])
def test_the_projection_of_wide_heads_is_right_and_the_same_alone(tokens: int) -> None:
    contract, generator = contracts.get("rope_wo_a"), torch.Generator().manual_seed(5)
    o = torch.randn(tokens, 2, 512, generator=generator).bfloat16()
    weight = (0.05 * torch.randn(2, 20, 512, generator=generator)).bfloat16()
    positions = torch.randint(0, 64, (tokens,), generator=generator)
    given = {"o": o, "weight": weight, "freqs": rope_table(64, 64, 10000.0), "positions": positions, "head_dim": 256}
    got, wanted = _function("rope_wo_a")(**given), contract.reference(**given)
    assert (got.float() - wanted.float()).norm() <= 3e-3 * wanted.float().norm()
    alone = _function("rope_wo_a")(**{**given, "o": o[-1:], "positions": positions[-1:]})
    # The interpreter multiplies with numpy, whose sums over K depend on the sizes: equal bits are the GPU's to show.
    assert (alone.float() - got[-1:].float()).abs().max() <= 2.0**-7 * got[-1:].float().abs().max()


@pytest.mark.parametrize(
    ("op", "changes", "text"),
    [
        ("q_rope_store", {"out": torch.zeros(1, 1, 64).bfloat16()}, "wanted out of 1 rows and at least 2 heads, got"),
        ("rope_tail_copy", {"out": torch.zeros(1, 2, 64).bfloat16()}, "wanted out of shape"),
        ("k_norm_rope_store", {"layout": "kv_v5"}, "wanted layout kv_v4 or one of kv_v41, "),
        ("k_norm_rope_store", {"layout": "kv_v41"}, "wanted a contiguous cache .* for kv_v41 pages of 4 slots, got"),
        ("k_norm_rope_store", {"page_size": 3}, "wanted a page size that is a power of two, got 3"),
        ("k_norm_rope_store", {"page_size": 8}, "wanted a contiguous cache .* for kv_v4 pages of 8 slots, got"),
        ("sparse_mla_decode", {"page_size": 8}, "wanted a contiguous cache .* for kv_v4 pages of 8 slots, got"),
        ("sparse_mla_decode", {"extra_cache": None}, "extra_cache and extra_indices together, got one of them"),
        ("rope_wo_a", {"head_dim": 48}, "wanted whole heads of a power of two of lanes"),
        ("sparse_mla_decode", {"layout": "kv_v41"}, "wanted a contiguous cache .* for kv_v41 pages of"),
        ("sparse_mla_decode", {"extra_layout": "kv_v41_fp4"}, "got kv_v4 and kv_v41_fp4, and queries"),
    ],
)
def test_what_would_touch_foreign_memory_is_refused(op: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _function(op)(**{**next(_cases(op, seed=5)), **changes})

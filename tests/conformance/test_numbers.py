"""The check that every kernel must pass: it finds each planted lie, and no fault in the references."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.compare import compare
from dspark_ops.conformance.guarded import GuardedTensor
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.exactness import absolute, bitwise, bitwise_given, law, mismatch, relative, ulp
from dspark_ops.errors import ContractError

ARGMAX = contracts.get("argmax_rows")
CONFIDENCE = contracts.get("confidence_survival")


@pytest.mark.parametrize("name", contracts.names())
def test_every_reference_passes_its_own_cases(name: str) -> None:
    contract = contracts.get(name)
    assert [str(failure) for failure in check_numbers(contract, contract.reference)] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, contract in contracts.all_contracts().items() if contract.small])
def test_the_references_that_may_serve_on_an_accelerator_are_right_there(name: str) -> None:
    contract = contracts.get(name)
    assert [str(failure) for failure in check_numbers(contract, contract.reference, device="cuda")] == []


def test_the_wrong_tie_is_found_with_the_case_the_element_and_the_seed() -> None:
    def last_of_equals(x: torch.Tensor) -> torch.Tensor:
        return x.shape[1] - 1 - ARGMAX.reference(x.flip(1))

    failures = check_numbers(ARGMAX, last_of_equals, seed=3)
    texts = [str(failure) for failure in failures]
    wrong = "wanted 0 (0x0000000000000000), got 7 (0x0000000000000007)"
    assert f"argmax_rows, case 'all equal 1x8', seed 3: output output: 1 of 1 wrong by bitwise; [0]: {wrong}" in texts
    assert not any("random" in failure.case for failure in failures)


def test_a_kernel_that_ignores_nan_is_found_against_the_known_values_too() -> None:
    failures = check_numbers(ARGMAX, lambda x: ARGMAX.reference(torch.nan_to_num(x, nan=-torch.inf)))
    assert any("against the known values" in failure.what for failure in failures)
    assert {failure.case for failure in failures} == {
        "NaN, infinities, ties and signed zeros",
        "the same in bfloat16",
        "the same at the head of a wide row",
        "a NaN in the last column only",
    }


def test_a_changed_input_is_found_even_where_the_result_is_right() -> None:
    def scribbles(x: torch.Tensor) -> torch.Tensor:
        result = ARGMAX.reference(x)
        if x.numel():
            x[0, 0] += 1
        return result

    failures = check_numbers(ARGMAX, scribbles)
    assert any("argument x is not written by contract, but 1 of its elements changed" in str(one) for one in failures)


def test_a_store_past_the_end_of_an_argument_is_found() -> None:
    def runs_over(x: torch.Tensor) -> torch.Tensor:
        result = ARGMAX.reference(x)
        torch.as_strided(x, (1,), (1,), x.storage_offset() + max(x.shape[0] - 1, 0) * x.stride(0) + x.shape[1]).fill_(0)
        return result

    assert len(check_numbers(ARGMAX, runs_over)) >= sum(1 for _ in ARGMAX.cases("small", 0))


def test_a_wrong_dtype_a_wrong_shape_and_a_wrong_count_of_values_are_found() -> None:
    def texts(function: object) -> str:
        return " | ".join(str(failure) for failure in check_numbers(ARGMAX, function))

    assert "dtype: wanted torch.int64, got torch.int32" in texts(lambda x: ARGMAX.reference(x).int())
    assert "shape: wanted [1], got [1, 1]" in texts(lambda x: ARGMAX.reference(x).unsqueeze(1))
    assert "returned 2 values: wanted 1 (output)" in texts(lambda x: (x, x))
    assert "type: wanted a tensor, got NoneType" in texts(lambda x: None)


def test_a_kernel_that_raises_is_one_failure_per_case() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of registers")

    failures = check_numbers(ARGMAX, refuses)
    assert len(failures) == sum(1 for _ in ARGMAX.cases("small", 0))
    assert failures[0].what == "raised RuntimeError: out of registers"


def test_an_output_that_follows_from_another_is_held_to_the_rule_not_to_the_reference() -> None:
    def one_ulp_low(*arguments: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        confidence, _ = CONFIDENCE.reference(*arguments)
        confidence = torch.nextafter(confidence, torch.zeros(()))
        return confidence, CONFIDENCE.rules["survival"]({}, {"confidence": confidence})

    def survival_of_another(*arguments: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        confidence, survival = CONFIDENCE.reference(*arguments)
        return torch.nextafter(confidence, torch.zeros(())), survival

    assert check_numbers(CONFIDENCE, one_ulp_low) == []
    assert any("output survival" in str(failure) for failure in check_numbers(CONFIDENCE, survival_of_another))


def test_leaving_out_cases_is_possible_but_not_all_of_them() -> None:
    def only_wide(inputs: dict) -> dict | None:
        return inputs if inputs["x"].shape[1] >= 4096 else None

    seen = []
    assert check_numbers(ARGMAX, lambda x: seen.append(x.shape[1]) or ARGMAX.reference(x), adapt=only_wide) == []
    assert min(seen) >= 4096
    (failure,) = check_numbers(ARGMAX, ARGMAX.reference, adapt=lambda inputs: None)
    assert "no case was run" in failure.what


def test_bitwise_tells_the_zeros_apart_and_takes_any_nan_for_any_other() -> None:
    zeros = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    text = "1 of 2 wrong by bitwise; [0]: wanted 0 (0x00000000), got -0 (0x80000000)"
    assert str(compare(zeros[1], zeros[0], bitwise())) == text
    other_nan = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    assert compare(other_nan, torch.tensor([float("nan"), 1.0]), bitwise()) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_ulp_counts_neighbours_across_zero(dtype: torch.dtype) -> None:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    sign = -(2 ** (8 * dtype.itemsize - 1)) if dtype.itemsize > 1 else 128
    smallest = torch.tensor([1, 2, sign + 1], dtype=integer).view(dtype)
    shifted = torch.tensor([2, 1, 1], dtype=integer).view(dtype)
    assert compare(shifted, smallest, ulp(2)) is None
    found = compare(shifted, smallest, ulp(1))
    assert found is not None and (found.index, found.wrong) == ((2,), 1)


def test_absolute_gives_the_first_element_outside_and_relative_the_worst() -> None:
    wanted = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    got = wanted + torch.tensor([[0.0, 0.01], [0.0, 0.1]])
    assert compare(got, wanted, absolute(0.11)) is None
    first = compare(got, wanted, absolute(0.001))
    assert first is not None and first.index == (0, 1) and "largest 0.1" in first.bound
    assert compare(got, wanted, relative(0.02)) is None
    worst = compare(got, wanted, relative(0.01))
    assert worst is not None and worst.index == (1, 1) and "got 0.0183" in worst.bound


@pytest.mark.parametrize("exactness", [bitwise(), ulp(5), absolute(1e9), relative(1e9)])
def test_a_nan_or_an_infinity_in_the_wrong_place_is_never_close(exactness: object) -> None:
    nan, inf = float("nan"), float("inf")
    wanted = torch.tensor([nan, inf, 1.0])
    assert compare(wanted.clone(), wanted, exactness) is None
    for wrong in ([0.0, inf, 1.0], [nan, -inf, 1.0], [nan, inf, nan], [nan, 3e38, 1.0]):
        assert compare(torch.tensor(wrong), wanted, exactness) is not None, wrong


def test_mismatch_is_a_share_of_the_elements_that_the_reference_changes() -> None:
    before, wanted = torch.zeros(1000, dtype=torch.uint8), torch.zeros(1000, dtype=torch.uint8)
    wanted[:100] = 7
    one_off, two_off = wanted.clone(), wanted.clone()
    one_off[3], two_off[:2] = 8, 8
    assert compare(one_off, wanted, mismatch(0.01), before) is None
    found = compare(two_off, wanted, mismatch(0.01), before)
    assert found is not None and found.wrong == 2 and "got 2 for 100 changed elements" in found.bound
    assert compare(two_off, wanted, mismatch(0.01)) is None
    assert compare(one_off, before, mismatch(0.01), before) is not None


def test_law_compares_shape_and_dtype_only_and_given_cannot_be_compared_alone() -> None:
    assert compare(torch.ones(3), torch.zeros(3), law()) is None
    assert compare(torch.ones(2), torch.zeros(3), law()) is not None
    with pytest.raises(ContractError, match="bitwise given y"):
        compare(torch.ones(3), torch.ones(3), bitwise_given("y"))


def test_a_guarded_copy_keeps_values_strides_and_gaps_and_sees_a_store_in_a_gap() -> None:
    source = torch.arange(24.0).view(4, 6)[:, 1:4]
    guarded = GuardedTensor.copy_of(source, "cpu")
    assert torch.equal(guarded.view, source) and guarded.view.stride() == source.stride()
    guarded.view[2, 1] = -1
    assert (guarded.changed(everywhere=False), guarded.changed(everywhere=True)) == (0, 1)
    torch.as_strided(guarded.view, (1,), (1,), guarded.view.storage_offset() + 3).fill_(0)
    assert guarded.changed(everywhere=False) == 1


@pytest.mark.parametrize(("missing", "wrong"), [(0, False), (1, True)])
def test_what_a_contract_leaves_free_may_stay_unwritten_and_nothing_else(missing: int, wrong: bool) -> None:
    contract = contracts.get("moe_sort")

    def sort(*arguments: Any) -> tuple[Any, ...]:
        ids, *others = contract.reference(*arguments)
        count = max(int(others[2][0]) - missing, 0)
        left = torch.empty_like(ids)
        left[:count] = ids[:count]
        return left, *others

    failures = [str(failure) for failure in check_numbers(contract, sort)]
    assert bool(failures) == wrong
    assert all("output sorted_ids: 1 of " in text and "never written" in text for text in failures)

"""What is looked at before an arm is timed: kernels on their own calls, sampled tokens by their law, host waits."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.bench.gates import LAW_LEVEL, KernelCheck, all_bitwise, same_law
from dspark_ops.bench.waits import HostWaits
from dspark_ops.binding.observed import Place

FAST = Place("argmax_rows", "fast/argmax_rows/x", "fused", False)


def argmax(logits: Any, *options: Any) -> Any:
    return contracts.get("argmax_rows").reference(logits, *options)


def test_kernels_are_held_against_the_reference_on_each_new_size_of_call() -> None:
    check = KernelCheck()
    held = check.around(FAST, argmax)
    for rows in (3, 3, 5):
        held(torch.randn(rows, 7))
    assert check.text() == "passed: 2 calls of 1 kernels give what the references give"


def test_a_kernel_that_is_wrong_at_one_size_is_named_with_what_it_gave() -> None:
    check = KernelCheck()
    held = check.around(FAST, lambda logits, *options: argmax(logits) + (logits.shape[0] > 4))
    given = torch.zeros(3, 7)
    assert held(given).tolist() == [0, 0, 0] and check.text().startswith("passed")
    assert held(torch.zeros(5, 7)).tolist() == [1] * 5
    assert check.text().startswith("failed: fast/argmax_rows/x: output: 5 of 5 wrong by bitwise")


def test_what_a_kernel_writes_is_compared_with_what_was_there_before() -> None:
    contract = contracts.get("k_norm_rope_store")
    case = next(case for case in contract.cases("small", 0))
    check = KernelCheck()
    right = check.around(Place("k_norm_rope_store", "fast/k_norm_rope_store/x", "fused", False), contract.reference)
    right(**{name: value.clone() if torch.is_tensor(value) else value for name, value in case.inputs.items()})
    assert check.text().startswith("passed: 1 calls")
    lazy = check.around(Place("k_norm_rope_store", "lazy/k_norm_rope_store/x", "fused", False), lambda **_: None)
    lazy(**{name: value.clone() if torch.is_tensor(value) else value for name, value in case.inputs.items()})
    assert "failed: lazy/k_norm_rope_store/x" in check.text()


def test_references_are_the_standard_and_are_not_compared_with_themselves() -> None:
    check = KernelCheck()
    assert check.around(Place("argmax_rows", "core/argmax_rows/reference", "reference", False), argmax) is argmax
    assert check.text() == "passed: core's references served every call"


def test_only_contracts_without_tolerance_promise_equal_accept_lengths() -> None:
    assert all_bitwise(contracts.get("argmax_rows"))
    assert not all_bitwise(contracts.get("sparse_mla_decode"))


def sample(seed: int, weights: tuple[float, ...], count: int = 300) -> list[tuple[int, ...]]:
    random = Random(seed)
    return [(0, *random.choices(range(len(weights)), weights, k=2)) for _ in range(count)]


def test_two_samples_of_one_law_pass_and_of_two_laws_do_not() -> None:
    law, other = (0.5, 0.3, 0.15, 0.04, 0.01), (0.3, 0.5, 0.15, 0.04, 0.01)
    p, positions = same_law(sample(1, law), sample(2, law))
    assert positions == 2 and p * positions > LAW_LEVEL
    p, positions = same_law(sample(1, law), sample(2, other))
    assert p * positions < LAW_LEVEL
    # a token that is always the same leaves nothing to test
    assert same_law([(0, 1)] * 9, [(0, 1)] * 9) == (1.0, 0)


class _Runtime:
    """Stands in for torch.cuda, which a machine without a GPU does not have."""

    def __init__(self) -> None:
        self.modes: list[Any] = []

        class Event:
            def synchronize(self) -> None:
                """Wait."""

        self.Event = Event

    def synchronize(self) -> None:
        """Wait."""

    def get_sync_debug_mode(self) -> int:
        return 0

    def set_sync_debug_mode(self, mode: Any) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=1)
        self.modes.append(mode)


def test_waits_of_the_host_are_counted_and_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _Runtime()
    monkeypatch.setattr(torch, "cuda", runtime)
    event, whole = runtime.Event.synchronize, runtime.synchronize
    with pytest.warns(UserWarning, match="something else"), HostWaits() as waits:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
        runtime.Event().synchronize()
        torch.cuda.synchronize()
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert waits.count == 5
    assert runtime.modes == ["warn", 0] and runtime.Event.synchronize is event
    assert runtime.synchronize == whole

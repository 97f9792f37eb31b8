"""Graphs, host syncs and allocations on a real GPU: kernels that break their promise are found, honest ones pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.api import Evidence, Traits, any_gpu

pytestmark = pytest.mark.gpu

PROMISED = Traits(graph_safe=True)


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def traits(planted: Any, function: Any) -> list[str]:
    planted.kernel("argmax_rows", function, arch=any_gpu(), traits=PROMISED)
    assert planted.texts("numbers", device="cuda") == []
    return planted.texts("traits", device="cuda")


def test_one_launch_that_allocates_its_output_alone_keeps_its_promise(planted: Any) -> None:
    def argmax(x):
        return torch.argmax(x, -1)

    assert traits(planted, argmax) == []
    (record,) = planted.check(device="cuda").kernels
    assert record.level == Evidence.CONFORMANT.value
    assert record.arch == f"sm_{''.join(map(str, torch.cuda.get_device_capability()))}"


def test_a_temporary_tensor_is_an_allocation_too_many(planted: Any) -> None:
    def doubles(x):
        return torch.argmax(x * 2, -1)

    texts = traits(planted, doubles)
    assert any("graph_safe: 2 allocations for 1 returned tensors" in text for text in texts)


def test_a_value_read_on_the_host_is_found(planted: Any) -> None:
    def looks(x):
        largest = float(x.max()) if x.numel() else 0.0
        return torch.argmax(x if largest < 1 else x.float(), -1)

    assert any("cannot be captured" in text and "synchron" in text for text in traits(planted, looks))


def test_an_output_computed_once_is_stale_on_replay(planted: Any) -> None:
    kept: dict[Any, Any] = {}

    def remembers(x):
        # Right for every new buffer, and never computed again for the same one: what a cache keyed by address does.
        key = (x.data_ptr(), x.shape, x.dtype, torch.cuda.is_current_stream_capturing())
        if not key[-1]:
            kept[key[:3]] = torch.argmax(x, -1)
            return kept[key[:3]]
        return kept[key[:3]].add_(0)  # a graph must hold something

    assert any("replay 1 differs from a call" in text for text in traits(planted, remembers))


def test_an_unwritten_output_is_found_on_the_device(planted: Any) -> None:
    reference = contracts.get("argmax_rows").reference

    def leaves_the_last_row(x):
        out = torch.empty(len(x), dtype=torch.int64, device=x.device)
        out[:-1] = reference(x)[:-1]
        return out

    planted.kernel("argmax_rows", leaves_the_last_row, arch=any_gpu())
    texts = planted.texts("numbers", device="cuda")
    assert texts and all("never written" in text for text in texts)

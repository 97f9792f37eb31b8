"""The compressors against their contracts' cases, one launch each, and what a block of drafts leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts.compress import pool_pair
from dspark_ops_triton import compress
from dspark_ops_triton.blocks import pairs
from dspark_ops_triton.compress import compress_c1, compress_c2


def _c1(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return inputs if inputs["layout"] == "kv_v4" else None


def _c2(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Leave out other layouts and, since a row takes a while, one of two batch sizes of special and of long cases."""
    requests = 0 if inputs["requests"].numel() == 0 else int(inputs["requests"].max()) + 1
    scores = inputs["kv_score"][:, 512:]
    special = inputs["out_loc"].dtype == torch.int32 or bool((inputs["out_loc"] == 0).any() | (scores.abs() > 50).any())
    long = requests and inputs["requests"].numel() // requests == 11
    left_out = (special or long) and requests != (1 if long else 2)
    return None if inputs["layout"] != "kv_v4" or left_out else inputs


def _cases(op: str, seed: int, **options: Any) -> Iterator[dict[str, Any]]:
    wanted = {"layout": "kv_v4", **options}
    for case in contracts.get(op).cases("small", seed):
        if case.inputs["layout"] != "kv_v4":
            return  # the first layout comes first
        if all(case.inputs[name] == value for name, value in wanted.items()):
            yield dict(case.inputs)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    run = InterpretedFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(self.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(InterpretedFunction, "run", count)
    return seen


def test_ratio_1_passes_every_case_in_its_region() -> None:
    assert check_numbers(contracts.get("compress_c1"), compress_c1, adapt=_c1) == []


def test_ratio_2_passes_every_form_in_its_region() -> None:
    assert check_numbers(contracts.get("compress_c2"), compress_c2, adapt=_c2) == []


def test_a_call_is_one_launch_but_two_to_extend_and_none_for_no_rows(launches: list[str]) -> None:
    compress_c1(**next(_cases("compress_c1", 1)))
    assert launches == ["compress_c1_kernel"]
    for form in ("decode", "verify", "extend"):
        launches.clear()
        none = next(_cases("compress_c2", 1, form=form))
        compress_c2(**none)
        assert launches == ["compress_c2_kernel", "keep_last_kernel"][: 1 + (form == "extend")]
    launches.clear()
    rows = ("kv_score", "positions", "requests", "out_loc")
    assert compress_c2(**{**none, **{name: none[name][:0] for name in rows}}).shape == (0, 512)
    first = next(_cases("compress_c1", 1))
    assert compress_c1(**{**first, **{name: first[name][:0] for name in ("kv", "positions", "out_loc")}}).shape[0] == 0
    assert launches == []


def test_a_row_of_ratio_1_does_not_depend_on_the_others() -> None:
    inputs = max(_cases("compress_c1", 2), key=lambda given: len(given["kv"]))
    alone = {**inputs, "cache": inputs["cache"].clone()}
    alone |= {name: inputs[name][3:4] for name in ("kv", "positions", "out_loc")}
    before = inputs["cache"].clone()
    assert torch.equal(compress_c1(**inputs)[3:4], compress_c1(**alone))
    changed = alone["cache"] != before
    assert torch.equal(alone["cache"][changed], inputs["cache"][changed])


def test_verifying_a_block_leaves_what_decoding_it_row_by_row_leaves() -> None:
    block = next(_cases("compress_c2", 3, form="verify"))
    steps = {**block, "state": block["state"].clone(), "cache": block["cache"].clone(), "form": "decode"}
    together = compress_c2(**block)
    rows = ("kv_score", "positions", "requests", "out_loc")
    alone = [compress_c2(**{**steps, **{name: block[name][i : i + 1] for name in rows}}) for i in range(len(together))]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(block["state"], steps["state"])
    assert torch.equal(block["cache"], steps["cache"])


def test_the_last_rows_of_a_request_are_found_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "SEARCHED", 8)
    inputs = max(_cases("compress_c2", 4, form="extend"), key=lambda given: len(given["positions"]))
    wanted = {name: inputs[name].clone() for name in ("state", "cache")}
    contracts.get("compress_c2").reference(**{**inputs, **wanted})
    compress_c2(**inputs)
    assert len(inputs["positions"]) > 8
    assert torch.equal(inputs["state"], wanted["state"])


@triton.jit
def _pool_kernel(old, new, out):
    lanes = tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out + lanes, pairs.pool_pair(old, new))


def test_pairs_are_pooled_by_the_softmax_of_their_scores() -> None:
    generator = torch.Generator().manual_seed(5)
    old, new = torch.randn(1, 1024, generator=generator), torch.randn(1, 1024, generator=generator)
    old[:, 512:520], new[:, 512:520] = torch.arange(8) * 40.0, 100.0
    new[:, 520:530] = old[:, 520:530]
    out = torch.empty(512)
    _pool_kernel[(1,)](old, new, out)
    wanted = pool_pair(old, new)[0]
    assert (out.double() - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"form": "prefill"}, "wanted form decode, verify, extend"),
        ({"form": "verify", "draft_len": 2}, "wanted form .* 1 rows, draft_len 2"),
        ({"form": "verify", "draft_len": 1, "ring_size": 1}, "draft_len 1, ring_size 1"),
        ({"layout": "kv_v41"}, "wanted layout kv_v4"),
        ({"page_size": 16}, "wanted a contiguous cache"),
    ],
)
def test_what_would_touch_foreign_memory_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        compress_c2(**{**next(_cases("compress_c2", 6)), **changes})

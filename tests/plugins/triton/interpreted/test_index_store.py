"""The store of index keys against its contract's cases, in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops_triton.index_store import index_k_store

CONTRACT = contracts.get("index_k_store")


def _fewer(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Leave out most cases of many keys, which take the interpreter a second each and show what fewer keys show."""
    return None if len(inputs["k"]) > 6 and inputs.get("ratio", 1) == 1 else inputs


def _inputs(rows: int, layout: str) -> dict[str, Any]:
    cases = CONTRACT.cases("small", 1)
    return next(dict(c.inputs) for c in cases if len(c.inputs["k"]) == rows and c.inputs["layout"] == layout)


def test_every_form_of_the_store_passes() -> None:
    assert check_numbers(CONTRACT, index_k_store, adapt=_fewer) == []


@pytest.mark.parametrize("layout", ["index_k_page68", "index_k_split"])
def test_a_call_is_one_launch_and_none_for_no_keys(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = InterpretedFunction.run
    monkeypatch.setattr(
        InterpretedFunction, "run", lambda self, *a, **o: (seen.append(self.__name__), run(self, *a, **o))
    )
    inputs = _inputs(6, layout)
    index_k_store(**inputs)
    assert seen == ["index_store_kernel"]
    index_k_store(**{**inputs, **{name: inputs[name][:0] for name in ("k", "positions", "out_loc")}})
    assert seen == ["index_store_kernel"]


@pytest.mark.parametrize("layout", ["index_k_page68", "index_k_split"])
def test_a_key_does_not_depend_on_the_others(layout: str) -> None:
    inputs = _inputs(6, layout)
    alone = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    alone |= {name: inputs[name][2:3] for name in ("k", "positions", "out_loc")}
    before = inputs["cache"].clone()
    index_k_store(**inputs)
    index_k_store(**alone)
    changed = alone["cache"] != before
    assert changed.any()
    assert torch.equal(alone["cache"][changed], inputs["cache"][changed])


@pytest.mark.parametrize(
    ("layout", "changes", "text"),
    [
        ("index_k_page68", {"ratio": 4}, "wanted 128 lanes, 64 rotated ones and ratio 1 or 2, got 128, 64 and ratio 4"),
        ("index_k_page68", {"layout": "index_k_split"}, "got index_k_split with pages of 8, cache .* scale_cache None"),
        ("index_k_page68", {"page_size": 16}, "got index_k_page68 with pages of 16"),
        ("index_k_split", {"scale_cache": torch.zeros(1, 256, dtype=torch.uint8)}, "scale_cache \\[1, 256\\]"),
        ("index_k_split", {"page_size": 32}, "got index_k_split with pages of 32"),
    ],
)
def test_what_would_touch_foreign_memory_is_refused(layout: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        index_k_store(**{**_inputs(6, layout), **changes})

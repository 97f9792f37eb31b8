"""What a kernel launches, read from its source."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops.conformance.launched import launched_functions

HOST = """
import triton
from other_package import helper
from ours.blocks import second, shared
from ours import blocks

@triton.jit
def first(x):
    shared(x)

@triton.jit(do_not_specialize=["x"])
def never(x):
    pass

TABLE = {"fast": first}

def run(x):
    return _launch(TABLE["fast"], x)

def prepare(device, problem, rows):
    return _launch

def _launch(function, x):
    function[(1,)](x)
    blocks.third[(1,)](x)
    second[(1,)](x)
    helper(x)
"""
BLOCKS = """
import triton

@triton.jit
def second(x):
    pass

@triton.jit
def third(x):
    pass

@triton.jit
def shared(x):
    pass
"""


def test_functions_that_host_code_names_are_found_over_imports_and_tables(site: Any) -> None:
    site.module("ours.host", HOST)
    site.module("ours.blocks", BLOCKS)
    found = launched_functions("ours.host:run", "ours.host:prepare")
    assert found == {("ours.host", "first"), ("ours.blocks", "second"), ("ours.blocks", "third")}
    assert launched_functions("ours.host:run", packages=("theirs",)) == found, "nothing of theirs is named"
    assert launched_functions("ours.host:prepare") == {("ours.blocks", "second"), ("ours.blocks", "third")}


@pytest.mark.parametrize(
    ("target", "functions"),
    [
        ("dspark_ops_triton.argmax:prepare_argmax_rows", 1),
        ("dspark_ops_triton.attention:prepare_sparse_mla_decode", 3),
        ("dspark_ops_triton.moe_pack:prepare_pack_topk_ids", 1),
    ],
)
def test_all_functions_that_the_shipped_kernels_may_launch_are_found(target: str, functions: int) -> None:
    pytest.importorskip("triton")
    assert len(launched_functions(target)) == functions

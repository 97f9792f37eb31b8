"""Parts of fused operators are planned, and prepared, at the sizes that they have in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.api import axis
from dspark_ops.contracts import Contract
from dspark_ops.selection.problem import Problem, part_problem

MODULE = "fake_kernels"
SHAPES = contracts.model_shapes("deepseek-v4.1-flash/tp4")


def problem_of(whole: Contract, name: str, site: str) -> Problem:
    """Return what a part is asked at a site of its whole."""
    part = contracts.get(name)
    mine = next(item for item in whole.sites(SHAPES) if item.name == site)
    own = next(item for item in part.sites(SHAPES) if item.name == site)
    return part_problem(whole, part, own, Problem.at(whole, mine))


@pytest.mark.parametrize(
    ("whole", "part", "columns"),
    [
        ("rope_wo_a_mxfp8", "mxfp8_quantize", 2048),
        ("mhc_combine_norm_mxfp8", "mxfp8_quantize", 5120),
        ("mhc_post_combine_norm_fp8_grid", "fp8_grid_round", 5120),
        ("silu_mul_clamp_fp8_grid", "fp8_grid_round", 576),
        ("silu_mul_clamp_mxfp8", "fp8_grid_quantize", 576),
    ],
)
def test_a_quantiser_has_the_columns_of_what_it_quantises(whole: str, part: str, columns: int) -> None:
    for site in ("verify", "draft"):
        assert problem_of(contracts.get(whole), part, site).axes == {"K": columns}


def test_parts_without_sizes_of_their_own_keep_those_of_their_site() -> None:
    whole, part = contracts.get("rope_wo_a_mxfp8"), contracts.get("rope_wo_a")
    assert problem_of(whole, "rope_wo_a", "verify") == Problem.at(part, part.sites(SHAPES)[0])


def test_a_size_of_an_axis_that_the_whole_does_not_fix_is_refused_by_name() -> None:
    whole = contracts.get("silu_mul_clamp_fp8_grid")
    assert whole.decomposition is not None
    wrong = replace(whole, decomposition=replace(whole.decomposition, axes={"fp8_grid_round": {"K": "J"}}))
    with pytest.raises(ValueError, match="part fp8_grid_round has a size of J, but site verify fixes no axis J"):
        problem_of(wrong, "fp8_grid_round", "verify")


def test_one_kernel_serves_a_part_and_is_refused_where_the_part_is_wider(fakes: Any) -> None:
    names = ("rope_wo_a_mxfp8", "mhc_combine_norm_mxfp8")
    known = {name: contracts.get(name) for whole in names for name in (whole, *_parts(whole))}
    narrow = fakes.kernel("mxfp8_quantize", region=[axis("K").between(32, 4096)])
    plan = fakes.plan(narrow, device=fakes.cpu, operators=names, contracts=known, rows=(1, 6))
    served = {}
    for selection in plan.selections:
        (choice,) = selection.choices
        for part in choice.parts:
            if part.operator == "mxfp8_quantize":
                served[selection.operator] = part.choices[0].kernel.id
    assert served == {"rope_wo_a_mxfp8": narrow.id, "mhc_combine_norm_mxfp8": "core/mxfp8_quantize/reference"}


def test_a_kernel_is_prepared_for_each_size_that_it_serves_at_one_site(fakes: Any) -> None:
    names = ("rope_wo_a_mxfp8", "mhc_combine_norm_mxfp8")
    known = {name: contracts.get(name) for whole in names for name in (whole, *_parts(whole))}
    prepared: list[tuple[str, int, tuple[int, ...]]] = []

    def prepare(device: Any, problem: Problem, rows: tuple[int, ...]) -> None:
        prepared.append((problem.site, problem.axes["K"], rows))

    fakes.function("one", lambda x, layout="sf_128x4": None)
    fakes.function("prepare", prepare)
    kernel = fakes.kernel("mxfp8_quantize", prepare=f"{MODULE}:prepare")
    plan = fakes.plan(kernel, device=fakes.cpu, operators=names, contracts=known, rows=(1, 6))
    fakes.bind(plan, known)
    assert sorted(prepared) == [(site, columns, (1, 6)) for site in ("draft", "verify") for columns in (2048, 5120)]


def _parts(whole: str) -> Iterator[str]:
    decomposition = contracts.get(whole).decomposition
    yield from decomposition.parts if decomposition else ()

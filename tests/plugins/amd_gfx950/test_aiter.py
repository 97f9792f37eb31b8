"""AITER behind the contracts: what is relied on, what is refused, and what the adapters pass on."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.api import Evidence, RankClass, Reason, ReasonCode
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.selection.device import Device
from dspark_ops.selection.discovery import discover
from dspark_ops.selection.packages import PackageCache, inspect_package
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.settings import Settings
from dspark_ops_amd_gfx950 import aiter_calls, aiter_facts
from dspark_ops_amd_gfx950.kernels_aiter import AITER, KERNELS

STAND_IN = """
def {name}({parameters}):
    return calls(locals())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder from which packages are imported first, and forget what was imported from it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "aiter":
            del sys.modules[name]


def write_package(folder: Path, distribution: str, body: str = "") -> None:
    """Write a package named aiter that a distribution provides."""
    (folder / "aiter").mkdir()
    (folder / "aiter" / "__init__.py").write_text(body, encoding="utf-8")
    info = folder / f"{distribution.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n", encoding="utf-8")
    (info / "RECORD").write_text("aiter/__init__.py,,\n", encoding="utf-8")
    (info / "top_level.txt").write_text("aiter\n", encoding="utf-8")


def reason_of(probe: bool) -> Reason:
    """Return why AITER will not do."""
    reason = inspect_package(AITER, cache=PackageCache(), probe_attributes=probe).reason
    assert reason is not None
    return reason


def test_adapters_have_the_class_of_the_vendor_s_kernels_and_no_evidence() -> None:
    assert {(kernel.rank, kernel.evidence_on("gfx950")) for kernel in KERNELS} == {(RankClass.FUSED, Evidence.DECLARED)}


def test_where_aiter_is_installed_kernels_whose_numbers_were_checked_still_come_first() -> None:
    plan = make_plan(
        device=Device.simulate("gfx950"), shapes=contracts.model_shapes("deepseek-v4.1-flash/tp4"), rows=(24, 256),
        settings=Settings(), registry=discover(Settings()), contracts=contracts.all_contracts(),
        operators=("mhc_post", "moe_sort"), packages=lambda package: None,
    )  # fmt: skip
    served = {(item.operator, choice.rows): choice for item in plan.selections for choice in item.choices}
    assert served["mhc_post", "24,256"].kernel.id == "amd_gfx950/mhc_post/column_waves"
    assert served["mhc_post", "24,256"].standby[0].id == "amd_gfx950/mhc_post/aiter"
    assert served["moe_sort", "24"].kernel.id == "amd_gfx950/moe_sort/small_batch"
    # a fused kernel of the vendor's comes before a portable one, whoever has run it
    assert served["moe_sort", "256"].kernel.id == "amd_gfx950/moe_sort/aiter"
    assert "amd_gfx950/mhc_post/aiter" in plan.explain("mhc_post")
    assert "stand-by, EVIDENCE: declared against interpreted" in plan.explain("mhc_post")


def test_the_unrelated_distribution_of_that_name_is_recognised_and_named(folder: Path) -> None:
    write_package(folder, "aiter")
    reason = reason_of(probe=False)
    assert (reason.code, reason.wanted) == (ReasonCode.PKG_WRONG, "amd-aiter")
    assert "another distribution, aiter" in reason.got


@pytest.mark.parametrize("error", ["RuntimeError('rocminfo is not there')", "KeyError('gfx0')"])
def test_an_import_that_raises_off_rocm_is_a_reason(folder: Path, error: str) -> None:
    write_package(folder, "amd-aiter", f"raise {error}\n")
    reason = reason_of(probe=True)
    assert reason.code is ReasonCode.UNAVAILABLE
    assert error.split("(")[0] in reason.got


def test_a_wheel_without_the_function_is_refused_by_what_it_lacks(folder: Path) -> None:
    write_package(folder, "amd-aiter", "class ops: pass\nclass jit: pass\n")
    (gate,) = [kernel.packages[-1] for kernel in KERNELS if kernel.op == "moe_gate_topk"]
    reason = inspect_package(gate, cache=PackageCache(), probe_attributes=True).reason
    assert reason is not None
    assert (reason.code, "without topk_gating" in reason.got) == (ReasonCode.PKG_WRONG, True)


def test_nothing_of_aiter_is_imported_by_the_manifest_or_by_the_adapters() -> None:
    assert not [name for name in sys.modules if name.split(".")[0] == "aiter"]
    for kernel in KERNELS:
        names = list(inspect.signature(getattr(aiter_calls, kernel.op)).parameters)
        assert names == [parameter.name for parameter in contracts.get(kernel.op).parameters]


def test_an_adapter_is_prepared_with_the_error_that_the_import_raised(folder: Path) -> None:
    write_package(folder, "amd-aiter", "raise RuntimeError('rocminfo is not there')\n")
    with pytest.raises(RuntimeError, match=r"aiter\.mhc_post: wanted AITER with it, got RuntimeError: rocminfo"):
        aiter_calls.prepare_mhc_post(Device.simulate("MI355X"), None, (6,))


def test_a_function_with_other_parameters_is_refused_with_both_lists(folder: Path) -> None:
    write_package(folder, "amd-aiter", "def mhc_post(out, residual, x): pass\n")
    with pytest.raises(RuntimeError, match=r"wanted it to begin with out, x, residual.*got out, residual, x"):
        aiter_facts.load(aiter_facts.MHC_POST)


@pytest.mark.parametrize("function", aiter_facts.FUNCTIONS, ids=lambda function: function.name)
def test_the_installed_aiter_has_the_parameters_that_are_relied_on(function: aiter_facts.Function) -> None:
    """Reads the source, since importing it needs a ROCm device."""
    definition = installed_definition(function)
    if definition is None:
        pytest.skip(f"no installed amd-aiter has {function.module}.{function.name}")
    arguments = definition.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    signature = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])
    lacking = aiter_facts.OLDER.get(metadata.version("amd-aiter"), {}).get(function.name)
    wanted = f"wanted parameters {', '.join(lacking)} too, got {', '.join(names)}" if lacking else ""
    assert aiter_facts.difference(function, signature) == wanted


def installed_definition(function: aiter_facts.Function) -> ast.FunctionDef | None:
    """Return the definition of a function in an installed AITER, wherever in the package it stands."""
    found = importlib.util.find_spec("aiter")
    if found is None or not found.submodule_search_locations:
        return None
    for file in sorted(Path(next(iter(found.submodule_search_locations))).rglob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if f"def {function.name}(" in text:
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and node.name == function.name:
                    return node
    return None


def answering(function: aiter_facts.Function, answer: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a function with the recorded parameters that answers by name."""
    named = (f"{name}=None" for name in function.named)
    text = STAND_IN.format(name=function.name, parameters=", ".join((*function.positional, *named)))
    names: dict[str, Any] = {"calls": answer}
    exec(text, names)
    return names[function.name]


def checked(op: str, function: Callable[..., Any], adapt: Any = None) -> list[Any]:
    """Return what an adapter over a stand-in gets wrong on the cases of its contract."""
    body = getattr(aiter_calls, f"_{op}")
    return check_numbers(contracts.get(op), lambda *inputs: body(function, *inputs), adapt=adapt)


def test_the_sort_passes_every_argument_to_its_place() -> None:
    def sort(given: dict[str, Any]) -> tuple[Any, ...]:
        return contracts.get("moe_sort").reference(
            given["topk_ids"], given["topk_weights"], given["num_experts"], given["model_dim"], given["block_size"],
            str(given["moebuf_dtype"]).removeprefix("torch."), given["accumulate"], given["expert_mask"],
            given["num_local_tokens"],
        )  # fmt: skip

    def distinct(inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if inputs.get("dedupe") else inputs

    assert checked("moe_sort", answering(aiter_facts.MOE_SORTING, sort), distinct) == []
    with pytest.raises(ValueError, match="wanted dedupe False"):
        aiter_calls._moe_sort(lambda: (), torch.zeros(1, 1), torch.zeros(1, 1), 1, 8, dedupe=True)


def test_the_update_of_the_stream_gets_weights_of_one_more_dimension() -> None:
    def update(given: dict[str, Any]) -> None:
        assert given["post_layer_mix"].shape == (*given["residual"].shape[:2], 1)
        post = given["post_layer_mix"].squeeze(-1)
        made = contracts.get("mhc_post").reference(given["x"], given["residual"], post, given["comb_res_mix"])
        given["out"].copy_(made)

    assert checked("mhc_post", answering(aiter_facts.MHC_POST, update)) == []


def test_the_schedule_gives_two_of_three_results() -> None:
    def schedule(given: dict[str, Any]) -> tuple[Any, ...]:
        given = {name: given[name] for name in aiter_facts.VARCTX_SCHEDULE.positional}
        return (*contracts.get("varctx_schedule").reference(*given.values()), given["parallel_unit_num"])

    assert checked("varctx_schedule", answering(aiter_facts.VARCTX_SCHEDULE, schedule)) == []


def test_the_logits_get_a_page_table_with_columns_to_look_ahead() -> None:
    def logits(given: dict[str, Any]) -> torch.Tensor:
        width = given["block_tables"].shape[1]
        assert (width % 4, given["kv_block_size"]) == (0, 64)
        assert int(given["block_tables"][:, -4:].abs().sum()) == 0
        assert (given["cta_info"] is None) == (given["total_ctas"] is None)
        names = ("q_fp4", "q_scale", "kv_cache", "kv_scale", "block_tables", "weights", "context_lens", "max_seq_len")
        return contracts.get("paged_mqa_logits_fp4").reference(*(given[name] for name in names), given["weight_scale"])

    assert checked("paged_mqa_logits_fp4", answering(aiter_facts.PAGED_LOGITS, logits)) == []


def test_the_gate_keeps_to_the_numerics_that_it_has() -> None:
    def gate(given: dict[str, Any]) -> None:
        assert (given["need_renorm"], given["score_func"]) == (True, "sqrtsoftplus")
        weights, ids = contracts.get("moe_gate_topk").reference(
            given["gating_output"], given["correction_bias"], given["topk_weights"].shape[1],
            given["routed_scaling_factor"], numerics="aiter",
        )  # fmt: skip
        given["topk_weights"].copy_(weights)
        given["topk_indices"].copy_(ids)

    function = answering(aiter_facts.TOPK_GATING, gate)
    logits, bias = torch.randn(3, 384), torch.randn(384)
    made = aiter_calls._moe_gate_topk(function, logits, bias, 6, numerics="aiter")
    wanted = contracts.get("moe_gate_topk").reference(logits, bias, 6, numerics="aiter")
    assert torch.equal(made[0], wanted[0])
    assert torch.equal(made[1], wanted[1])
    with pytest.raises(ValueError, match=r"wanted numerics aiter, .* got numerics 'log1p'"):
        aiter_calls._moe_gate_topk(function, logits, bias, 6)

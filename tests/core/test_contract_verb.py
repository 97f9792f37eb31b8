"""``dspark-ops contract``: an operator's facts on one screen and as JSON, without torch and without a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.cli import _show, main
from dspark_ops.contracts import model_shapes
from dspark_ops.selection.operator_facts import operator_facts
from dspark_ops.selection.operator_tables import index, tables
from dspark_ops.selection.registry import Registry

KERNELS = (
    "name='p7', api='>=1,<2', kernels=(Kernel('argmax_rows', 'fast', 'p7_kernels:argmax', arch=family('sm_10x'),"
    " rank=RankClass.FUSED, traits=Traits(graph_safe=True, nan='first')),)"
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: Any) -> Run:
    """The verb in an empty folder, with one made-up plugin allowed, on a screen of 100 columns."""
    site.plugin("p7", KERNELS, before="from dspark_ops.api import Traits")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7")
    monkeypatch.setattr(_show, "LOG_WIDTH", 100)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["contract", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def block(out: str, title: str) -> list[list[str]]:
    """The words of each line below a title, up to the next empty line; the first line has the columns."""
    _, _, rest = out.partition(f"\n{title}")
    return [line.split() for line in rest.split("\n\n")[0].splitlines()[1:]]


def test_without_a_name_every_operator_is_listed_with_what_it_gives_and_what_it_is_made_of(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    first = [line.split(" ")[0] for line in out.splitlines()]
    assert [name for name in first if name in contracts.names()] == sorted(contracts.names())
    flat = " ".join(out.split())
    assert "argmax_rows Greedy token id of each row argmax: verify 1" in flat
    data = json.loads(run("--json")[1])["operators"]
    assert [entry["name"] for entry in data] == list(contracts.names())
    (tail,) = [entry for entry in data if entry["name"] == "accept_tail"]
    assert [part["operator"] for part in tail["parts"]] == ["argmax_rows", "accept_greedy", "accept_finalize"]
    assert tail["parts"][0]["rows"] == "B*W"


def test_an_operator_is_shown_with_its_sizes_in_the_model_its_rules_and_its_kernels(run: Run) -> None:
    code, out, err = run("argmax_rows")
    assert (code, err) == (0, "")
    assert out.startswith("argmax_rows  Greedy token id of each row of logits.\n")
    assert "rule from     N1\n" in out
    assert "rows axis     R = x.shape[0]\n" in out
    assert " ".join(block(out, "arguments")[1]) == "x float32, bfloat16, float16 [R, V] [R, 129280] unit_last logits"
    assert " ".join(block(out, "outputs")[1]) == "output int64 [R] [R] bitwise column index per row"
    assert " ".join(block(out, "rules")[1]) == "nan first first, ignored which id a row with a NaN gives"
    assert block(out, "places")[1] == ["verify", "V=129280", "x", "unit_last"]
    promised = " ".join(block(out, "kernels")[1])
    assert promised == "p7 fast fused sm_10x graph_safe, deterministic, nan=first"
    assert "options" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_sizes_that_differ_from_place_to_place_are_all_shown(run: Run) -> None:
    sparse = json.loads(run("sparse_mla_decode", "--json")[1])["operators"][0]
    (indices,) = [entry for entry in sparse["arguments"] if entry["name"] == "indices"]
    assert indices["sizes"] == {"verify": "[T, 128]", "draft": "[T, 133]"}
    flat = " ".join(run("moe_sort")[1].split())
    assert "topk_ids int32 [M, K] [M, 6] (verify), [M," in flat
    assert "experts int required experts of all ranks" in flat
    assert "dtype of the buffer" in flat


def test_a_size_that_an_option_states_is_filled_in_and_a_quotient_is_taken() -> None:
    shapes = model_shapes("deepseek-v4.1-flash/tp4")

    def sizes(name: str) -> dict[str, dict[str, str]]:
        facts = operator_facts(contracts.get(name), shapes, Registry({}))
        return {item.name: dict(item.sizes) for item in (*facts.arguments, *facts.outputs)}

    assert sizes("topk_rows") and "[R, 512]" in {text for each in sizes("topk_rows").values() for text in each.values()}
    assert sizes("main_projection")["scales"]["draft"] == "[160, 480]"
    assert sizes("rope_wo_a_mxfp8")["y"]["verify"] == "[T, 2048]"
    assert sizes("accept_tail")["logits"]["verify"] == "[B*6, 129280]"


def test_what_is_written_optional_or_none_is_said(run: Run) -> None:
    data = json.loads(run("k_norm_rope_store", "--json")[1])["operators"][0]
    (cache,) = [entry for entry in data["arguments"] if entry["name"] == "cache"]
    assert cache["written"] and "kv_v41" in cache["layouts"]
    (after,) = [entry for entry in data["outputs"] if entry["name"] == "cache"]
    assert after["in_place"]
    keep = json.loads(run("candidate_blocks", "--json")[1])["operators"][0]["outputs"][1]
    assert keep["none"] == "with published"


def test_an_operator_for_which_no_plugin_has_a_kernel_says_who_serves_it(run: Run) -> None:
    code, out, _ = run("accept_greedy")
    assert code == 0
    assert "\nnone: core serves it, by its torch reference\n" in out
    assert "\nnone: core serves it, by its parts\n" in run("accept_tail")[1]


def test_a_plugin_that_does_not_load_is_named_and_takes_nothing_away(
    run: Run, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.plugin("p8", "name='p8', api='>=9,<10'")
    monkeypatch.setenv("DSPARK_OPS_PLUGINS", "p7,p8")
    code, out, _ = run("argmax_rows")
    assert code == 0
    assert "p7" in out
    assert "p8 (api)" in out and "dspark-ops plugins  says why" in out
    failures = json.loads(run("argmax_rows", "--json")[1])["failures"]
    assert any(failure.startswith("plugin p8 (") for failure in failures)


def test_a_misspelt_name_and_an_unknown_model_are_misuse_with_a_suggestion(run: Run) -> None:
    assert run("argmx_rows") == (2, "", "dspark-ops: unknown operator 'argmx_rows'; did you mean 'argmax_rows'?\n")
    code, out, err = run("argmax_rows", "--model", "deepseek-v4.1-flsh")
    assert (code, out) == (2, "")
    assert "did you mean 'deepseek-v4.1-flash'?" in err


@pytest.mark.parametrize("name", contracts.names())
def test_every_contract_says_what_each_of_its_parameters_and_outputs_is(name: str) -> None:
    facts = operator_facts(contracts.get(name), model_shapes("deepseek-v4.1-flash/tp4"), Registry({}))
    assert facts.summary.endswith(".") and facts.source and facts.places and facts.outputs
    assert [item.name for item in (*facts.arguments, *facts.options, *facts.outputs) if not item.doc] == []
    assert facts.family == contracts.family_of(name)
    places = [place.name for place in facts.places]
    assert len(set(places)) == len(places)


def test_a_model_may_be_a_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2] / "examples")
    (facts,) = json.loads(run("argmax_rows", "--model", "tiny_v41", "--json")[1])["operators"]
    assert facts["model"] == "tiny_v41"
    assert facts["arguments"][0]["sizes"] == {"verify": f"[R, {facts['places'][0]['axes']['V']}]"}
    assert facts["places"][0]["axes"]["V"] < 129280


def test_an_operator_that_a_model_does_not_call_has_no_place_and_no_sizes() -> None:
    uncalled = replace(contracts.get("argmax_rows"), sites=lambda shapes: ())
    facts = operator_facts(uncalled, model_shapes("deepseek-v4.1-flash/tp4"), Registry({}))
    (places,) = [table for table in tables(facts) if table.title == "places in the model"]
    assert (places.rows, places.none) == ((), "none: this model does not call it")
    assert index([facts]).rows[0][2] == "argmax: none"
    assert "in the model" not in next(tables(facts)).columns

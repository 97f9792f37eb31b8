"""Co-selection: operators that share a layout agree on one, and who would have liked another is told the partner."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_ops import contracts
from dspark_ops.api import RankClass, layout, option
from dspark_ops.config import load_settings
from dspark_ops.contracts.shared_layouts import SHARED_LAYOUTS
from dspark_ops.errors import SelectionError
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.plan import Plan

STORES = ("k_norm_rope_store", "compress_c1", "compress_c2")
KV = (*STORES, "sparse_mla_decode")


def kernels(fakes: Any, *claims: tuple[str, str, RankClass]) -> list[Any]:
    """Kernels ``plug/<operator>/<layout>`` that take one layout each."""
    return [
        fakes.kernel(
            op=operator, variant=token, rank=rank, region=[layout("cache", token), option("layout").is_(token)]
        )
        for operator, token, rank in claims
    ]


def planned(fakes: Any, entries: list[Any], tokens: dict[str, list[str]], **fields: Any) -> Plan:
    settings = load_settings({"layouts": tokens, **fields.pop("config", {})}, environ={})
    operators = fields.pop("operators", KV)
    plan: Plan = fakes.plan(
        *entries, settings=settings, operators=operators, contracts=contracts.all_contracts(), rows=[1, 6], **fields
    )
    return plan


def served(plan: Plan) -> dict[str, str]:
    return {selection.operator: selection.choices[0].kernel.id for selection in plan.selections}


FUSED, PORTABLE = RankClass.FUSED, RankClass.PORTABLE
NEW = "kv_v41_new"


def test_without_a_choice_the_sites_of_the_model_say_the_layout(fakes: Any) -> None:
    plan = planned(fakes, kernels(fakes, *((name, "kv_v4", FUSED) for name in KV)), {})
    assert plan.layouts == {}
    assert set(served(plan).values()) == {f"plug/{name}/kv_v4" for name in KV}


def test_the_layout_that_serves_all_best_is_chosen_and_a_better_single_is_refused_with_its_partner(fakes: Any) -> None:
    entries = kernels(
        fakes,
        ("sparse_mla_decode", NEW, FUSED),
        *((name, "kv_v41", PORTABLE) for name in KV),
    )
    plan = planned(fakes, entries, {"kv_page": [NEW, "kv_v41"]})
    assert plan.layouts == {"kv_page": "kv_v41"}
    assert served(plan) == {name: f"plug/{name}/kv_v41" for name in KV}
    attention = plan.of("sparse_mla_decode")[0]
    assert attention.problem.layouts == {"cache": "kv_v41", "extra_cache": "kv_v41"}
    assert attention.problem.options["layout"] == "kv_v41"
    (refusal,) = attention.choices[0].refused
    (reason,) = refusal.reasons
    assert (refusal.candidate.id, refusal.better) == (f"plug/sparse_mla_decode/{NEW}", True)
    assert str(reason) == (
        "COSELECT kv_page: wanted kv_v41_new, got kv_v41, in which plug/k_norm_rope_store/kv_v41 serves "
        "k_norm_rope_store; in kv_v41_new it would be core/k_norm_rope_store/reference (argument); "
        'set layouts.kv_page = ["kv_v41_new"]'
    )
    text = plan.explain("sparse_mla_decode")
    assert "COSELECT         kv_page: wanted kv_v41_new, got kv_v41, in which plug/k_norm_rope_store/kv_v41" in text
    assert "layouts.kv_page = kv_v41_new, kv_v41  (argument); the plan chose kv_v41" in text


def test_naming_one_layout_fixes_it(fakes: Any) -> None:
    entries = kernels(fakes, ("sparse_mla_decode", NEW, FUSED), *((name, "kv_v41", PORTABLE) for name in KV))
    plan = planned(fakes, entries, {"kv_page": [NEW]})
    assert plan.layouts == {"kv_page": NEW}
    assert served(plan)["sparse_mla_decode"] == f"plug/sparse_mla_decode/{NEW}"
    assert "COSELECT" not in plan.to_json()


def test_of_equal_layouts_the_one_named_first_is_taken(fakes: Any) -> None:
    entries = kernels(fakes, *((name, token, FUSED) for name in KV for token in (NEW, "kv_v41")))
    assert planned(fakes, entries, {"kv_page": ["kv_v41", NEW]}).layouts == {"kv_page": "kv_v41"}
    assert planned(fakes, entries, {"kv_page": [NEW, "kv_v41"]}).layouts == {"kv_page": NEW}


def test_a_locked_layout_is_kept_while_it_can_serve(fakes: Any) -> None:
    entries = kernels(fakes, *((name, token, FUSED) for name in KV for token in (NEW, "kv_v41")))
    locked = Knowledge(layouts={"kv_page": NEW})
    assert planned(fakes, entries, {"kv_page": ["kv_v41", NEW]}, knowledge=locked).layouts == {"kv_page": NEW}


def test_a_pin_decides_the_layout_for_all(fakes: Any) -> None:
    entries = kernels(fakes, ("sparse_mla_decode", NEW, PORTABLE), *((name, "kv_v41", FUSED) for name in KV))
    pin = {"ops": {"sparse_mla_decode": {"pin": f"plug/sparse_mla_decode/{NEW}"}}}
    plan = planned(fakes, entries, {"kv_page": ["kv_v41", NEW]}, config=pin)
    assert plan.layouts == {"kv_page": NEW}
    assert served(plan)["compress_c1"] == "core/compress_c1/reference"
    (refusal,) = plan.of("compress_c1")[0].choices[0].refused
    assert refusal.reasons[0].code.value == "COSELECT"
    assert "sparse_mla_decode" in refusal.reasons[0].got


def test_the_index_store_writes_what_the_better_served_reader_reads(fakes: Any) -> None:
    operators = ("index_k_store", "index_scores", "paged_mqa_logits_fp4")
    entries = [
        *kernels(fakes, ("index_k_store", "index_k_page68", FUSED), ("index_k_store", "index_k_split", FUSED)),
        fakes.kernel(op="paged_mqa_logits_fp4", variant="split", rank=FUSED, region=[layout("kv", "index_k_split")]),
    ]
    plan = planned(fakes, entries, {"index_k_page": ["index_k_page68", "index_k_split"]}, operators=operators)
    assert plan.layouts == {"index_k_page": "index_k_split"}
    assert served(plan) == {
        "index_k_store": "plug/index_k_store/index_k_split",
        "index_scores": "core/index_scores/reference",
        "paged_mqa_logits_fp4": "plug/paged_mqa_logits_fp4/split",
    }


def test_scales_stay_in_the_only_layout_that_every_producer_knows(fakes: Any) -> None:
    plan = planned(fakes, [], {"mxfp8_scales": ["sf_linear", "sf_128x4"]}, operators=("mxfp8_quantize",))
    assert plan.layouts == {"mxfp8_scales": "sf_128x4"}
    assert plan.of("mxfp8_quantize")[0].problem.options["layout"] == "sf_128x4"


def test_where_no_layout_serves_all_the_error_lists_the_reasons(fakes: Any) -> None:
    entries = kernels(fakes, ("sparse_mla_decode", NEW, FUSED), *((name, "kv_v41", FUSED) for name in STORES))
    strict = {"policy": {"fallback": "fail", "require_class": "portable"}}
    with pytest.raises(SelectionError, match="no kernel may serve it"):
        planned(fakes, entries, {"kv_page": ["kv_v41", NEW]}, config=strict)


def test_the_digest_holds_the_chosen_layouts(fakes: Any) -> None:
    entries = kernels(fakes, *((name, token, FUSED) for name in KV for token in (NEW, "kv_v41")))
    one, two = (planned(fakes, entries, {"kv_page": [token]}) for token in (NEW, "kv_v41"))
    assert one.digest != two.digest
    assert Plan.from_json(one.to_json()) == one


@pytest.mark.parametrize("name", SHARED_LAYOUTS)
def test_every_sharer_is_an_operator_with_those_arguments_and_options(name: str) -> None:
    group = SHARED_LAYOUTS[name]
    for sharer in group.sharers:
        contract = contracts.get(sharer.operator)
        written = {argument.name for argument in contract.arguments if argument.written}
        assert set(sharer.arguments) <= {argument.name for argument in contract.arguments}
        assert not sharer.option or sharer.option in {item.name for item in contract.options}
        assert sharer.writes or not written & set(sharer.arguments), "a reader does not write the layout"
        assert any(sharer.admits(contract, token) for token in group.tokens)

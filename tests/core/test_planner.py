"""Planning: one kernel per operator, site and bucket; fallback by policy; errors that carry everything."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

import dspark_ops
from dspark_ops import contracts
from dspark_ops.api import Package, RankClass, axis, dtype, elements, family
from dspark_ops.contracts import model_shapes
from dspark_ops.errors import ConfigError, SelectionError, SelectionWarning, UnknownOperatorError
from dspark_ops.selection.planner import make_plan
from dspark_ops.selection.registry import Registry
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings


def served(plan: Any, operator: str = "pick", site: str = "verify") -> dict[str, str]:
    """Kernel id by bucket."""
    selection = next(item for item in plan.of(operator) if item.site == site)
    return {choice.rows: choice.kernel.id for choice in selection.choices}


def test_row_counts_with_one_outcome_share_a_bucket(fakes: Any) -> None:
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(64)])
    plan = fakes.plan(few, fakes.kernel(variant="many"), rows=range(1, 4097))
    assert served(plan) == {"1-64": "plug/pick/few", "65-4096": "plug/pick/many"}


def test_a_bucket_need_not_be_one_run_of_row_counts(fakes: Any) -> None:
    eights = fakes.kernel(variant="eights", region=[axis("R").multiple_of(8)])
    assert served(fakes.plan(eights, rows=range(1, 33))) == {
        "1-7,9-15,17-23,25-31": "core/pick/reference",
        "8-32/8": "plug/pick/eights",
    }


def test_each_bucket_equals_the_plan_made_for_its_row_counts_alone(fakes: Any) -> None:
    kernels = [
        fakes.kernel(variant="a", rank=RankClass.FUSED, region=[axis("R").between(3, 9)]),
        fakes.kernel(variant="b", region=[axis("R").multiple_of(2), elements("R*V", 4096 * 12)]),
        fakes.kernel(variant="c", region=[axis("R").one_of(1, 11, 12)]),
    ]
    whole = fakes.plan(*kernels, rows=range(1, 16)).of("pick")[0].by_rows
    for count in range(1, 16):
        alone = fakes.plan(*kernels, rows=[count]).of("pick")[0].by_rows[count]
        assert whole[count].kernel == alone.kernel
        assert whole[count].standby == alone.standby
        assert [item.candidate for item in whole[count].refused] == [item.candidate for item in alone.refused]


def test_sites_are_planned_apart(fakes: Any) -> None:
    wide = fakes.kernel(variant="wide", region=[axis("V").at_least(4096), dtype("x", "float32")])
    plan = fakes.plan(wide)
    assert served(plan, site="verify") == {"1-64": "plug/pick/wide"}
    assert served(plan, site="draft") == {"1-64": "core/pick/reference"}


def test_an_operator_without_a_site_in_the_model_is_left_out(fakes: Any) -> None:
    absent = replace(fakes.contracts["tidy"], sites=lambda shapes: ())
    plan = fakes.plan(operators=None, contracts={"pick": fakes.contracts["pick"], "tidy": absent})
    assert plan.operators == ("pick",)


def test_a_real_accelerator_refuses_the_reference_of_an_operator_that_is_not_small(fakes: Any) -> None:
    with pytest.raises(SelectionError) as caught:
        fakes.plan(fakes.kernel(arch=family("gfx95x")), device=fakes.real(fakes.h200), failures=(fakes.failure,))
    text = str(caught.value)
    assert "pick at verify, rows 1-64: no kernel may serve it" in text
    assert "pick at draft, rows 1-64: no kernel may serve it" in text
    assert "DEVICE_VENDOR    vendor: wanted amd (gfx95x), got nvidia (sm_90)  (nvml)" in text
    assert "CLASS            class: wanted portable or better, got reference" in text
    assert "plugin broken (dspark-broken 0.3, broken.plugin) not loaded at import: OSError: libfoo.so.2" in text


def test_a_small_operator_keeps_its_reference_on_a_real_accelerator(fakes: Any) -> None:
    plan = fakes.plan(device=fakes.real(fakes.h200), operators=("tidy",))
    assert served(plan, "tidy") == {"1-64": "core/tidy/reference"}
    assert not plan.of("tidy")[0].choices[0].below


def test_the_class_required_for_one_operator_binds_a_small_one_too(fakes: Any) -> None:
    strict = fakes.settings(tidy=OperatorSettings(require_class=RankClass.PORTABLE))
    with pytest.raises(SelectionError, match=r"ops\.tidy\.require_class"):
        fakes.plan(device=fakes.real(fakes.h200), operators=("tidy",), settings=strict)


@pytest.mark.parametrize(("device", "below"), [("cpu", False), ("b300", True)])
def test_the_cpu_and_simulated_devices_allow_the_reference(fakes: Any, device: str, below: bool) -> None:
    choice = fakes.plan(device=getattr(fakes, device)).of("pick")[0].choices[0]
    assert (choice.kernel.id, choice.below) == ("core/pick/reference", below)


def test_warn_lets_a_weaker_class_serve_and_says_so() -> None:
    settings = Settings(Policy(fallback="warn"))
    device = dspark_ops.Device.simulate("sm_103")
    with pytest.warns(SelectionWarning, match="argmax_rows at verify, rows 1-8: served by core/argmax_rows/reference"):
        dspark_ops.plan(
            device=device, rows=range(1, 9), config=settings, registry=Registry({}), operators=["argmax_rows"]
        )


def test_a_pin_is_chosen_over_a_better_kernel_and_past_the_general_requirement(fakes: Any) -> None:
    pinned = fakes.settings(pick=OperatorSettings(pin="core/pick/reference"))
    plan = fakes.plan(fakes.kernel(rank=RankClass.FUSED), device=fakes.real(fakes.b300), settings=pinned)
    choice = plan.of("pick")[0].choices[0]
    assert (choice.kernel.id, choice.below) == ("core/pick/reference", True)


def test_a_pinned_kernel_that_may_not_serve_is_an_error_with_its_reasons_and_origin(fakes: Any) -> None:
    origins = {"ops.pick.pin": "dspark-ops.toml:7"}
    pinned = fakes.settings(origins=origins, pick=OperatorSettings(pin="plug/pick/one"))
    with pytest.raises(SelectionError) as caught:
        fakes.plan(fakes.kernel(region=[axis("V").at_least(4096)]), settings=pinned)
    text = str(caught.value)
    assert (
        "pick at draft, rows 1-64: the pinned kernel plug/pick/one may not serve it (ops.pick.pin, dspark-ops.toml:7)"
        in text
    )
    assert "SHAPE            V: wanted V >= 4096, got 64" in text
    assert text.splitlines()[-1] == "  may serve: core/pick/reference"
    assert "pick at verify" not in text


def test_an_unknown_pin_is_an_error_that_suggests_and_lists_the_candidates(fakes: Any) -> None:
    pinned = fakes.settings(origins={"ops.pick.pin": "argument"}, pick=OperatorSettings(pin="plug/pick/won"))
    with pytest.raises(SelectionError) as caught:
        fakes.plan(fakes.kernel(), settings=pinned, failures=(fakes.failure,))
    assert str(caught.value).splitlines() == [
        "ops.pick.pin (argument): no kernel is named 'plug/pick/won'; did you mean 'plug/pick/one'?",
        "  pick has: core/pick/reference, plug/pick/one",
        "plugin broken (dspark-broken 0.3, broken.plugin) not loaded at import: OSError: libfoo.so.2",
    ]


def test_settings_of_an_unknown_operator_are_an_error_with_their_origin(fakes: Any) -> None:
    wrong = fakes.settings(origins={"ops.pikc.deny": "dspark-ops.toml:2"}, pikc=OperatorSettings(deny=("*",)))
    with pytest.raises(ConfigError, match=r"dspark-ops\.toml:2: no operator is named 'pikc'; did you mean 'pick'\?"):
        fakes.plan(settings=wrong)


def test_denying_everything_leaves_nothing_even_where_fallback_is_allowed(fakes: Any) -> None:
    denied = fakes.settings(tidy=OperatorSettings(deny=("*",)))
    with pytest.raises(SelectionError, match="DENIED"):
        fakes.plan(device=fakes.cpu, operators=("tidy",), settings=denied)


def test_each_package_is_looked_at_once_per_plan(fakes: Any) -> None:
    asked: list[Package] = []
    package = Package("flashinfer", "flashinfer-python")
    kernels = [fakes.kernel(variant=name, packages=(package,)) for name in ("a", "b")]
    fakes.plan(*kernels, packages=asked.append)
    assert asked == [package]


def test_a_kernel_that_may_never_serve_splits_no_bucket_and_says_at_which_rows_what_failed(fakes: Any) -> None:
    never = fakes.kernel(variant="never", arch=family("gfx95x"), region=[axis("R").at_most(16), axis("R").at_least(8)])
    (choice,) = fakes.plan(never).of("pick")[0].choices
    assert choice.rows == "1-64"
    assert [(reason.wanted, reason.got) for reason in choice.refused[0].reasons] == [
        ("amd (gfx95x)", "nvidia (sm_103)"),
        ("R <= 16", "17-64"),
        ("R >= 8", "1-7"),
    ]


# A fused operator and its parts.


def test_a_fused_operator_without_a_kernel_is_planned_part_by_part(fakes: Any) -> None:
    few = fakes.kernel(region=[axis("R").at_most(60)])
    plan = fakes.plan(few, rows=range(1, 13), operators=("pick_and_tidy",))
    choices = plan.of("pick_and_tidy")[0].choices
    # Ten requests of six rows are the sixty rows that the part's kernel takes.
    assert [choice.rows for choice in choices] == ["1-10", "11-12"]
    assert all(choice.kernel.id == "core/pick_and_tidy/composed" for choice in choices)
    parts = [[(part.operator, part.choices[0].rows, part.choices[0].kernel.id) for part in c.parts] for c in choices]
    assert parts == [
        [("pick", "6-60/6", "plug/pick/one"), ("tidy", "1-10", "core/tidy/reference")],
        [("pick", "66,72", "core/pick/reference"), ("tidy", "11-12", "core/tidy/reference")],
    ]


def test_a_fused_kernel_goes_before_the_decomposition(fakes: Any) -> None:
    fused = fakes.kernel("pick_and_tidy", rank=RankClass.FUSED, region=[axis("B").at_most(8)])
    plan = fakes.plan(fused, rows=range(1, 11), operators=("pick_and_tidy",))
    assert served(plan, "pick_and_tidy") == {"1-8": "plug/pick_and_tidy/one", "9-10": "core/pick_and_tidy/composed"}


def test_a_decomposition_is_refused_where_a_part_has_no_kernel(fakes: Any) -> None:
    few = fakes.kernel(region=[axis("R").at_most(60)])
    with pytest.raises(SelectionError) as caught:
        fakes.plan(few, device=fakes.real(fakes.b300), rows=range(1, 13), operators=("pick_and_tidy",))
    text = str(caught.value)
    assert "pick_and_tidy at verify, rows 11-12: no kernel may serve it" in text
    assert "PART             pick: wanted a kernel that may serve it, got none" in text
    assert "plug/pick/one: SHAPE R: wanted R <= 60, got 66,72" in text


def test_parts_that_satisfy_their_requirement_satisfy_the_fused_operator_s(fakes: Any) -> None:
    plan = fakes.plan(fakes.kernel(), device=fakes.real(fakes.b300), operators=("pick_and_tidy",))
    choice = plan.of("pick_and_tidy")[0].choices[0]
    assert (choice.kernel.id, choice.below) == ("core/pick_and_tidy/composed", False)


def test_a_part_below_its_requirement_puts_the_whole_below(fakes: Any) -> None:
    assert fakes.plan(operators=("pick_and_tidy",)).of("pick_and_tidy")[0].choices[0].below


def test_settings_of_a_part_decide_inside_the_fused_operator_too(fakes: Any) -> None:
    settings = fakes.settings(pick=OperatorSettings(deny=("plug/*",)))
    plan = fakes.plan(fakes.kernel(), settings=settings, operators=("pick_and_tidy",))
    assert plan.of("pick_and_tidy")[0].choices[0].parts[0].choices[0].kernel.id == "core/pick/reference"


# The public function, over the real contracts.


def test_all_real_operators_plan_on_every_simulated_device_without_any_plugin() -> None:
    for name in ("sm_100", "sm_103", "H200", "MI300X", "MI355X", "cpu"):
        plan = dspark_ops.plan(device=dspark_ops.Device.simulate(name), registry=Registry({}), config=Settings())
        assert set(plan.operators) == set(contracts.names())


def test_the_public_names_are_few_and_each_resolves() -> None:
    assert dspark_ops.__all__ == ["BoundOps", "Device", "Plan", "__version__", "contracts", "plan", "probe"]
    for name in dspark_ops.__all__:
        assert getattr(dspark_ops, name) is not None
        assert name in dir(dspark_ops)
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        dspark_ops.plam  # noqa: B018


def test_the_configured_simulated_device_is_planned_for_when_none_is_given() -> None:
    plan = dspark_ops.plan(registry=Registry({}), rows=[1], config=Settings(simulate="MI355X"))
    assert plan.device == dspark_ops.Device.simulate("MI355X")


def test_an_operator_that_the_model_does_not_call_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(contracts.get("argmax_rows"), sites=lambda shapes: ())
    monkeypatch.setitem(contracts.all_contracts(), "argmax_rows", absent)
    with pytest.raises(SelectionError, match=r"argmax_rows has no place in model deepseek-v4.1-flash"):
        dspark_ops.plan(
            device=dspark_ops.Device.simulate("cpu"),
            registry=Registry({}),
            operators=["argmax_rows"],
            config=Settings(),
        )


def test_asking_for_an_unknown_operator_suggests_the_nearest() -> None:
    with pytest.raises(UnknownOperatorError, match="did you mean 'argmax_rows'"):
        dspark_ops.plan(
            device=dspark_ops.Device.simulate("cpu"), registry=Registry({}), operators=["argmax_row"], config=Settings()
        )


@pytest.mark.parametrize("rows", [[], [-1, 2], [1 << 21]])
def test_row_counts_that_make_no_sense_are_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="rows"):
        dspark_ops.plan(device=dspark_ops.Device.simulate("cpu"), registry=Registry({}), rows=rows, config=Settings())


def test_planning_hardly_slows_down_with_more_row_counts(fakes: Any) -> None:
    kernels = [
        fakes.kernel(variant=f"k{index}", region=[axis("R").between(1, 8 * index + 8), elements("R*V", 2**31)])
        for index in range(12)
    ]

    def seconds(rows: range) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            make_plan(
                device=fakes.b300, shapes=model_shapes("deepseek-v4.1-flash"), rows=tuple(rows), settings=Settings(),
                registry=fakes.registry(kernels), contracts=fakes.contracts, packages=lambda package: None,
            )  # fmt: skip
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(range(1, 65)) < 0.25  # the benchmark holds the real bound; this guards the order of magnitude

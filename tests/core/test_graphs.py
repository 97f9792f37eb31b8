"""Where calls are captured in graphs, only what promises that it may be is chosen. Case O21."""

from __future__ import annotations

from typing import Any

import pytest

import dspark_ops
from dspark_ops.api import RankClass, Traits
from dspark_ops.errors import SelectionError
from dspark_ops.selection.plan import Plan
from dspark_ops.selection.settings import OperatorSettings, Policy, Settings

SAFE, UNSAFE = "plug/pick/safe", "plug/pick/unsafe"


def plan(fakes: Any, device: Any, *variants: str, pin: str | None = None, graphs: str = "on") -> Plan:
    """Plan an operator with a portable kernel that may be captured and a fused one that may not."""
    kernels = [
        fakes.kernel(variant=name, rank=rank, traits=Traits(graph_safe=name == "safe"), region=[])
        for name, rank in (("safe", RankClass.PORTABLE), ("unsafe", RankClass.FUSED))
        if name in variants
    ]
    settings = Settings(
        policy=Policy(graphs=graphs, fallback="allow"),
        operators={"pick": OperatorSettings(pin=pin)},
        origins={"policy.graphs": "dspark-ops.toml:3"},
    )
    return fakes.plan(*kernels, device=device, settings=settings, operators=["pick"])


def served(made: Plan) -> set[str]:
    return {choice.kernel.id for selection in made.selections for choice in selection.choices}


def test_o21_a_kernel_that_promises_nothing_is_not_chosen_for_graphs(fakes: Any) -> None:
    assert served(plan(fakes, fakes.h200, "safe", "unsafe", graphs="off")) == {UNSAFE}
    made = plan(fakes, fakes.h200, "safe", "unsafe")
    assert served(made) == {SAFE}
    text = " ".join(made.explain("pick").split())
    assert "TRAIT graph_safe: wanted a promise that it may be captured in a graph, got none" in text
    assert "policy.graphs = on (dspark-ops.toml:3)" in text


def test_o21_a_torch_reference_promises_nothing_either(fakes: Any) -> None:
    with pytest.raises(SelectionError, match="TRAIT") as raised:
        plan(fakes, fakes.h200, "unsafe")
    assert "core/pick/reference" in str(raised.value) and 'policy.graphs = "off"' in str(raised.value)


def test_a_pin_of_a_kernel_that_cannot_be_captured_is_an_error(fakes: Any) -> None:
    with pytest.raises(SelectionError, match="graph_safe"):
        plan(fakes, fakes.h200, "safe", "unsafe", pin=UNSAFE)


def test_on_a_cpu_there_are_no_graphs_to_be_captured_in(fakes: Any) -> None:
    assert served(plan(fakes, fakes.cpu)) == {"core/pick/reference"}


@pytest.mark.parametrize("device", ["H200", "sm_103", "gfx950"])
def test_every_operator_of_the_model_can_be_captured_with_the_shipped_plugins(device: str) -> None:
    pytest.importorskip("dspark_ops_triton", reason="the portable plugin is not installed")
    asked: dict[str, Any] = {
        "device": dspark_ops.Device.simulate(device),
        "model": "deepseek-v4.1-flash/tp4",
        "rows": [6],
    }
    config = {"policy": {"fallback": "fail"}}
    made = dspark_ops.plan(**asked, config=config, graph=True)
    assert served(made) == served(dspark_ops.plan(**asked, config=config))
    assert made.settings.origin("policy.graphs") == "argument graph"

"""Trial runs at bind: a kernel that crashes, hangs or computes something wrong is quarantined, and the parent lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dspark_ops
from dspark_ops.binding import bind, smoke
from dspark_ops.binding.smoke import chosen_kernels, tried_plan, try_kernels
from dspark_ops.conformance.places import make_current
from dspark_ops.errors import BindingError, DeviceError, LockError, SelectionError
from dspark_ops.selection.plan import Plan

KERNELS = """
import os, signal, time
import torch
from dspark_ops import contracts

def right(x):
    print("a kernel may print")
    return contracts.get("argmax_rows").reference(x)

def crash(x):
    os.kill(os.getpid(), signal.SIGSEGV)

def hang(x):
    time.sleep(600)

def wrong(x):
    return contracts.get("argmax_rows").reference(x) + 1

def raises(x):
    raise RuntimeError("no such instruction")
"""


VARIANTS = ("right", "crash", "hang", "wrong", "raises")


class World:
    """One plugin ``trial`` with kernels of `argmax_rows`, of which a plan takes some in an order of preference."""

    def __init__(self, site: Any) -> None:
        site.module("trial_kernels", KERNELS)
        kernels = ", ".join(
            f"Kernel('argmax_rows', {name!r}, 'trial_kernels:{name}', rank=RankClass.FUSED)" for name in VARIANTS
        )
        site.plugin("trial", f"name='trial', api='>=1,<2', kernels=({kernels})")

    def plan(self, *variants: str, files: Mapping[str, str] | None = None, **policy: Any) -> Plan:
        """Plan `argmax_rows` on the CPU with kernels that are preferred in the order given."""
        order = [f"trial/argmax_rows/{name}" for name in variants] + ["core/*"]
        return dspark_ops.plan(
            device=dspark_ops.Device.simulate("cpu"),
            rows=range(1, 9),
            operators=["argmax_rows"],
            config={
                "plugins": {"allow": ["trial"]},
                "policy": {"smoke": "on", "smoke_seconds": 60, **policy},
                "files": files or {},
                "ops": {"argmax_rows": {"order": order}},
            },
        )


@pytest.fixture
def world(site: Any) -> World:
    return World(site)


def served(plan: Plan) -> str:
    return plan.of("argmax_rows")[0].choices[0].kernel.id


def test_a_kernel_that_crashes_is_quarantined_and_the_next_one_serves(world: World) -> None:
    plan = world.plan("crash", "right")
    assert served(plan) == "trial/argmax_rows/crash"
    ops = plan.bind()  # this process is still here
    assert served(ops.plan) == "trial/argmax_rows/right"
    assert ops.argmax_rows(torch.tensor([[0.0, 3.0, 3.0]])).tolist() == [1]
    refusal = ops.plan.of("argmax_rows")[0].choices[0].refused[0]
    (reason,) = refusal.reasons
    assert (refusal.candidate.id, refusal.better, reason.code.value) == ("trial/argmax_rows/crash", True, "QUARANTINED")
    assert (
        "QUARANTINED      smoke: wanted a kernel that passes its trial run, got it ended its process by signal SIGSEGV"
        in (ops.plan.explain("argmax_rows"))
    )


def names(*variants: str) -> list[str]:
    return [f"trial/argmax_rows/{name}" for name in variants]


def test_a_crash_a_wrong_number_and_an_error_are_told_apart_and_take_no_other_kernel_along(world: World) -> None:
    failed = try_kernels(world.plan("right"), names("crash", "right", "wrong", "raises"))
    assert list(failed) == names("crash", "wrong", "raises")
    crash, wrong, raises = failed.values()
    assert crash.startswith("it ended its process by signal SIGSEGV")
    assert "output output: 1 of 1 wrong by bitwise; [0]: wanted 0 (0x0000000000000000), got 1" in wrong
    assert raises.endswith("raised RuntimeError: no such instruction")


def test_a_kernel_that_hangs_is_ended_after_its_seconds(world: World) -> None:
    failed = try_kernels(world.plan("hang", smoke_seconds=1), names("hang"))
    assert failed == {"trial/argmax_rows/hang": "it took more than 1 s and was ended"}


def test_without_the_setting_nothing_is_tried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark_ops.binding.smoke.try_kernels", pytest.fail)
    assert served(world.plan("crash", smoke="off").bind().plan) == "trial/argmax_rows/crash"


def test_a_plan_of_references_alone_starts_no_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark_ops.binding.smoke._Process", pytest.fail)
    plan = dspark_ops.plan(
        device=dspark_ops.Device.simulate("cpu"), rows=[1], config={"plugins": {"allow": []}, "policy": {"smoke": "on"}}
    )
    assert chosen_kernels(plan) == ()
    assert tried_plan(plan) is plan


def test_the_trial_runs_on_the_device_that_was_planned_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(dspark_ops.Device.simulate("H200"), simulated=False)
    plan = dspark_ops.plan(device=device, rows=[1], operators=["argmax_rows"], config={"policy": {"fallback": "allow"}})
    second = replace(plan, device=replace(device, index=1))
    assert second.digest == plan.digest, "ranks with a device each have one plan"
    assert [smoke._place(item) for item in (world.plan("right"), plan, second)] == ["cpu", "cuda", "cuda:1"]
    # a rank that has chosen its device by torch tries its kernels there
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert [smoke._place(item) for item in (plan, second)] == ["cuda:3", "cuda:1"]


def test_a_named_device_becomes_the_current_one_unless_torch_sees_another(monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(dspark_ops.Device.simulate("H200"), simulated=False, index=1)
    current: list[int] = []
    seen = {0: "H200", 1: "H200", 2: "B200"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(dspark_ops, "probe", lambda index: dspark_ops.Device.simulate(seen[index]))
    make_current(device)
    make_current(replace(device, index=None))
    assert current == [1]
    with pytest.raises(DeviceError, match=r"a NVIDIA H200 \(sm_90\) to the driver and a NVIDIA B200 \(sm_100\)"):
        make_current(replace(device, index=2))
    with pytest.raises(DeviceError, match=r"device 5 \(NVIDIA H200\): torch .* sees 3 devices here; a variable"):
        make_current(replace(device, index=5))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels named ``raises`` fail their trial; no process is started."""

    def outcome(plan: Plan, kernels: Sequence[str]) -> dict[str, str]:
        return {kernel: "it raised" for kernel in kernels if kernel.endswith("/raises")}

    monkeypatch.setattr("dspark_ops.binding.smoke.try_kernels", outcome)


@pytest.mark.usefixtures("failing")
def test_where_nothing_else_may_serve_the_error_names_the_quarantine(world: World) -> None:
    plan = world.plan("raises", fallback="fail", require_class="portable")
    with pytest.raises(
        SelectionError, match=r"QUARANTINED +smoke: wanted a kernel that passes its trial run, got it rais"
    ):
        plan.bind()


@pytest.mark.usefixtures("failing")
def test_ranks_plan_again_together_for_a_kernel_that_failed_on_another_one(world: World) -> None:
    rounds: list[dict[str, str]] = []

    def agree(failed: Mapping[str, str]) -> Mapping[str, str]:
        rounds.append(dict(failed))
        return {**failed, "trial/argmax_rows/right": "rank 3: it ended its process by signal SIGBUS"}

    ops = bind(world.plan("right"), agree=agree)
    assert served(ops.plan) == "core/argmax_rows/reference"
    refused = {item.candidate.id: item.reasons for item in ops.plan.of("argmax_rows")[0].choices[0].refused}
    assert refused["trial/argmax_rows/right"][0].got == "rank 3: it ended its process by signal SIGBUS"
    assert rounds == [{}, {}], "every rank is asked in every round, also with nothing to say"


@pytest.mark.usefixtures("failing")
def test_a_required_lock_does_not_start_without_a_kernel_that_it_holds(world: World, tmp_path: Path) -> None:
    path = str(tmp_path / "dspark-ops.lock")
    world.plan("raises", lock="off").save(path)
    plan = world.plan("raises", lock="require", files={"lock": path})
    with pytest.raises(
        LockError, match=r"locked trial/argmax_rows/raises, here core/argmax_rows/reference \(refused: QUA"
    ):
        plan.bind()


@pytest.mark.usefixtures("failing")
def test_a_plan_of_kernels_that_no_plugin_has_needs_a_function_to_plan_again(world: World) -> None:
    plan = world.plan("raises")
    foreign = Plan.from_json(plan.to_json().replace("trial/argmax_rows/raises", "gone/argmax_rows/raises"))
    with pytest.raises(
        BindingError, match=r"that no installed plugin has \(gone/argmax_rows/raises\); give bind a functio"
    ):
        tried_plan(foreign)
    right = world.plan("right")
    assert tried_plan(foreign, replan=lambda old, quarantined: right) is right

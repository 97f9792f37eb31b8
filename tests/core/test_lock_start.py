"""Starts with a lock: what it prefers, what it refuses, what it warns of, by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dspark_ops
from dspark_ops.api import RankClass
from dspark_ops.errors import LockError, LockWarning
from dspark_ops.selection.device import Device
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.lock import lock_of, write_lock
from dspark_ops.selection.plan import Plan

FAST = "p7/argmax_rows/fast"
ANY = "p7/argmax_rows/any"


def test_the_locked_kernel_comes_before_a_better_class_but_not_before_a_pin(fakes: Any) -> None:
    from dspark_ops.selection.settings import OperatorSettings

    kernels = [fakes.kernel(variant="a", rank=RankClass.FUSED), fakes.kernel(variant="b"), fakes.kernel(variant="c")]
    place = ("pick", ("verify", (("V", 4096),)))
    known = Knowledge(locked={place: {count: "plug/pick/b" for count in range(1, 9)}}, lock_origin="a.lock")
    plan = fakes.plan(*kernels, knowledge=known, rows=range(1, 17))
    verify, draft = plan.of("pick")
    assert [(choice.rows, choice.kernel.id, choice.origin) for choice in verify.choices] == [
        ("1-8", "plug/pick/b", "lock a.lock"),
        ("9-16", "plug/pick/a", ""),
    ]
    assert [choice.kernel.id for choice in draft.choices] == ["plug/pick/a"]
    assert [item.id for item in verify.choices[0].standby] == ["plug/pick/a", "plug/pick/c", "core/pick/reference"]
    assert "rows 1-8: plug/pick/b  (by lock a.lock)" in plan.explain("pick")
    pinned = fakes.plan(*kernels, knowledge=known, settings=fakes.settings(pick=OperatorSettings(pin="plug/pick/c")))
    assert {choice.kernel.id for choice in pinned.of("pick")[0].choices} == {"plug/pick/c"}


def test_a_locked_decomposition_keeps_its_parts(fakes: Any) -> None:
    whole = fakes.kernel(op="pick_and_tidy", variant="fused", rank=RankClass.FUSED)
    parts = [fakes.kernel(variant="a", rank=RankClass.FUSED), fakes.kernel(variant="b")]
    place = ("pick_and_tidy", ("verify", (("V", 4096), ("W", 6))))
    part = ("pick", ("verify", (("V", 4096),)))
    known = Knowledge(
        locked={place: {1: "core/pick_and_tidy/composed"}, part: {6: "plug/pick/b"}}, lock_origin="a.lock"
    )
    plan = fakes.plan(whole, *parts, knowledge=known, rows=[1, 2], operators=("pick_and_tidy",))
    first, second = plan.of("pick_and_tidy")[0].choices
    assert (first.kernel.id, first.parts[0].choices[0].kernel.id) == ("core/pick_and_tidy/composed", "plug/pick/b")
    assert second.kernel.id == "plug/pick_and_tidy/fused"


class Server:
    """Starts of one server: `argmax_rows` on a simulated B300, with a plugin of two kernels."""

    def __init__(self, site: Any, path: Path) -> None:
        kernels = "Kernel('argmax_rows', {!r}, 'p7_kernels:argmax', rank=RankClass.{})"
        both = ", ".join(kernels.format(*pair) for pair in (("fast", "FUSED"), ("any", "PORTABLE")))
        site.plugin("p7", f"name='p7', api='>=1,<2', kernels=({both})")
        self.path = path

    def start(self, *, device: str = "sm_103", rows: Any = range(1, 9), **config: Mapping[str, Any]) -> Plan:
        return dspark_ops.plan(
            device=Device.simulate(device),
            rows=rows,
            operators=["argmax_rows"],
            config={"plugins": {"allow": ["p7"]}, "files": {"lock": str(self.path)}, **config},
        )


@pytest.fixture
def server(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.chdir(tmp_path)
    return Server(site, tmp_path / "dspark-ops.lock")


def kernel_of(plan: Plan) -> str:
    return plan.of("argmax_rows")[0].choices[0].kernel.id


DENY = {"argmax_rows": {"deny": [FAST]}}


def test_a_required_lock_that_is_not_there_refuses_and_a_preferred_one_warns(server: Server) -> None:
    with pytest.raises(LockError) as caught:
        server.start(policy={"lock": "require"})
    assert str(caught.value) == (
        f"policy.lock is 'require' (argument), and there is no lock file {server.path} (files.lock, argument): "
        "run  dspark-ops plan --write"
    )
    with pytest.warns(LockWarning, match="there is no lock file .* run  dspark-ops plan --write"):
        assert kernel_of(server.start()) == FAST


def test_a_lock_that_describes_the_start_is_silent_in_every_mode(server: Server) -> None:
    server.start(policy={"lock": "off"}).save(server.path)
    for mode in ("off", "prefer", "require"):
        assert kernel_of(server.start(policy={"lock": mode})) == FAST
    assert kernel_of(server.start(policy={"lock": "require"}, rows=[6])) == FAST


def test_a_lock_keeps_a_choice_that_would_no_longer_be_made(server: Server) -> None:
    server.start(policy={"lock": "off"}, ops={"argmax_rows": {"pin": ANY}}).save(server.path)
    with pytest.warns(LockWarning) as caught:
        assert kernel_of(server.start(policy={"lock": "prefer"})) == ANY
    assert [str(warning.message) for warning in caught] == [
        f"{server.path}: settings.ops.argmax_rows.pin: locked {ANY}, here nothing"
    ]
    assert kernel_of(server.start(policy={"lock": "off"})) == FAST


def test_prefer_plans_anew_where_the_locked_choice_cannot_hold_and_require_refuses(server: Server) -> None:
    server.start(policy={"lock": "off"}).save(server.path)
    before = server.path.read_text()
    with pytest.warns(LockWarning) as caught:
        assert kernel_of(server.start(ops=DENY)) == ANY
    texts = [str(warning.message) for warning in caught]
    assert texts[0] == f"{server.path}: settings.ops.argmax_rows.deny: locked nothing, here {FAST}"
    assert texts[1].startswith(
        f"{server.path}: argmax_rows at verify, rows 1-8: locked {FAST}, here {ANY} (refused: DENIED ops.argmax_rows."
    )
    with pytest.raises(LockError) as error:
        server.start(ops=DENY, policy={"lock": "require"})
    assert str(error.value).splitlines()[0] == (
        f"policy.lock is 'require' (argument), and {server.path} does not describe what would run here:"
    )
    assert server.path.read_text() == before, "a start never writes the lock"


@pytest.mark.parametrize("mode", ["prefer", "require"])
def test_a_lock_of_another_architecture_is_refused_in_every_mode(server: Server, mode: str) -> None:
    server.start(policy={"lock": "off"}).save(server.path)
    with pytest.raises(LockError) as caught:
        server.start(device="H200", policy={"lock": mode})
    assert str(caught.value) == (
        f"{server.path} belongs to another environment, and is neither used nor overwritten:\n"
        "  device.arch: locked sm_103, here sm_90\n"
        "name another lock file (DSPARK_OPS_LOCK, or files.lock), or delete this one"
    )


def test_what_the_writer_did_not_know_is_reported_and_does_not_refuse(server: Server) -> None:
    made = server.start(policy={"lock": "off"})
    lock = lock_of(made)
    plugins = tuple({**item, "files": ""} for item in lock.plugins)
    write_lock(server.path, replace(lock, plugins=plugins))
    with pytest.warns(LockWarning, match="not known when the lock was written"):
        server.start(policy={"lock": "require"})


def test_a_plugin_whose_files_changed_is_refused_by_require_and_named(server: Server, site: Any) -> None:
    server.start(policy={"lock": "off"}).save(server.path)
    module = site.path / "p7_plugin.py"
    module.write_text(module.read_text() + "# changed\n")
    with pytest.raises(LockError, match=r"plugins\.p7\.files: locked sha256:[0-9a-f]{12}, here sha256:[0-9a-f]{12}"):
        server.start(policy={"lock": "require"})


def test_a_lock_is_not_read_unless_it_is_named_or_asked_for(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dspark-ops.lock").write_text("torn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = dspark_ops.plan(device=Device.simulate("sm_103"), rows=[1], config={"plugins": {"allow": ["p7"]}})
    assert kernel_of(plan) == FAST
    with pytest.raises(LockError, match="it is not JSON"):
        dspark_ops.plan(
            device=Device.simulate("sm_103"),
            rows=[1],
            config={"plugins": {"allow": ["p7"]}, "policy": {"lock": "prefer"}},
        )

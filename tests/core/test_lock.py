"""Lock files: the text, what a damaged one means, and every difference by name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dspark_ops
from dspark_ops.api import RankClass, axis
from dspark_ops.errors import LockError
from dspark_ops.selection.lock import lock_of, read_lock, write_lock
from dspark_ops.selection.lock_check import differences, plan_differences
from dspark_ops.selection.plan import Plan


@pytest.fixture
def plan(fakes: Any) -> Plan:
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(8)])
    made: Plan = fakes.plan(few, fakes.kernel(variant="many"), operators=("pick", "pick_and_tidy"), rows=range(1, 11))
    return made


def test_a_lock_has_one_selection_per_line_and_reads_back_as_it_was(plan: Plan, tmp_path: Path) -> None:
    lock = lock_of(plan)
    path = tmp_path / "dspark-ops.lock"
    plan.save(path)
    assert read_lock(path) == lock
    assert read_lock(path).digest == lock.digest
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"operator"')]
    assert [json.loads(line.rstrip(","))["rows"] for line in lines if '"pick", "site": "verify"' in line][:2] == [
        "1-8",
        "9-10",
    ]
    assert lines[0] == (
        '{"operator": "pick", "site": "verify", "rows": "1-8", "kernel": "plug/pick/few", "rank": "fused", '
        '"evidence": "declared", "record": "", "part_of": "", "contract": 1, "axes": {"V": 4096}},'
    )
    parts = [json.loads(line.rstrip(",")) for line in lines if '"part_of": "pick_and_tidy"' in line]
    assert {part["operator"] for part in parts} == {"pick", "tidy"}
    text = path.read_text()
    plan.save(path)
    assert path.read_text() == text, "equal plans give equal bytes"


def test_a_lock_names_device_versions_and_the_hash_of_every_plugin_and_of_core(plan: Plan) -> None:
    data = json.loads(lock_of(plan).text())
    assert data["device"] == {
        "arch": "sm_103", "name": "NVIDIA B300 SXM6 AC", "units": 148, "driver": "", "toolkit": "", "torch": "",
        "simulated": True,
    }  # fmt: skip
    assert data["versions"]["dspark_ops"] == dspark_ops.__version__
    core, plug = data["plugins"]
    assert (core["name"], core["distribution"], core["version"]) == ("core", "dspark-ops", dspark_ops.__version__)
    assert core["files"].startswith("sha256:")
    assert plug == {"name": "plug", "distribution": "dspark-plug", "version": "1.0", "files": ""}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "is no whole lock file: it is not JSON"),
        (lambda text: "", "is no whole lock file: it is not JSON"),
        (lambda text: text.replace('"rows": "1-10"', '<<<<<<< HEAD\n"rows": "1-10"'), "it is not JSON"),
        (lambda text: text.replace("plug/pick/many", "plug/pick/more"), "it was edited or merged by hand; restore it"),
        (lambda text: text.replace('"rank": "fused", ', ""), "was edited and cannot be understood: LockedChoice: wan"),
        (lambda text: text.replace("lock 1", "lock 9"), "schema: wanted 'dspark-ops lock 1', got 'dspark-ops lock 9'"),
        (lambda text: "[]", "schema: wanted 'dspark-ops lock 1', got None"),
    ],
)  # fmt: skip
def test_a_torn_or_edited_file_is_a_clear_error(plan: Plan, tmp_path: Path, damage: Any, says: str) -> None:
    path = tmp_path / "dspark-ops.lock"
    plan.save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(LockError) as caught:
        read_lock(path)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert "dspark-ops plan --write" in str(caught.value)


def test_a_file_that_is_no_text_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LockError, match="cannot be read as a lock file"):
        read_lock(tmp_path / "a.lock")


_WRITE_MANY = """
import sys
from pathlib import Path
from dspark_ops.selection.lock import read_lock, write_lock
lock = read_lock(Path(sys.argv[2]))
for _ in range(60):
    write_lock(Path(sys.argv[1]), lock)
"""


def test_processes_that_write_at_once_never_leave_a_torn_file(plan: Plan, tmp_path: Path) -> None:
    target, sources = tmp_path / "shared.lock", [tmp_path / "a", tmp_path / "b"]
    locks = [lock_of(plan), replace(lock_of(plan), rows="1-10", versions={"dspark_ops": "other" * 2000})]
    for source, lock in zip(sources, locks, strict=True):
        write_lock(source, lock)
    write_lock(target, locks[0])
    writers = [subprocess.Popen([sys.executable, "-c", _WRITE_MANY, str(target), str(source)]) for source in sources]
    seen: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(read_lock(target).digest)  # raises if it is torn
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {lock.digest for lock in locks}
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b", "shared.lock"], "no temporary file is left"


def test_writing_keeps_the_mode_of_a_file_and_gives_a_new_one_the_usual(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    plan.save(path)
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
    path.chmod(0o640)
    plan.save(path)
    assert path.stat().st_mode & 0o777 == 0o640


# Differences.


def named(found: Any) -> dict[str, str]:
    return {item.name: item.kind.value for item in found}


def test_equal_locks_do_not_differ(plan: Plan) -> None:
    assert plan_differences(lock_of(plan), plan, whole=True) == ()


def test_every_difference_is_named_with_its_kind(plan: Plan) -> None:
    here = lock_of(plan)
    facts = {**here.device, "simulated": False, "driver": "580.1", "toolkit": "13.0", "torch": "2.13.0"}
    here = replace(here, device=facts, versions={**here.versions, "triton": "3.9.0"})
    other = replace(
        here,
        model="deepseek-v4.1-flash",
        device={**facts, "arch": "sm_90", "name": "NVIDIA H200", "units": 132, "driver": "575.9", "torch": ""},
        versions={**here.versions, "triton": "3.8.0", "dspark_ops": "0.0.9"},
        settings={"ops.pick.deny": "plug/*"},
        layouts={"kv_page": "kv_v41"},
        plugins=(
            {**here.plugins[0], "files": ""},
            {**here.plugins[1], "version": "0.9", "files": "sha256:1"},
            {"name": "gone", "distribution": "dspark-gone", "version": "1", "files": ""},
        ),
    )
    assert named(differences(other, here)) == {
        "model": "hard",
        "device.arch": "hard",
        "device.name": "soft",
        "device.units": "soft",
        "device.driver": "soft",
        "device.torch": "unknown",
        "versions.triton": "soft",
        "versions.dspark_ops": "soft",
        "settings.ops.pick.deny": "soft",
        "layouts.kv_page": "soft",
        "plugins.core.files": "unknown",
        "plugins.gone": "soft",
        "plugins.plug.version": "soft",
        "plugins.plug.files": "soft",
    }
    texts = [str(item) for item in differences(other, here)]
    assert "device.driver: locked 575.9, here 580.1" in texts
    assert "device.torch: not known when the lock was written, here 2.13.0" in texts
    assert "plugins.gone: locked 1, here none" in texts


def test_a_simulated_device_is_not_held_against_facts_that_only_a_machine_knows(plan: Plan) -> None:
    lock = lock_of(plan)
    real = replace(lock, device={**lock.device, "simulated": False, "driver": "580.1", "torch": "2.13.0"})
    assert differences(real, lock) == ()


def test_a_lock_of_a_simulated_device_did_not_know_the_machine(plan: Plan) -> None:
    lock = lock_of(plan)
    facts = {**lock.device, "simulated": False, "units": 160, "driver": "580.1"}
    real = replace(lock, device=facts, versions={**lock.versions, "triton": "3.7.0"})
    assert named(differences(lock, real)) == dict.fromkeys(
        ("device.units", "device.driver", "versions.triton"), "unknown"
    )


def test_a_changed_choice_is_one_difference_with_the_reason(fakes: Any, plan: Plan) -> None:
    lock = lock_of(plan)
    denied = fakes.plan(
        fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(4)]),
        fakes.kernel(variant="many"),
        operators=("pick",),
        rows=range(1, 11),
    )
    found = [str(item) for item in plan_differences(lock, denied) if "rows" in item.name]
    why = "(refused: SHAPE R: wanted R <= 4, got 5-10)"
    assert found == [
        f"pick at {site}, rows 5-8: locked plug/pick/few, here plug/pick/many {why}" for site in ("verify", "draft")
    ]
    alone = fakes.plan(fakes.kernel(variant="many"), operators=("pick",), rows=[7])
    (text,) = [str(item) for item in plan_differences(lock, alone) if item.name.startswith("pick at verify")]
    assert text == "pick at verify, rows 7: locked plug/pick/few, here plug/pick/many (it is not installed)"


def test_a_plan_of_fewer_rows_or_operators_is_no_difference_unless_the_whole_is_asked_for(
    fakes: Any, plan: Plan
) -> None:
    few = fakes.kernel(variant="few", rank=RankClass.FUSED, region=[axis("R").at_most(8)])
    less = fakes.plan(few, fakes.kernel(variant="many"), operators=("pick",), rows=[6])
    assert plan_differences(lock_of(plan), less) == ()
    whole = plan_differences(lock_of(plan), less, whole=True)
    assert "pick at verify, rows 1-5,7-8" in named(whole)
    assert any(item.here == "nothing" and item.name.startswith("pick_and_tidy") for item in whole)


def test_rows_that_the_lock_does_not_cover_are_a_difference(fakes: Any, plan: Plan) -> None:
    more = fakes.plan(fakes.kernel(variant="many"), operators=("pick",), rows=[11])
    found = [str(item) for item in plan_differences(lock_of(plan), more) if "rows" in item.name]
    assert found[0] == "pick at verify, rows 11: locked nothing, here plug/pick/many"

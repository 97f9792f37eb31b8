"""Sessions and launches: fresh processes, failures that are kept, and one bench at a time."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.bench.comparison import Verdict, compare_arms
from dspark_ops.bench.design import Arm, Slot, schedule
from dspark_ops.bench.fingerprint import conditions
from dspark_ops.bench.launching import ALL_CHECKS, NO_CHECKS, ArmSpec, Checks, Outcome, launch_arm
from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.record import Launch
from dspark_ops.bench.session import Session, machine_alone, run_session
from dspark_ops.bench.workload import LaunchSpec
from dspark_ops.errors import EvidenceError

SCRIPT = """
import json, os, sys
print("starting")
print(json.dumps({"cycle_us": [float(os.environ.get("CYCLE", 5000))], "accept_len": 5, "warmups": 1,
                  "cached_tokens": 0, "host_syncs": os.getpid()}))
"""


DECODING = ArmSpec(LaunchSpec("tiny", ("a",)))


def command(code: str, **variables: str) -> ArmSpec:
    return ArmSpec(None, (sys.executable, "-S", "-c", code), variables)


def quiet(slot: Slot, launch: Launch | None) -> None:
    """Show nothing."""


def session(first: ArmSpec, second: ArmSpec, pairs: int = 2, control: int = 0) -> Session:
    return Session(first, second, schedule(pairs, control), {}, time_limit=30.0)


def test_every_launch_is_a_process_of_its_own_in_the_order_of_the_schedule() -> None:
    made = session(command(SCRIPT, CYCLE="5000"), command(SCRIPT, CYCLE="4900"), control=2)
    launches = list(run_session(made, quiet))
    assert [item.arm.value for item in launches] == ["A", "B", "B", "A", "A", "A'", "A'", "A"]
    assert [item.measurement and item.measurement.cycle for item in launches] == [
        5000 if item.arm is not Arm.B else 4900 for item in launches
    ]
    assert len({item.measurement and item.measurement.host_syncs for item in launches}) == 8
    found = compare_arms(*made.records(launches))
    assert found.verdict is Verdict.FASTER
    assert found.effect is not None and found.effect.mean == pytest.approx(0.0202, abs=1e-4)


def test_variables_of_an_arm_reach_its_processes_and_its_fingerprint() -> None:
    outcome = launch_arm(command(SCRIPT, NCCL_ALGO="ring", VLLM_API_KEY="hush", OMP_NUMTHREADS="2"), 30.0, NO_CHECKS)
    environment = outcome.fingerprint["environment"]
    assert environment["NCCL_ALGO"] == "ring"
    assert environment["VLLM_API_KEY"] == "(set; value not recorded)"
    assert any("OMP_NUMTHREADS is unknown and has no effect" in note for note in outcome.notes)
    assert outcome.conditions["load"] >= 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; print('half'); sys.stderr.write('no memory'); sys.exit(3)", "exit code 3: no memory"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9: no output"),
        ("print('all went well')", "wanted cycle_us"),
        ("import time; time.sleep(60)", "took longer than 0.5 s"),
    ],
)
def test_a_process_that_fails_is_an_outcome_with_its_reason(code: str, text: str) -> None:
    outcome = launch_arm(command(code), 0.5 if "sleep" in code else 30.0, NO_CHECKS)
    assert outcome.measurement is None
    assert text in outcome.error


def test_a_program_that_does_not_exist_is_an_outcome_with_its_reason() -> None:
    assert "cannot be started" in launch_arm(ArmSpec(None, ("/no/such/program",)), 5.0, NO_CHECKS).error


def test_a_process_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    code = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", '''
import time
while True:
    open({str(beat)!r}, "w").write(str(time.time()))
    time.sleep(0.05)
'''])
time.sleep(60)
"""
    assert "took longer" in launch_arm(command(code), 1.0, NO_CHECKS).error
    last = beat.read_text()
    time.sleep(0.3)
    assert beat.read_text() == last


def scripted(outcomes: dict[int, Outcome]) -> tuple[list[Checks], Callable[[ArmSpec, float, Checks], Outcome]]:
    asked: list[Checks] = []

    def launcher(arm: ArmSpec, time_limit: float, checks: Checks) -> Outcome:
        asked.append(checks)
        return outcomes.get(len(asked) - 1, Outcome(Measurement(cycle_us=(5000.0,))))

    return asked, launcher


def test_the_first_launch_of_each_arm_checks_its_kernels_and_its_tokens() -> None:
    asked, launcher = scripted({})
    list(run_session(session(command(""), command(""), control=2), quiet, launcher))
    assert asked == 2 * [ALL_CHECKS] + 6 * [NO_CHECKS]
    asked, launcher = scripted({})
    list(run_session(replace(session(command(""), command("")), checks=NO_CHECKS), quiet, launcher))
    assert asked == 4 * [NO_CHECKS]


def test_an_arm_whose_kernel_breaks_its_contract_is_not_timed_further() -> None:
    wrong = Measurement(cycle_us=(5000.0,), conformance="failed: fast/argmax_rows/x: ids: 3 of 4 elements differ")
    _, launcher = scripted({1: Outcome(wrong)})
    with pytest.raises(EvidenceError, match=r"arm B: the kernels' check .* failed: fast/argmax_rows/x.*--no-conform"):
        list(run_session(session(DECODING, DECODING), quiet, launcher))


def test_an_arm_that_gives_other_tokens_than_plain_decoding_is_not_timed_further() -> None:
    wrong = Measurement(cycle_us=(5000.0,), gate="failed: prompts [2] give other tokens than plain decoding")
    _, launcher = scripted({1: Outcome(wrong)})
    with pytest.raises(EvidenceError, match=r"arm B: the check before .* failed: prompts \[2\] .*--no-gate"):
        list(run_session(session(DECODING, DECODING), quiet, launcher))


def test_a_command_whose_own_check_failed_is_refused_in_its_words() -> None:
    _, launcher = scripted({0: Outcome(Measurement(cycle_us=(5000.0,), gate="failed: 3 of 50 answers are wrong"))})
    with pytest.raises(EvidenceError, match=r"arm A: its command printed that a check of its own failed: 3 of 50"):
        list(run_session(session(command(""), command("")), quiet, launcher))


def test_an_arm_that_cannot_start_ends_the_session_and_a_later_failure_does_not() -> None:
    _, launcher = scripted({1: Outcome(error="exit code 1: no such kernel")})
    seen: list[Launch] = []
    with pytest.raises(EvidenceError, match=r"first launch of arm B failed, so no other was tried: .*no such kernel"):
        seen.extend(run_session(session(command(""), command("")), quiet, launcher))
    assert [item.error for item in seen] == ["", "exit code 1: no such kernel"]
    _, launcher = scripted({2: Outcome(error="signal 11: no output")})
    launches = list(run_session(session(command(""), command("")), quiet, launcher))
    assert [bool(item.error) for item in launches] == [False, False, True, False]


def test_progress_is_told_before_and_after_each_launch() -> None:
    told: list[tuple[int, bool]] = []
    _, launcher = scripted({})
    list(
        run_session(
            session(command(""), command("")), lambda slot, done: told.append((slot.number, bool(done))), launcher
        )
    )
    assert told == [(number, done) for number in range(4) for done in (False, True)]


def test_two_benches_at_once_are_refused_unless_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with machine_alone(allow_concurrent=False):
        with pytest.raises(EvidenceError, match="another bench is running on this machine"), machine_alone(False):
            pass
        with machine_alone(allow_concurrent=True):
            pass
    with machine_alone(allow_concurrent=False):
        pass


def test_what_was_done_to_an_arm_is_recorded(tmp_path: Path) -> None:
    spec = LaunchSpec(str(tmp_path / "tiny"), ("a", "b"), knock_out="argmax_rows")
    treatment: dict[str, Any] = ArmSpec(spec, environment={"X": "1"}, config_text="[policy]\n").treatment()
    assert treatment == {
        "environment": {"X": "1"},
        "knock_out": "argmax_rows",
        "execution": "packed",
        "config": "[policy]\n",
    }
    assert ArmSpec(None, ("run", "it")).treatment() == {"environment": {}, "command": ["run", "it"]}
    workload = spec.workload()
    assert (workload["model"], workload["prompts"], workload["batch"]) == ("tiny", 2, 1)
    assert "knock_out" not in workload and "config" not in workload


def test_clocks_and_power_limits_of_amd_gpus_are_read_from_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/drm/card1/device/hwmon/hwmon3"
    folder.mkdir(parents=True)
    sensors = {"name": "amdgpu", "freq1_input": "2100000000", "power1_cap": "1000000000", "temp1_input": "51000"}
    for name, text in sensors.items():
        (folder / name).write_text(f"{text}\n")
    other = tmp_path / "sys/class/drm/card0/device/hwmon/hwmon1"
    other.mkdir(parents=True)
    (other / "name").write_text("nouveau\n")
    gpus = conditions(tmp_path)["gpus"]
    assert gpus[-1] == "card1, freq1_input 2100000000, power1_cap 1000000000, temp1_input 51000"
    assert not any("card0" in line for line in gpus)

"""Explain and report, held to the letter: one golden file per text.

After a wanted change of the texts: ``UPDATE_GOLDEN=1 pytest tests/core/test_explain.py``, and read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import (
    Arch,
    Constraint,
    Evidence,
    Package,
    RankClass,
    Reason,
    ReasonCode,
    Traits,
    axis,
    contiguous,
    dtype,
    elements,
    family,
    layout,
    option,
)
from dspark_ops.errors import SelectionError
from dspark_ops.selection.device import Device
from dspark_ops.selection.evidence import Proof
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.known_bad import KnownFault
from dspark_ops.selection.settings import OperatorSettings, Policy

GOLDEN = Path(__file__).parents[1] / "golden"
DEVICE = Device(Arch.parse("sm_103"), "Made-up B300", frozenset({"pdl"}), simulated=True, origins={"arch": "catalogue"})
REAL = Device(
    Arch.parse("sm_90"), "Made-up H200", frozenset({"pdl"}), origins={"arch": "nvml", "features": "catalogue"}
)


def check(name: str, text: str) -> None:
    """Compare with the golden file; the digest covers more than the text, so it is left out."""
    text = re.sub(r"sha256:[0-9a-f]{64}", "sha256:...", text)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture
def kernels(fakes: Any) -> list[Any]:
    """One kernel per kind of verdict."""
    flash = Package("flashinfer", "flashinfer-python", ">=0.6", install="pip install flashinfer-python")
    return [
        fakes.kernel(
            variant="one_launch", plugin="nvidia_sm10x", rank=RankClass.FUSED, arch=family("sm_10x"),
            region=[axis("R").at_most(16), axis("V").at_least(4096)], evidence=(("sm_103", Evidence.COMPILED),),
        ),
        fakes.kernel(variant="blocks", plugin="triton", evidence=(("sm_103", Evidence.INTERPRETED),)),
        fakes.kernel(variant="chunks", plugin="triton"),
        fakes.kernel(
            variant="tiles", plugin="amd_gfx950", rank=RankClass.FUSED, arch=family("gfx95x"), features=("mx_mma",),
            region=[dtype("x", "bfloat16"), contiguous("x"), layout("x", "kv_v4"), option("top").is_(8)],
        ),
        fakes.kernel(
            variant="hopper", plugin="nvidia_sm90", rank=RankClass.FUSED, arch=family("sm_9x"), packages=(flash,),
            contract_versions=(2, 3), traits=Traits(ties="any"), region=[elements("R*V", 1 << 14)],
        ),
        fakes.kernel(
            variant="broken", plugin="other", rank=RankClass.FUSED,
            region=[Constraint("axis", "V", "multiple_of", ("x",), "V divisible by x")],
        ),
    ]  # fmt: skip


def missing(package: Package) -> Reason:
    return Reason(
        ReasonCode.PKG_MISSING,
        package.module,
        f"{package.distribution} {package.versions}",
        "not installed",
        package.install,
    )


def test_explain_shows_every_candidate_with_its_verdict(fakes: Any, kernels: list[Any]) -> None:
    plan = fakes.plan(*kernels, device=DEVICE, packages=missing, failures=(fakes.failure,))
    check("explain_candidates", plan.explain("pick"))


def test_explain_shows_the_origin_of_each_setting(fakes: Any, kernels: list[Any]) -> None:
    settings = fakes.settings(
        Policy(fallback="warn", require_class=RankClass.FUSED),
        {
            "policy.fallback": "environment DSPARK_OPS_PROFILE", "policy.require_class": "dspark-ops.toml:2",
            "ops.pick.pin": "argument", "ops.pick.deny": "dspark-ops.toml:5", "ops.pick.order": "dspark-ops.toml:6",
        },
        pick=OperatorSettings(pin="triton/pick/chunks", deny=("triton/pick/b*",), order=("nvidia_*", "*/reference")),
    )  # fmt: skip
    plan = fakes.plan(*kernels, device=DEVICE, packages=missing, settings=settings, rows=[6])
    check("explain_settings", plan.explain("pick"))


def test_explain_shows_the_parts_of_a_decomposition(fakes: Any, kernels: list[Any]) -> None:
    plan = fakes.plan(*kernels, device=DEVICE, packages=missing, rows=range(1, 9), operators=("pick_and_tidy",))
    check("explain_parts", plan.explain("pick_and_tidy"))


def test_explain_shows_records_the_lock_known_faults_and_quarantine(fakes: Any, kernels: list[Any]) -> None:
    settings = fakes.settings(
        Policy(lock="prefer", evidence=Evidence.CONFORMANT),
        {"policy.lock": "dspark-ops.toml:2", "policy.evidence": "dspark-ops.toml:3"},
    )
    fault = KnownFault(
        "triton/pick/chunks", "hangs", "https://example.invalid/7", ("sm_103",), {"packaging": ">=20"},
        origin="known_bad.json",
    )  # fmt: skip
    knowledge = Knowledge(
        proofs={"triton/pick/blocks": Proof(Evidence.CONFORMANT, "conformant by check, B300 (sm_103), 2026-07-01")},
        faults=(fault,),
        quarantined={"other/pick/broken": "it ended its process by signal SIGSEGV"},
        locked={("pick", ("verify", (("V", 4096),))): {6: "triton/pick/blocks"}},
        lock_origin="dspark-ops.lock",
    )
    plan = fakes.plan(*kernels, device=DEVICE, packages=missing, settings=settings, rows=[6], knowledge=knowledge)
    check("explain_trust", plan.explain("pick"))


def test_a_report_has_one_line_per_operator_site_and_bucket(fakes: Any, kernels: list[Any]) -> None:
    plan = fakes.plan(*kernels, device=DEVICE, packages=missing, operators=None, failures=(fakes.failure,))
    check("report", plan.report())


def test_an_operator_that_nothing_may_serve_is_explained_in_the_error(fakes: Any, kernels: list[Any]) -> None:
    settings = fakes.settings(origins={"ops.pick.deny": "dspark-ops.toml:4"}, pick=OperatorSettings(deny=("triton/*",)))
    with pytest.raises(SelectionError) as caught:
        fakes.plan(*kernels, device=REAL, packages=missing, settings=settings, failures=(fakes.failure,))
    check("selection_error", f"{caught.value}\n")


def test_explain_and_planning_share_one_ranking(
    fakes: Any, kernels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dspark_ops.selection import planner

    rank = planner.rank
    before = fakes.plan(*kernels, device=DEVICE, packages=missing)
    monkeypatch.setattr(planner, "rank", lambda *arguments: rank(*arguments)[::-1])
    after = fakes.plan(*kernels, device=DEVICE, packages=missing)
    assert before.of("pick")[0].choices[0].kernel.id == "nvidia_sm10x/pick/one_launch"
    assert after.of("pick")[0].choices[0].kernel.id == "core/pick/reference"
    assert " 1 * core/pick/reference" in after.explain("pick")

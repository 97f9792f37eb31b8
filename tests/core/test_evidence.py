"""Evidence: which records count for a kernel as it is installed now, and what a floor refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import Evidence, RankClass
from dspark_ops.config import load_settings
from dspark_ops.errors import ConfigError, SelectionError
from dspark_ops.selection.evidence import (
    EvidenceRecord,
    Proof,
    add_evidence,
    proofs,
    read_evidence,
    shipped_evidence,
    write_evidence,
)
from dspark_ops.selection.explain import below_required
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.settings import OperatorSettings, Policy

KERNEL = "plug/pick/one"


def record(level: Evidence = Evidence.CONFORMANT, **fields: Any) -> EvidenceRecord:
    values: dict[str, Any] = {
        "kernel": KERNEL, "level": level, "arch": "sm_90", "by": "check", "date": "2026-07-01T10:00:00+00:00",
        "sources": "sha256:1", "contract": 1, "device": "NVIDIA H200", "driver": "580.1",
        "versions": {"torch": "2.13.0", "triton": "3.9.0"},
    }  # fmt: skip
    return EvidenceRecord(**(values | fields))


def proved(fakes: Any, *records: EvidenceRecord, arch: str = "sm_90", version: int = 1) -> Proof | None:
    registry = fakes.registry([fakes.kernel()])
    return proofs(records, registry, arch, {"pick": version}, digest=lambda kernel: "sha256:1").get(KERNEL)


def test_a_record_says_level_origin_device_day_and_versions(fakes: Any) -> None:
    proof = proved(fakes, record())
    assert proof == Proof(
        Evidence.CONFORMANT, "conformant by check, NVIDIA H200 (sm_90), 2026-07-01, torch 2.13.0, triton 3.9.0"
    )


@pytest.mark.parametrize(
    "stale",
    [
        {"sources": "sha256:2"},
        {"sources": ""},
        {"contract": 2},
        {"arch": "sm_103"},
        {"kernel": "plug/pick/gone"},
        {"level": Evidence.DECLARED},
    ],
)
def test_a_record_of_other_sources_contract_or_hardware_proves_nothing(fakes: Any, stale: dict[str, Any]) -> None:
    assert proved(fakes, record(**stale)) is None


def test_numbers_from_the_interpreter_count_for_every_architecture(fakes: Any) -> None:
    interpreted = record(Evidence.INTERPRETED, arch="cpu")
    proof = proved(fakes, interpreted, arch="gfx950")
    assert proof is not None
    assert proof.level is Evidence.INTERPRETED


def test_the_newest_run_of_a_kind_counts_and_a_failed_one_takes_every_claim_away(fakes: Any) -> None:
    failed = record(date="2026-07-02", failures=3)
    proof = proved(fakes, record(), failed)
    assert proof is not None
    assert (proof.level, proof.failed) == (Evidence.DECLARED, True)
    assert proof.text.startswith("3 failures by check, NVIDIA H200 (sm_90), 2026-07-02")
    repaired = proved(fakes, failed, record(date="2026-07-03"))
    assert repaired is not None
    assert (repaired.level, repaired.failed) == (Evidence.CONFORMANT, False)


def test_a_time_counts_as_measured_only_beside_checked_numbers(fakes: Any) -> None:
    fast = record(Evidence.MEASURED, by="tune")
    assert proved(fakes, fast) is None
    both = proved(fakes, fast, record())
    assert both is not None
    assert both.level is Evidence.MEASURED


def test_records_survive_a_file_and_newer_ones_of_a_kind_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    write_evidence(path, [record(), record(by="compile", level=Evidence.COMPILED)])
    add_evidence(path, [record(date="2026-08-01")])
    found = read_evidence([str(path)])
    assert sorted((item.by, item.date[:7]) for item in found) == [("check", "2026-08"), ("compile", "2026-07")]
    assert len(path.read_text().splitlines()) == 4, "one record per line"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "dspark-ops evidence 1"}'])
def test_a_file_without_evidence_is_an_error_that_says_how_to_write_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"files\.evidence: .*a\.json holds no evidence: .*dspark-ops check --write"):
        read_evidence([str(path)])
    with pytest.raises(ConfigError, match=r"none\.json cannot be read: No such file"):
        read_evidence([str(tmp_path / "none.json")])


def test_a_conformance_report_is_read_as_it_is(tmp_path: Path) -> None:
    kernel = {
        "kernel": KERNEL, "op": "pick", "contract": 1, "arch": "sm_90", "sources": "sha256:1", "level": "conformant",
        "levels": {"numbers": {"status": "passed"}}, "failures": [],
    }  # fmt: skip
    failing = {**kernel, "kernel": "plug/pick/two", "level": "declared", "failures": [{}, {}]}
    report = {
        "schema": "dspark-ops conformance 1", "date": "2026-07-01T10:00:00+00:00",
        "versions": {"torch": "2.13.0", "triton": "3.9.0"}, "device": {"name": "NVIDIA H200", "driver": "580.1"},
        "kernels": [kernel, failing],
    }  # fmt: skip
    (tmp_path / "report.json").write_text(json.dumps(report))
    one, two = read_evidence([str(tmp_path / "report.json")])
    assert one == record()
    assert (two.level, two.failures) == (Evidence.DECLARED, 2)


def test_a_plugin_may_ship_the_record_of_a_run_and_it_lapses_with_the_sources(site: Any) -> None:
    from dspark_ops.selection.discovery import survey
    from dspark_ops.selection.settings import Settings
    from dspark_ops.selection.sources import source_digest

    site.module("ship.kernels", "def argmax(x): ...\n")
    kernel = "Kernel('argmax_rows', 'fast', 'ship.kernels:argmax')"
    site.module("ship.plugin", "from dspark_ops.api import *\n\n@hookimpl\ndef dspark_ops_manifest():\n"
                f"    return Manifest(name='ship', api='>=1,<2', kernels=({kernel},))\n")  # fmt: skip
    site.distribution("dist-ship", entries={"ship": "ship.plugin"})
    shipped = site.path / "ship" / "conformant.json"
    shipped.write_text(json.dumps({"sm_90": {"argmax_rows/fast": source_digest("ship.kernels:argmax")}}))
    registry = survey(Settings(allow=("ship",)))
    records = list(shipped_evidence(registry))
    found = proofs(records, registry, "sm_90", {})["ship/argmax_rows/fast"]
    assert (found.level, found.text) == (Evidence.CONFORMANT, "conformant by a run that its plugin records, sm_90")
    (site.path / "ship" / "kernels.py").write_text("def argmax(x): return 1\n")
    assert proofs(records, registry, "sm_90", {}) == {}


# The floor.

CONFORMANT = Knowledge(proofs={KERNEL: Proof(Evidence.CONFORMANT, "conformant by check, 2026-07-01")})


def floor(fakes: Any, level: Evidence, fallback: str = "fail", **ops: OperatorSettings) -> Any:
    origins = {"policy.evidence": "dspark-ops.toml:2", "policy.fallback": "dspark-ops.toml:3"}
    return fakes.settings(Policy(evidence=level, fallback=fallback), origins, **ops)


def test_a_floor_refuses_a_start_on_claims_and_passes_it_on_records(fakes: Any) -> None:
    kernel = fakes.kernel(evidence=(("sm_90", Evidence.MEASURED),))
    settings = floor(fakes, Evidence.CONFORMANT)
    with pytest.raises(SelectionError) as caught:
        fakes.plan(kernel, device=fakes.real(fakes.h200), settings=settings)
    lines = str(caught.value).splitlines()
    assert lines[0] == "pick at verify, rows 1-64: no kernel may serve it"
    assert (
        "         EVIDENCE         evidence: wanted a record of conformant or better, got measured by its manifest, "
        "without a record  (policy.evidence, dspark-ops.toml:2; policy.fallback = fail, dspark-ops.toml:3)"
    ) in lines
    assert (
        "         to use it: run  dspark-ops check --write FILE  on this device and name FILE in files.evidence"
    ) in lines
    plan = fakes.plan(kernel, device=fakes.real(fakes.h200), settings=settings, knowledge=CONFORMANT)
    assert plan.of("pick")[0].choices[0].kernel.id == KERNEL


def test_a_record_below_the_floor_is_named_in_the_refusal(fakes: Any) -> None:
    with pytest.raises(SelectionError, match=r"got conformant \(conformant by check, 2026-07-01\)"):
        fakes.plan(
            fakes.kernel(), device=fakes.real(fakes.h200), settings=floor(fakes, Evidence.MEASURED),
            knowledge=CONFORMANT,
        )  # fmt: skip


def test_a_pin_overrides_the_floor_as_it_does_the_general_class(fakes: Any) -> None:
    settings = floor(fakes, Evidence.CONFORMANT, pick=OperatorSettings(pin=KERNEL))
    choice = fakes.plan(fakes.kernel(), device=fakes.real(fakes.h200), settings=settings).of("pick")[0].choices[0]
    assert (choice.kernel.id, choice.below) == (KERNEL, True)


def test_the_floor_does_not_bar_references_which_are_the_standard(fakes: Any) -> None:
    settings = floor(fakes, Evidence.CONFORMANT)
    plan = fakes.plan(device=fakes.real(fakes.h200), settings=settings, operators=("tidy",))
    assert plan.of("tidy")[0].choices[0].kernel.id == "core/tidy/reference"


def test_where_a_weaker_one_may_serve_a_proven_kernel_comes_before_an_unproven_better_class(fakes: Any) -> None:
    kernels = [fakes.kernel(), fakes.kernel(variant="two", rank=RankClass.FUSED)]
    plan = fakes.plan(*kernels, settings=floor(fakes, Evidence.CONFORMANT, "allow"), knowledge=CONFORMANT)
    choice = plan.of("pick")[0].choices[0]
    assert (choice.kernel.id, choice.below) == (KERNEL, False)
    assert choice.standby[-1].id == "plug/pick/two"


def test_a_kernel_below_the_floor_that_may_serve_is_reported_as_such(fakes: Any) -> None:
    kernel = fakes.kernel(evidence=(("sm_103", Evidence.CONFORMANT),))
    plan = fakes.plan(kernel, settings=floor(fakes, Evidence.CONFORMANT, "warn"), rows=[6])
    assert plan.of("pick")[0].choices[0].kernel.id == "core/pick/reference", "the reference needs no record"
    denied = floor(fakes, Evidence.CONFORMANT, "warn", pick=OperatorSettings(deny=("core/*",)))
    assert below_required(fakes.plan(kernel, settings=denied, rows=[6]))[0] == (
        "pick at verify, rows 6: served by plug/pick/one (conformant by its manifest), without a record of conformant; "
        "see plan.explain('pick')"
    )


def test_a_failed_check_takes_the_manifest_s_claim_away(fakes: Any) -> None:
    failed = Knowledge(proofs={KERNEL: Proof(Evidence.DECLARED, "3 failures by check, 2026-07-01", failed=True)})
    plan = fakes.plan(fakes.kernel(evidence=(("sm_103", Evidence.CONFORMANT),)), knowledge=failed)
    kernel = plan.of("pick")[0].choices[0].kernel
    assert (kernel.evidence, kernel.origin) == (Evidence.DECLARED, "3 failures by check, 2026-07-01")


def test_where_a_record_lies_and_what_it_says_changes_no_digest(fakes: Any) -> None:
    kernel = fakes.kernel(evidence=(("sm_103", Evidence.CONFORMANT),))
    one, two = (
        fakes.plan(kernel, knowledge=Knowledge(proofs={KERNEL: Proof(Evidence.CONFORMANT, text)}))
        for text in ("a", "b")
    )
    assert one.digest == two.digest == fakes.plan(kernel).digest
    paths = [load_settings({"files": {"lock": name}}, environ={}) for name in ("a", "b")]
    assert fakes.plan(settings=paths[0]).digest == fakes.plan(settings=paths[1]).digest

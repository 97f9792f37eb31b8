"""Known faults: data that beats a manifest's claims, with the link to where each is reported. Case O22."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.api import Package
from dspark_ops.errors import ConfigError, SelectionError
from dspark_ops.selection.knowledge import Knowledge
from dspark_ops.selection.known_bad import KnownFault, read_known_faults
from dspark_ops.selection.settings import OperatorSettings

LINK = "https://example.invalid/issues/7"


def write(path: Path, **entry: Any) -> str:
    fields = {"kernel": "plug/*", "what": "hangs at 64 rows", "link": LINK} | entry
    path.write_text(json.dumps({"schema": "dspark-ops known-bad 1", "entries": [fields]}))
    return str(path)


def known(tmp_path: Path, **entry: Any) -> Knowledge:
    return Knowledge(faults=read_known_faults([write(tmp_path / "bad.json", **entry)]))


def test_o22_a_known_fault_beats_the_claims_of_the_manifest_and_explain_shows_its_link(
    fakes: Any, tmp_path: Path
) -> None:
    faulty = known(tmp_path, arch=["sm_103"], versions={"packaging": ">=20"}, driver=">=570,<580")
    plan = fakes.plan(fakes.kernel(), knowledge=faulty)
    choice = plan.of("pick")[0].choices[0]
    assert choice.kernel.id == "core/pick/reference"
    (refusal,) = choice.refused
    (reason,) = refusal.reasons
    assert (reason.code.value, refusal.better) == ("KNOWN_BAD", True)
    assert reason.got == f"hangs at 64 rows on sm_103 with packaging>=20, driver >=570,<580: {LINK}"
    text = plan.explain("pick")
    assert "KNOWN_BAD        kernel: wanted no known fault, got hangs at 64 rows on sm_103 with packaging>=20" in text
    assert "to use it: a version outside packaging>=20, driver >=570,<580" in text
    assert str(tmp_path / "bad.json") in text


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"kernel": "other/*"},
        {"arch": ["sm_100", "gfx950"]},
        {"versions": {"packaging": "<1"}},
        {"versions": {"packaging": ">=20", "no-such-distribution": ""}},
    ],
)
def test_a_fault_of_another_kernel_architecture_or_version_bars_nothing(
    fakes: Any, tmp_path: Path, elsewhere: dict[str, Any]
) -> None:
    assert fakes.plan(fakes.kernel(), knowledge=known(tmp_path, **elsewhere)).of("pick")[0].choices[0].refused == ()


@pytest.mark.parametrize(("driver", "barred"), [("", True), ("575.51.3", True), ("580.1", False), ("565.9", False)])
def test_the_driver_decides_and_an_unknown_one_counts_as_inside(
    fakes: Any, tmp_path: Path, driver: str, barred: bool
) -> None:
    device = replace(fakes.b300, driver=driver)
    plan = fakes.plan(fakes.kernel(), device=device, knowledge=known(tmp_path, driver=">=570,<580"))
    assert bool(plan.of("pick")[0].choices[0].refused) is barred


def test_a_pinned_kernel_with_a_known_fault_is_an_error_with_the_link(fakes: Any, tmp_path: Path) -> None:
    pinned = fakes.settings(pick=OperatorSettings(pin="plug/pick/one"))
    with pytest.raises(SelectionError, match=f"KNOWN_BAD .*{LINK}"):
        fakes.plan(fakes.kernel(), settings=pinned, knowledge=known(tmp_path))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"link": ""}, "says not what happens, or not where that is reported"),
        ({"versions": {"triton": "three"}}, "Invalid specifier: 'three'"),
        ({"archs": []}, "KnownFault: wanted the fields"),
        ({"kernel": 7}, "wanted str, got 7"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_the_file(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "bad.json", **entry)
    with pytest.raises(ConfigError) as caught:
        read_known_faults([path])
    assert str(caught.value).startswith(f"files.known_bad: {path} cannot be used: ")
    assert says in str(caught.value)


def test_a_missing_file_or_another_schema_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"files\.known_bad: .*none\.json cannot be read: No such file"):
        read_known_faults([str(tmp_path / "none.json")])
    (tmp_path / "a.json").write_text('{"entries": []}')
    with pytest.raises(ConfigError, match="wanted schema 'dspark-ops known-bad 1', got None"):
        read_known_faults([str(tmp_path / "a.json")])


def test_the_faults_that_core_ships_can_be_read() -> None:
    assert all(isinstance(fault, KnownFault) for fault in read_known_faults())
    assert Package("packaging", "packaging").module == "packaging"

"""The doctor on caches, variables, and a fork after the device runtime has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.doctor import Severity
from dspark_ops.doctor.facts import (
    CacheFolder,
    TorchFacts,
)


def test_a_cache_that_cannot_be_written_is_found(ask: Any) -> None:
    cache = CacheFolder(
        "Triton", "/ro/cache", "TRITON_CACHE_DIR", "TRITON_CACHE_DIR", "/ro is on a read-only file system"
    )
    finding = ask.one("caches", caches=(cache,))
    assert finding.severity is Severity.ERROR
    assert finding.evidence == "/ro/cache (TRITON_CACHE_DIR): /ro is on a read-only file system"
    assert finding.fix == "export TRITON_CACHE_DIR=/var/tmp/triton-$USER"


@pytest.mark.parametrize(
    ("filesystem", "network"), [("nfs4", True), ("lustre", True), ("ext4", False), ("overlay", False)]
)
def test_a_cache_on_a_network_file_system_is_a_warning(ask: Any, filesystem: str, network: bool) -> None:
    cache = CacheFolder(
        "FlashInfer", "/home/me/.cache", "default", "FLASHINFER_WORKSPACE_BASE", "", filesystem, "/home"
    )
    findings = ask.found("caches", caches=(cache,))
    assert [item.severity for item in findings] == [Severity.WARNING] * network
    if network:
        assert findings[0].evidence == f"/home/me/.cache (default) is on {filesystem}, mounted at /home"


def test_a_wrong_configuration_is_found_whole(ask: Any) -> None:
    text = "the configuration has 1 fault: environment DSPARK_OPS_PLUGIN: unknown variable"
    assert ask.one("configuration", configuration_problem=text).evidence == text


def test_a_removed_variable_is_found_with_what_stands_in_its_place(ask: Any) -> None:
    removed = {"DSPARK_OPS_OLD": "use policy.lock"}
    finding = ask.one("configuration", removed_variables=removed, environment={"DSPARK_OPS_OLD": "1"})
    assert (finding.evidence, finding.fix) == ("environment DSPARK_OPS_OLD='1'", "unset it; use policy.lock")
    assert ask.found("configuration", removed_variables=removed) == []


def test_a_forked_child_of_a_process_with_a_device_runtime_is_found(ask: Any) -> None:
    finding = ask.one("fork", torch=replace(ask.sound.torch, in_forked_child=True))
    assert finding.severity is Severity.ERROR and "no GPU call works here" in finding.finding


def test_a_plugin_that_starts_the_device_runtime_is_found(ask: Any) -> None:
    finding = ask.one("fork", torch=replace(ask.sound.torch, started=True, started_by_plugins=True))
    assert finding.severity is Severity.ERROR and "importing a plugin starts the device runtime" in finding.finding


@pytest.mark.parametrize(("method", "severities"), [("fork", [Severity.ERROR]), ("spawn", []), ("", [Severity.NOTE])])
@pytest.mark.parametrize(
    "fact", [{"torch": TorchFacts("2.13.0", "cuda 13.0", started=True)}, {"open_devices": ("/dev/nvidia0",)}]
)
def test_workers_that_are_forked_beside_a_running_device_runtime_are_found(
    ask: Any, method: str, severities: list[Severity], fact: dict[str, Any]
) -> None:
    assert [item.severity for item in ask.found("fork", start_method=method, **fact)] == severities

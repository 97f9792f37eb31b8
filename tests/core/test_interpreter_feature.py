"""A CPU runs interpreted kernels only where Triton's own variable says so."""

from __future__ import annotations

import pytest

import dspark_ops
from dspark_ops.config.environment import triton_interprets
from dspark_ops.selection.device import Device

CPU = Device.simulate("cpu")


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark_ops.selection.probe.probe", lambda which: CPU)


@pytest.mark.parametrize(("value", "on"), [("1", True), ("True", True), ("yes", True), ("0", False), ("", False)])
def test_the_variable_is_read_as_triton_reads_it(value: str, on: bool) -> None:
    assert triton_interprets({"TRITON_INTERPRET": value}) is on
    assert not triton_interprets({})


@pytest.mark.usefixtures("cpu")
def test_the_probe_names_the_feature_and_the_variable_that_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    device = dspark_ops.probe()
    assert device.features == CPU.features | {"triton_interpreter"}
    assert device.origins["features"].endswith("environment TRITON_INTERPRET")


@pytest.mark.usefixtures("cpu")
def test_without_the_variable_a_cpu_is_just_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert dspark_ops.probe() == CPU


def test_a_gpu_does_not_become_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark_ops.selection.probe.probe", lambda which: Device.simulate("H200"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dspark_ops.probe() == Device.simulate("H200")

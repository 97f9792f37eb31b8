"""The catalogue simulates devices by product or architecture, and never a near one in place of an unknown one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dspark_ops.errors import DeviceError
from dspark_ops.selection.catalogue import catalogue, features_of, product_of
from dspark_ops.selection.device import Device


@pytest.mark.parametrize(
    ("name", "arch", "units", "gib"),
    [
        ("H100", "sm_90", 132, 80),
        ("h200", "sm_90", 132, 141),
        ("sm_90", "sm_90", 132, 141),
        ("B200", "sm_100", 148, 180),
        ("sm_100a", "sm_100", 148, 180),
        ("B300", "sm_103", 148, 288),
        ("gb300", "sm_103", 152, 288),
        ("MI300X", "gfx942", 304, 192),
        ("gfx950:sramecc+:xnack-", "gfx950", 256, 288),
        ("NVIDIA H200", "sm_90", 132, 141),
        ("cpu", "cpu", 0, 0),
    ],
)
def test_a_product_or_an_architecture_gives_its_device(name: str, arch: str, units: int, gib: int) -> None:
    device = Device.simulate(name)
    assert (device.arch.name, device.units, device.memory) == (arch, units, gib * 2**30)
    assert device.simulated


def test_features_say_what_kernels_may_ask_for() -> None:
    expected = {
        "H200": {"pdl", "fp8_e4m3fn"},
        "B200": {"pdl", "mx_mma", "fp8_e4m3fn"},
        "B300": {"pdl", "mx_mma", "fp8_e4m3fn"},
        "MI300X": {"fp8_e4m3fnuz"},
        "MI355X": {"mx_mma", "fp8_e4m3fn"},
        "cpu": {"fp8_e4m3fn"},
    }
    assert {name: set(Device.simulate(name).features) for name in expected} == expected
    assert features_of(Device.simulate("cpu").arch) == {"fp8_e4m3fn"}


def test_flags_of_the_asked_name_are_kept() -> None:
    assert dict(Device.simulate("gfx950:xnack-").arch.flags) == {"xnack": "-"}


def test_a_simulated_device_depends_on_its_name_alone_and_every_field_has_an_origin() -> None:
    device = Device.simulate("B300")
    assert (device.driver, device.toolkit, device.torch) == ("", "", "")
    facts = set(device.to_json()) - {"origins", "vendor", "family", "flags"}
    assert set(device.origins) == facts
    assert set(device.origins.values()) == {"catalogue"}


def test_an_architecture_that_is_not_listed_is_an_error_and_no_near_one_is_offered() -> None:
    with pytest.raises(
        DeviceError, match="no device with architecture sm_120 to simulate: the catalogue has H200"
    ) as error:
        Device.simulate("sm_120")
    assert "did you mean" not in str(error.value)


def test_a_misspelled_product_gets_a_suggestion() -> None:
    with pytest.raises(DeviceError, match=r"no device named 'MI355': .*did you mean 'mi355x'\?"):
        Device.simulate("MI355")


def test_driver_names_lead_to_products_by_whole_words() -> None:
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA GB300", "NVIDIA H200", "NVIDIA H100-SXM", "NVIDIA H20", "NVIDIA RTX 6000")
    found = [product.name if (product := product_of(name)) else None for name in names]
    assert found == ["H100", "GB300", "H200", "H100", None, None]


def test_every_product_states_its_source() -> None:
    assert all(product.source for product in catalogue())


def test_planning_for_a_simulated_device_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from dspark_ops.cli import main\n"
        "sys.exit(main(['plan', '--device', 'sm_103', '--rows', '6', '--json']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["plan"]["rows"] == "6"

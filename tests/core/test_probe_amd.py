"""AMD devices are read from the topology that the KFD driver writes; no HIP runtime is started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.selection.probe import ProbeSources, probe, probe_all
from dspark_ops.selection.probe_amd import gfx_name

GIB = 2**30


def no_nvml() -> Any:
    raise ImportError("No module named 'pynvml'")


def sources(root: Path) -> ProbeSources:
    return ProbeSources(root=root, nvml=no_nvml, modules={})


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def kfd(root: Path, versions: Iterable[int], simds: int = 1024, memory: int = 288 * GIB) -> None:
    """Write a KFD topology: one CPU node, then a GPU node per version, as the kernel prints them."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    write(root / "dev/kfd")
    write(root / "sys/module/amdgpu/version", "6.16.6\n")
    write(nodes / "0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n")
    for number, version in enumerate(versions, start=2):
        lines = f"simd_count {simds}\nsimd_per_cu 4\ngfx_target_version {version}\nhive_id 18446744073709551615\n"
        write(nodes / f"{number}/properties", f"cpu_cores_count 0\n{lines}")
        write(nodes / f"{number}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\n")
        write(nodes / f"{number}/mem_banks/1/properties", "heap_type 0\nsize_in_bytes 999\n")


def test_kfd_gives_an_amd_device_with_an_origin_for_every_fact(tmp_path: Path) -> None:
    kfd(tmp_path, [90402], simds=1216, memory=192 * GIB)
    device = probe(sources=sources(tmp_path))
    assert (device.arch.vendor, device.arch.name, device.arch.family) == ("amd", "gfx942", "gfx94x")
    assert (device.name, device.units, device.memory, device.driver) == (
        "AMD Instinct MI300X",
        304,
        192 * GIB,
        "6.16.6",
    )
    assert device.features == {"fp8_e4m3fnuz"}
    assert device.origins["arch"] == "kfd node 2, gfx_target_version 90402"
    assert device.origins["name"] == "catalogue, by architecture, unit count and memory"


def test_two_products_that_fit_one_topology_are_not_guessed_between(tmp_path: Path) -> None:
    kfd(tmp_path, [90500])
    device = probe(sources=sources(tmp_path))
    assert (device.arch.name, device.name, device.units) == ("gfx950", "AMD gfx950", 256)
    assert {"mx_mma", "fp8_e4m3fn"} == device.features


@pytest.mark.parametrize(
    ("version", "name"),
    [(90500, "gfx950"), (90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_kfd_version_numbers_become_names_with_hexadecimal_steppings(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_kfd_nodes_are_ordered_by_number_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    kfd(tmp_path, [90500] * 9)
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/3/properties").unlink()  # as device rules hide it
    origins = [device.origins["units"] for device in probe_all(sources=sources(tmp_path))]
    assert origins == [f"kfd node {number}" for number in (2, 4, 5, 6, 7, 8, 9, 10)]


def test_kfd_without_its_device_file_is_no_gpu(tmp_path: Path) -> None:
    kfd(tmp_path, [90500])
    (tmp_path / "dev/kfd").unlink()
    device = probe(sources=sources(tmp_path))
    assert device.arch.name == "cpu"
    assert "KFD topology without a device file /dev/kfd" in device.origins["arch"]

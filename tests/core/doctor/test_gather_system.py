"""Gathering from the operating system: adapters, mounts, caches, compilers and the linker, all planted as files."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dspark_ops.doctor import gather_system, gather_tools
from dspark_ops.doctor.facts import Adapter

MOUNTS = """\
proc /proc proc rw 0 0
/dev/vda1 / ext4 rw 0 0
filer:/home /home nfs4 rw 0 0
tmpfs /home/me/with\\040space tmpfs rw 0 0
"""


def script(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def adapter(root: Path, address: str, vendor: str, kind: str, device: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
        (folder / name).write_text(text + "\n")


def test_gpus_are_found_on_the_bus_and_a_processor_s_own_display_is_none(tmp_path: Path) -> None:
    adapter(tmp_path, "0000:19:00.0", "0x10de", "0x030200", "0x2335")
    adapter(tmp_path, "0000:05:00.0", "0x1002", "0x120000", "0x75a3")
    adapter(tmp_path, "0000:06:00.0", "0x1002", "0x030000", "0x1681")  # of a Ryzen
    adapter(tmp_path, "0000:19:00.1", "0x10de", "0x040300", "0x228e")  # the audio function
    adapter(tmp_path, "0000:00:01.0", "0x8086", "0x030000", "0x1234")
    assert gather_system.adapters(tmp_path) == (
        Adapter("0000:05:00.0", "amd", "0x75a3"),
        Adapter("0000:19:00.0", "nvidia", "0x2335"),
    )


def test_open_device_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "proc/self/fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/null", "/dev/nvidia0")):
        (folder / str(number)).symlink_to(target)
    assert gather_system.open_devices(tmp_path) == ("/dev/kfd", "/dev/nvidia0")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/var/cache", ("ext4", "/")),
        ("/home/you/.triton", ("nfs4", "/home")),
        ("/home/me/with space/x", ("tmpfs", "/home/me/with space")),
        ("/homework", ("ext4", "/")),  # a folder, not a prefix of letters
    ],
)
def test_a_path_is_on_the_deepest_mount_above_it(path: str, wanted: tuple[str, str]) -> None:
    assert gather_system.filesystem_of(Path(path), gather_system.mount_table(MOUNTS)) == wanted


def test_a_cache_folder_that_does_not_exist_is_judged_by_its_nearest_parent_and_not_created(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(f"filer:/x {tmp_path} nfs rw 0 0\n")
    environ = {"HOME": str(tmp_path / "home"), "TRITON_CACHE_DIR": str(tmp_path / "a/b")}
    triton, extensions = gather_system.caches(environ, "", {"Triton", "torch extensions"}, tmp_path)
    assert (triton.path, triton.origin, triton.problem) == (str(tmp_path / "a/b"), "TRITON_CACHE_DIR", "")
    assert (triton.filesystem, triton.mount) == ("nfs", str(tmp_path))
    assert (extensions.path, extensions.origin) == (str(tmp_path / "home/.cache/torch_extensions"), "default")
    assert not (tmp_path / "a").exists()


def test_a_file_where_the_cache_should_be_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "cache/triton")}
    (cache,) = gather_system.caches(environ, "", {"Triton"})
    assert cache.problem == f"{tmp_path / 'cache'} is a file, not a folder"


def test_a_folder_without_permission_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The superuser may write anywhere, so the answer of the system is planted.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (cache,) = gather_system.caches({"TRITON_CACHE_DIR": str(tmp_path)}, "", {"Triton"})
    assert cache.problem.endswith(f" may not write in {tmp_path}")


def test_a_read_only_file_system_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = type("Flags", (), {"f_flag": os.ST_RDONLY})
    monkeypatch.setattr(os, "statvfs", lambda path: flags)
    (cache,) = gather_system.caches({"TRITON_CACHE_DIR": str(tmp_path)}, "", {"Triton"})
    assert cache.problem == f"{tmp_path} is on a read-only file system"


def test_the_driver_s_cache_counts_where_there_is_its_device() -> None:
    assert [item.owner for item in gather_system.caches({}, "nvidia", ())] == ["CUDA driver"]


NVCC = 'echo "Cuda compilation tools, release 11.2, V11.2.152"'


def test_every_place_of_a_compiler_is_asked_once_for_its_version(tmp_path: Path) -> None:
    nvcc = script(tmp_path / "cuda/bin", "nvcc", NVCC)
    ptxas = script(tmp_path / "mine", "ptxas", 'echo "release 13.0, V13.0.48"')
    environ = {"CUDA_HOME": str(tmp_path / "cuda"), "PATH": str(nvcc.parent), "TRITON_PTXAS_PATH": str(ptxas)}
    tools = gather_tools.compilers("nvidia", environ, 10)
    assert [(item.name, item.version, item.origin) for item in tools] == [
        ("nvcc", "11.2", "CUDA_HOME"),
        ("ptxas", "13.0", "TRITON_PTXAS_PATH"),
    ]


def test_a_compiler_of_amd_gives_its_version(tmp_path: Path) -> None:
    script(tmp_path, "hipcc", 'echo "HIP version: 6.4.43482-0f2d60242"')
    (tool,) = gather_tools.compilers("amd", {"PATH": str(tmp_path)}, 10)
    assert (tool.name, tool.version, tool.origin) == ("hipcc", "6.4", "PATH")


def test_a_compiler_that_cannot_start_or_hangs_is_told_and_stops_nobody(tmp_path: Path) -> None:
    broken = tmp_path / "nvcc"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    assert gather_tools.tool("nvcc", str(broken), "PATH", 10).version == ""
    slow = script(tmp_path / "slow", "nvcc", "exec sleep 30")
    assert gather_tools.attempt([str(slow)], 0.2).code is None


def test_a_linker_s_refusal_is_kept_in_its_words(tmp_path: Path) -> None:
    script(tmp_path, "cc", 'echo "ld: cannot find -lcuda" >&2; exit 1')
    (tmp_path / "cuda/lib64/stubs").mkdir(parents=True)
    (tmp_path / "cuda/lib64/stubs/libcuda.so").touch()
    library = gather_tools.cuda_library({"PATH": f"{tmp_path}:/bin", "CUDA_HOME": str(tmp_path / "cuda")}, 10)
    assert library.link is not None
    assert (library.link.command, library.link.code, library.link.output) == (
        "cc main.c -lcuda", 1, "ld: cannot find -lcuda",
    )  # fmt: skip
    assert library.stubs == (str(tmp_path / "cuda/lib64/stubs"),)


def test_without_a_compiler_there_is_no_trial(tmp_path: Path) -> None:
    assert gather_tools.cuda_library({"PATH": str(tmp_path)}, 10).link is None


def test_a_stub_on_the_loader_s_path_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "lib64/stubs"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").touch()
    found = gather_tools.cuda_library({"PATH": str(tmp_path), "LD_LIBRARY_PATH": f"/nowhere:{folder}"}, 10)
    assert found.loaded_first == str(folder / "libcuda.so.1")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, as a cc on PATH")
def test_a_real_linker_takes_a_library_that_is_one_and_refuses_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so").write_text("not a library")
    environ = {"PATH": os.environ["PATH"], "LIBRARY_PATH": str(tmp_path)}

    def linked() -> Any:
        trial = gather_tools.cuda_library(environ, 30).link
        assert trial is not None
        return trial

    refused = linked()
    assert refused.code != 0 and "libcuda.so" in refused.output
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", str(tmp_path / "libcuda.so")], check=True)
    assert linked().code == 0

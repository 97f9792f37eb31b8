"""The doctor on compilers that are older than the GPU, a libcuda that cannot be linked, and Triton."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.doctor import Severity
from dspark_ops.doctor.facts import (
    CudaLibrary,
    Tool,
    Trial,
    TritonFacts,
)


@pytest.mark.parametrize(
    ("device", "tool", "version", "old"),
    [
        ("H200", "nvcc", "11.7", True),
        ("H200", "nvcc", "11.8", False),
        ("B300", "ptxas", "12.8", True),
        ("B300", "ptxas", "12.10", False),  # numbers, not text
        ("MI355X", "hipcc", "6.4", True),
        ("MI355X", "hipcc", "7.0", False),
        ("MI355X", "nvcc", "10.0", False),  # of another vendor
    ],
)
def test_a_tool_that_is_older_than_the_gpu_is_found(ask: Any, device: str, tool: str, version: str, old: bool) -> None:
    findings = ask.found("toolkit", device=device, tools=(Tool(tool, f"/opt/bin/{tool}", "CUDA_HOME", version),))
    assert len(findings) == old
    if old:
        assert findings[0].finding.startswith(f"{tool} {version} is older than the GPU")
        assert findings[0].evidence.startswith(f"/opt/bin/{tool} (CUDA_HOME); {ask.device(device).arch} needs ")
        assert findings[0].fix.endswith("point CUDA_HOME to it")


def test_a_tool_that_does_not_say_its_version_is_a_warning(ask: Any) -> None:
    finding = ask.one("toolkit", tools=(Tool("nvcc", "/bin/nvcc", "PATH", "", "command not found"),))
    assert finding.severity is Severity.WARNING and "'command not found'" in finding.evidence


def test_an_architecture_that_no_release_notes_are_known_of_is_a_note(ask: Any) -> None:
    h200 = ask.device("H200")
    device = replace(h200, arch=replace(h200.arch, name="sm_110", family="unknown"))
    assert ask.one("toolkit", device=device).severity is Severity.NOTE


def test_a_libcuda_that_cannot_be_linked_is_found_with_the_linkers_words(ask: Any) -> None:
    trial = Trial("cc main.c -lcuda", 1, "ld: cannot find -lcuda")
    finding = ask.one("libcuda", cuda_library=CudaLibrary(trial, stubs=("/usr/local/cuda/lib64/stubs",)))
    assert finding.severity is Severity.ERROR
    assert finding.evidence == "cc main.c -lcuda: exit code 1: ld: cannot find -lcuda"
    assert finding.fix == "export LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LIBRARY_PATH"
    assert "ln -s libcuda.so.1 libcuda.so" in ask.one("libcuda", cuda_library=CudaLibrary(trial)).fix


def test_a_stub_that_programs_would_load_is_found(ask: Any) -> None:
    library = CudaLibrary(Trial("cc", 0, ""), loaded_first="/usr/local/cuda/lib64/stubs/libcuda.so.1")
    assert "take the stubs folder off LD_LIBRARY_PATH" in ask.one("libcuda", cuda_library=library).fix


def test_a_triton_without_a_backend_for_the_device_is_found(ask: Any) -> None:
    finding = ask.one("triton", triton=TritonFacts("3.9.0", ("amd",)))
    assert finding.finding == "Triton 3.9.0 has no backend for nvidia: no Triton kernel can be built for sm_90"


@pytest.mark.parametrize(("code", "text"), [(1, "exit code 1: ptxas fatal"), (None, "ran out of time: ptxas fatal")])
def test_a_triton_that_cannot_compile_for_the_device_is_found(ask: Any, code: int | None, text: str) -> None:
    trial = Trial("a small kernel for cuda 103", code, "ptxas fatal")
    finding = ask.one("triton", device="B300", triton=TritonFacts("3.2.0", ("nvidia",), trial))
    assert finding.finding == "Triton 3.2.0 cannot compile for sm_103"
    assert finding.evidence == f"a small kernel for cuda 103: {text}"

"""Checks of the tools that build kernels: compilers older than the GPU, a driver library that cannot be linked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import InvalidVersion, Version

from dspark_ops.doctor.facts import Facts, Trial
from dspark_ops.doctor.finding import Check, Severity

Found = Iterator[tuple[Severity, str, str, str]]

#: First release of the toolkit that compiles for an architecture (release notes of CUDA; of ROCm for gfx).
FIRST_TOOLKIT: Final = {
    "sm_80": "11.0",
    "sm_86": "11.1",
    "sm_89": "11.8",
    "sm_90": "11.8",
    "sm_100": "12.8",
    "sm_120": "12.8",
    "sm_103": "12.9",
    "sm_121": "12.9",
    "gfx942": "6.0",
    "gfx950": "7.0",
}
_TOOLS: Final = {"nvidia": ("nvcc", "ptxas"), "amd": ("hipcc",)}


def _old(facts: Facts) -> Found:
    if facts.device is None:
        return
    arch = facts.device.arch.name
    first = FIRST_TOOLKIT.get(arch)
    if first is None:
        yield (
            Severity.NOTE,
            f"it is not known which toolkit compiles for {arch}",
            f"known are {', '.join(FIRST_TOOLKIT)}",
            "compare the release notes of your toolkit",
        )
        return
    for tool in facts.tools:
        if tool.name not in _TOOLS.get(facts.vendor, ()):
            continue
        where = f"{tool.path} ({tool.origin})"
        try:
            version = Version(tool.version)
        except InvalidVersion:
            what = f"{tool.name} does not say its version, so it may not compile for {arch}"
            yield Severity.WARNING, what, f"{where} says {tool.output!r}", f"run  {tool.path} --version"
            continue
        if version < Version(first):
            what = f"{tool.name} {tool.version} is older than the GPU: kernels built at run time fail for {arch}"
            fix = f"install toolkit {first} or later, and point {_variable(tool.origin)} to it"
            yield Severity.ERROR, what, f"{where}; {arch} needs {first} or later", fix


def _variable(origin: str) -> str:
    return origin if origin.isupper() else "PATH and CUDA_HOME"


def _link(facts: Facts) -> Found:
    library = facts.cuda_library
    if library.loaded_first:
        what = "programs load the stub of the CUDA driver's library, with which every call fails"
        fix = "take the stubs folder off LD_LIBRARY_PATH; it belongs on LIBRARY_PATH, for linking alone"
        yield Severity.ERROR, what, f"LD_LIBRARY_PATH gives {library.loaded_first} for libcuda.so.1", fix
    if library.link is not None and library.link.code != 0:
        what = "-lcuda cannot be linked: kernels built at run time fail, and slower ones serve without a word"
        if library.stubs:
            fix = f"export LIBRARY_PATH={library.stubs[0]}:$LIBRARY_PATH"
        else:
            fix = "install the toolkit's stubs, or  ln -s libcuda.so.1 libcuda.so  beside the driver's library"
        yield Severity.ERROR, what, _trial(library.link), fix


def _triton(facts: Facts) -> Found:
    triton = facts.triton
    if facts.device is None:
        return
    arch = facts.device.arch.name
    if facts.vendor not in triton.backends:
        has = ", ".join(triton.backends) or "none"
        what = f"Triton {triton.version} has no backend for {facts.vendor}: no Triton kernel can be built for {arch}"
        yield Severity.ERROR, what, f"its backends: {has}", "install the Triton that your torch was published with"
    elif triton.compiled is not None and triton.compiled.code != 0:
        what = f"Triton {triton.version} cannot compile for {arch}"
        fix = "install a later Triton; unset TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH if they are set"
        yield Severity.ERROR, what, _trial(triton.compiled), fix


def _trial(trial: Trial) -> str:
    ended = "ran out of time" if trial.code is None else f"exit code {trial.code}"
    return f"{trial.command}: {ended}: {trial.output}" if trial.output else f"{trial.command}: {ended}"


def _simulated(facts: Facts) -> str:
    return "the device is simulated" if facts.device is not None and facts.device.simulated else ""


def _not_nvidia(facts: Facts) -> str:
    if facts.vendor != "nvidia":
        return "no NVIDIA device"
    if reason := _simulated(facts):
        return reason
    library = facts.cuda_library
    return "" if library.link or library.loaded_first else "no C compiler to link with"


def _no_triton(facts: Facts) -> str:
    if facts.device is None or not facts.device.is_accelerator:
        return "no accelerator to plan for"
    return "" if facts.triton.version else "Triton is not installed"


def _no_tools(facts: Facts) -> str:
    if facts.vendor not in _TOOLS:
        return "no accelerator to plan for"
    if reason := _simulated(facts):
        return reason
    return "" if facts.tools else f"none of {', '.join(_TOOLS[facts.vendor])} found"


OLD = Check("toolkit", "Are nvcc, ptxas and hipcc new enough for this device?", _old, _no_tools)
LINK = Check("libcuda", "Can programs be linked with the CUDA driver's library?", _link, _not_nvidia)
TRITON = Check("triton", "Can Triton compile for this device?", _triton, _no_triton)
CHECKS = (OLD, LINK, TRITON)

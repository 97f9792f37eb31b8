"""Compilers and linkers: which there are, which version each prints, and whether they do what is needed of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dspark_ops.api.arch import Arch
from dspark_ops.doctor.facts import CudaLibrary, Tool, Trial

_VERSIONS: Final = {
    "nvcc": re.compile(r"release (\d+\.\d+)"),
    "ptxas": re.compile(r"release (\d+\.\d+)"),
    "hipcc": re.compile(r"HIP version: (\d+\.\d+)"),
}
#: Per tool: variables that name it, and variables of installations that have it at ``bin/<tool>``.
_PLACES: Final = {
    "nvcc": ((), ("CUDA_HOME", "CUDA_PATH")),
    "ptxas": (("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"), ("CUDA_HOME", "CUDA_PATH")),
    "hipcc": ((), ("ROCM_PATH", "ROCM_HOME")),
}
_OF_VENDOR: Final = {"nvidia": ("nvcc", "ptxas"), "amd": ("hipcc",)}
_STUBS: Final = ("lib64/stubs", "targets/x86_64-linux/lib/stubs", "targets/sbsa-linux/lib/stubs")

#: Builds the smallest kernel for the target that its words name.
_KERNEL: Final = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add_one(x):
    tl.store(x, tl.load(x) + 1.0)

backend, arch, warp = sys.argv[1:]
target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, int(warp))
triton.compile(ASTSource(add_one, {"x": "*fp32"}), target=target)
"""


def compilers(vendor: str, environ: Mapping[str, str], time_limit: float) -> tuple[Tool, ...]:
    """Return the compilers for a vendor's devices, each place once, in the order in which programs look for them."""
    found: dict[str, Tool] = {}
    for name in _OF_VENDOR.get(vendor, ()):
        files, homes = _PLACES[name]
        places = [(environ[variable], variable) for variable in files if environ.get(variable)]
        places += [(str(Path(environ[home]) / "bin" / name), home) for home in homes if environ.get(home)]
        on_path = shutil.which(name, path=environ.get("PATH", ""))
        places += [(on_path, "PATH")] if on_path else []
        for path, origin in places:
            if Path(path).exists():
                found.setdefault(os.path.realpath(path), tool(name, path, origin, time_limit))
    return tuple(found.values())


def tool(name: str, path: str, origin: str, time_limit: float) -> Tool:
    """Return a tool with the version that it prints, which is empty if it prints none."""
    trial = attempt([path, "--version"], time_limit)
    match = _VERSIONS[name].search(trial.output)
    return Tool(name, path, origin, match[1] if match else "", trial.output[-200:])


def cuda_library(environ: Mapping[str, str], time_limit: float) -> CudaLibrary:
    """Return how programs find ``libcuda``: by a trial to link with it, and by the folders that they are told."""
    homes = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)] or ["/usr/local/cuda"]
    stubs = [str(Path(home) / below) for home in dict.fromkeys(homes) for below in _STUBS]
    loaded = [str(Path(folder) / "libcuda.so.1") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    first = next((path for path in loaded if Path(path).exists()), "")
    return CudaLibrary(
        link=_link_trial(environ, time_limit),
        stubs=tuple(folder for folder in stubs if (Path(folder) / "libcuda.so").exists()),
        loaded_first=first if "stubs" in Path(first).parts else "",
    )


def _link_trial(environ: Mapping[str, str], time_limit: float) -> Trial | None:
    compiler = next(
        (path for name in ("cc", "gcc", "clang") if (path := shutil.which(name, path=environ.get("PATH")))), None
    )
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "main.c"
        source.write_text("int main(void) { return 0; }\n", encoding="ascii")
        # Without --no-as-needed a linker may skip a library that nothing calls, whatever it is.
        words = [compiler, str(source), "-o", str(Path(folder) / "main"), "-Wl,--no-as-needed", "-lcuda"]
        trial = attempt(words, time_limit, environ)
    return Trial(f"{Path(compiler).name} main.c -lcuda", trial.code, trial.output)


def triton_compiles(arch: Arch, environ: Mapping[str, str], time_limit: float) -> Trial:
    """Return the trial to build one small Triton kernel for an architecture, in a child process and a fresh cache."""
    target = ["hip", arch.name, "64"] if arch.vendor == "amd" else ["cuda", arch.name.removeprefix("sm_"), "32"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "kernel.py"  # triton.jit reads its source from a file
        script.write_text(_KERNEL, encoding="ascii")
        child = {name: value for name, value in environ.items() if name != "TRITON_INTERPRET"}
        child |= {"TRITON_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        trial = attempt([sys.executable, "-W", "ignore", str(script), *target], time_limit, child)
    return Trial(f"a small kernel for {' '.join(target[:2])}", trial.code, trial.output)


def attempt(words: Sequence[str], time_limit: float, environ: Mapping[str, str] | None = None) -> Trial:
    """Return how a command ended, with the last lines of what it wrote; it never raises for what the command does."""
    command = " ".join(words)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environ is None else dict(environ),
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(command, None, f"more than {time_limit:g} s")
    except OSError as error:  # not executable, or for another machine
        return Trial(command, 126, f"{type(error).__name__}: {error}")
    return Trial(command, done.returncode, done.stdout.decode("utf-8", "replace").strip()[-2000:])

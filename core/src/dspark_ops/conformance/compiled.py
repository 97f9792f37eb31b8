"""Kernels built for an architecture that need not be present: registers, spills, memory and machine code.

This is the ``compiled`` level of evidence. Triton and the assemblers in its wheel do all of it on any machine.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_ops.api.arch import Arch
from dspark_ops.errors import EvidenceError

__all__ = ["CompiledKernel", "compile_kernel", "compile_target"]

#: cuobjdump's names: registers per thread, bytes of stack, of shared memory and of local memory.
_CUDA_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")
_AMD_USAGE = {
    "registers": r"\.vgpr_count:\s*(\d+)",
    "spills": r"\.vgpr_spill_count:\s*(\d+)",
    "scalar_spills": r"\.sgpr_spill_count:\s*(\d+)",
    "private": r"\.private_segment_fixed_size:\s*(\d+)",
}


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a compiler made of one kernel for one architecture.

    Attributes:
        arch: architecture name.
        registers: 32-bit registers per thread (vector registers per lane on AMD).
        spilled: bytes per thread that live in local (scratch) memory although the source keeps them in registers; 0 is
            what one wants.
        shared: bytes of shared memory (LDS) per program.
        assembly: PTX on NVIDIA, AMDGCN assembly on AMD: what the compiler asked for.
        machine_code: disassembled SASS on NVIDIA; the assembly itself on AMD.
        triton_ir: Triton's first representation, functions inlined.
    """

    arch: str
    registers: int
    spilled: int
    shared: int
    assembly: str
    machine_code: str
    triton_ir: str = ""

    def count(self, pattern: str) -> int:
        """Return how many lines of the machine code match a regular expression."""
        return sum(1 for line in self.machine_code.splitlines() if re.search(pattern, line))


def compile_kernel(
    kernel: Any, arch: str, signature: Mapping[str, str], constants: Mapping[str, Any], options: Mapping[str, Any],
    divisible_by_16: tuple[str, ...] = (),
) -> CompiledKernel:  # fmt: skip
    """Build a Triton kernel for an architecture.

    Args:
        kernel: the ``@triton.jit`` function.
        arch: an architecture name, such as ``sm_103`` or ``gfx950``.
        signature: Triton type per run-time argument, such as ``*fp32`` or ``i64``.
        constants: values of the compile-time arguments.
        options: launch options, such as ``num_warps``; the same as the launch gives.
        divisible_by_16: arguments whose value (or address) is known to be a multiple of 16.

    Raises:
        EvidenceError: kernels are interpreted in this process, or the resource report cannot be read.
    """
    import triton
    from triton.compiler import ASTSource

    if not hasattr(kernel, "arg_names") or not hasattr(kernel, "cache_key"):
        raise EvidenceError(
            f"cannot compile {kernel!r}: wanted a compiled-mode @triton.jit function; start again without "
            "TRITON_INTERPRET"
        )
    order = {name: index for index, name in enumerate(kernel.arg_names)}
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    attributes = {(order[name],): [["tt.divisibility", 16]] for name in divisible_by_16}
    source = ASTSource(kernel, types, {(order[name],): value for name, value in constants.items()}, attributes)
    parsed = Arch.parse(arch)
    compiled = triton.compile(source, target=compile_target(parsed), options=dict(options))
    if parsed.vendor == "amd":
        return _read_amd(parsed.name, compiled)
    return _read_nvidia(parsed.name, compiled)


def compile_target(arch: Arch) -> Any:
    """Return the target that Triton compiles for an architecture."""
    from triton.backends.compiler import GPUTarget

    if arch.vendor == "amd":
        return GPUTarget("hip", arch.name, 64 if arch.name.startswith("gfx9") else 32)
    return GPUTarget("cuda", int(arch.name.removeprefix("sm_")), 32)


def _read_amd(arch: str, compiled: Any) -> CompiledKernel:
    assembly = compiled.asm["amdgcn"]
    usage = {}
    for name, pattern in _AMD_USAGE.items():
        if not (match := re.search(pattern, assembly)):
            raise EvidenceError(f"no {name} ({pattern}) in the {arch} assembly of {compiled.metadata.name}")
        usage[name] = int(match[1])
    spilled = 4 * (usage["spills"] + usage["scalar_spills"]) + usage["private"]
    shared, triton_ir = compiled.metadata.shared, compiled.asm["ttir"]
    return CompiledKernel(arch, usage["registers"], spilled, shared, assembly, assembly, triton_ir)


def _read_nvidia(arch: str, compiled: Any) -> CompiledKernel:
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        report = _disassembler("cuobjdump", "--dump-resource-usage", str(binary))
        machine_code = _disassembler("cuobjdump", "--dump-sass", str(binary))
    if not (usage := _CUDA_USAGE.search(report)):
        raise EvidenceError(f"no resource usage in what cuobjdump says of {compiled.metadata.name}, {arch}:\n{report}")
    spilled = int(usage["stack"]) + int(usage["local"])
    shared = compiled.metadata.shared
    assembly, triton_ir = compiled.asm["ptx"], compiled.asm["ttir"]
    return CompiledKernel(arch, int(usage["registers"]), spilled, shared, assembly, machine_code, triton_ir)


def _disassembler(tool: str, *arguments: str) -> str:
    """Run a tool that Triton's wheel carries beside its assembler."""
    from triton.backends import nvidia

    path = Path(nvidia.__file__).parent / "bin" / tool
    if not path.exists():
        raise EvidenceError(f"{path} is missing: wanted the {tool} that Triton's wheel carries")
    finished = subprocess.run([str(path), *arguments], capture_output=True, text=True, check=False)
    if finished.returncode:
        command = " ".join((tool, *arguments))
        raise EvidenceError(f"{command} failed with {finished.returncode}: {finished.stderr.strip()}")
    return finished.stdout

"""What a built kernel asks of the machine, as numbers: matrix instructions, widths of loads, barriers, early launch."""

from __future__ import annotations

import re

from dspark_ops.api.arch import Arch
from dspark_ops.conformance.compiled import CompiledKernel

__all__ = ["dependent_loads", "machine_facts"]

_NVIDIA = {
    "scaled matrix instructions": ("assembly", r"tcgen05\.mma\S*\.block_scale|mma\.sync\S*\.block_scale"),
    "matrix instructions": ("machine", r"\b(HMMA|HGMMA|QMMA|IMMA|UTC\w*MMA)\b"),
    "waits for the kernel before": ("assembly", r"griddepcontrol\.wait"),
    "lets the next kernel start": ("assembly", r"griddepcontrol\.launch_dependents"),
    "loads of 32 bytes": ("machine", r"\bLDG\.E\.ENL2\.256"),
    "loads of 16 bytes": ("machine", r"\bLDG\.E\.(\w+\.)*128"),
    "loads of 8 bytes": ("machine", r"\bLDG\.E\.(\w+\.)*64"),
    "loads": ("machine", r"\bLDG\.E"),
    "copies into shared memory": ("machine", r"\bLDGSTS|\bUTMALDG|\bUBLKCP"),
    "stores of 16 bytes": ("machine", r"\bSTG\.E\.(\w+\.)*128"),
    "stores": ("machine", r"\bSTG\.E"),
    "atomics": ("machine", r"\b(ATOMG|REDG|RED|ATOM)\.E"),
    "barriers of a program": ("machine", r"\bBAR\.SYNC"),
}
_AMD = {
    "scaled matrix instructions": ("machine", r"\bv_mfma_scale_f32"),
    "matrix instructions": ("machine", r"\bv_mfma_"),
    "loads of 16 bytes": ("machine", r"\b(global|buffer|flat)_load_dwordx4"),
    "loads of 8 bytes": ("machine", r"\b(global|buffer|flat)_load_dwordx2"),
    "loads": ("machine", r"\b(global|buffer|flat)_load_"),
    "stores of 16 bytes": ("machine", r"\b(global|buffer|flat)_store_dwordx4"),
    "stores": ("machine", r"\b(global|buffer|flat)_store_"),
    "atomics": ("machine", r"\b(global|buffer|flat)_atomic"),
    "barriers of a program": ("machine", r"\bs_barrier"),
}
_VALUE = re.compile(r"%[\w#.-]+")
_LOOP_VALUE = re.compile(r"(%[\w.-]+) = (%[\w#.-]+)")


def machine_facts(kernel: CompiledKernel) -> dict[str, int]:
    """Return how often a built kernel has each kind of instruction; kinds that it has not are left out."""
    patterns = _AMD if Arch.parse(kernel.arch).vendor == "amd" else _NVIDIA
    texts = {"assembly": kernel.assembly.splitlines(), "machine": kernel.machine_code.splitlines()}
    counts = {name: sum(1 for line in texts[where] if re.search(pattern, line)) for name, (where, pattern) in
              patterns.items()}  # fmt: skip
    return {name: count for name, count in counts.items() if count}


def dependent_loads(triton_ir: str) -> int:
    """Return how many loads of a program wait for one another at least: the longest chain of loads and atomics.

    A load waits for another if its address or its mask is computed from what that one brought, or if it stands behind a
    branch or in a loop whose bounds were; an atomic that releases waits for what was stored before it. What a loop
    carries from turn to turn is not followed.

    Args:
        triton_ir: Triton's first representation of a kernel, functions inlined.
    """
    depth: dict[str, int] = {}
    regions: list[int] = []
    deepest = stored = 0
    for line in triton_ir.splitlines():
        text = line.split(" loc(")[0].strip()
        closes = len(text) - len(text.lstrip("}"))
        for _ in range(min(closes, len(regions))):
            regions.pop()
        made, _, rest = text.partition(" = ") if text.startswith("%") else ("", "", text)
        below = regions[-1] if regions else 0
        used = max((depth.get(_plain(name), 0) for name in _VALUE.findall(rest)), default=0)
        waits = re.search(r"\btt\.(load|atomic_\w+|descriptor_load)\b", rest) is not None
        if "tt.store" in rest:
            stored = max(stored, used)
        if "acq_rel" in rest or "release" in rest:
            used = max(used, stored)
        value = max(used, below if waits else 0) + (1 if waits else 0)
        deepest = max(deepest, value)
        if made:
            depth[_plain(made.split(":")[0])] = value
        for inner, start in _LOOP_VALUE.findall(rest):
            depth[inner] = depth.get(_plain(start), 0)
        if text.endswith("{"):
            bounds = rest.split("iter_args")[0]
            control = max((depth.get(_plain(name), 0) for name in _VALUE.findall(bounds)), default=0)
            regions.append(max(below, control))
    return deepest


def _plain(name: str) -> str:
    """Return the name of a value without the number of the result."""
    return name.partition("#")[0]

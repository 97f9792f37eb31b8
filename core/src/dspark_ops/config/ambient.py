"""The environment variables that change what kernels and libraries do: read once, for a record of a measurement."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from dspark_ops.config.environment import VARIABLES
from dspark_ops.suggest import did_you_mean

__all__ = ["ambient", "child_environment", "unknown_variables"]

PREFIXES: Final = (
    "AITER_", "ATOM_", "CUBLAS_", "CUDA_", "CUDNN_", "DSPARK_OPS_", "FLASHINFER_", "GLOO_", "GOMP_", "GPU_", "HIP_",
    "HSA_", "KMP_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "RCCL_", "ROCM_", "ROCR_", "SGLANG_",
    "TORCH_", "TORCHINDUCTOR_", "TRITON_", "VLLM_",
)  # fmt: skip
_SINGLE: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_CONF", "PYTHONHASHSEED", "PYTHONOPTIMIZE")
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")

#: Every variable of these prefixes is known; of the other prefixes new names appear too often to keep a list.
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "DSPARK_OPS_": tuple(VARIABLES),
    "OMP_": tuple(
        f"OMP_{name}"
        for name in (
            "AFFINITY_FORMAT", "ALLOCATOR", "CANCELLATION", "DEBUG", "DEFAULT_DEVICE", "DISPLAY_AFFINITY",
            "DISPLAY_ENV", "DYNAMIC", "MAX_ACTIVE_LEVELS", "MAX_TASK_PRIORITY", "NESTED", "NUM_TEAMS", "NUM_THREADS",
            "PLACES", "PROC_BIND", "SCHEDULE", "STACKSIZE", "TARGET_OFFLOAD", "TEAMS_THREAD_LIMIT", "THREAD_LIMIT",
            "TOOL", "TOOL_LIBRARIES", "TOOL_VERBOSE_INIT", "WAIT_POLICY",
        )
    ),
}  # fmt: skip


def ambient(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that may change a measurement, by name; values of those that look secret are left out.

    Args:
        environ: the environment; by default that of the process.
    """
    given = os.environ if environ is None else environ
    return {
        name: "(set; value not recorded)" if _SECRET.search(name) else value
        for name, value in sorted(given.items())
        if name.startswith(PREFIXES) or name in _SINGLE
    }


def unknown_variables(names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable whose prefix is known completely and whose name is not: it has no effect."""
    for name in names:
        for prefix, known in _KNOWN.items():
            if name.startswith(prefix) and name not in known:
                yield f"environment variable {name} is unknown and has no effect{did_you_mean(name, known)}"


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with some variables set, for a child process."""
    return {**os.environ, **changes}

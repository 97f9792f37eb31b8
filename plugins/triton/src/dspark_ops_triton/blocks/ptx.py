"""Whether a kernel may hold PTX: it does where it is compiled for an NVIDIA GPU, and not in the interpreter."""

from __future__ import annotations

from typing import Any

import torch
import triton


def takes_ptx(kernel: Any) -> bool:
    """Return whether launches of a ``@triton.jit`` function are compiled for an NVIDIA GPU."""
    return isinstance(kernel, triton.JITFunction) and torch.version.hip is None

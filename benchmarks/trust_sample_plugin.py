"""The plugin that `benchmarks/trust_on_gpu.py` installs for its run: kernels to tune where there would be one alone.

``once`` is the portable kernel under another name, the reference on a CPU. ``twice`` calls it two times and claims the
better class.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from dspark_ops import contracts
from dspark_ops.api import Kernel, Manifest, RankClass, hookimpl

MODULES = {"argmax_rows": "dspark_ops_triton.argmax", "mhc_post": "dspark_ops_triton.mhc_post"}


def _made(name: str, times: int) -> Callable[..., Any]:
    contract = contracts.get(name)

    def call(*arguments: Any) -> Any:
        own = getattr(import_module(MODULES[name]), name) if torch.cuda.is_available() else contract.reference
        for _ in range(times):
            result = own(*arguments)
        return result

    call.__signature__ = contract.signature()  # type: ignore[attr-defined]
    return call


argmax_rows, argmax_rows_twice = _made("argmax_rows", 1), _made("argmax_rows", 2)
mhc_post, mhc_post_twice = _made("mhc_post", 1), _made("mhc_post", 2)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels."""
    kernels = [Kernel(name, "twice", f"sample_plugin:{name}_twice", rank=RankClass.FUSED) for name in MODULES]
    kernels += [Kernel(name, "once", f"sample_plugin:{name}", rank=RankClass.PORTABLE) for name in MODULES]
    return Manifest("sample", api=">=1,<2", kernels=tuple(kernels))

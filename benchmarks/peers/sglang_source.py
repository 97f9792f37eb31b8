"""Where SGLang's kernels are found: the installed package, or the unpacked files of its wheel."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from dspark_ops.bench.peers import UnfitError

#: ``sglang/kernels`` of the wheel and the runtime files that it imports, below the working directory.
UNPACKED = Path(".peers/sglang")


def missing() -> str:
    """Return why there are no kernels of SGLang here; empty if there are."""
    return "" if find_spec("sglang") or UNPACKED.is_dir() else f"neither the package sglang nor {UNPACKED} is here"


def kernel(path: str, name: str) -> Callable[..., Any]:
    """Return a function of ``sglang.kernels.ops``; the package's own start-up is left out where it is unpacked."""
    if "sglang" not in sys.modules and find_spec("sglang") is None:
        _use_unpacked()
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(f"sglang.kernels.ops.{path}"), name)
    except Exception as error:  # its modules look at the machine when they are imported, and may raise anything
        raise UnfitError(f"{path}.{name} cannot be imported: {type(error).__name__}: {error}") from error
    return found


def _use_unpacked() -> None:
    root = UNPACKED.resolve()
    # Packages whose own __init__ starts a server, or imports what is not needed here.
    bare = {"sglang": "", "sglang.srt": "srt", "sglang.srt.layers.utils": "srt/layers/utils"}
    lora = "kernels/ops/lora/moe/trtllm_lora_temp"
    bare["sglang.kernels.ops.lora.moe.trtllm_lora_temp"] = lora
    for name, folder in ((name, root / below) for name, below in bare.items()):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules.setdefault(name, module)

"""Which source files a kernel is made of, so that a record of a run on hardware says what it is a record of."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from pathlib import Path

from dspark_ops.errors import EvidenceError

__all__ = ["kernel_sources", "source_digest"]


def kernel_sources(target: str) -> tuple[str, ...]:
    """Return the modules of its own package that a kernel's target imports, itself included, sorted by name.

    Nothing is imported but the target's packages. Imports inside functions count too.

    Args:
        target: ``module:attribute`` as kernels name it.

    Raises:
        EvidenceError: the module is not installed.
    """
    first = target.partition(":")[0]
    package = first.partition(".")[0]
    found: dict[str, Path] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _file(name)
        if path is None:
            continue
        found[name] = path
        waiting += [other for other in _imported(path) if other.partition(".")[0] == package]
    if first not in found:
        raise EvidenceError(f"{target}: there is no module {first} here; install the plugin that the kernel belongs to")
    return tuple(sorted(found))


def source_digest(target: str) -> str:
    """Return ``sha256:...`` over the sources of a kernel: it changes if any module in `kernel_sources` does.

    Raises:
        EvidenceError: the module is not installed.
    """
    digest = hashlib.sha256()
    for name in kernel_sources(target):
        path = _file(name)
        if path is not None:
            digest.update(f"{name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"sha256:{digest.hexdigest()}"


def _file(name: str) -> Path | None:
    """Return a module's source file; None for what is no module, such as a function that a module exports."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names

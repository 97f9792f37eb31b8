"""Which source files a kernel or a plugin is made of, so that records and locks say what they speak of."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dspark_ops.errors import EvidenceError

__all__ = ["kernel_sources", "module_file", "package_digest", "source_digest"]

#: The package whose building blocks other plugins may use.
_BLOCKS: Final = "dspark_ops_triton"


def kernel_sources(target: str) -> tuple[str, ...]:
    """Return the modules that a kernel's target imports, itself included, sorted by name.

    Counted are those of its own package, and the building blocks that vendor plugins take from the portable one.

    Nothing is imported. Imports inside functions count too.

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
        path = None if name in found else module_file(name)
        if path is None:
            continue
        found[name] = path
        waiting += [other for other in _imported(path) if other.partition(".")[0] in (package, _BLOCKS)]
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
        path = module_file(name)
        if path is not None:
            digest.update(f"{name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"sha256:{digest.hexdigest()}"


def package_digest(modules: Iterable[str]) -> str:
    """Return ``sha256:...`` over every file of some top-level modules, or an empty text where none of them is found.

    Nothing is imported. Byte code and hidden files do not count; data files do, since tile tables are such. That one of
    the modules is absent counts too.
    """
    digest, known = hashlib.sha256(), False
    for module in sorted(modules):
        found = _top_level(module)
        digest.update(f"{module}\n".encode())
        if found is None:
            continue
        known = True
        files = [found] if found.is_file() else sorted(path for path in found.rglob("*") if _counts(path, found))
        for path in files:
            name = path.name if path == found else path.relative_to(found).as_posix()
            digest.update(f"{module}/{name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"sha256:{digest.hexdigest()}" if known else ""


def _top_level(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a module that some test put into sys.modules has no spec
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def _counts(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return path.is_file() and "__pycache__" not in parts and not any(part.startswith(".") for part in parts)


def module_file(name: str) -> Path | None:
    """Return a module's source file; None for what is no module, such as a function that a module exports.

    It is found by its path: to ask the import system for a dotted name would import its parents, and with them Triton.
    """
    top, *rest = name.split(".")
    found = _top_level(top)
    if found is None or found.is_file():
        return found if found is not None and not rest else None
    base = found.joinpath(*rest)
    choices = [base / "__init__.py", *([base.with_suffix(".py")] if rest else [])]
    return next((path for path in choices if path.is_file()), None)


def _imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names

"""Which compiled functions a kernel launches, read from its source: what a ``compiled`` kernel must have had built."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from dspark_ops.selection.sources import module_file

__all__ = ["launched_functions"]


@dataclass(slots=True)
class _Module:
    """The top level of one module: its definitions by name, and what its imports name."""

    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


def launched_functions(*targets: str, packages: Iterable[str] = ()) -> frozenset[tuple[str, str]]:
    """Return module and name of every ``jit`` function that the host code behind some targets names.

    Followed are names within the targets' package and the named ones, from function to function and over imports.
    Functions that only compiled code calls are part of what launches them and are not listed. Nothing is imported.

    Args:
        targets: ``module:attribute``, such as a kernel's `target` and `prepare`.
        packages: top-level packages that are followed too, such as one whose building blocks a plugin uses.
    """
    followed = {*packages, *(target.partition(":")[0].partition(".")[0] for target in targets)}
    modules: dict[str, _Module] = {}
    waiting = [(target.partition(":")[0], target.partition(":")[2]) for target in targets]
    seen: set[tuple[str, str]] = set()
    launched: set[tuple[str, str]] = set()
    while waiting:
        module, name = waiting.pop()
        if (module, name) in seen or module.partition(".")[0] not in followed:
            continue
        seen.add((module, name))
        found = modules.setdefault(module, _read(module))
        if name in found.imports:
            waiting.append(found.imports[name])
        elif name in found.definitions:
            node = found.definitions[name]
            if _is_jit(node):
                launched.add((module, name))
            else:
                waiting += _named(node, module, found)
    return frozenset(launched)


def _read(module: str) -> _Module:
    file, made = module_file(module), _Module()
    if file is None:
        return made
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.definitions[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    made.definitions[target.id] = node
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                made.imports[alias.asname or alias.name] = (node.module, alias.name)
    return made


def _is_jit(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any("jit" in ast.unparse(decorator).split("(")[0].split(".") for decorator in decorators)


def _named(node: ast.AST, module: str, found: _Module) -> list[tuple[str, str]]:
    """Return what a definition names: its own module's names, and attributes of modules that it imports."""
    names: list[tuple[str, str]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            names.append((module, part.id))
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in found.imports:
            parent, child = found.imports[part.value.id]
            names.append((f"{parent}.{child}", part.attr))
    return names

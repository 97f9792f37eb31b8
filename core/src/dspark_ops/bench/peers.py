"""Peers: other implementations of an operator, adapted to its contract so that they can be checked and timed beside it.

A peer is a Python file ``NAME_peer.py`` with a function ``peer() -> Peer``. None is part of this package:
``benchmarks/peers`` of the repository holds some, and ``--peers DIR`` names another folder.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dspark_ops.contracts.contract import Contract
from dspark_ops.contracts.exactness import Exactness
from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

__all__ = ["Adapter", "Peer", "UnfitError", "load_peer", "peer_names"]

Inputs = Mapping[str, Any]

_SUFFIX: Final = "_peer"


class UnfitError(Exception):
    """A peer cannot serve a call; the text says why, in the terms of the contract."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One operator of a peer.

    Attributes:
        prepare: gets the contract's parameters by name and returns the call to time. What it converts or allocates is
            not timed. It raises `UnfitError` where the peer cannot serve these inputs.
        outputs: gets what the call returned and the parameters, and returns outputs by the contract's names; None: the
            call returns what the contract says. Outputs that the peer does not have are left out and not checked.
        accuracy: bounds by output where the peer's own numerics are not the contract's.
        note: what is not the same about it, for the report.
    """

    prepare: Callable[[Inputs], Callable[[], Any]]
    outputs: Callable[[Any, Inputs], Mapping[str, Any]] | None = None
    accuracy: Mapping[str, Exactness] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another implementation of some operators.

    Attributes:
        name: what ``--vs`` calls it.
        version: package and version.
        adapter: gets a contract and returns its adapter, or the reason why there is none.
        missing: why it cannot be used on this machine at all, or empty.
    """

    name: str
    version: str
    adapter: Callable[[Contract], Adapter | str]
    missing: str = ""


def peer_names(folder: Path) -> list[str]:
    """Return the names of the peers in a folder."""
    return sorted(path.stem.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}.py"))


def load_peer(name: str, folder: Path) -> Peer:
    """Return the peer of a name.

    Raises:
        ConfigError: the folder has no such file, or the file does not give a peer.
    """
    known = peer_names(folder)
    if name not in known:
        have = f"{folder} has {', '.join(known)}{did_you_mean(name, known)}" if known else f"{folder} has none"
        raise ConfigError(f"--vs {name}: no such peer: {have}; --peers names another folder")
    path = folder / f"{name}{_SUFFIX}.py"
    try:
        found = importlib.import_module(f"{_package_of(folder)}.{path.stem}").peer()
    except Exception as error:  # a peer's file may raise anything
        raise ConfigError(f"--vs {name}: {path} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Peer):
        raise ConfigError(f"--vs {name}: peer() of {path} returned a {type(found).__name__}, wanted a Peer")
    return found


def _package_of(folder: Path) -> str:
    """Return the name of a package whose modules are the folder's files, so that a peer imports those beside it."""
    package = f"dspark_ops_peers_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module
    return package

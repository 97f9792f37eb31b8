"""Manifests: what a plugin returns from its hook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dspark_ops.api.kernel import Kernel

_NAME: Final = re.compile(r"^[a-z][a-z0-9_]*$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a plugin registers, as one value, so that it is taken whole or not at all.

    Attributes:
        name: the plugin's name, the first part of its kernels' ids.
        api: the range of plugin interface versions it was written for, such as ``>=1,<2``.
        kernels: its kernels. Two kernels of one operator need different variants.
        docs: address of its documentation.
    """

    name: str
    api: str
    kernels: Sequence[Kernel] = ()
    docs: str = ""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"plugin name {self.name!r} must match {_NAME.pattern}")
        object.__setattr__(self, "kernels", tuple(self.kernels))

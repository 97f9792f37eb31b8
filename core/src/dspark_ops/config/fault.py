"""Faults of a configuration: each with its place, what was wanted and what was got; all of them go into one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_ops.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        origin: ``dspark-ops.toml:4``, ``environment DSPARK_OPS_LOG`` or ``argument``.
        what: what kind of fault, with the name of the setting.
        wanted: what is admitted there.
        got: what stands there.
        hint: ``; did you mean 'x'?``, or empty.
    """

    origin: str
    what: str
    wanted: str
    got: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.origin}: {self.what}: wanted {self.wanted}, got {self.got}{self.hint}"


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise one error that lists all faults, if there are any.

    Raises:
        ConfigError: there are faults.
    """
    if not faults:
        return
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "\n".join(f"  {fault}" for fault in faults)
    raise ConfigError(f"the configuration has {count}, so none of it is applied:\n{lines}")

"""The doctor: finds what makes a machine slower than it could be, each finding with its evidence and its fix.

`gather` looks at the machine, the installation and the configuration; `examine` asks every check about the facts. A
check is a pure function, so an engine may also gather by itself and ask about facts of its own.
"""

from __future__ import annotations

from typing import Final

from dspark_ops.doctor import checks_device, checks_plan, checks_plugins, checks_process, checks_toolchain
from dspark_ops.doctor.facts import Facts
from dspark_ops.doctor.finding import Answer, Check, Finding, Severity, answer
from dspark_ops.doctor.gather import gather

__all__ = ["CHECKS", "Answer", "Check", "Facts", "Finding", "Severity", "examine", "gather"]

CHECKS: Final[tuple[Check, ...]] = (
    *checks_device.CHECKS,
    *checks_plugins.CHECKS,
    *checks_toolchain.CHECKS,
    *checks_process.CHECKS,
    *checks_plan.CHECKS,
)


def examine(facts: Facts) -> tuple[Answer, ...]:
    """Return what every check finds in the facts, in the order of the checks."""
    return tuple(answer(check, facts) for check in CHECKS)

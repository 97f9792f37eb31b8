"""The doctor: every check is a pure function over facts, and a sound machine has no finding."""

from __future__ import annotations

from typing import Any

from dspark_ops.doctor import CHECKS, examine


def test_a_sound_machine_has_no_finding(ask: Any) -> None:
    assert [finding for item in examine(ask.sound) for finding in item.findings] == []


def test_every_check_has_a_name_of_its_own_and_a_question() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS) == 12
    assert all(check.question.endswith("?") for check in CHECKS)

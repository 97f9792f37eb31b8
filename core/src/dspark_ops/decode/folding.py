"""Whether a step may be folded: accepted and committed on the device as the tail of its verify step (C2.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_ops.decode.running import Running

__all__ = ["FoldFacts", "fold_eligible"]


@dataclass(frozen=True, slots=True)
class FoldFacts:
    """What of a run decides whether its steps may be folded.

    Attributes:
        own_drafter: the model's drafter proposes, in the same runtime.
        on_device: verify lengths are chosen on the device from this step alone.
        checked: something looks at every step on the host.
        capped: rows that the policy leaves out are run all the same.
    """

    own_drafter: bool
    on_device: bool
    checked: bool
    capped: bool = False


def fold_eligible(facts: FoldFacts, running: Sequence[Running]) -> str:
    """Return the first reason why a step is not folded, or an empty text if it is.

    Args:
        facts: what is the same for all steps of a run.
        running: the requests of the step.

    Source: C2.9.2. Stop strings do not matter here: the host finds them one step late and drops what was decoded since.
    Nor do drawn accept lengths, which the device reads where it finds the real ones otherwise (C3.5).
    """
    if not facts.own_drafter:
        return "drafts come from outside the runtime"
    if not facts.on_device:
        return "the verify schedule needs the host"
    if facts.capped:
        return "rows are run that may not be accepted"
    if facts.checked:
        return "every step is checked on the host"
    if not all(item.greedy for item in running):
        return "a request is sampled"
    return ""

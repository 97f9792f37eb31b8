"""Ranks compare what they are about to run before their first collective, which would hang if they differed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dspark_ops.decode.ranks.group import RankGroup
from dspark_ops.errors import RankError
from dspark_ops.selection.codec import encode
from dspark_ops.selection.plan import Choice, Plan, Selection
from dspark_ops.selection.rows import rows_text

if TYPE_CHECKING:
    from dspark_ops.decode.options import DecodeOptions
    from dspark_ops.decode.request import Request

__all__ = ["agreed_plan", "check_same", "check_same_requests", "quarantine_everywhere"]

_SHOWN: Final = 8
_PROVENANCE: Final = ("origin", "origins", "files")


def agreed_plan(group: RankGroup, plan: Plan) -> Plan:
    """Return the plan that every rank runs: this one, if all ranks have made the same.

    Plans are compared by digest, without a collective. Where they differ, rank 0's ``policy.rank_mismatch`` decides:
    ``fail`` raises on every rank; ``leader`` gives every rank rank 0's plan, once each rank has found that all of its
    kernels may serve there.

    Args:
        group: the ranks.
        plan: what this rank has planned.

    Raises:
        RankError: the plans differ, or rank 0's may not serve on some rank; the text is the same on every rank. Or a
            rank has failed or gives no plan in time.
    """
    if group.size == 1:
        return plan
    mine = {"digest": plan.digest, "mode": plan.settings.policy.rank_mismatch}
    found = [json.loads(text) for text in group.exchange("plan digest", json.dumps(mine))]
    if len({entry["digest"] for entry in found}) == 1:
        return plan
    plans = [Plan.from_json(text) for text in group.exchange("plan", plan.to_json())]
    lines = [f"  rank {rank}: {entry['digest']}" for rank, entry in enumerate(found)]
    for rank, other in enumerate(plans):
        if found[rank]["digest"] != found[0]["digest"]:
            lines += [f"  rank {rank} against rank 0: {text}" for text in _shown(_differences(plans[0], other))]
    text = "\n".join(lines)
    if found[0]["mode"] != "leader":
        raise RankError(
            f"the plans of {group.size} ranks differ:\n{text}\n"
            'Give every rank the same configuration, plugins and device, or set  policy.rank_mismatch = "leader"  to '
            "run rank 0's plan everywhere"
        )
    faults = [json.loads(text) for text in group.exchange("plan of rank 0", json.dumps([*_unfit(plans[0], plan)]))]
    if any(faults):
        each = [f"  rank {rank}: {fault}" for rank, rank_faults in enumerate(faults) for fault in _shown(rank_faults)]
        raise RankError(
            "policy.rank_mismatch is 'leader', and rank 0's plan may not serve on every rank:\n" + "\n".join(each)
        )
    return plan if group.rank == 0 else plans[0]


def check_same(group: RankGroup, topic: str, value: str, advice: str) -> None:
    """Return if every rank has the same text.

    Args:
        group: the ranks.
        topic: what the text is, for the error.
        value: the text of this rank; only its hash is sent.
        advice: what to do if they differ.

    Raises:
        RankError: they differ, on every rank; or a rank has failed or gives none in time.
    """
    if group.size == 1:
        return
    found = group.exchange(topic, hashlib.sha256(value.encode()).hexdigest()[:16])
    if len(set(found)) > 1:
        each = ", ".join(f"rank {rank} has {mark}" for rank, mark in enumerate(found))
        raise RankError(f"the ranks have different {topic} ({each}, hashes of them): {advice}")


def check_same_requests(group: RankGroup, requests: Sequence[Request], options: DecodeOptions) -> None:
    """Return if every rank is to decode the same requests with the same options.

    Raises:
        RankError: as `check_same`.
    """
    if group.size > 1:
        check_same(group, "requests", repr(list(requests)), "give every rank the same requests in the same order")
        check_same(group, "options", repr(options), "give every rank the same options, tables and calibration")


def quarantine_everywhere(group: RankGroup) -> Callable[[Mapping[str, str]], Mapping[str, str]] | None:
    """Return what ``plan.bind(agree=...)`` takes, so that a kernel that fails on one rank is left out on all.

    None on a single rank.
    """
    if group.size == 1:
        return None

    def agree(failed: Mapping[str, str]) -> Mapping[str, str]:
        everyone: dict[str, str] = {}
        for rank, text in enumerate(group.exchange("failed kernels", json.dumps(dict(failed)))):
            for kernel, what in json.loads(text).items():
                everyone.setdefault(kernel, f"{what} (on rank {rank})")
        return everyone

    return agree


def _shown(texts: Iterator[str] | Sequence[str]) -> list[str]:
    every = list(texts)
    return every[:_SHOWN] + ([f"and {len(every) - _SHOWN} more"] if len(every) > _SHOWN else [])


def _differences(leader: Plan, other: Plan) -> Iterator[str]:
    """Yield what differs: chosen kernels; or, if all are the same, the leaves of the plans that are not."""
    ours, theirs = _kernels(leader), _kernels(other)
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for place in [*ours, *(place for place in theirs if place not in ours)]:
        if ours.get(place) != theirs.get(place):
            operator, site, count = place
            key = (operator, site, ours.get(place, "nothing"), theirs.get(place, "nothing"))
            rows.setdefault(key, []).append(count)
    for (operator, site, wanted, got), counts in rows.items():
        yield f"{operator} at {site}, rows {rows_text(counts)}: {got} instead of {wanted}"
    if not rows:
        yield from _leaves(encode(leader), encode(other), "")


def _leaves(wanted: Any, got: Any, path: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key in sorted({*wanted, *got}):
            if key not in _PROVENANCE:
                yield from _leaves(wanted.get(key), got.get(key), f"{path}.{key}" if path else key)
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        for number, pair in enumerate(zip(wanted, got, strict=True)):
            yield from _leaves(*pair, f"{path}[{number}]")
    elif wanted != got:
        yield f"{path}: {_short(got)} instead of {_short(wanted)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kernels(plan: Plan) -> dict[tuple[str, str, int], str]:
    """Return the chosen kernel of each operator, site and row count; a part is named behind its whole."""
    return {
        (name, selection.site, count): choice.kernel.id
        for name, selection in _selections(plan.selections, "")
        for count, choice in selection.by_rows.items()
    }


def _selections(selections: Sequence[Selection], lead: str) -> Iterator[tuple[str, Selection]]:
    for selection in selections:
        name = f"{lead}{selection.operator}"
        yield name, selection
        for choice in selection.choices:
            yield from _selections(choice.parts, f"{name} > ")


def _unfit(leader: Plan, own: Plan) -> Iterator[str]:
    """Yield why rank 0's plan may not serve here, by what this rank's own planning found of each of its kernels."""
    if leader.device.arch.name != own.device.arch.name:
        yield f"it is for {leader.device.arch.name}, this device is {own.device.arch.name}"
        return
    if (leader.model, leader.rows, leader.operators) != (own.model, own.rows, own.operators):
        yield f"it is for {leader.model}, rows {leader.rows}, and this rank runs {own.model}, rows {own.rows}"
        return
    weighed = {
        (selection.operator, selection.site, count): choice
        for _, selection in _selections(own.selections, "")
        for count, choice in selection.by_rows.items()
    }
    faults = {
        fault: None
        for _, selection in _selections(leader.selections, "")
        for count, choice in selection.by_rows.items()
        for fault in _fault(selection, choice, weighed.get((selection.operator, selection.site, count)))
    }
    yield from faults


def _fault(selection: Selection, choice: Choice, own: Choice | None) -> Iterator[str]:
    kernel = choice.kernel
    # Core's own, references and decompositions, run wherever core does.
    if not kernel.target or (own is not None and kernel.id in {own.kernel.id, *(entry.id for entry in own.standby)}):
        return
    where = f"{kernel.id} for {selection.operator} at {selection.site}"
    refusals = [entry for entry in (own.refused if own is not None else ()) if entry.candidate.id == kernel.id]
    if refusals:
        reasons = "; ".join(f"{item.field}: wanted {item.wanted}, got {item.got}" for item in refusals[0].reasons)
        yield f"{where} may not serve: {reasons}"
    else:
        yield f"{where} is not among this rank's candidates: install the same plugins on every rank"

"""What a reader of a comparison should know, and what the comparison does not show (C4.4, R4.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.pairing import Pairs, measured
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.bench.statistics import Estimate

__all__ = ["limits", "notes"]

_ASKED_PAIRS = 4


def notes(first: ArmRecord, second: ArmRecord, pairs: Pairs, ceiling: str) -> Iterator[str]:
    """Yield what is known of the outputs, of acceptance, of the runtimes and of the machine."""
    if first.session == second.session and first.treatment == second.treatment:
        yield "no treatment: both arms run the same, so that a difference found here would be a false one"
    if ceiling:
        yield f"ceiling: {ceiling} was not run in arm B's timed runs: it gave back what it had given in a real one"
    if any(measured(item).simulated for item in pairs.launches):
        drawn = first.workload.get("simulated") or {}
        how = ", ".join(f"{name} {drawn[name]}" for name in ("law", "mean", "scope", "seed") if name in drawn)
        lengths = sorted({f"{measured(item).accept_len or 0:.3f}" for item in pairs.launches})
        realised = f"; realised mean {' to '.join(lengths[:: max(len(lengths) - 1, 1)])}"
        yield (
            f"simulated: acceptance was drawn{f' ({how})' if how else ''}{realised}, so that the text means nothing "
            "and other experts are used"
        )
    digests = [{measured(item).tokens_digest for item in group} for group in (pairs.first, pairs.second)]
    for name, found in zip("AB", digests, strict=True):
        if len(found) > 1:
            yield f"arm {name} gave different tokens in different launches: its numbers depend on the process"
    if all(len(found) == 1 and "" not in found for found in digests):
        same = digests[0] == digests[1]
        yield (
            "both arms gave the same tokens, so that acceptance is held"
            if same
            else "the arms gave different tokens; cycle time does not depend on it, tokens per second do"
        )
    lengths = [{measured(item).accept_len for item in group} for group in (pairs.first, pairs.second)]
    if lengths[0] != lengths[1] and None not in (*lengths[0], *lengths[1]):
        yield "accept length differs between the arms: see tokens per second normalised to arm A"
    for name, group in zip("AB", (pairs.first, pairs.second), strict=True):
        yield from _arm(name, [measured(item) for item in group])
    busy = [launch for launch in pairs.launches if _busy(launch)]
    if busy:
        loads = [item.conditions["load"] for item in busy]
        yield (
            f"the machine was busy when {len(busy)} of {len(pairs.launches)} launches began: load {min(loads):g} to "
            f"{max(loads):g}"
        )
    yield from dict.fromkeys(note for launch in pairs.launches for note in launch.notes)
    ignored = sorted({name for launch in pairs.launches for name in measured(launch).ignored})
    if ignored:
        yield f"printed and not used: {', '.join(ignored)}"


def limits(
    first: ArmRecord,
    second: ArmRecord,
    pairs: Pairs,
    control: Estimate | None,
    treated: Sequence[tuple[str, str, str]],
) -> Iterator[str]:
    """Yield what two arms do not show."""
    if first.session != second.session:
        yield "that drift plays no part: the arms were measured in different sessions, with no launch beside another"
    elif len(pairs.compared) < _ASKED_PAIRS:
        yield f"the spread of launches, well: {len(pairs.compared)} pairs count, {_ASKED_PAIRS} or more are asked for"
    if control is None:
        yield "how large a difference is without any treatment: no A/A control was run"
    elif not control.low <= 0.0 <= control.high:
        yield f"that the launches are alike: A against A itself differs by {control.text()}"
    if len({item.tokens_digest for item in map(measured, (*pairs.first, *pairs.second))}) > 1 and any(
        measured(item).ceiling for item in pairs.second
    ):
        yield "a clean ceiling: without the operator the tokens are others, and with them acceptance and experts"
    if first.workload.get("concurrent"):
        yield "that the arms do not disturb each other: launches on one machine at the same time were allowed"
    items = [measured(item) for item in pairs.launches]
    if any(item.warmups is None for item in items):
        yield "that a warm-up came first: the command did not say"
    if any(item.cached_tokens is None for item in items):
        yield "that no prompt token came from a prefix cache: the command did not say"
    if any(item.accept_len is None for item in items):
        yield "acceptance length: the command did not say, so that tokens per second cannot be normalised"
    if any(item.folded_share is None for item in items):
        yield "which share of cycles accepted on the device, and why others did not: the command did not say"
    arms = {"A": list(map(measured, pairs.first)), "B": list(map(measured, pairs.second))}
    yield from _unchecked(arms, treated)
    yield "quality of the text on any task: no data set was run"
    yield f"other machines, models, prompts or batch sizes than these: {_workload(first)}"


def _unchecked(arms: Mapping[str, Sequence[Measurement]], treated: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield which waits were not counted, and what was not checked before the timed runs, by arm (R4.13, R4.14)."""
    if uncounted := _names(arms, lambda item: item.host_syncs is None):
        why = "a CPU is not waited for, and a command has to say" if len(uncounted) > 1 else "it did not say"
        yield f"how often the host waited for the device in {_of_arms(uncounted)}: not counted ({why})"
    drawn = any(item.simulated for items in arms.values() for item in items)
    if untold := _without(arms, lambda item: item.gate):
        why = " (of a real run: here acceptance was drawn)" if drawn else ""
        yield f"that the tokens of {_of_arms(untold)} are right{why}: no launch compared them with plain decoding"
    unheld = _without(arms, lambda item: item.conformance)
    if unheld and not treated:
        yield f"that the kernels of {_of_arms(unheld)} keep their contracts: no launch held them against the references"
    for operator in dict.fromkeys(name for name, _, _ in treated):
        beyond = "" if unheld else " on other calls than this workload's"
        yield f"that the kernels of {operator} keep its contract{beyond}: run  dspark-ops check --op {operator}"


def _names(arms: Mapping[str, Sequence[Measurement]], lacking: Callable[[Measurement], bool]) -> list[str]:
    return [name for name, items in arms.items() if any(map(lacking, items))]


def _without(arms: Mapping[str, Sequence[Measurement]], found: Callable[[Measurement], str]) -> list[str]:
    """Return the arms of which no launch has passed a check; one is enough, as all of them are alike."""
    return [name for name, items in arms.items() if not any(found(item).startswith("passed") for item in items)]


def _of_arms(names: Sequence[str]) -> str:
    return f"arm {names[0]}" if len(names) == 1 else f"arms {' and '.join(names)}"


def _workload(record: ArmRecord) -> str:
    shown = {name: value for name, value in record.workload.items() if not isinstance(value, dict | list)}
    return ", ".join(f"{name} {value}" for name, value in sorted(shown.items())) or "the command's own"


def _arm(name: str, items: Sequence[Measurement]) -> Iterator[str]:
    """Yield what one arm's launches found before they were timed, how they accept, and how often the host waits."""
    for what, texts in (("kernels", [i.conformance for i in items]), ("tokens", [i.gate for i in items])):
        if checked := next((text for text in texts if text.startswith("passed")), ""):
            yield f"arm {name}, {what} before the timed runs: {checked}"
    shares = [item.folded_share for item in items if item.folded_share is not None]
    if shares:
        low, high = min(shares), max(shares)
        yield f"arm {name}: {low:.3f} to {high:.3f} of the cycles accept on the device, in the step itself"
    if outside := sum(item.eager_fallbacks or 0 for item in items):
        first = next((item.first_fallback for item in items if item.first_fallback), "no reason given")
        yield f"arm {name}: {outside} cycles of runs that fold accepted outside the step; first reason: {first}"
    waits = [item.host_syncs for item in items if item.host_syncs is not None]
    if waits:
        cycles = max((item.cycles for item in items), default=0.0)
        each = f", {max(waits) / cycles:.2f} per cycle" if cycles else ""
        yield f"arm {name}: the host waits for the device {min(waits)} to {max(waits)} times in one run{each}"


def _busy(launch: Launch) -> bool:
    load = launch.conditions.get("load")
    cores = launch.fingerprint.get("machine", {}).get("usable_cores", 1)
    return load is not None and load > 0.5 * cores

"""What a reader of a comparison should know, and what the comparison does not show (C4.4, R4.14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        yield "simulated: acceptance was drawn, so that the text means nothing and other experts are used"
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
    yield from _runtimes(pairs.launches)
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
    if any(item.host_syncs is None for item in items):
        yield "how often the host waited for the device: not counted"
    if not any(item.gate == "passed" for item in items):
        yield "that the tokens are right: no launch compared them with plain decoding"
    for operator in dict.fromkeys(name for name, _, _ in treated):
        yield f"that the kernels of {operator} keep its contract: run  dspark-ops check --op {operator}"
    yield "quality of the text on any task: no data set was run"
    yield f"other machines, models, prompts or batch sizes than these: {_workload(first)}"


def _workload(record: ArmRecord) -> str:
    shown = {name: value for name, value in record.workload.items() if not isinstance(value, dict | list)}
    return ", ".join(f"{name} {value}" for name, value in sorted(shown.items())) or "the command's own"


def _runtimes(launches: Sequence[Launch]) -> Iterator[str]:
    items = [measured(item) for item in launches]
    shares = [item.folded_share for item in items if item.folded_share is not None]
    if any(shares):
        yield f"share of cycles that accept on the device, in the step itself: {min(shares):.3f} to {max(shares):.3f}"
    fallbacks = [item for item in items if item.eager_fallbacks]
    if fallbacks:
        total = sum(item.eager_fallbacks or 0 for item in fallbacks)
        first = next((item.first_fallback for item in fallbacks if item.first_fallback), "no reason given")
        yield f"{total} cycles accepted outside the step; first reason: {first}"
    waits = [item.host_syncs for item in items if item.host_syncs is not None]
    if waits:
        yield f"waits of the host for the device, per launch: {min(waits)} to {max(waits)}"


def _busy(launch: Launch) -> bool:
    load = launch.conditions.get("load")
    cores = launch.fingerprint.get("machine", {}).get("usable_cores", 1)
    return load is not None and load > 0.5 * cores

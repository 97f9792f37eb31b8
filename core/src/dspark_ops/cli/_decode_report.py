"""What the decode verb says at the end: who served which operator and why, accepted lengths, speed, equality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dspark_ops import __version__
from dspark_ops.api.reason import ReasonCode
from dspark_ops.cli._show import console, table
from dspark_ops.decode.figures import figures_of

if TYPE_CHECKING:
    from dspark_ops.cli._decode_run import DecodeRun
    from dspark_ops.decode import DecodeMetrics, Generation
    from dspark_ops.selection.plan import Choice, Selection

_BAR = 40
_DRAFT_COLUMNS = ("#draft", "#proposed", "#accepted", "#of all blocks", "#given those before")
_SPEED_COLUMNS = ("run", "#tokens", "#target forwards", "#tokens per step", "#tokens/s", "#us per cycle")
_OTHER_HARDWARE = (ReasonCode.DEVICE_VENDOR, ReasonCode.DEVICE_ARCH)


def report_json(run: DecodeRun) -> dict[str, Any]:
    """Return all that was found, with plain types only."""
    import torch

    arguments, options = run.arguments, run.arguments.options
    plan = _plan(run)
    return {
        "versions": {"dspark-ops": __version__, "torch": torch.__version__},
        "device": plan.device.to_json(),
        "plan": {"digest": plan.digest, "operators": list(_operators(run))},
        "options": {
            "gamma": arguments.model.config.gamma if options.gamma is None else options.gamma,
            "policy": repr(options.policy),
            "max_batch": options.max_batch,
            "ignore_eos": options.ignore_eos,
            "execution": options.execution.value,
            "tp": arguments.model.ranks.size,
        },
        "prompts": [_prompt_json(run, number) for number in range(len(arguments.texts))],
        "seconds": [{"first_token": item.timing.first, "rest": item.timing.rest} for item in run.main.results],
        "simulated": dict(run.main.simulated) if run.main.simulated else False,
        "dspark": run.speculative.metrics.to_json() if run.speculative else None,
        "figures": _figures(run.speculative) if run.speculative else None,
        "plain": run.plain.metrics.to_json() if run.plain else None,
        "identical": run.identical,
    }


def _prompt_json(run: DecodeRun, number: int) -> dict[str, Any]:
    arguments, result = run.arguments, run.main.results[number]
    sampling = arguments.requests[number].sampling
    entry: dict[str, Any] = {
        "prompt": arguments.texts[number],
        "text": _text(run, number),
        "tokens": list(result.tokens),
        "finish": result.finish.value,
        "simulated": result.simulated,
        "sampling": {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")},
        "mean_accept_len": result.metrics.mean_accept_len if run.speculative else None,
    }
    if run.speculative and run.plain and run.greedy:
        entry["identical"] = result.tokens == run.plain.results[number].tokens
    return entry


def _plan(run: DecodeRun) -> Any:
    """Return the plan that the run followed."""
    options = run.arguments.options
    return run.arguments.model.plan(options.gamma, simulated=options.forced is not None)


def _figures(generation: Generation) -> dict[str, Any]:
    return figures_of(generation.metrics, generation.results, simulated=generation.simulated is not None).to_json()


def _text(run: DecodeRun, number: int) -> str:
    """Return what a prompt was continued with, cut before its stop strings."""
    result = run.main.results[number]
    return run.arguments.model.text().decode(result.tokens) if result.text is None else result.text


def print_report(run: DecodeRun) -> None:
    """Print the text of several prompts, then tables for people."""
    out = console()
    if len(run.arguments.texts) > 1:
        for number, text in enumerate(run.arguments.texts):
            out.rule(f"prompt {number + 1}", align="left")
            out.print(Text.assemble((text, "dim"), _text(run, number)), soft_wrap=True)
        out.print()
    plan = _plan(run)
    title = f"what served each operator on {plan.device.name} ({plan.device.arch.name})"
    out.print(table(title, ("operator", "sites", "kernel", "why"), _served(run), ("operator", "kernel")))
    out.print()
    if run.speculative:
        metrics = run.speculative.metrics
        title = f"accepted lengths: {metrics.verify_steps} verify steps, {metrics.mean_accept_len:.2f} tokens each"
        out.print(table(title, ("#tokens", "#steps", "share"), _histogram(metrics)))
        out.print()
        out.print(table("acceptance by draft", _DRAFT_COLUMNS, _by_draft(run)))
        out.print()
    out.print(
        table(
            "speed",
            ("run", "#tokens", "#target forwards", "#tokens per step", "#tokens/s", "#us per cycle"),
            _speed(run),
        )
    )
    folded = _folded(run)
    if folded:
        out.print(folded, markup=False)
    simulated = run.main.simulated
    if simulated is not None:
        out.print(_simulation(simulated), markup=False)
    out.print(_verdict(run), markup=False)


def _served(run: DecodeRun) -> Iterator[tuple[str, ...]]:
    """Yield one row per operator and kernel: sites and buckets that have the same answer share a row."""
    sites: dict[tuple[str, str, str], list[str]] = {}
    for entry in _operators(run):
        key = (entry["operator"], entry["kernel"], entry["why"])
        place = entry["site"] if entry["whole"] else f"{entry['site']} rows {entry['rows']}"
        sites.setdefault(key, []).append(place)
    for (operator, kernel, why), places in sites.items():
        yield operator, ", ".join(dict.fromkeys(places)), kernel, why


def _operators(run: DecodeRun) -> Iterator[dict[str, Any]]:
    """Yield one entry per operator, site and bucket of row counts, parts of a composed kernel behind it."""
    plan = _plan(run)
    for selection in plan.selections:
        yield from _entries(selection, "")


def _entries(selection: Selection, lead: str) -> Iterator[dict[str, Any]]:
    for choice in selection.choices:
        yield {
            "operator": f"{lead}{selection.operator}",
            "site": selection.site,
            "rows": choice.rows,
            "whole": len(selection.choices) == 1,
            "kernel": choice.kernel.id,
            "class": choice.kernel.rank.value,
            "why": _why(choice),
        }
        for part in choice.parts:
            yield from _entries(part, f"{lead}  ")


def _why(choice: Choice) -> str:
    """Return in one line why this kernel and no better one: plugins with a better one, and what it lacked."""
    refused = [item for item in choice.refused if item.better]
    if not refused:
        return f"first of {len(choice.standby) + 1} that may serve" if choice.standby else "only candidate"
    by_reason: dict[str, list[str]] = {}
    for item in refused:
        reason = item.reasons[0]
        need = "other hardware" if reason.code in _OTHER_HARDWARE else f"wants {reason.wanted}"
        by_reason.setdefault(need, []).append(item.candidate.id.partition("/")[0])
    return "; ".join(f"{', '.join(dict.fromkeys(plugins))}: {need}" for need, plugins in by_reason.items())


def _histogram(metrics: DecodeMetrics) -> Iterator[tuple[str, str, str]]:
    total, top = metrics.verify_steps, max(metrics.histogram.values(), default=1)
    for length in range(1, max(metrics.histogram, default=0) + 1):
        count = metrics.histogram[length]
        yield str(length), str(count), f"{'█' * round(_BAR * count / top)} {100 * count / max(total, 1):.0f} %"


def _by_draft(run: DecodeRun) -> Iterator[tuple[str, ...]]:
    for rate in figures_of(run.speculative.metrics).positions if run.speculative else ():
        shares = (f"{100 * share:.0f} %" for share in (rate.unconditional, rate.conditional))
        yield str(rate.position), str(rate.proposed), str(rate.accepted), *shares


def _speed(run: DecodeRun) -> Iterator[tuple[str, ...]]:
    for name, generation in (("DSpark", run.speculative), ("plain", run.plain)):
        if generation:
            yield _speed_row(name, generation)


def _speed_row(name: str, generation: Generation) -> tuple[str, ...]:
    metrics = generation.metrics
    return (
        name,
        str(metrics.emitted),
        str(metrics.forwards),
        f"{metrics.tokens_per_step:.2f}",
        f"{metrics.tokens_per_second:.1f}",
        f"{1e6 * metrics.seconds / metrics.forwards if metrics.forwards else 0:.0f}",
    )


def _folded(run: DecodeRun) -> str:
    """Return how many steps accepted on the device, and why the others did not; empty if none was to."""
    if run.speculative is None or run.arguments.options.execution.value != "folded":
        return ""
    metrics = run.speculative.metrics
    others = "".join(f"; {count} were not: {reason}" for reason, count in metrics.unfolded.most_common())
    return f"folded: {metrics.folded} of {metrics.forwards} verify steps accepted on the device{others}"


def _simulation(simulated: Mapping[str, Any]) -> str:
    """Return what was drawn, what was asked for, and what else is not as in a real run."""
    law = f"{simulated['law']}, {simulated['scope']}, seed {simulated['seed']}"
    means = (
        f"{simulated['realised_mean']:.3f} tokens per step, {simulated['drawn_mean']:.3f} drawn on average, "
        f"{simulated['mean']:g} asked for"
    )
    lengths = ", ".join(f"{length}: {times}" for length, times in simulated["histogram"].items())
    notes = "".join(f"\n  not as in a real run: {text}" for text in simulated["differences"])
    return f"SIMULATED acceptance ({law}): {means}; steps by length {lengths}{notes}"


def _verdict(run: DecodeRun) -> str:
    if run.identical is None:
        both = run.speculative is not None and run.plain is not None
        return "tokens: sampled output equals plain decoding in law, not token by token" if both else ""
    if run.identical:
        return f"tokens: identical to plain decoding ({run.main.metrics.emitted} tokens)"
    wrong = [
        number
        for number, pair in enumerate(zip(run.main.results, run.plain.results if run.plain else (), strict=True), 1)
        if pair[0].tokens != pair[1].tokens
    ]
    return f"tokens: DIFFERENT from plain decoding for prompt {', '.join(map(str, wrong))}"

"""Texts for people, made from the values of a plan: they cannot say anything that planning did not decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.contracts.shared_layouts import SHARED_LAYOUTS
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.evaluate import Question, counts_in
from dspark_ops.selection.plan import Choice, Plan, Refusal, Selection
from dspark_ops.selection.policy import operator_policy
from dspark_ops.selection.problem import Problem
from dspark_ops.selection.rank import less_proven
from dspark_ops.selection.rows import rows_text

#: What a person can change at once, against what another machine or another model would need.
_FIXED = (ReasonCode.DEVICE_VENDOR, ReasonCode.DEVICE_ARCH, ReasonCode.FEATURE)

#: How a reason's field and what it wanted are put together; others say in "wanted" what they speak of.
_LINKS = {
    ReasonCode.DTYPE: "as",
    ReasonCode.STRIDE: "with",
    ReasonCode.LAYOUT: "in layout",
    ReasonCode.SEMANTICS: "by the rule",
    ReasonCode.PART: "with",
}


def explain(plan: Plan, operator: str) -> str:
    """Return an operator's candidates in order of preference, their verdicts, the settings in force, the failures."""
    selections = plan.of(operator)
    lines = [f"{operator}  contract {selections[0].contract}  model {plan.model}  device {device_text(plan)}"]
    for selection in selections:
        lines += ["", f"site {selection.site}  {facts_text(selection.problem)}"]
        for choice in selection.choices:
            listed = _candidates(choice, roles(plan, selection, choice))
            lines += _indent(2, [f"rows {choice.rows}: {choice.kernel.id}{why_first(choice)}", *listed])
    lines += ["", "settings", *_indent(2, settings_in_force(plan, operator))]
    lines += ["plugins", *_indent(2, _plugins(plan))]
    lines.append(f"plan {plan.digest}")
    return "\n".join(lines) + "\n"


def report(plan: Plan) -> str:
    """Return what serves each operator, one line per bucket, with the better candidates that were refused."""
    rows = [("operator", "site", "rows", "kernel", "class", "evidence")]
    notes: dict[int, list[str]] = {}
    for selection in plan.selections:
        for choice in selection.choices:
            kernel = choice.kernel
            rows.append(
                (selection.operator, selection.site, choice.rows, kernel.id, kernel.rank.value, kernel.evidence.value)
            )
            notes[len(rows) - 1] = [
                *([f"weaker than required: {kernel.rank.value}"] if choice.below else []),
                *(f"better, refused: {item.candidate.id}: {_short(item)}" for item in choice.refused if item.better),
                *(f"part {line}" for part in choice.parts for line in _part_lines(part)),
            ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"plan for {plan.model} on {device_text(plan)}, rows {plan.rows}"]
    for index, row in enumerate(rows):
        lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        lines += _indent(4, notes.get(index, []))
    lines += ["plugins", *_indent(2, _plugins(plan))]
    lines.append(f"plan {plan.digest}")
    return "\n".join(lines) + "\n"


def below_required(plan: Plan) -> tuple[str, ...]:
    """Return one line for each bucket that a weaker class or less evidence than required serves."""
    return tuple(
        f"{selection.operator} at {selection.site}, rows {choice.rows}: served by {choice.kernel.id} "
        f"({_short_of(plan, choice)}; see plan.explain({selection.operator!r})"
        for selection in plan.selections
        for choice in selection.choices
        if choice.below
    )


def _short_of(plan: Plan, choice: Choice) -> str:
    kernel, floor = choice.kernel, plan.settings.policy.evidence
    recorded = kernel.evidence.order if kernel.origin else 0
    if floor is not None and kernel.target and recorded < floor.order:
        return (
            f"{kernel.evidence.value}{'' if kernel.origin else ' by its manifest'}), without a record of {floor.value}"
        )
    return f"{kernel.rank.value}), weaker than required"


def nothing_serves(question: Question, mask: int, refused: Sequence[Refusal], eligible: Sequence[Candidate]) -> str:
    """Return the text of the error for row counts that nothing may serve, or that a refused kernel was pinned to."""
    policy, bucket = question.policy, rows_text(counts_in(question.rows, mask))
    head = f"{question.contract.name} at {question.problem.site}, rows {bucket}: "
    if policy.pin is None:
        head += "no kernel may serve it"
    else:
        leaf = f"ops.{question.contract.name}.pin"
        head += f"the pinned kernel {policy.pin} may not serve it ({leaf}, {policy.pin_origin})"
    width = max(len(item.candidate.id) for item in refused)
    lines = [line for item in refused for line in _refusal(item, width)]
    lines += [f"may serve: {', '.join(item.id for item in eligible)}"] if eligible else []
    return "\n".join([head, *_indent(2, lines)])


def roles(plan: Plan, selection: Selection, choice: Choice) -> tuple[tuple[Candidate, str], ...]:
    """Return every candidate that may serve a bucket with its role, and what less proven ones lost by."""
    own, chosen = plan.settings.of(selection.operator), choice.kernel
    policy = operator_policy(plan.settings, plan.device, selection.operator, small=selection.small)
    found = [(chosen, "chosen, weaker than required" if choice.below else "chosen")]
    for candidate in choice.standby:
        # Where the lock or a measured time decided, evidence did not.
        behind = not choice.origin and less_proven(candidate, chosen, own, policy)
        lost = f", {ReasonCode.EVIDENCE.value}: {candidate.evidence.value} against {chosen.evidence.value}"
        found.append((candidate, f"stand-by{lost if behind else ''}"))
    return tuple(found)


def _candidates(choice: Choice, served: Sequence[tuple[Candidate, str]]) -> Iterator[str]:
    everyone = [candidate for candidate, _ in served] + [item.candidate for item in choice.refused]
    width = max(len(candidate.id) for candidate in everyone)
    for item in (item for item in choice.refused if item.better):
        yield from _refusal(item, width)
    for number, (candidate, role) in enumerate(served, start=1):
        yield f"{number:>2} {'*' if number == 1 else ' '} {_candidate(candidate, width)}  {role}"
        yield from _record(candidate)
        if number == 1:
            yield from _indent(5, [line for part in choice.parts for line in _part_lines(part)])
    for item in (item for item in choice.refused if not item.better):
        yield from _refusal(item, width)


def _refusal(item: Refusal, width: int) -> Iterator[str]:
    yield f" -   {_candidate(item.candidate, width)}  refused"
    yield from _record(item.candidate)
    for reason in item.reasons:
        origin = f"  ({reason.origin})" if reason.origin else ""
        yield f"       {reason.code.value:<16} {reason.field}: wanted {reason.wanted}, got {reason.got}{origin}"
    yield f"       to use it: {'; '.join(change(reason) for reason in item.reasons)}"


def _record(candidate: Candidate) -> Iterator[str]:
    if candidate.origin:
        yield f"       record           {candidate.origin}"


def change(reason: Reason) -> str:
    """Return what would have to change for a reason to go away."""
    if reason.hint:
        return reason.hint
    if reason.code in _FIXED:
        return f"a device with {reason.field} {reason.wanted}"
    link = _LINKS.get(reason.code)
    return f"{reason.field} {link} {reason.wanted}" if link else reason.wanted


def _candidate(candidate: Candidate, width: int) -> str:
    return f"{candidate.id:<{width}}  {candidate.rank.value:<9}  {candidate.evidence.value:<11}"


def _part_lines(part: Selection) -> Iterator[str]:
    for choice in part.choices:
        kernel = choice.kernel
        yield f"{part.operator} rows {choice.rows}: {kernel.id}  {kernel.rank.value}  {kernel.evidence.value}"
        yield from _indent(2, [line for inner in choice.parts for line in _part_lines(inner)])


def _short(item: Refusal) -> str:
    reason, more = item.reasons[0], len(item.reasons) - 1
    text = f"{reason.code.value} {reason.field}: wanted {reason.wanted}, got {reason.got}"
    return f"{text} (and {more} more)" if more else text


def why_first(choice: Choice) -> str:
    """Return what put a bucket's kernel first, if it was neither the settings nor its class."""
    if choice.origin:
        return f"  (by {choice.origin})"
    return f"  (before {choice.tie} by its name only)" if choice.tie else ""


def facts_text(problem: Problem) -> str:
    """Return the facts of a problem in one line: tensors, then axes and options."""
    tensors = []
    for name, dtype in sorted(problem.dtypes.items()):
        layout = problem.layouts.get(name)
        tensors.append(f"{name} {dtype} {problem.strides[name]}{' ' + layout if layout else ''}")
    facts = [f"{axis}={size}" for axis, size in sorted(problem.axes.items())]
    facts += [f"{name}={value}" for name, value in sorted(problem.options.items())]
    return "  ".join([", ".join(tensors), " ".join(facts)])


def settings_in_force(plan: Plan, operator: str) -> Iterator[str]:
    """Yield every setting in force with its origin."""
    settings, own = plan.settings, plan.settings.of(operator)
    for leaf, value in (("pin", own.pin), ("order", ", ".join(own.order)), ("deny", ", ".join(own.deny))):
        if value:
            name = f"ops.{operator}.{leaf}"
            yield f"{name} = {value}  ({settings.origin(name)})"
    small = plan.of(operator)[0].small
    policy = operator_policy(settings, plan.device, operator, small=small)
    require = policy.require.value if policy.require else "any class"
    require += ", or the reference, since the operator is small" if small and not policy.own_require else ""
    leaf, _, origin = policy.require_origin.partition(", ")
    yield f"{leaf} = {require}  ({origin})"
    yield f"policy.fallback = {policy.fallback}  ({policy.fallback_origin})"
    if settings.policy.evidence:
        yield f"policy.evidence = {settings.policy.evidence.value}  ({settings.origin('policy.evidence')})"
    if policy.graphs:
        yield f"policy.graphs = on  ({policy.graphs_origin})"
    if settings.policy.lock:
        yield f"policy.lock = {settings.policy.lock}  ({settings.origin('policy.lock')})"
    if settings.files.lock:
        yield f"files.lock = {settings.files.lock}  ({settings.origin('files.lock')})"
    for group, token in plan.layouts.items():
        if any(sharer.operator == operator for sharer in SHARED_LAYOUTS[group].sharers):
            admitted = ", ".join(settings.layouts[group])
            yield f"layouts.{group} = {admitted}  ({settings.origin(f'layouts.{group}')}); the plan chose {token}"


def _plugins(plan: Plan) -> Iterator[str]:
    for record in plan.plugins:
        yield f"{record.name} {record.version} ({record.distribution}): {record.kernels} kernels"
    if not plan.plugins:
        yield "none loaded"
    yield from map(str, plan.failures)


def device_text(plan: Plan) -> str:
    """Return a plan's device in words."""
    kind = ", simulated" if plan.device.simulated else ""
    return f"{plan.device.arch.name} ({plan.device.name}{kind})"


def _indent(count: int, lines: Iterable[str]) -> list[str]:
    return [" " * count + line for line in lines]

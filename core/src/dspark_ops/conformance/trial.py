"""The other side of a trial run: a process that calls each kernel a few times and says how each one went.

It is started by `dspark_ops.binding.smoke`, reads one request from its standard input, and answers with marked lines:
``ready``, then for every kernel ``start`` and ``done``. A kernel that crashes or hangs is the one
that was started last.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final

__all__ = ["MARK", "serve"]

#: Before every answer: a kernel may print whatever it likes.
MARK: Final = "dspark-ops-trial "
#: Elements of all tensors of a call that are still tiny enough; cases of the model's sizes are tried up to this.
_BUDGET: Final = 1 << 24
#: Calls of each kernel: the first case alone is often a single row.
_CALLS: Final = 3


def serve() -> None:
    """Read a request from the standard input, run its kernels in order, and answer on the standard output."""
    request = json.loads(sys.stdin.readline())
    # Answers go to a copy of the output, so that nothing that a kernel closes or redirects can take it away.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)

    def answer(**fields: Any) -> None:
        answers.write(f"\n{MARK}{json.dumps(fields)}\n")
        answers.flush()

    with ExitStack() as stack:
        try:
            run = _runner(request, stack)
        except Exception as error:  # whatever is wrong with this installation, the other side must hear of it
            answer(unable=f"{type(error).__name__}: {error}")
            return
        answer(ready=True)
        for kernel in request["kernels"]:
            answer(start=kernel)
            outcome = run(kernel)
            answer(done=kernel, **outcome)
            if outcome.get("lost"):  # the device context is dead: what follows would fail for no fault of its own
                return


def _runner(request: Mapping[str, Any], stack: ExitStack) -> Callable[[str], dict[str, Any]]:
    from dspark_ops import contracts
    from dspark_ops._lazy import torch
    from dspark_ops.conformance.numbers import check_case
    from dspark_ops.conformance.places import machine_for, subject_on
    from dspark_ops.errors import DsparkOpsError, EvidenceError
    from dspark_ops.selection.discovery import survey
    from dspark_ops.selection.settings import Settings

    allow = request["allow"]
    registry = survey(Settings(allow=None if allow is None else tuple(allow), deny=tuple(request["deny"])))
    kernels = {kernel.id: kernel for entries in registry.kernels.values() for kernel in entries}
    machine = machine_for(request["device"])
    if machine.interprets:
        from dspark_ops.conformance.interpreter import repaired_interpreter

        stack.enter_context(repaired_interpreter())

    if machine.place:
        # A kernel's seconds are its own: torch and the device start before the first clock does.
        importlib.import_module("dspark_ops.conformance.poison")
        torch.zeros(1, device=machine.place)

    def run(name: str) -> dict[str, Any]:
        if name not in kernels:
            return {"skipped": "no installed plugin registers it"}
        subject = subject_on(kernels[name], contracts.get(kernels[name].kernel.op), machine)
        if not subject.place:
            return {"skipped": subject.why_not}
        tried = 0
        try:
            for case, inputs in islice(_calls(subject, request["layouts"].get(name, {})), _CALLS):
                findings = check_case(subject.contract, subject.function(inputs), subject.place, inputs)
                if findings:
                    return {"wrong": f"case {case!r}: {findings[0].what}"}
                tried += 1
        except EvidenceError as error:
            return {"wrong": str(error), "lost": True}
        except DsparkOpsError as error:
            return {"wrong": str(error)}
        return {"wrong": ""} if tried else {"skipped": "no case of the contract lies in its region"}

    return run


def _calls(subject: Any, layouts: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield calls that a kernel serves, those in the planned layouts first, the small ones before the model's."""
    from dspark_ops.binding.facts import rows_of_inputs
    from dspark_ops.conformance.variations import elements

    for scale in ("small", "model"):
        others = []
        for case in subject.contract.cases(scale, 0):
            inputs = case.inputs
            if not rows_of_inputs(subject.contract, inputs) or elements(inputs) > _BUDGET:
                continue
            if not subject.accepts(inputs):
                continue
            if layouts.items() <= subject.facts(inputs).layouts.items():
                yield case.name, inputs
            else:
                others.append((case.name, inputs))
        yield from others

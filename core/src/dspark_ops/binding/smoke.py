"""Trial runs: every chosen kernel runs once in another process, so that one that crashes takes no server with it.

A kernel that crashes, hangs or computes something wrong is quarantined, and the plan is made again without it. What is
run, and how numbers are judged, is the conformance suite's: it is named here and imported in the other process only.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from dspark_ops.contracts import model_shapes
from dspark_ops.errors import BindingError, DsparkOpsError
from dspark_ops.selection.packages import ending
from dspark_ops.selection.plan import Choice, Plan, Selection
from dspark_ops.selection.rows import rows_of
from dspark_ops.selection.start import Purpose, start

__all__ = ["Agree", "Replan", "chosen_kernels", "tried_plan", "try_kernels"]

_log: Final = logging.getLogger("dspark_ops.smoke")

#: Gets the kernels that failed in this process, with what happened, and returns those of all ranks. It is called once
#: per round on every rank, with nothing where nothing failed, so that all ranks plan again together.
Agree = Callable[[Mapping[str, str]], Mapping[str, str]]
#: Gets a plan and every quarantined kernel with what happened, and returns the plan without them.
Replan = Callable[[Plan, Mapping[str, str]], Plan]

_MARK: Final = "dspark-ops-trial "
_CHILD: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from dspark_ops.conformance.trial import serve; serve()"
)
#: Seconds until the other process is ready: it imports torch, and may start a GPU.
_STARTUP: Final = 300.0


def tried_plan(plan: Plan, *, replan: Replan | None = None, agree: Agree | None = None) -> Plan:
    """Return a plan all of whose kernels have passed their trial run: this one, or one without those that have not.

    Args:
        plan: what was chosen.
        replan: makes a plan without some kernels; by default from the installed plugins.
        agree: exchanges the quarantined kernels with the other ranks; by default there are none.

    Raises:
        BindingError: the trial cannot be held, or the plan cannot be made again.
        SelectionError: without the quarantined kernels nothing may serve an operator.
        LockError: the lock is required, and a quarantined kernel is in it.
    """
    quarantined: dict[str, str] = {}
    passed: set[str] = set()
    while True:
        waiting = [kernel for kernel in chosen_kernels(plan) if kernel not in passed]
        failed = try_kernels(plan, waiting)
        passed.update(waiting)
        everyone = agree(failed) if agree is not None else failed
        new = {kernel: what for kernel, what in everyone.items() if kernel not in quarantined}
        if not new:
            return plan
        for kernel, what in sorted(new.items()):
            _log.warning("%s is quarantined: %s", kernel, what)
        quarantined.update(new)
        plan = (replan or _planned_again)(plan, quarantined)


def chosen_kernels(plan: Plan) -> tuple[str, ...]:
    """Return the ids of all plugins' kernels that a plan binds, parts of fused operators included, each once."""
    return tuple(dict.fromkeys(choice.kernel.id for _, choice in _choices(plan.selections) if choice.kernel.target))


def try_kernels(plan: Plan, kernels: Sequence[str]) -> dict[str, str]:
    """Run kernels once each in another process, and return what happened to those that failed.

    A process that dies or is ended takes only the kernel with it that was running: the rest run in a new one.

    Args:
        plan: gives the device, the layouts, which plugins may load, and the seconds that a kernel may take.
        kernels: their ids.

    Raises:
        BindingError: the other process cannot run anything.
    """
    failed: dict[str, str] = {}
    waiting = list(kernels)
    while waiting:
        before = len(waiting)
        with _Process(plan, waiting) as process:
            process.ready()
            for name, outcome in process.outcomes(plan.settings.policy.smoke_seconds):
                waiting.remove(name)
                if outcome.get("skipped"):
                    _log.info("%s was not tried: %s", name, outcome["skipped"])
                elif outcome["wrong"]:
                    failed[name] = outcome["wrong"]
        if len(waiting) == before:
            raise BindingError("policy.smoke is 'on', but the process for trial runs ended before it ran any kernel")
    return failed


class _Process:
    """One process that tries kernels, and everything that it says."""

    def __init__(self, plan: Plan, kernels: Sequence[str]) -> None:
        settings = plan.settings
        self._kernels = tuple(kernels)
        self._request: dict[str, Any] = {
            "kernels": list(kernels),
            "device": _place(plan),
            "allow": None if settings.allow is None else list(settings.allow),
            "deny": list(settings.deny),
            "layouts": {choice.kernel.id: dict(item.problem.layouts) for item, choice in _choices(plan.selections)},
        }
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process, in __exit__
        # A session of its own: what a kernel starts is ended with it.
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> _Process:
        request, answers = self._child.stdin, self._child.stdout
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()
        try:
            if request is not None:
                request.write(json.dumps(self._request) + "\n")
                request.close()
        except BrokenPipeError:  # it is gone already; `ready` says how
            _log.debug("the trial process took no request")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def ready(self) -> None:
        """Wait until it can run kernels.

        Raises:
            BindingError: it cannot.
        """
        answer = self._next(_STARTUP)
        if answer is not None and answer.get("ready"):
            return
        if answer is None:
            how = self._how_it_ended() or f"it took more than {_STARTUP:g} s to start"
        else:
            how = str(answer.get("unable", answer))
        raise BindingError(
            f"policy.smoke is 'on', but the process for trial runs cannot work: {how}{self._last_words()}; "
            f'repair that, or set  policy.smoke = "off"'
        )

    def outcomes(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each kernel with how it went, and stop after one that ended the process."""
        for _ in self._kernels:
            started = self._next(_STARTUP)
            if started is None or "start" not in started:
                return  # it stopped of itself after a kernel that left the device unusable
            name = started["start"]
            answer = self._next(seconds)
            if answer is None:
                ended = self._how_it_ended()
                wrong = f"{ended}{self._last_words()}" if ended else f"it took more than {seconds:g} s and was ended"
                yield name, {"wrong": wrong}
                return
            yield name, answer

    def _read(self, stream: IO[str] | None) -> None:
        for line in stream or ():
            if line.startswith(_MARK):
                self._lines.put(line[len(_MARK) :])
        self._lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer, or None if there was none in time or the process has ended."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        answer: dict[str, Any] | None = None if line is None else json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        """Return how the process ended, or an empty text while it runs."""
        deadline = time.monotonic() + 2.0
        while self._child.poll() is None and self._lines.empty() and time.monotonic() < deadline:
            time.sleep(0.02)  # its output is closed just before it ends
        code = self._child.poll()
        return "" if code is None else f"it {ending(code)}"

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1].strip()[:300]})" if lines else ""

    def _end(self) -> None:
        if self._child.poll() is None:
            try:
                os.killpg(self._child.pid, signal.SIGKILL)
            except ProcessLookupError:
                _log.debug("the trial process ended by itself")
        self._child.wait()
        self._reader.join()
        if self._child.stdout is not None:
            self._child.stdout.close()


def _place(plan: Plan) -> str:
    """Return the torch device of the trial: the one that was planned for, else the one that is current here."""
    if not plan.device.is_accelerator:
        return "cpu"
    index = plan.device.index
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if index is None and cuda is not None and cuda.is_initialized():
        index = cuda.current_device()
    return "cuda" if index is None else f"cuda:{index}"


def _choices(selections: Iterable[Selection]) -> Iterator[tuple[Selection, Choice]]:
    """Yield every choice that binds a function: in place of a decomposition, those of its parts."""
    for selection in selections:
        for choice in selection.choices:
            if choice.parts:
                yield from _choices(choice.parts)
            else:
                yield selection, choice


def _planned_again(plan: Plan, quarantined: Mapping[str, str]) -> Plan:
    """Return the plan that the installed plugins give without some kernels."""
    from dspark_ops.selection.discovery import discover

    registry = discover(plan.settings)
    present = {kernel.id for entries in registry.kernels.values() for kernel in entries}
    foreign = [kernel for kernel in chosen_kernels(plan) if kernel not in present]
    if foreign:
        raise BindingError(
            f"{', '.join(sorted(quarantined))} failed a trial run, and the plan cannot be made again here: it was made "
            f"from kernels that no installed plugin has ({', '.join(foreign)}); give bind a function replan"
        )
    try:
        shapes = model_shapes(plan.model)
    except DsparkOpsError as error:
        raise BindingError(
            f"the plan cannot be made again here: {error}; give bind a function replan(plan, failed) that returns "
            "dspark_ops.plan(..., quarantined=failed)"
        ) from error
    return start(
        device=plan.device,
        shapes=shapes,
        rows=rows_of(plan.rows),
        settings=plan.settings,
        registry=registry,
        operators=plan.operators,
        purpose=Purpose(quarantined=dict(quarantined)),
    ).plan

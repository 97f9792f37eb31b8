"""The runs of one launch: a model with its operators and requests, decoded again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.bench.calls import KnockOut
from dspark_ops.bench.gates import LAW_LEVEL, KernelCheck, same_law
from dspark_ops.bench.waits import HostWaits
from dspark_ops.binding.observed import observed
from dspark_ops.errors import ConfigError
from dspark_ops.suggest import did_you_mean

if TYPE_CHECKING:
    from dspark_ops.bench.workload import LaunchSpec
    from dspark_ops.decode import Generation, Model, Request

__all__ = ["Run", "Work"]

#: Draws from each of two laws that are compared where tokens are sampled.
_DRAWS = 200
#: Tokens of such a draw: the first comes from the prefill, those behind it from verify steps.
_DRAWN_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over all prompts."""

    tokens: list[tuple[int, ...]]
    accept: Any
    cycle_us: float
    tps: float
    ttft_ms: float


class Work:
    """A model with its operators and requests.

    Args:
        spec: what is decoded, and how.
        model: the model, loaded.

    Attributes:
        ops: the operators of the timed runs.
        whole: the same before one of them was taken out.
        options: how the timed runs decode.
        uncaptured: the same steps where every call can be seen.

    Raises:
        ConfigError: the model has no tokenizer, or the operator to knock out is not one of its own.
    """

    def __init__(self, spec: LaunchSpec, model: Model) -> None:
        from dspark_ops.decode import DecodeOptions, Request, SamplingParams
        from dspark_ops.decode.forced import ForcedAcceptance
        from dspark_ops.decode.options import Execution

        if model.tokenizer is None:
            raise ConfigError(f"{spec.model}: wanted a model with a tokenizer")
        self.model = model
        self.whole = self.ops = model.ops(spec.gamma, simulated=spec.simulated is not None)
        self.knock_out = KnockOut(spec.knock_out) if spec.knock_out else None
        if self.knock_out:
            known = sorted(self.ops)
            if spec.knock_out not in known:
                hint = did_you_mean(spec.knock_out, known)
                raise ConfigError(f"knock out {spec.knock_out!r}: wanted one of {', '.join(known)}{hint}")
            self.ops = observed(self.ops, self.knock_out.around)
        execution = Execution(spec.execution)
        forced = None if spec.simulated is None else ForcedAcceptance(**spec.simulated)
        self.options = DecodeOptions(
            spec.gamma, max_batch=spec.batch, ignore_eos=True, execution=execution, forced=forced
        )
        # A graph replays without calling anything: calls are counted in the same steps, run without graphs.
        static = replace(self.options, execution=Execution.STATIC)
        self.uncaptured = static if execution.captures(spec.device) else self.options
        requests = [
            Request(
                model.tokenizer.encode(text),
                spec.max_tokens,
                SamplingParams(temperature=spec.temperature, seed=spec.seed + number),
            )
            for number, text in enumerate(spec.prompts)
        ]
        self.groups = [requests[start : start + spec.batch] for start in range(0, len(requests), spec.batch)]
        self.greedy = spec.temperature == 0.0

    def run(self, ops: Any, options: Any = None) -> Run:
        """Return what one pass over all prompts gives, with these operators and, if given, other options."""
        from dspark_ops.decode import DecodeMetrics

        total, tokens, times = DecodeMetrics(), [], []
        model: Any = _Served(self.model, ops)
        if self.knock_out:
            self.knock_out.begin_run()
        for group in self.groups:
            generation, ttft, seconds = _generate(model, group, options or self.options)
            times.append((ttft, seconds, generation.metrics.emitted - len(group)))
            total = total.merged(generation.metrics)
            tokens += [result.tokens for result in generation.results]
        return Run(
            tokens=tokens,
            accept=total,
            # by the loop's own clock, apart from the client's, so that the two can be held against each other
            cycle_us=1e6 * total.seconds / total.forwards,
            tps=sum(count for _, _, count in times) / sum(seconds for _, seconds, _ in times),
            ttft_ms=1e3 * sum(ttft for ttft, _, _ in times) / len(times),
        )

    def conformance(self) -> str:
        """Return whether the kernels give what their contracts' references give, on this workload's own calls."""
        check = KernelCheck()
        self.run(observed(self.whole, check.around), self.uncaptured)
        return check.text()

    def gate(self, counted: Run) -> str:
        """Return whether the tokens are those of plain decoding, or, where they are sampled, of its law.

        What is looked at is decoded as the timed runs are, graphs included, but with real acceptance: the tokens of a
        run with drawn acceptance mean nothing.

        Args:
            counted: the run whose calls were counted; its tokens are used where it was decoded in just this way.
        """
        from dspark_ops.decode import decode_plain

        real = replace(self.options, forced=None)
        if not self.greedy:
            return self._law_gate(real)
        if self.options.forced is not None or self.uncaptured is not self.options:
            counted = self.run(self.whole, real)
        plain = [decode_plain(self.model, group, real) for group in self.groups]
        wanted = [result.tokens for generation in plain for result in generation.results]
        pairs = enumerate(zip(wanted, counted.tokens, strict=True), 1)
        different = [number for number, (plainly, drafted) in pairs if plainly != drafted]
        return "passed" if not different else f"failed: prompts {different} give other tokens than plain decoding"

    def _law_gate(self, options: Any) -> str:
        """Return whether the first prompt's sampled tokens follow the law of plain decoding: two samples, one test."""
        from dspark_ops.decode import decode_plain, generate

        first = self.groups[0][0]
        drawn = []
        for lead, decode, model in ((0, generate, _Served(self.model, self.whole)), (_DRAWS, decode_plain, self.model)):
            sampled = [
                replace(first, max_tokens=_DRAWN_TOKENS, sampling=replace(first.sampling, seed=1000 + lead + number))
                for number in range(_DRAWS)
            ]
            results = decode(model, sampled, options).results  # type: ignore[operator]
            drawn.append([result.tokens for result in results])
        p, positions = same_law(*drawn)
        what = f"{_DRAWS} draws of the first prompt each way, least p = {p:.2g} of {positions} positions"
        if positions and p * positions < LAW_LEVEL:
            return f"failed: sampled tokens do not follow the law of plain decoding ({what})"
        return f"passed: one law as far as {what}"

    def host_waits(self) -> int | None:
        """Return how often the host waits for the device in one run, from the first tokens on; None on a CPU."""
        if self.model.torch_device == "cpu":
            return None
        from dspark_ops.decode import generate

        total = 0
        model: Any = _Served(self.model, self.ops)
        if self.knock_out:
            self.knock_out.begin_run()
        with HostWaits() as waits:
            for group in self.groups:
                # Steps are captured and prompts run before the first tokens: that is no part of a cycle.
                before: list[int] = []
                generate(model, group, self.options, on_tokens=lambda *_, seen=before: seen.append(waits.count))
                total += waits.count - before[len(group) - 1]
        return total


class _Served:
    """A model that serves its calls with given operators."""

    def __init__(self, model: Model, ops: Any) -> None:
        self._model = model
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def ops(self, gamma: int | None = None, *, check: bool = False, simulated: bool = False) -> Any:
        return self._ops


def _generate(model: Any, group: Sequence[Request], options: Any) -> tuple[Generation, float, float]:
    """Return what a group gives, the seconds to its first tokens and those from there to its last, as a client sees."""
    from dspark_ops.decode import generate

    waiting = set(range(len(group)))
    first = last = began = time.perf_counter()

    def seen(index: int, _: tuple[int, ...]) -> None:
        nonlocal first, last
        last = time.perf_counter()
        if index in waiting:
            waiting.discard(index)
            first = last

    generation = generate(model, group, options, on_tokens=seen)
    if model.torch_device != "cpu":
        torch.cuda.synchronize()  # behind the run: nothing of it may be left in flight for the next one
    return generation, first - began, last - first

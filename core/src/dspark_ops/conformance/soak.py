"""A soak of the service: requests of all kinds come, go and are cancelled, and each is compared with itself alone."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dspark_ops.decode.metrics import DecodeMetrics
from dspark_ops.decode.model import Model
from dspark_ops.decode.options import DecodeOptions, Execution, RuntimeOptions, VerifyMode
from dspark_ops.decode.plain import decode_plain
from dspark_ops.decode.policy import PrefixPolicy, StaticPolicy, ThresholdPolicy
from dspark_ops.decode.request import Finish, Request, Result
from dspark_ops.decode.sampling import SamplingParams
from dspark_ops.decode.serving import Service
from dspark_ops.decode.uniform_policy import UniformPolicy

__all__ = ["MODES", "RUNTIME_MODES", "SoakReport", "SoakSpec", "run_soak"]

MODES: Final[Mapping[str, DecodeOptions]] = {
    "static": DecodeOptions(),
    "two rows": DecodeOptions(policy=StaticPolicy(2), execution=Execution.STATIC),
    "threshold": DecodeOptions(policy=ThresholdPolicy(0.5)),
    "cap-accept": DecodeOptions(policy=ThresholdPolicy(0.5), verify_mode=VerifyMode.CAP_ACCEPT),
    "prefix": DecodeOptions(policy=PrefixPolicy()),
    "prefix-global": DecodeOptions(policy=PrefixPolicy(mode="global")),
    "uniform": DecodeOptions(policy=UniformPolicy(), execution=Execution.STATIC),
    "folded": DecodeOptions(execution=Execution.FOLDED),
}
"""Ways to decode; each is a service of its own, and the requests are dealt out among them."""

RUNTIME_MODES: Final[Mapping[str, DecodeOptions]] = {
    "graph": DecodeOptions(execution=Execution.GRAPH),
    "graph, prefix": DecodeOptions(policy=PrefixPolicy(), execution=Execution.GRAPH),
    "graph, uniform": DecodeOptions(policy=UniformPolicy(), execution=Execution.GRAPH),
    "folded": DecodeOptions(execution=Execution.FOLDED),
    "folded, two rows": DecodeOptions(policy=StaticPolicy(2), execution=Execution.FOLDED),
    "folded, threshold": DecodeOptions(policy=ThresholdPolicy(0.5), execution=Execution.FOLDED),
    "folded, seven drafts alone": DecodeOptions(execution=Execution.FOLDED, runtimes=RuntimeOptions(solo_gamma=7)),
    "folded, side streams": DecodeOptions(execution=Execution.FOLDED, runtimes=RuntimeOptions(side_streams=True)),
}
"""Ways whose steps are captured in graphs on a GPU."""


@dataclass(frozen=True, slots=True)
class SoakSpec:
    """What is run.

    Attributes:
        prompts: token ids; each is decoded alone once, and many requests continue it.
        requests: how many, over all modes.
        longest: most tokens of a request.
        max_batch, cache_pages: of every service, see `DecodeOptions`.
        sampled, cancelled, stopped: shares of the requests that are sampled, cancelled on the way, or have a stop
            string (only with a tokenizer).
        seed: of everything that is drawn.
    """

    prompts: Sequence[tuple[int, ...]]
    requests: int = 200
    longest: int = 12
    max_batch: int = 6
    cache_pages: int = 5
    sampled: float = 0.25
    cancelled: float = 0.06
    stopped: float = 0.1
    seed: int = 0


@dataclass(slots=True)
class SoakReport:
    """What came out.

    Attributes:
        modes: requests by mode.
        finishes: requests by why they ended.
        compared: requests whose tokens were compared with those of the same request alone: all greedy ones.
        different: what differs, one text each; empty is what is wanted.
        leaked: what was still held when a service had nothing left to do; empty is what is wanted.
        waited: steps at which a request waited for pages while a slot was free.
        metrics: counts by mode.
    """

    modes: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    waited: int = 0
    metrics: dict[str, DecodeMetrics] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it with plain types."""
        return {
            "modes": dict(self.modes),
            "finishes": dict(self.finishes),
            "compared": self.compared,
            "different": self.different,
            "leaked": self.leaked,
            "waited": self.waited,
            "metrics": {mode: metrics.to_json() for mode, metrics in self.metrics.items()},
        }


def run_soak(model: Model, spec: SoakSpec, modes: Mapping[str, DecodeOptions] = MODES) -> SoakReport:
    """Return what became of many requests in all modes.

    Every greedy request must give the tokens of plain decoding of its prompt alone, up to where it ends; a cancelled
    one the first of them. Sampled requests run among them and are counted; that their law is right is another test's.
    """
    alone = [
        decode_plain(model, [Request(prompt, spec.longest)], DecodeOptions(max_batch=1)).results[0]
        for prompt in spec.prompts
    ]
    rng, report = random.Random(spec.seed), SoakReport()
    for number, (mode, options) in enumerate(modes.items()):
        count = (spec.requests + number) // len(modes)
        asked = [_request(model, spec, alone, rng) for _ in range(count)]
        options = replace(options, max_batch=spec.max_batch, cache_pages=spec.cache_pages)
        _serve(model, options, asked, alone, spec, rng, report, mode)
    return report


def _request(model: Model, spec: SoakSpec, alone: Sequence[Result], rng: random.Random) -> tuple[int, Request]:
    which = rng.randrange(len(spec.prompts))
    temperature = rng.uniform(0.3, 1.2) if rng.random() < spec.sampled else 0.0
    request = Request(
        spec.prompts[which], rng.randint(1, spec.longest), SamplingParams(temperature, seed=rng.randrange(1 << 20))
    )
    if model.tokenizer is not None and rng.random() < spec.stopped:
        text = model.tokenizer.decode(alone[which].tokens)
        begin = rng.randrange(max(len(text) - 2, 1))
        request = replace(request, stop=(text[begin : begin + 2],) if text[begin : begin + 2] else ())
    return which, request


def _serve(
    model: Model,
    options: DecodeOptions,
    asked: Sequence[tuple[int, Request]],
    alone: Sequence[Result],
    spec: SoakSpec,
    rng: random.Random,
    report: SoakReport,
    mode: str,
) -> None:
    service, arriving = Service(model, options), deque(asked)
    taken: dict[int, tuple[int, Request]] = {}
    running: set[int] = set()
    results: dict[int, Result] = {}
    texts: Counter[int] = Counter()
    shown: dict[int, str] = {}
    while arriving or service:
        for _ in range(min(len(arriving), rng.randrange(7))):
            which, request = arriving.popleft()
            number = service.submit(request)
            taken[number] = which, request
            running.add(number)
        if running and rng.random() < spec.cancelled * 2:
            service.cancel(rng.choice(sorted(running)))
        for update in service.step():
            shown[update.number] = shown.get(update.number, "") + update.text
            texts[update.number] += len(update.tokens)
            if update.result is not None:
                results[update.number] = update.result
                running.discard(update.number)
        report.waited += service.load().short_of_pages > 0
    for number, (which, request) in taken.items():
        report.modes[mode] += 1
        report.finishes[results[number].finish.value] += 1
        fault = _fault(model, request, results[number], alone[which])
        if texts[number] != len(results[number].tokens):
            fault = fault or f"{texts[number]} tokens were streamed, and {len(results[number].tokens)} are the result"
        if request.sampling.greedy:
            report.compared += 1
        if fault:
            report.different.append(f"{mode}, request {number}: {fault}")
    report.leaked += [f"{mode}: {text}" for text in service.leaks()]
    report.metrics[mode] = service.metrics()


def _fault(model: Model, request: Request, result: Result, alone: Result) -> str:
    """Return how a result is not what the request alone gives, or an empty text."""
    count = len(result.tokens)
    if count > request.max_tokens:
        return f"{count} tokens, and {request.max_tokens} were asked for"
    if not request.sampling.greedy:
        return ""
    if result.tokens != alone.tokens[:count]:
        return f"tokens {result.tokens}, alone {alone.tokens[:count]}"
    if result.finish is Finish.MAX_TOKENS and count != request.max_tokens:
        return f"ended for its length with {count} tokens, and {request.max_tokens} were asked for"
    if request.stop and model.tokenizer is not None:
        whole = model.tokenizer.decode(result.tokens)
        at = whole.find(request.stop[0])
        if result.text != (whole if at < 0 else whole[:at]) or (result.finish is Finish.STOP) != (at >= 0):
            return f"text {result.text!r} of {whole!r} with the stop string {request.stop[0]!r}"
    return ""

"""The runs of the decode verb: with DSpark, plainly, or both, shown as they go."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops.cli._decode_shown import shown

if TYPE_CHECKING:
    from dspark_ops.decode import DecodeOptions, Generation, Model, Request


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is to be run.

    Attributes:
        model, texts, requests, options: what and how.
        speculative: run DSpark.
        plain: run plain decoding.
    """

    model: Model
    texts: list[str]
    requests: list[Request]
    options: DecodeOptions
    speculative: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """What was run and what it gave; a run that was not asked for is None."""

    arguments: Arguments
    speculative: Generation | None
    plain: Generation | None

    @property
    def main(self) -> Generation:
        """The run that the caller asked for; its text is what is shown."""
        found = self.speculative or self.plain
        if found is None:
            raise ValueError("a run has at least one part")
        return found

    @property
    def greedy(self) -> bool:
        """Whether every request takes the most likely token."""
        return all(request.sampling.greedy for request in self.arguments.requests)

    @property
    def identical(self) -> bool | None:
        """Whether both runs gave the same tokens; None if they need not, being sampled, or were not both made."""
        if self.speculative is None or self.plain is None or not self.greedy:
            return None
        pairs = zip(self.speculative.results, self.plain.results, strict=True)
        return all(left.tokens == right.tokens for left, right in pairs)


def run_decode(arguments: Arguments, quiet: bool) -> DecodeRun:
    """Return the results of all runs.

    A terminal sees the text of a single prompt grow above a bar of finished prompts. Elsewhere that text is written as
    it comes, and there is no bar. `quiet` writes nothing.

    Raises:
        ModelError: a prompt or an option cannot be served; nothing has been written then.
    """
    from dspark_ops.decode import decode_plain, generate
    from dspark_ops.decode.admission import check_requests

    model, requests, options = arguments.model, arguments.requests, arguments.options
    check_requests(model, requests, options)
    speculative = plain = None
    simulated = options.forced is not None
    with right_numbers(model.plan(options.gamma, simulated=simulated).device.features):
        model.ops(options.gamma, simulated=simulated)
        if arguments.speculative:
            with shown(arguments, "DSpark", quiet, text=True) as show:
                speculative = generate(model, requests, options, on_tokens=show.tokens, on_result=show.result)
        if arguments.plain:
            with shown(arguments, "plain", quiet, text=speculative is None) as show:
                plain = decode_plain(model, requests, options, on_tokens=show.tokens, on_result=show.result)
    return DecodeRun(arguments, speculative, plain)


def right_numbers(features: Collection[str]) -> AbstractContextManager[None]:
    """Repair Triton's interpreter where it is what runs the kernels: as shipped it rounds and multiplies wrongly."""
    if "triton_interpreter" not in features:
        return nullcontext()
    from dspark_ops.conformance.interpreter import repaired_interpreter

    return repaired_interpreter()

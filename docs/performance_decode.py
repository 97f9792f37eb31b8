"""What the record of the small model's decoding on a GPU says, as lines of a page. No file is read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def section(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about the tokens that the GPU gives, beside the CPU's."""
    yield "\n## The small model on the GPU\n"
    yield (
        f"{report['prompts']} shipped prompts, {report['tokens']} greedy tokens: {report['identical_prompts']} prompts "
        f"give the CPU's tokens to the last one."
    )
    if "note" in report:
        yield report["note"]
    if "same_as_plain_on_the_gpu" in report:
        yield f"DSpark gives what plain decoding on the GPU gives for {report['same_as_plain_on_the_gpu']} of them."
    if not report["differences"]:
        return
    yield (
        "\nAll differences are listed. Kernels and references round sums differently, by a unit of bfloat16 here and "
        "there, and two logits that are close can change places. What a unit can do was tried on the CPU alone: one "
        "per cent of all operators' bfloat16 outputs moved by one unit at random changes the logits at these places by "
        "what the last column says."
    )
    if "usual_deviation" in report:
        usual = report["usual_deviation"]
        yield (
            f"At the end of other texts the GPU's logits differ from the CPU's by {usual['median']:.3f} in the median "
            f"and {usual['largest']:.3f} at most."
        )
    yield "\n| prompt | first different token | CPU logits | apart by | GPU's off by | a unit in 1 % moves them by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in report["differences"]:
        logits = " and ".join(f"{value:.3f}" for value in one["logits"])
        off = "-" if one.get("deviation") is None else f"{one['deviation']:.3f}"
        yield f"| {one['prompt']} | {one['at']} | {logits} | {one['distance']:.3f} | {off} | {one['noise']:.3f} |"
